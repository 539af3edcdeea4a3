"""The log of failed attempts: one line for each, and the traceback once a minute for each cause.

The traceback is a text of ours in the record's `exc_text`, where formatters look for one.
`exc_info` stays empty: Python's formatter, and tools that send records elsewhere, would take from
it the message as it was raised, and the values of local variables, with the payload's secrets.
"""

from __future__ import annotations

import logging
import time

from commandbus.database.model import Failure, Lease
from commandbus.handler import HandlerEntry
from commandbus.payload import decode_payload
from commandbus.privacy.values import secret_values
from commandbus.worker.log_fields import fields_of
from commandbus.worker.stacks import place_of, traceback_text

#: Seconds after which the traceback of one cause is logged again.
FULL_EVERY_SECONDS = 60.0
#: Causes that are remembered.
MAX_CAUSES = 1_000

_log = logging.getLogger("commandbus.worker")

_Cause = tuple[str, str, str, str, str | None]


class Sightings:
    """When the traceback of each cause was logged last, and how often it was seen since."""

    def __init__(self) -> None:
        self._seen: dict[_Cause, tuple[float, int]] = {}

    def due(self, cause: _Cause, now: float) -> str | None:
        """What to say of those that were not shown; None if the traceback is not due yet."""
        before, held = self._seen.get(cause, (None, 0))
        if before is not None and now - before < FULL_EVERY_SECONDS:
            self._seen[cause] = (before, held + 1)
            return None
        self._seen.pop(cause, None)  # to the end: the oldest are forgotten first
        self._seen[cause] = (now, 0)
        if len(self._seen) > MAX_CAUSES:
            del self._seen[next(iter(self._seen))]
        return f" ({held} more like this in the last {now - (before or now):.0f} s)" if held else ""


# Logs belong to the process, so this does too. Used by the event loop's thread only.
_sightings = Sightings()


def log_retry(
    lease: Lease, entry: HandlerEntry, error: BaseException, failure: Failure, delay: float
) -> None:
    """One line; the traceback only at DEBUG."""
    _write(lease, logging.INFO, _line(lease, failure, f"next try in {delay:g} s"))
    _log_traceback(lease, entry, error, failure)


def log_chosen(lease: Lease, what: str, reason: str | None) -> None:
    """One line about a command whose handler chose what becomes of it."""
    why = f": {' '.join(reason.split())}" if reason else ""
    where = f"{lease.domain} {lease.command_type} {lease.command_id}"
    _write(lease, logging.INFO, f"{where} was {what} by its handler{why}")


def log_end(
    lease: Lease,
    failure: Failure,
    become: str,
    entry: HandlerEntry | None = None,
    error: BaseException | None = None,
) -> None:
    """A command that is parked, or has failed for good: `become` says which."""
    line = _line(lease, failure, f"{become}; see `commandbus show {lease.command_id} --stack`")
    if entry is None or error is None:
        _write(lease, logging.WARNING, line)
        return
    cause = (
        lease.domain, lease.command_type, failure.error_type, failure.code, place_of(failure.stack),
    )  # fmt: skip
    more = _sightings.due(cause, time.monotonic())
    if more is None:
        _write(lease, logging.WARNING, line)
        _log_traceback(lease, entry, error, failure)
    elif _log.isEnabledFor(logging.WARNING):
        _write(lease, logging.WARNING, line + more, _traceback(lease, entry, error, failure))


def _line(lease: Lease, failure: Failure, then: str) -> str:
    stack = failure.stack or {}
    where = place_of(failure.stack)
    kind = " ".join(filter(None, (failure.error_type, stack.get("exception"))))
    at = f" at {where}" if where else ""
    message = " ".join(failure.message.split())  # an error text may have several lines
    return (
        f"{lease.domain} {lease.command_type} {lease.command_id} failed on attempt {lease.attempt} "
        f"of {lease.max_attempts}: {failure.code}: {message} ({kind}){at}; {then}"
    )


def _log_traceback(
    lease: Lease, entry: HandlerEntry, error: BaseException, failure: Failure
) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        text = _traceback(lease, entry, error, failure)
        line = f"{lease.command_id}, attempt {lease.attempt}: its traceback"
        _write(lease, logging.DEBUG, line, text)


def _traceback(lease: Lease, entry: HandlerEntry, error: BaseException, failure: Failure) -> str:
    secrets = secret_values(decode_payload(lease.payload), entry.secret_keys)
    return traceback_text(error, failure.message, secrets)


def _write(lease: Lease, level: int, line: str, text: str | None = None) -> None:
    if not _log.isEnabledFor(level):
        return
    extra = fields_of(lease)  # not every lease is a worker's, which has them in its context
    path, number, function, _ = _log.findCaller()
    record = _log.makeRecord(
        _log.name, level, path, number, "%s", (line,), None, function, extra
    )  # fmt: skip
    record.exc_text = text
    _log.handle(record)
