"""What a handler can say of its command beside success and failure; `Fail` is in errors.py.

A handler raises or returns one of them. They are errors so that code deep inside can say so too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commandbus.errors import HandlerError, InvalidSettingError

#: One year, in seconds: no command waits longer for its next attempt.
MAX_DELAY_SECONDS = 31_536_000.0
#: Characters of a reason that are kept.
MAX_REASON = 500


class RetryAfter(HandlerError):  # noqa: N818  (what a handler says; nothing went wrong with the bus)
    """The attempt failed, and the next one is due after `seconds`, whatever the backoff says.

    It counts: without an attempt left the retry policy decides what becomes of the command.
    """

    def __init__(
        self,
        seconds: float,
        code: str = "RETRY_AFTER",
        message: str = "the handler asked for another attempt",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.seconds = check_delay(seconds, "RetryAfter")
        super().__init__(code, message, details)


class Snooze(HandlerError):  # noqa: N818
    """Nothing failed, it is too early: the command is due again after `seconds`, uncounted.

    `ctx.snoozes` says how often that was so before; `RetryPolicy(max_snoozes=)` limits it.
    """

    def __init__(self, seconds: float, reason: str | None = None) -> None:
        self.seconds = check_delay(seconds, "Snooze")
        self.reason = None if reason is None else _check_reason(reason, "Snooze")
        super().__init__("SNOOZED", reason or "the handler wants it later")


class Discard(HandlerError):  # noqa: N818
    """The command is not needed any more: it ends as CANCELED at once, with a reply."""

    def __init__(self, reason: str = "the handler discarded it") -> None:
        self.reason = _check_reason(reason, "Discard")
        super().__init__("DISCARDED", reason)


#: They say what becomes of the command, whatever its retry policy calls permanent.
CHOSEN = (RetryAfter, Snooze, Discard)


def check_delay(seconds: float, what: str) -> float:
    """Return a delay, or raise InvalidSettingError."""
    if type(seconds) not in {int, float} or not 0 <= seconds <= MAX_DELAY_SECONDS:
        raise InvalidSettingError(
            f"seconds of {what} is {seconds!r}; use a number from 0 to {MAX_DELAY_SECONDS:,.0f}"
        )
    return float(seconds)


def _check_reason(reason: str, what: str) -> str:
    if not isinstance(reason, str):
        raise InvalidSettingError(f"reason of {what} is {reason!r}; use a text")
    return reason
