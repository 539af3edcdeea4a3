"""What a handler says, raised or returned, and what becomes of its command then."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    Command,
    Discard,
    Exponential,
    Fail,
    HandlerContext,
    InvalidSettingError,
    PermanentCommandError,
    RetryAfter,
    RetryPolicy,
    Snooze,
    TransientCommandError,
)
from commandbus.database.model import Outcome, OutcomeKind
from commandbus.errors import HandlerError
from commandbus.handler import HandlerEntry
from commandbus.models import ParkReason
from commandbus.worker.outcomes import failed, timed_out
from tests.unit.stubs import a_lease
from tests.unit.test_executor import Bench

ENTRY = HandlerEntry("shop", "Work", print, None, is_transactional=False, is_async=False)
CHOSEN = [
    (RetryAfter(7), OutcomeKind.RETRY),
    (Snooze(7, "too early"), OutcomeKind.SNOOZE),
    (Discard("void"), OutcomeKind.DISCARD),
    (Fail("A", "b"), OutcomeKind.FAIL),
    (PermanentCommandError("A", "b"), OutcomeKind.PARK),
    (TransientCommandError("A", "b"), OutcomeKind.RETRY),
]


def ended(error: BaseException, policy: RetryPolicy | None = None, **lease: Any) -> Outcome:
    return failed(a_lease(**lease), ENTRY, error, policy or RetryPolicy())


# -- both ways to say it


@pytest.mark.parametrize(("said", "kind"), CHOSEN)
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_raised", [True, False])
async def test_what_a_handler_says_is_the_same_whether_raised_or_returned(
    said: HandlerError, kind: OutcomeKind, is_async: bool, is_raised: bool
) -> None:
    def work(command: Command, ctx: HandlerContext) -> Any:
        ctx.send("shop", "Next", uuid4(), {})
        if is_raised:
            raise said
        return said

    async def work_async(command: Command, ctx: HandlerContext) -> Any:
        return work(command, ctx)

    bench = Bench()
    outcome = await bench.outcome_of(work_async if is_async else work)
    assert outcome.kind is kind
    assert outcome.sends == ()
    bench.executor.end()


async def test_a_transactional_handler_that_says_one_of_them_is_rolled_back() -> None:
    for said, kind in CHOSEN:
        bench = Bench()

        async def work(command: Command, ctx: HandlerContext, said: Any = said) -> Any:
            ctx.send("shop", "Next", uuid4(), {})
            return said

        outcome = await bench.outcome_of(work, transactional=True)
        assert (outcome.kind, outcome.sends) == (kind, ())
        assert bench.handlers_store.settled == []


async def test_an_impossible_snooze_is_a_failure_that_says_what_is_wrong() -> None:
    async def work(command: Command, ctx: HandlerContext) -> Any:
        return Snooze(-1)

    outcome = await Bench().outcome_of(work)
    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.failure is not None
    assert outcome.failure.code == "InvalidSettingError"
    assert "seconds of Snooze is -1" in outcome.failure.message


async def test_the_context_has_the_number_of_snoozes() -> None:
    seen: list[int] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(ctx.snoozes)

    bench = Bench()
    bench.registry.register("shop", "Count", work)
    bench.submit(a_lease(command_type="Count"), a_lease(command_type="Count", snoozes=4))
    while len(bench.outcomes) < 2:
        await asyncio.sleep(0)
    assert sorted(seen) == [0, 4]


# -- what becomes of it


def test_a_retry_has_the_delay_that_the_handler_names_and_counts() -> None:
    outcome = ended(RetryAfter(7, "BUSY", "later", {"a": 1}), attempt=1, max_attempts=2)
    assert (outcome.kind, outcome.delay_seconds) == (OutcomeKind.RETRY, 7.0)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.message) == ("BUSY", "later")
    assert (outcome.failure.error_type, outcome.failure.details) == ("TRANSIENT", {"a": 1})

    outcome = ended(RetryAfter(7), attempt=2, max_attempts=2)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.PARK, ParkReason.EXHAUSTED)
    policy = RetryPolicy(when_exhausted="fail")
    assert ended(RetryAfter(7), policy, attempt=2, max_attempts=2).kind is OutcomeKind.FAIL


def test_a_snooze_is_none_of_the_attempts_even_of_the_last() -> None:
    outcome = ended(Snooze(60, "too early"), attempt=3, max_attempts=3)
    assert (outcome.kind, outcome.delay_seconds) == (OutcomeKind.SNOOZE, 60.0)
    assert (outcome.reason, outcome.failure) == ("too early", None)


def test_a_snooze_beyond_the_limit_is_a_failed_attempt() -> None:
    policy = RetryPolicy(max_snoozes=2)
    assert ended(Snooze(5), policy, snoozes=1).kind is OutcomeKind.SNOOZE
    outcome = ended(Snooze(5), policy, snoozes=2, attempt=1, max_attempts=3)
    assert (outcome.kind, outcome.delay_seconds) == (OutcomeKind.RETRY, 10.0)
    assert outcome.failure is not None
    assert outcome.failure.code == "SNOOZED_TOO_OFTEN"
    assert "snoozed 2 times" in outcome.failure.message
    outcome = ended(Snooze(5), RetryPolicy(max_snoozes=0), attempt=3, max_attempts=3)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.PARK, ParkReason.EXHAUSTED)


def test_what_a_handler_chooses_is_not_permanent_whatever_the_policy_names() -> None:
    policy = RetryPolicy(permanent_errors=(Exception,))
    assert ended(RetryAfter(1), policy, max_attempts=3).kind is OutcomeKind.RETRY
    assert ended(Snooze(1), policy).kind is OutcomeKind.SNOOZE
    assert ended(Discard("x"), policy).kind is OutcomeKind.DISCARD


@pytest.mark.parametrize("said", [RetryAfter(1), Snooze(1), Discard("x")])
def test_what_a_handler_chooses_says_more_than_its_time_out(said: HandlerError) -> None:
    assert timed_out(5, said, RetryPolicy()) is said


def test_a_reason_is_masked_and_cut() -> None:
    lease = a_lease(payload='{"card_number": "4111-1111-1111-1111"}')
    entry = replace(ENTRY, secret_keys=frozenset({"card_number"}))
    for said in (Snooze(1, "of 4111-1111-1111-1111"), Discard("of 4111-1111-1111-1111")):
        reason = failed(lease, entry, said, RetryPolicy()).reason
        assert reason is not None
        assert reason.startswith("of ")
        assert "1111" not in reason
    cut = ended(Discard("y" * 9_000)).reason
    assert cut is not None
    assert len(cut) == 500


@pytest.mark.parametrize("said", [said for said, _ in CHOSEN])
def test_what_a_handler_says_survives_the_way_to_another_process(said: HandlerError) -> None:
    again = pickle.loads(pickle.dumps(said))
    assert (type(again), str(again), vars(again)) == (type(said), str(said), vars(said))


@pytest.mark.parametrize(
    "seconds", [-1, -0.1, float("nan"), float("inf"), 365 * 86_400 + 1, "5", None, True]
)
@pytest.mark.parametrize("kind", [RetryAfter, Snooze])
def test_an_impossible_delay_is_refused(kind: Any, seconds: Any) -> None:
    with pytest.raises(InvalidSettingError, match=f"seconds of {kind.__name__}"):
        kind(seconds)


@pytest.mark.parametrize("seconds", [0, 0.5, 365 * 86_400])
def test_a_delay_is_accepted_at_both_ends(seconds: float) -> None:
    assert RetryAfter(seconds).seconds == Snooze(seconds).seconds == seconds


# -- backoff


def test_an_exponential_backoff_grows_up_to_its_cap() -> None:
    policy = RetryPolicy(backoff=Exponential(first=10, factor=2, cap=60, jitter=0))
    assert [policy.delay_after(n) for n in (1, 2, 3, 4, 5, 1_000)] == [10, 20, 40, 60, 60, 60]
    huge = Exponential(first=1, factor=1_000, cap=3_600)
    assert huge.delay_after(1_000) == 3_600


def test_jitter_only_shortens_and_is_the_same_for_one_command_and_attempt() -> None:
    backoff = Exponential(first=100, factor=1, cap=100, jitter=0.25)
    delays = [backoff.delay_after(n, uuid4()) for n in (1, 2, 3) for _ in range(300)]
    assert all(75 < delay <= 100 for delay in delays)
    assert min(delays) < 78
    assert max(delays) > 97
    one = UUID(int=5)
    assert backoff.delay_after(2, one) == backoff.delay_after(2, one)
    assert backoff.delay_after(2, one) != backoff.delay_after(3, one)


def test_the_delay_of_a_command_is_the_same_in_every_version() -> None:
    backoff = Exponential(first=1, factor=2, cap=1_000, jitter=0.5)
    one = UUID("0192f0c1-2d3e-7000-8000-0123456789ab")
    found = [round(backoff.delay_after(n, one), 6) for n in (1, 2, 3)]
    assert found == [0.55143, 1.836413, 3.540115]


def test_a_failed_attempt_waits_as_the_backoff_says_of_this_command() -> None:
    policy = RetryPolicy(backoff=Exponential(first=100, jitter=1))
    lease = a_lease(attempt=1, max_attempts=3)
    outcome = failed(lease, ENTRY, RuntimeError(), policy)
    assert outcome.delay_seconds == policy.delay_after(1, lease.command_id)
    assert outcome.delay_seconds < 100


@pytest.mark.parametrize(
    ("name", "value"),
    [("first", -1), ("first", "1"), ("first", None), ("factor", 0.5), ("factor", 1_001),
     ("cap", -1), ("cap", float("inf")), ("jitter", -0.1), ("jitter", 1.1), ("jitter", True)],
)  # fmt: skip
def test_a_backoff_is_refused_when_it_cannot_be_meant(name: str, value: Any) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name} of Exponential"):
        Exponential(**{name: value})


def test_a_cap_below_the_first_delay_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="must not be below the first delay"):
        Exponential(first=10, cap=9)
    assert Exponential(first=10, cap=10).delay_after(5) == 10


def test_a_policy_has_one_kind_of_backoff() -> None:
    with pytest.raises(InvalidSettingError, match="both given; use one"):
        RetryPolicy(backoff=Exponential(), backoff_schedule=(1,))
    with pytest.raises(InvalidSettingError, match="use Exponential"):
        RetryPolicy(backoff=10)  # type: ignore[arg-type]
    copy = replace(RetryPolicy(backoff=Exponential()), max_attempts=7)
    assert (copy.max_attempts, copy.backoff) == (7, Exponential())


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, 10**10])
def test_max_snoozes_is_refused_when_it_cannot_be_meant(value: Any) -> None:
    with pytest.raises(InvalidSettingError, match="max_snoozes"):
        RetryPolicy(max_snoozes=value)
