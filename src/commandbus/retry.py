"""Retry policy: what becomes of a failed attempt. Pure functions; no clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from commandbus.errors import InvalidSettingError, PermanentCommandError
from commandbus.models import Failure, ParkReason
from commandbus.privacy.redaction import redact_details, redact_text, text_of

DEFAULT_MAX_ATTEMPTS = 3
#: Seconds after the first, second, third failure; the last one repeats.
DEFAULT_BACKOFF_SCHEDULE = (10.0, 60.0, 300.0)
MAX_ATTEMPTS_LIMIT = 1_000
#: One year, in seconds.
MAX_BACKOFF_SECONDS = 31_536_000.0

TRANSIENT = "TRANSIENT"
PERMANENT = "PERMANENT"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a command is tried, how long it waits in between, and what ends it.

    `permanent_errors` are exceptions that no retry can fix, beside PermanentCommandError.
    `when_exhausted="fail"` ends a command as FAILED, with a reply, where the default parks it
    in troubleshooting for an operator.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff_schedule: Sequence[float] = DEFAULT_BACKOFF_SCHEDULE
    permanent_errors: tuple[type[BaseException], ...] = ()
    when_exhausted: Literal["troubleshoot", "fail"] = "troubleshoot"

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

    def delay_after(self, attempt: int) -> float:
        """Seconds to wait after the n-th failed attempt (1 for the first)."""
        if not self.backoff_schedule:
            return 0.0
        return float(self.backoff_schedule[min(attempt, len(self.backoff_schedule)) - 1])


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again after this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Park:
    """Into troubleshooting, for this reason."""

    reason: ParkReason


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End as FAILED, with a reply."""


Decision = RetryAfter | Park | GiveUp


def check_max_attempts(value: int) -> int:
    """Return the number of attempts, or raise InvalidSettingError."""
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS_LIMIT:
        raise InvalidSettingError(
            f"max_attempts is {value!r}; use a whole number from 1 to {MAX_ATTEMPTS_LIMIT}"
        )
    return value


def decide(error: BaseException, attempt: int, max_attempts: int, policy: RetryPolicy) -> Decision:
    """Decide what becomes of a command whose attempt failed with this error."""
    if is_permanent(error, policy):
        return _end(policy, ParkReason.PERMANENT)
    if attempt >= max_attempts:
        return _end(policy, ParkReason.EXHAUSTED)
    return RetryAfter(policy.delay_after(attempt))


def is_permanent(error: BaseException, policy: RetryPolicy) -> bool:
    """Say whether no retry can fix this error."""
    return isinstance(error, (PermanentCommandError, *policy.permanent_errors))


def describe_failure(
    error: BaseException,
    policy: RetryPolicy,
    *,
    marked: Collection[str] = (),
    secrets: Sequence[str] = (),
) -> Failure:
    """Turn an exception into what is stored of it: class, code, redacted text and details.

    `marked` are the secret keys of the payload's type, `secrets` its values that must not be shown.
    """
    code = getattr(error, "code", None)
    message = getattr(error, "message", None)
    details = getattr(error, "details", None)
    return Failure(
        error_type=PERMANENT if is_permanent(error, policy) else TRANSIENT,
        code=redact_text(
            str(code if isinstance(code, str) else type(error).__name__), 200, secrets=secrets
        ),
        message=redact_text(
            message if isinstance(message, str) else text_of(error), secrets=secrets
        ),
        details=redact_details(details, marked=marked, secrets=secrets)
        if isinstance(details, dict)
        else None,
    )


def _is_schedule(value: object) -> bool:
    return isinstance(value, Sequence) and all(
        type(seconds) in {int, float} and 0 <= seconds <= MAX_BACKOFF_SECONDS for seconds in value
    )


def _are_exceptions(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    )


def _end(policy: RetryPolicy, reason: ParkReason) -> Decision:
    return GiveUp() if policy.when_exhausted == "fail" else Park(reason)
