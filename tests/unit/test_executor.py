"""Executor: what starts, what waits, and how each lease ends; no database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from commandbus.commands.preparing import Preparer
from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.errors import (
    DatabaseUnavailableError,
    DuplicateCommandError,
    LeaseLostError,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.handler import HandlerContext
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import Command, ParkReason
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings
from commandbus.worker import executor as executor_module
from commandbus.worker.completer import Completer
from commandbus.worker.execution import Execution
from commandbus.worker.executor import Executor
from commandbus.worker.totals import Totals
from tests.unit.stubs import StubStore, a_lease, soon, turns


class Bench:
    """An executor between stubs, and its completer. Handlers of "Work" wait for the gate."""

    def __init__(self, concurrency: int = 2, max_prefetch: int = 0) -> None:
        self.store, self.handlers_store = StubStore(), StubStore()
        self.outcomes: list[Outcome] = []
        self.ended: list[Lease] = []
        self.early: list[Lease] = []
        self.extended: list[tuple[Lease, float]] = []
        self.rooms = 0
        self.backlog = 0
        self.totals = Totals()
        self.settled = asyncio.Event()
        self.settled.set()
        self.gate = asyncio.Event()
        self.started: list[Lease] = []
        self.registry = HandlerRegistry()
        self.registry.register("shop", "Work", self._work)
        self.execution = Execution(
            self.store.as_store,
            transactions=self.handlers_store.as_store,
            registry=self.registry,
            prepare=Preparer(Settings(), RetryPolicy()).command,
            default_policy=RetryPolicy(),
            max_result_bytes=100,
            max_threads=concurrency,
            on_extended=lambda lease, seconds: self.extended.append((lease, seconds)),
            timeout_seconds=3_590,
            deadline_seconds=3_600,
        )
        self.executor = Executor(
            self.store.as_store,
            self.execution,
            cast("Completer", self),
            on_room=self._on_room,
            on_ended=self._on_ended,
            on_early=self.early.append,
            concurrency=concurrency,
            max_prefetch=max_prefetch,
        )

    async def _work(self, command: Command, ctx: HandlerContext) -> None:
        self.started.append(ctx.lease)
        await self.gate.wait()

    def put(self, outcome: Outcome) -> None:
        """As Completer.put."""
        self.outcomes.append(outcome)

    async def drained(self) -> None:
        """As Completer.drained."""
        await self.settled.wait()

    def _on_room(self) -> None:
        self.rooms += 1

    def _on_ended(self, leases: Sequence[Lease]) -> None:
        self.ended.extend(leases)

    def submit(self, *leases: Lease) -> None:
        self.executor.submit(leases)

    async def outcome_of(self, handler: Any, **options: Any) -> Outcome:
        """What becomes of one command with this handler."""
        self.registry.register("shop", "Once", handler, **options)
        self.submit(a_lease(command_type="Once"))
        await soon(lambda: self.outcomes)
        return self.outcomes[0]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def suspects(number: int) -> list[Lease]:
    return [a_lease(is_suspect=True, lease_epoch=2) for _ in range(number)]


# -- room


async def test_room_is_what_runs_and_waits_less_than_the_concurrency(bench: Bench) -> None:
    assert bench.executor.wanted() == 2
    bench.submit(a_lease())
    assert bench.executor.wanted() == 1
    bench.submit(a_lease())
    assert bench.executor.wanted() == 0
    assert bench.executor.in_flight == 2


async def test_fast_handlers_are_leased_ahead_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(concurrency=2, max_prefetch=30)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert bench.executor.wanted() == 2
    bench.executor._finished = 110
    now += 1.0  # about a hundred a second: five in PREFETCH_SECONDS
    assert bench.executor.wanted() == 2 + 5
    bench.executor._finished = 100_000
    now += 1.0
    assert bench.executor.wanted() == 2 + 30
    now += 1.0  # nothing has ended since
    assert bench.executor.wanted() == 2


async def test_nothing_is_leased_while_half_of_what_is_ahead_still_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(concurrency=2, max_prefetch=30)
    monkeypatch.setattr(Executor, "_prefetch", lambda _: 10)
    bench.submit(*(a_lease() for _ in range(8)))
    assert bench.executor.wanted() == 0
    bench.submit()
    bench.executor._buffer.pop()
    assert bench.executor.wanted() == 2 - 2 - 5 + 10


def limited(number: int) -> list[Lease]:
    return [replace(a_lease(), is_limited=True) for _ in range(number)]


async def test_a_busy_worker_has_one_limited_group_ahead_and_asks_for_no_other(
    bench: Bench,
) -> None:
    assert bench.executor.places() == 2
    bench.submit(*limited(2))
    await turns()
    assert bench.executor.places() == 1
    bench.submit(*limited(2))
    assert bench.executor.places() == 0
    bench.submit(*limited(3))
    bench.executor._buffer.popleft()
    assert bench.executor.places() == 0
    bench.executor._buffer.popleft()  # the last one of what came with that place
    assert bench.executor.places() == 1


async def test_what_has_no_limit_does_not_keep_a_busy_worker_from_asking(bench: Bench) -> None:
    bench.submit(*(a_lease() for _ in range(4)))
    await turns()
    assert bench.executor.places() == 1
    bench.submit(a_lease())
    assert bench.executor.places() == 1


async def test_what_is_leased_into_free_handlers_is_not_ahead(bench: Bench) -> None:
    assert bench.executor.places() == 2
    bench.submit(*limited(3))  # one of them has no limit, in a domain that has some
    await turns()
    assert bench.executor.places() == 1


async def test_nothing_is_leased_while_the_database_is_behind(bench: Bench) -> None:
    bench.backlog = 5
    assert bench.executor.wanted() == 0
    bench.backlog = 4
    assert bench.executor.wanted() == 2


async def test_leases_start_in_their_order_as_slots_become_free(bench: Bench) -> None:
    leases = [a_lease() for _ in range(5)]
    bench.submit(*leases)
    await turns()
    assert bench.started == leases[:2]
    bench.gate.set()
    await bench.executor.drained()
    await soon(lambda: len(bench.outcomes) == 5)
    assert bench.started == leases
    assert bench.rooms == 5
    assert {outcome.kind for outcome in bench.outcomes} == {OutcomeKind.COMPLETE}


# -- giving back


async def test_what_has_waited_too_long_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [a_lease() for _ in range(4)]
    bench.submit(*leases)
    bench.executor.release_aged()
    assert bench.outcomes == []
    monkeypatch.setattr(executor_module, "MAX_BUFFERED_SECONDS", -1.0)
    bench.executor.release_aged()
    assert [o.lease for o in bench.outcomes] == leases[2:]
    assert {o.kind for o in bench.outcomes} == {OutcomeKind.RELEASE}
    assert bench.executor.in_flight == 2


async def test_a_closed_executor_gives_back_what_waits_and_starts_nothing(
    bench: Bench,
) -> None:
    bench.submit(*(a_lease() for _ in range(3)))
    waiting = suspects(1)
    bench.submit(*waiting)
    bench.executor.close()
    assert len(bench.outcomes) == 2
    assert waiting[0] in [o.lease for o in bench.outcomes]
    assert bench.executor.wanted() == 0
    bench.gate.set()
    await bench.executor.drained()
    await soon(lambda: len(bench.outcomes) == 4)
    assert len(bench.started) == 2


async def test_cancelled_handlers_go_back_untried(bench: Bench) -> None:
    lease = a_lease()
    bench.submit(lease)
    await soon(lambda: bench.started)
    bench.executor.close()
    bench.executor.cancel_running()
    await bench.executor.drained()
    assert bench.outcomes == [Outcome(lease, OutcomeKind.RELEASE)]


async def test_a_handler_that_has_not_begun_yet_is_given_back_when_it_is_cancelled(
    bench: Bench,
) -> None:
    lease, lost = a_lease(), a_lease()
    bench.submit(lease, lost)
    bench.executor.lose(lost, "lost")
    bench.executor.cancel_running()
    await asyncio.wait_for(bench.executor.drained(), 10)
    assert bench.executor.in_flight == 0
    assert [o.kind for o in bench.outcomes] == [OutcomeKind.RELEASE] * 2
    assert {o.lease.command_id for o in bench.outcomes} == {lease.command_id, lost.command_id}


async def test_threads_are_closed_only_if_there_are_any(bench: Bench) -> None:
    bench.execution.close()

    def work(command: Command, ctx: HandlerContext) -> str:
        return "in a thread"

    outcome = await bench.outcome_of(work)
    assert outcome.result == b'"in a thread"'
    bench.execution.close()


# -- lost leases


async def test_a_lost_lease_is_given_back_so_that_the_refusal_is_recorded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    lost, kept = a_lease(), a_lease()
    bench.submit(lost, kept)
    await soon(lambda: len(bench.started) == 2)
    bench.executor.lose(lost, "its lease was lost")
    await soon(lambda: bench.outcomes)
    assert bench.outcomes == [Outcome(lost, OutcomeKind.RELEASE)]
    assert f"handler of {lost.command_id} is cancelled: its lease was lost" in caplog.text
    assert bench.executor.in_flight == 1


async def test_a_lost_lease_that_waits_never_starts(bench: Bench) -> None:
    leases = [a_lease() for _ in range(3)]
    bench.submit(*leases)
    bench.executor.lose(leases[2], "lost")
    bench.executor.lose(a_lease(), "never heard of")
    bench.gate.set()
    await bench.executor.drained()
    await turns()
    assert bench.started == leases[:2]


async def test_a_lost_suspect_never_starts(bench: Bench) -> None:
    bench.submit(a_lease())
    (suspect,) = suspects(1)
    bench.submit(suspect)
    bench.executor.lose(suspect, "lost")
    bench.gate.set()
    await bench.executor.drained()
    await turns()
    assert suspect not in bench.started
    assert bench.executor.wanted() == 2


async def test_two_leases_of_one_command_are_told_apart(bench: Bench) -> None:
    older = a_lease()
    newer = a_lease(command_id=older.command_id, lease_epoch=2)
    bench.submit(older, newer)
    await soon(lambda: len(bench.started) == 2)
    bench.executor.lose(older, "lost")
    await soon(lambda: bench.outcomes == [Outcome(older, OutcomeKind.RELEASE)])
    assert bench.executor.in_flight == 1
    bench.gate.set()
    await soon(lambda: len(bench.outcomes) == 2)
    assert bench.outcomes[1] == Outcome(newer, OutcomeKind.COMPLETE)


# -- suspects


async def test_a_suspect_waits_for_the_others_and_then_runs_alone(bench: Bench) -> None:
    before, after = a_lease(), a_lease()
    (suspect,) = suspects(1)
    bench.submit(before)
    bench.submit(suspect, after)
    await turns()
    assert bench.started == [before]
    assert bench.executor.wanted() == 0
    bench.gate.set()
    await soon(lambda: suspect in bench.started)
    assert bench.store.confirmed == [suspect]


async def test_a_suspect_waits_until_what_ended_before_it_is_committed(bench: Bench) -> None:
    (suspect,) = suspects(1)
    bench.settled.clear()
    bench.submit(suspect)
    await turns()
    assert (bench.started, bench.store.confirmed) == ([], [])
    bench.settled.set()
    await soon(lambda: bench.started == [suspect])
    assert bench.store.confirmed == [suspect]


async def test_a_suspect_that_waited_too_long_for_a_commit_runs_beside_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "SUSPECT_PATIENCE_SECONDS", 0.01)
    (suspect,) = suspects(1)
    beside = a_lease()
    bench.settled.clear()
    bench.submit(suspect, beside)
    await soon(lambda: bench.started == [beside])
    bench.settled.set()
    await soon(lambda: suspect in bench.started)
    assert bench.store.confirmed == []


async def test_a_second_lease_of_what_still_runs_waits_for_the_first_run(bench: Bench) -> None:
    first = a_lease()
    bench.submit(first)
    await soon(lambda: bench.started == [first])
    again = replace(first, lease_epoch=2)
    bench.submit(again)
    await turns()
    assert bench.started == [first]
    bench.executor.lose(first, "leased again")
    await soon(lambda: bench.started == [first, again])


async def test_a_second_lease_of_what_ran_elsewhere_starts_beside_the_others(bench: Bench) -> None:
    beside, again = a_lease(), a_lease(lease_epoch=2)
    bench.submit(beside, again)
    await soon(lambda: bench.started == [beside, again])


async def test_nothing_starts_beside_a_suspect_and_nothing_is_leased(bench: Bench) -> None:
    (suspect,) = suspects(1)
    bench.submit(suspect)
    await soon(lambda: bench.started == [suspect])
    assert bench.executor.wanted() == 0
    other = a_lease()
    bench.submit(other)  # from a receive that was on its way
    await turns()
    assert bench.started == [suspect]
    bench.gate.set()
    await soon(lambda: other in bench.started)
    assert bench.executor.wanted() > 0


async def test_suspects_run_one_after_the_other(bench: Bench) -> None:
    waiting = suspects(3)
    bench.submit(*waiting)
    await turns()
    assert bench.started == waiting[:1]
    bench.gate.set()
    await soon(lambda: len(bench.outcomes) == 3)
    assert bench.store.confirmed == waiting


async def test_a_suspect_that_is_not_ours_any_more_does_not_run(bench: Bench) -> None:
    bench.store.confirms = [False]
    (suspect,) = suspects(1)
    bench.submit(suspect)
    await soon(lambda: bench.ended)
    assert (bench.started, bench.outcomes, bench.ended) == ([], [], [suspect])


async def test_a_suspect_whose_start_cannot_be_confirmed_goes_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.confirms = [DatabaseUnavailableError("away")]
    (suspect,) = suspects(1)
    bench.submit(suspect)
    await soon(lambda: bench.outcomes)
    assert bench.outcomes == [Outcome(suspect, OutcomeKind.RELEASE)]
    assert "cannot confirm the start" in caplog.text


async def test_patience_has_an_end_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a suspect that waits, and for those who wait for one."""
    bench = Bench(concurrency=3)
    monkeypatch.setattr(executor_module, "SUSPECT_PATIENCE_SECONDS", 0.01)
    slow, other = a_lease(), a_lease()
    waiting = suspects(2)
    bench.submit(slow)
    bench.submit(*waiting, other)
    await turns()
    assert bench.started == [slow]
    async with asyncio.timeout(10):
        while len(bench.started) < 3:
            await asyncio.sleep(0.01)
    # Beside the slow one, so not confirmed; no slot is left for the other.
    assert bench.started == [slow, *waiting]
    assert bench.store.confirmed == []
    assert bench.rooms >= 1
    bench.gate.set()
    await soon(lambda: len(bench.outcomes) == 4)


async def test_the_solitude_of_a_suspect_that_has_ended_is_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = suspects(2)
    bench.submit(first, second)
    await soon(lambda: bench.started == [first])
    bench.gate.set()
    await soon(lambda: len(bench.outcomes) == 2)
    bench.gate.clear()
    (third,) = suspects(1)
    bench.submit(third)
    await soon(lambda: third in bench.started)
    # A timer of the first must not end the solitude of the third.
    bench.executor._end_solitude((first.command_id.int, first.lease_epoch))
    assert bench.executor.wanted() == 0
    bench.executor._end_solitude((third.command_id.int, third.lease_epoch))
    assert bench.executor.wanted() == 1


# -- outcomes


async def test_a_result_becomes_the_data_of_the_outcome(bench: Bench) -> None:
    async def work(command: Command, ctx: HandlerContext) -> Any:
        return {"n": 1}

    outcome = await bench.outcome_of(work)
    assert (outcome.kind, outcome.result) == (OutcomeKind.COMPLETE, b'{"n":1}')


@pytest.mark.parametrize("result", [object(), "x" * 200, float("nan")])
async def test_a_result_that_cannot_be_stored_is_parked(bench: Bench, result: object) -> None:
    async def work(command: Command, ctx: HandlerContext) -> Any:
        return result

    outcome = await bench.outcome_of(work)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.PARK, ParkReason.PERMANENT)
    assert outcome.failure is not None
    assert outcome.failure.code == "INVALID_RESULT"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TransientCommandError("DOWN", "x"), OutcomeKind.RETRY),
        (PermanentCommandError("BROKEN", "x"), OutcomeKind.PARK),
        (ValueError("x"), OutcomeKind.RETRY),
        (SystemExit(1), OutcomeKind.RETRY),
        (asyncio.CancelledError(), OutcomeKind.RETRY),
        (LeaseLostError("not by us"), OutcomeKind.RETRY),
    ],
)
async def test_what_a_handler_raises_decides_how_the_lease_ends(
    bench: Bench, error: BaseException, kind: OutcomeKind
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise error

    outcome = await bench.outcome_of(work)
    assert outcome.kind is kind
    assert outcome.failure is not None


async def test_a_handler_that_gives_up_waiting_for_a_cancelled_task_has_failed(
    bench: Bench,
) -> None:
    """Given back untried, such a command would come again for ever."""

    async def work(command: Command, ctx: HandlerContext) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(3_600))
        inner.cancel()
        await inner

    assert (await bench.outcome_of(work)).kind is OutcomeKind.RETRY


async def test_a_handler_may_use_timeouts_of_its_own(bench: Bench) -> None:
    async def work(command: Command, ctx: HandlerContext) -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(3_600)
        except TimeoutError:
            return "in time"
        raise AssertionError

    assert (await bench.outcome_of(work)).result == b'"in time"'


async def test_an_unknown_type_and_a_broken_payload_are_parked(bench: Bench) -> None:
    bench.submit(a_lease(command_type="Unknown"), a_lease(payload="["))
    await soon(lambda: len(bench.outcomes) == 2)
    codes = [outcome.failure.code for outcome in bench.outcomes if outcome.failure]
    assert codes == ["HANDLER_NOT_FOUND", "PAYLOAD_UNDECODABLE"]


async def test_an_extension_is_passed_on_or_raises(bench: Bench) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        await ctx.extend_visibility(60)
        bench.store.extends = [{command.command_id}]
        await ctx.extend_visibility(60)

    outcome = await bench.outcome_of(work)
    assert [seconds for _, seconds in bench.extended] == [60]
    assert outcome.failure is not None
    assert outcome.failure.code == "LeaseLostError"


# -- transactional handlers


async def test_a_transactional_handler_is_settled_in_its_own_transaction(bench: Bench) -> None:
    seen: list[Any] = []

    async def work(command: Command, ctx: HandlerContext) -> str:
        seen.append(ctx.conn)
        return "done"

    bench.registry.register("shop", "Once", work, transactional=True)
    lease = a_lease(command_type="Once")
    bench.submit(lease)
    await soon(lambda: bench.ended == [lease])
    (transaction,) = bench.handlers_store.transactions
    assert transaction.is_committed
    assert seen == [transaction.conn]
    assert bench.handlers_store.settled == [
        [Outcome(lease, OutcomeKind.COMPLETE, result=b'"done"')]
    ]
    assert bench.outcomes == []


async def test_a_transaction_whose_lease_is_lost_is_rolled_back_and_reported(
    bench: Bench,
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> str:
        bench.handlers_store.settles = [{command.command_id}]
        return "late"

    outcome = await bench.outcome_of(work, transactional=True)
    assert not bench.handlers_store.transactions[0].is_committed
    assert outcome == Outcome(outcome.lease, OutcomeKind.COMPLETE)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (DuplicateCommandError("bank", [a_lease().command_id]), "DUPLICATE_COMMAND", "park"),
        (DatabaseUnavailableError("cut"), "DatabaseUnavailableError", "retry"),
        (RuntimeError("of the driver"), "RuntimeError", "retry"),
    ],
)
async def test_a_transaction_that_cannot_be_committed_is_a_failed_attempt(
    bench: Bench, error: Exception, code: str, kind: str
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        bench.handlers_store.settles = [error]

    outcome = await bench.outcome_of(work, transactional=True)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.kind) == (code, kind)
    assert not bench.handlers_store.transactions[0].is_committed


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DatabaseUnavailableError("all connections are in use"), OutcomeKind.RELEASE),
        (RuntimeError("a mistake in the pool of the application"), OutcomeKind.RETRY),
    ],
)
async def test_a_handler_that_got_no_connection_has_not_failed(
    bench: Bench, error: Exception, kind: OutcomeKind
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise AssertionError("not called")

    bench.handlers_store.transaction_error = error
    outcome = await bench.outcome_of(work, transactional=True)
    assert outcome.kind is kind


async def test_a_cancelled_transaction_is_rolled_back_and_given_back(bench: Bench) -> None:
    started = asyncio.Event()

    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        await asyncio.Event().wait()

    bench.registry.register("shop", "Once", work, transactional=True)
    bench.submit(a_lease(command_type="Once"))
    await asyncio.wait_for(started.wait(), 10)
    bench.executor.cancel_running()
    await bench.executor.drained()
    assert [o.kind for o in bench.outcomes] == [OutcomeKind.RELEASE]
    assert not bench.handlers_store.transactions[0].is_committed


# -- cancels


async def test_a_cancel_ends_what_runs_and_what_waits_and_leaves_the_others(bench: Bench) -> None:
    leases = [a_lease() for _ in range(4)]
    bench.submit(*leases)
    await soon(lambda: len(bench.started) == 2)
    assert bench.executor.leases == leases
    running, other, waiting, _ = leases
    bench.executor.cancel(running)
    bench.executor.cancel(running)  # the lease keeper says so again and again
    bench.executor.cancel(waiting)
    bench.executor.cancel(a_lease())
    await soon(lambda: len(bench.outcomes) == 2)
    assert {(o.lease, o.kind) for o in bench.outcomes} == {
        (running, OutcomeKind.RELEASE),
        (waiting, OutcomeKind.RELEASE),
    }
    assert other in bench.executor.leases


async def test_a_cancel_of_a_handler_that_ends_well_leaves_its_result(bench: Bench) -> None:
    async def work(command: Command, ctx: HandlerContext) -> str:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            assert ctx.should_stop
        return "done"

    bench.registry.register("shop", "Long", work)
    lease = a_lease(command_type="Long")
    bench.submit(lease)
    await turns()
    bench.executor.cancel(lease)
    await soon(lambda: bench.outcomes)
    assert bench.outcomes == [Outcome(lease, OutcomeKind.COMPLETE, result=b'"done"')]


async def test_a_cancel_while_the_transaction_is_committed_does_not_stop_it(bench: Bench) -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    async def work(command: Command, ctx: HandlerContext) -> str:
        return "done"

    async def settle(domain: str, outcomes: Any, *, conn: Any = None) -> set[Any]:
        entered.set()
        await gate.wait()
        return set()

    bench.handlers_store.settle = settle  # type: ignore[method-assign]
    bench.registry.register("shop", "Long", work, transactional=True)
    lease = a_lease(command_type="Long")
    bench.submit(lease)
    await asyncio.wait_for(entered.wait(), 10)
    bench.executor.cancel(lease)
    gate.set()
    await soon(lambda: bench.ended == [lease])
    assert bench.outcomes == []
    assert bench.handlers_store.transactions[0].is_committed
