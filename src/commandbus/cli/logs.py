"""Log lines of the program: how much, in which form; to stderr, each of them once."""

from __future__ import annotations

import enum
import logging
import sys
from dataclasses import dataclass
from typing import Annotated, Any, TextIO

from commandbus.cli.declared import option
from commandbus.logging import JsonFormatter, TextFormatter

_log = logging.getLogger("commandbus.cli")


class LogLevel(enum.StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Logs:
    """What a process that runs on writes to stderr."""

    log_level: Annotated[
        LogLevel, option("--log-level", help="How much to log, to stderr.")
    ] = LogLevel.INFO  # fmt: skip
    log_format: Annotated[
        LogFormat,
        option(
            "--log-format", help="Lines of text, or JSON with the ids of commands.",
            envvar="COMMANDBUS_LOG_FORMAT",
        ),
    ] = LogFormat.TEXT  # fmt: skip

    def start(self) -> None:
        """Log like this from now on."""
        start_logging(self.log_level, self.log_format)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at the time, as the rest of the program does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> Any:
        """Leave out what a handler of the application writes to the terminal itself."""
        return super().filter(record) and not _is_shown(record)


def start_logging(level: str, form: LogFormat = LogFormat.TEXT) -> None:
    """Log lines go to stderr, unless the application has handlers of its own that show them."""
    root = logging.getLogger()
    ours = next((each for each in root.handlers if isinstance(each, _StderrHandler)), None)
    if ours is None:
        ours = _StderrHandler()
        root.addHandler(ours)
    ours.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    if not any(_is_terminal(each) for each in root.handlers):
        root.setLevel(level.upper())
        return
    # The application decides what is logged of everything else, and how it looks.
    library = logging.getLogger("commandbus")
    if library.level in {logging.NOTSET, *_set_here}:
        library.setLevel(level.upper())
        _set_here.add(library.level)
    if form is LogFormat.JSON:
        _log.warning(
            "the application configures logging itself, so --log-format json does not change its "
            "lines; use commandbus.logging.JsonFormatter as the formatter there"
        )


#: Levels of the logger `commandbus` that were set here, and not by the application.
_set_here: set[int] = set()


def _is_terminal(handler: logging.Handler) -> bool:
    """Whether a handler of the application writes to stdout or stderr."""
    if isinstance(handler, _StderrHandler):
        return False
    streams = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    stream = getattr(handler, "stream", None)
    return stream is not None and any(stream is each for each in streams)


def _is_shown(record: logging.LogRecord) -> bool:
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        for each in logger.handlers:
            if _is_terminal(each) and record.levelno >= each.level and each.filter(record):
                return True
        logger = logger.parent if logger.propagate else None
    return False
