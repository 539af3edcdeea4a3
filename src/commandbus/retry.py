"""Retry policy: how often a command is tried, and what ends it.

`commandbus.worker.outcomes` applies it to a failed attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from commandbus.errors import Fail, InvalidSettingError, PermanentCommandError
from commandbus.outcomes import CHOSEN, MAX_DELAY_SECONDS

DEFAULT_MAX_ATTEMPTS = 3
#: Seconds after the first, second, third failure; the last one repeats.
DEFAULT_BACKOFF_SCHEDULE = (10.0, 60.0, 300.0)
MAX_ATTEMPTS_LIMIT = 1_000
#: One year, in seconds.
MAX_BACKOFF_SECONDS = MAX_DELAY_SECONDS
MAX_SNOOZES_LIMIT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Exponential:
    """A backoff that grows by `factor` with each failure, up to `cap` seconds.

    The delay after the n-th failure is min(cap, first * factor ** (n - 1)), less up to the part
    `jitter` of it, so that commands which failed together do not all come back together. How much
    is taken from a hash of the command's id and the attempt: the same in each process.
    """

    first: float = 10.0
    factor: float = 2.0
    cap: float = 3_600.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        _check_range("first", self.first, 0.0, MAX_BACKOFF_SECONDS)
        _check_range("factor", self.factor, 1.0, 1_000.0)
        _check_range("cap", self.cap, 0.0, MAX_BACKOFF_SECONDS)
        _check_range("jitter", self.jitter, 0.0, 1.0)
        if self.cap < self.first:
            raise InvalidSettingError(
                f"cap of Exponential is {self.cap!r} and first is {self.first!r}; the cap must not "
                "be below the first delay"
            )

    def delay_after(self, attempt: int, command_id: UUID | None = None) -> float:
        """Seconds to wait after the n-th failed attempt; without a command the longest."""
        try:
            delay = min(self.cap, self.first * self.factor ** (attempt - 1))
        except OverflowError:  # far above any cap
            delay = self.cap
        part = 0.0 if command_id is None else _part_of_one(command_id, attempt)
        return float(delay * (1 - self.jitter * part))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a command is tried, how long it waits in between, and what ends it.

    `backoff` is used in place of `backoff_schedule`, which has a delay for each failure.
    `permanent_errors` are exceptions that no retry can fix, beside PermanentCommandError and Fail.
    `when_exhausted="fail"` ends a command as FAILED, with a reply, where the default parks it
    in troubleshooting for an operator.

    `count_lapses` says when a lease that ended without a result is an attempt: "every" one, or, by
    default, only that of a "suspect", which ran alone after its lease had lapsed twice in a row.

    `max_snoozes`: so often a handler may say Snooze of one command; the next one is a failure.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff_schedule: Sequence[float] = DEFAULT_BACKOFF_SCHEDULE
    permanent_errors: tuple[type[BaseException], ...] = ()
    when_exhausted: Literal["troubleshoot", "fail"] = "troubleshoot"
    count_lapses: Literal["suspect", "every"] = "suspect"
    backoff: Exponential | None = None
    max_snoozes: int | None = None

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
        self._check_backoff()
        snoozes = self.max_snoozes
        if snoozes is not None and (
            type(snoozes) is not int or not 0 <= snoozes <= MAX_SNOOZES_LIMIT
        ):
            raise InvalidSettingError(
                f"max_snoozes is {snoozes!r}; use a whole number from 0, or None for no limit"
            )

    def _check_backoff(self) -> None:
        if self.backoff is None:
            return
        if not isinstance(self.backoff, Exponential):
            raise InvalidSettingError(f"backoff is {self.backoff!r}; use Exponential(…), or None")
        # By equality: a copy with dataclasses.replace has the default as well.
        if self.backoff_schedule != DEFAULT_BACKOFF_SCHEDULE:
            raise InvalidSettingError("backoff and backoff_schedule are both given; use one")

    def delay_after(self, attempt: int, command_id: UUID | None = None) -> float:
        """Seconds to wait after the n-th failed attempt (1 for the first) of this command."""
        if self.backoff is not None:
            return self.backoff.delay_after(attempt, command_id)
        if not self.backoff_schedule:
            return 0.0
        return float(self.backoff_schedule[min(attempt, len(self.backoff_schedule)) - 1])

    def is_permanent(self, error: BaseException) -> bool:
        """Whether no retry can fix this error."""
        if isinstance(error, CHOSEN):
            return False
        return isinstance(error, (PermanentCommandError, Fail, *self.permanent_errors))

    def allows_snooze(self, snoozes: int) -> bool:
        """Whether a command that was snoozed so often may be snoozed once more."""
        return self.max_snoozes is None or snoozes < self.max_snoozes


def check_max_attempts(value: int) -> int:
    """Return the number of attempts, or raise InvalidSettingError."""
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS_LIMIT:
        raise InvalidSettingError(
            f"max_attempts is {value!r}; use a whole number from 1 to {MAX_ATTEMPTS_LIMIT}"
        )
    return value


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if type(value) not in {int, float} or not least <= value <= most:
        raise InvalidSettingError(
            f"{name} of Exponential is {value!r}; use a number from {least:g} to {most:,.15g}"
        )


def _part_of_one(command_id: UUID, attempt: int) -> float:
    """From 0 to below 1, evenly spread over commands and attempts."""
    from hashlib import blake2b  # noqa: PLC0415  (not at the start)

    digest = blake2b(command_id.bytes + attempt.to_bytes(8, "big"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def _is_schedule(value: object) -> bool:
    return isinstance(value, Sequence) and all(
        type(seconds) in {int, float} and 0 <= seconds <= MAX_BACKOFF_SECONDS for seconds in value
    )


def _are_exceptions(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    )
