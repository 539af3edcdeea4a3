"""Retry policy: what is accepted as one, and what becomes of a failed attempt under it."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.database.model import Failure, OutcomeKind
from commandbus.errors import (
    Fail,
    InvalidSettingError,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.handler import HandlerEntry
from commandbus.models import ParkReason
from commandbus.retry import RetryPolicy, check_max_attempts
from commandbus.worker.outcomes import failed, failure_of
from tests.unit.stubs import a_lease

Decision = tuple[OutcomeKind, float, str | None]

GIVEN_UP: Decision = (OutcomeKind.FAIL, 0.0, None)
ENTRY = HandlerEntry("shop", "Work", print, None, is_transactional=False, is_async=False)


def retried(seconds: float) -> Decision:
    return OutcomeKind.RETRY, seconds, None


def parked(reason: ParkReason) -> Decision:
    return OutcomeKind.PARK, 0.0, reason


def decide(error: BaseException, attempt: int, max_attempts: int, policy: RetryPolicy) -> Decision:
    lease = a_lease(attempt=attempt, max_attempts=max_attempts)
    outcome = failed(lease, ENTRY, error, policy)
    return outcome.kind, outcome.delay_seconds, outcome.reason


def describe_failure(error: BaseException, policy: RetryPolicy) -> Failure:
    return failure_of(a_lease(), ENTRY, error, policy)


def test_the_default_policy_is_the_one_of_the_documents() -> None:
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.backoff_schedule) == (3, (10.0, 60.0, 300.0))
    assert (policy.when_exhausted, policy.count_lapses) == ("troubleshoot", "suspect")


def test_the_delay_after_the_nth_failure_is_the_nth_of_the_schedule_and_the_last_repeats() -> None:
    policy = RetryPolicy(max_attempts=6, backoff_schedule=[1, 2.5, 9])
    assert [policy.delay_after(n) for n in (1, 2, 3, 4, 50)] == [1, 2.5, 9, 9, 9]


def test_an_empty_schedule_means_no_delay() -> None:
    assert RetryPolicy(backoff_schedule=()).delay_after(1) == 0.0


def test_a_policy_keeps_its_own_copy_of_the_schedule() -> None:
    schedule = [1.0]
    policy = RetryPolicy(backoff_schedule=schedule)
    schedule[0] = 99.0
    assert policy.delay_after(1) == 1.0


@pytest.mark.parametrize(
    ("attempt", "limit", "decision"),
    [
        (1, 3, retried(10.0)),
        (2, 3, retried(60.0)),
        (3, 3, parked(ParkReason.EXHAUSTED)),
        (4, 3, parked(ParkReason.EXHAUSTED)),
        (1, 1, parked(ParkReason.EXHAUSTED)),
    ],
)
def test_a_transient_error_is_retried_until_the_attempts_are_used_up(
    attempt: int, limit: int, decision: Decision
) -> None:
    for error in (TransientCommandError("BUSY", "later"), RuntimeError("boom")):
        assert decide(error, attempt, limit, RetryPolicy()) == decision


def test_a_permanent_error_is_parked_at_once() -> None:
    error = PermanentCommandError("NO_ACCOUNT", "gone")
    assert decide(error, 1, 3, RetryPolicy()) == parked(ParkReason.PERMANENT)


def test_an_error_the_policy_names_is_permanent_with_its_subclasses() -> None:
    policy = RetryPolicy(permanent_errors=(LookupError,))
    assert decide(KeyError("x"), 1, 3, policy) == parked(ParkReason.PERMANENT)
    assert not policy.is_permanent(ValueError("x"))


def test_a_policy_that_fails_gives_up_instead_of_parking() -> None:
    policy = RetryPolicy(when_exhausted="fail")
    assert decide(RuntimeError(), 3, 3, policy) == GIVEN_UP
    assert decide(PermanentCommandError("A", "b"), 1, 3, policy) == GIVEN_UP
    assert decide(RuntimeError(), 1, 3, policy) == retried(10.0)


def test_a_handler_that_says_fail_ends_the_command_whatever_the_policy_says() -> None:
    assert decide(Fail("A", "b"), 1, 3, RetryPolicy()) == GIVEN_UP
    assert describe_failure(Fail("A", "b"), RetryPolicy()).error_type == "PERMANENT"


@pytest.mark.parametrize("value", [0, -1, 1_001, 2.0, "3", None, True])
def test_max_attempts_is_refused_when_it_cannot_be_meant(value: Any) -> None:
    with pytest.raises(InvalidSettingError, match="whole number from 1 to 1000"):
        check_max_attempts(value)
    with pytest.raises(InvalidSettingError, match="max_attempts"):
        RetryPolicy(max_attempts=value)


@pytest.mark.parametrize("value", [1, 1_000])
def test_max_attempts_is_accepted_at_both_ends(value: int) -> None:
    assert check_max_attempts(value) == value


@pytest.mark.parametrize(
    "schedule",
    [(-1,), (10, -0.1), (float("nan"),), (float("inf"),), (365 * 86_400 + 1,),
     ("10",), (None,), None, 5, "10"],
)  # fmt: skip
def test_a_backoff_schedule_is_refused_when_it_is_no_list_of_seconds(schedule: Any) -> None:
    with pytest.raises(InvalidSettingError, match="backoff_schedule"):
        RetryPolicy(backoff_schedule=schedule)


@pytest.mark.parametrize("schedule", [(0,), (365 * 86_400,)])
def test_a_backoff_schedule_is_accepted_at_both_ends(schedule: tuple[float, ...]) -> None:
    assert RetryPolicy(backoff_schedule=schedule).delay_after(1) == schedule[0]


@pytest.mark.parametrize("value", ["park", "", None])
def test_when_exhausted_is_refused_when_it_is_neither_of_the_two(value: Any) -> None:
    with pytest.raises(InvalidSettingError, match="use 'troubleshoot' or 'fail'"):
        RetryPolicy(when_exhausted=value)


@pytest.mark.parametrize("value", ["second", "", None, 2])
def test_count_lapses_is_refused_when_it_is_neither_of_the_two(value: Any) -> None:
    with pytest.raises(InvalidSettingError, match="use 'suspect' or 'every'"):
        RetryPolicy(count_lapses=value)


@pytest.mark.parametrize("value", [("ValueError",), (int,), (ValueError("x"),), ValueError])
def test_permanent_errors_are_refused_when_they_are_no_exception_classes(value: Any) -> None:
    with pytest.raises(InvalidSettingError, match="permanent_errors"):
        RetryPolicy(permanent_errors=value)


def test_a_failure_describes_an_ordinary_exception_by_its_class_and_text() -> None:
    failure = describe_failure(KeyError("amount"), RetryPolicy())
    assert (failure.error_type, failure.code, failure.message) == (
        "TRANSIENT", "KeyError", "'amount'",
    )  # fmt: skip
    assert failure.details is None


def test_a_failure_takes_code_message_and_details_of_a_handler_error() -> None:
    error = PermanentCommandError("NO_FUNDS", "too little", {"balance": 3, "token": "abc"})
    failure = describe_failure(error, RetryPolicy())
    assert (failure.error_type, failure.code, failure.message) == (
        "PERMANENT", "NO_FUNDS", "too little",
    )  # fmt: skip
    assert failure.details == {"balance": 3, "token": "[REDACTED]"}


def test_a_failure_is_redacted_and_cut_before_it_is_stored() -> None:
    failure = describe_failure(
        RuntimeError("password=hunter2 " + "x" * 5_000 + "\x00"), RetryPolicy()
    )
    assert "hunter2" not in failure.message
    assert len(failure.message) == 512
    long_code = TransientCommandError("C" * 500, "m")
    assert len(describe_failure(long_code, RetryPolicy()).code) == 200


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class OddCodeError(Exception):
    code = 42
    message = None
    details = ("not", "a", "dict")


def test_a_failure_is_described_also_when_the_exception_cannot_describe_itself() -> None:
    failure = describe_failure(SpeechlessError(), RetryPolicy())
    assert failure.code == "SpeechlessError"
    assert "SpeechlessError" in failure.message
    failure = describe_failure(
        TransientCommandError("A", "b", {"n": 10**5_000, "e": SpeechlessError()}), RetryPolicy()
    )
    assert failure.details is not None


def test_a_failure_ignores_attributes_of_another_shape() -> None:
    failure = describe_failure(OddCodeError("text"), RetryPolicy())
    assert (failure.code, failure.message, failure.details) == ("OddCodeError", "text", None)
