"""Retry policy: how often a command is tried, and what ends it.

`commandbus.worker.outcomes` applies it to a failed attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from commandbus.errors import Fail, InvalidSettingError, PermanentCommandError

DEFAULT_MAX_ATTEMPTS = 3
#: Seconds after the first, second, third failure; the last one repeats.
DEFAULT_BACKOFF_SCHEDULE = (10.0, 60.0, 300.0)
MAX_ATTEMPTS_LIMIT = 1_000
#: One year, in seconds.
MAX_BACKOFF_SECONDS = 31_536_000.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a command is tried, how long it waits in between, and what ends it.

    `permanent_errors` are exceptions that no retry can fix, beside PermanentCommandError and Fail.
    `when_exhausted="fail"` ends a command as FAILED, with a reply, where the default parks it
    in troubleshooting for an operator.

    `count_lapses` says when a lease that ended without a result is an attempt: "every" one, or, by
    default, only that of a "suspect", which ran alone after its lease had lapsed twice in a row.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff_schedule: Sequence[float] = DEFAULT_BACKOFF_SCHEDULE
    permanent_errors: tuple[type[BaseException], ...] = ()
    when_exhausted: Literal["troubleshoot", "fail"] = "troubleshoot"
    count_lapses: Literal["suspect", "every"] = "suspect"

    def __post_init__(self) -> None:
        check_max_attempts(self.max_attempts)
        if not _is_schedule(self.backoff_schedule):
            raise InvalidSettingError(
                f"backoff_schedule is {self.backoff_schedule!r}; use a list of seconds, each from "
                f"0 to {MAX_BACKOFF_SECONDS:,.0f}"
            )
        object.__setattr__(self, "backoff_schedule", tuple(self.backoff_schedule))
        if not _are_exceptions(self.permanent_errors):
            raise InvalidSettingError(
                f"permanent_errors is {self.permanent_errors!r}; use a tuple of exception classes"
            )
        if self.when_exhausted not in {"troubleshoot", "fail"}:
            raise InvalidSettingError(
                f"when_exhausted is {self.when_exhausted!r}; use 'troubleshoot' or 'fail'"
            )
        if self.count_lapses not in {"suspect", "every"}:
            raise InvalidSettingError(
                f"count_lapses is {self.count_lapses!r}; use 'suspect' or 'every'"
            )

    def delay_after(self, attempt: int) -> float:
        """Seconds to wait after the n-th failed attempt (1 for the first)."""
        if not self.backoff_schedule:
            return 0.0
        return float(self.backoff_schedule[min(attempt, len(self.backoff_schedule)) - 1])

    def is_permanent(self, error: BaseException) -> bool:
        """Whether no retry can fix this error."""
        return isinstance(error, (PermanentCommandError, Fail, *self.permanent_errors))


def check_max_attempts(value: int) -> int:
    """Return the number of attempts, or raise InvalidSettingError."""
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS_LIMIT:
        raise InvalidSettingError(
            f"max_attempts is {value!r}; use a whole number from 1 to {MAX_ATTEMPTS_LIMIT}"
        )
    return value


def _is_schedule(value: object) -> bool:
    return isinstance(value, Sequence) and all(
        type(seconds) in {int, float} and 0 <= seconds <= MAX_BACKOFF_SECONDS for seconds in value
    )


def _are_exceptions(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    )
