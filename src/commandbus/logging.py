"""Logs with the ids of the command that is being handled, as text or as JSON, without its secrets.

Standard logging: a library adds no handlers, and the application decides what is written where.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

from commandbus.privacy.redaction import redact_text, redact_value
from commandbus.privacy.values import NONE, Secrets

__all__ = ["CommandContextFilter", "JsonFormatter", "TextFormatter", "contextvars"]

#: The fields that a record has while a command is being handled, in their order.
FIELDS = (
    "domain", "command_type", "command_id", "correlation_id", "attempt", "worker_id", "trace_id",
    "span_id",
)  # fmt: skip
#: Bytes of an exception that are written, of its end: there it says what happened.
MAX_EXCEPTION_BYTES = 16_384
#: Characters of a message, and of one piece of an exception: a frame, or its own text.
MAX_MESSAGE = 16_384
MAX_PIECE = 4_096
#: Frames of each exception in a chain.
MAX_FRAMES = 30

#: What Python itself puts on each record, and what formatters leave there.
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class Handled(Protocol):
    """An attempt at a command, as logs see it."""

    def log_fields(self) -> Mapping[str, str | int | None]:
        """Its ids. Called when a record is written, not for each command."""

    def log_secrets(self) -> Secrets:
        """The secret values of its payload."""


#: What is handled here. Each handler runs in a task or thread with a context of its own, so setting
#: it is all that a command pays; nothing is computed before something is logged.
HANDLED: ContextVar[Handled | None] = ContextVar("commandbus_handled", default=None)


def contextvars(
    logger: object = None, method: str = "", event: MutableMapping[str, Any] | None = None
) -> dict[str, Any]:
    """The ids of the command that is being handled; none outside of handlers.

    With the arguments of a structlog processor it is one: the ids join what is logged.
    """
    del logger, method
    handled = HANDLED.get()
    found: dict[str, Any] = {} if handled is None else dict(handled.log_fields())
    found |= _span()
    present = {name: found[name] for name in FIELDS if found.get(name) is not None}
    return present if event is None else {**present, **event}


def _span() -> dict[str, str]:
    """The span that OpenTelemetry has open here, if the application uses it."""
    tracing: Any = sys.modules.get("opentelemetry.trace")
    try:
        span = tracing.get_current_span().get_span_context()
        if span.is_valid:
            return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    except AttributeError:  # not loaded, or not whole yet
        pass
    return {}


class CommandContextFilter(logging.Filter):
    """Puts the ids on all records of a handler of logging, as attributes; empty texts elsewhere.

    A format string can then say `%(command_id)s`. It lets every record pass, and changes no
    attribute that is there already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing."""
        found = contextvars()
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, found.get(name, ""))
        return True


class TextFormatter(logging.Formatter):
    """A line of text: time, level, logger, message; then the exception, without secrets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        record.asctime = self.formatTime(record)
        line = f"{record.asctime} {record.levelname} {record.name} {_message(record)}"
        return "\n".join(filter(None, (line, exception_text(record), record.stack_info)))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts level logger msg`, the ids, `extra=` of the call, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        shown: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "msg": _message(record),
        }
        given = vars(record)
        # What a filter left on the record comes first: a queue may be between here and the handler.
        ids = contextvars()
        for name in FIELDS:
            value = given.get(name) or ids.get(name)
            if value is not None and value != "":
                shown[name] = value if isinstance(value, int) else str(value)
        more = {name: given[name] for name in given.keys() - _OWN - shown.keys() - set(FIELDS)}
        if more:
            secrets = _secrets()
            shown |= {
                name: redact_value({name: more[name]}, marked=secrets.marked, secrets=secrets)[name]
                for name in sorted(more)
            }
        if exception := exception_text(record):
            shown["exception"] = exception
        if record.stack_info:
            shown["stack"] = record.stack_info
        return json.dumps(shown)


def exception_text(record: logging.LogRecord) -> str | None:
    """The exception of a record without the secrets of the command's payload, at most 16 KiB.

    What another formatter left on the record is not used: it is as it was raised. The worker's own
    records bring a text that is redacted, and no exception.
    """
    if not record.exc_info or record.exc_info[1] is None:
        return record.exc_text
    secrets = _secrets()
    error = record.exc_info[1]
    pieces = traceback.format_exception(
        type(error), error, record.exc_info[2], limit=-MAX_FRAMES
    )  # fmt: skip
    return _end_of([redact_text(piece, MAX_PIECE, secrets=secrets) for piece in _last(pieces)])


def _last(pieces: list[str]) -> Iterable[str]:
    """The last pieces; more of them are never shown."""
    return pieces[-4 * MAX_FRAMES :]


def _end_of(pieces: list[str]) -> str:
    data = "".join(pieces).rstrip("\n").encode("utf-8", "replace")
    if len(data) <= MAX_EXCEPTION_BYTES:
        return data.decode()
    mark = "…\n"
    return mark + data[len(mark.encode()) - MAX_EXCEPTION_BYTES :].decode("utf-8", "ignore")


def _secrets() -> Secrets:
    """The secret values of the payload of the command that is being handled."""
    handled = HANDLED.get()
    return NONE if handled is None else handled.log_secrets()


def _message(record: logging.LogRecord) -> str:
    """What is said, without the secrets of the payload: a handler logs what it was given."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001  (a wrong format must not cost the line)
        text = f"{record.msg} (its arguments do not fit)"
    text = _secrets().masked(text)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
