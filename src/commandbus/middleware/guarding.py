"""Guarding: a built-in middleware never fails a command, nor a send."""

from __future__ import annotations

import logging
import time
from types import TracebackType

#: Seconds until a built-in middleware complains again.
WARN_EVERY_SECONDS = 60.0

_log = logging.getLogger("commandbus.middleware")


class Guard:
    """Swallows the errors of one middleware, and warns of them once a minute: `with guard:`.

    It keeps nothing of a block, so that all commands and threads may use one object at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned_at = float("-inf")

    def __enter__(self) -> None:
        """Begin a block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Swallow an error; what ends the task or the process passes."""
        if kind is None or not issubclass(kind, Exception):
            return False
        self.warn(kind.__name__)  # its text may have anything in it
        return True

    def warn(self, what: str) -> None:
        """Say it, unless something was said of this middleware within the minute."""
        now = time.monotonic()
        if now - self._warned_at < WARN_EVERY_SECONDS:
            return
        self._warned_at = now
        _log.warning("%s does not work, commands go on without it: %s", self._name, what)
