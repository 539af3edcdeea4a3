"""Completer: outcomes go out in groups, none waits, none is given up for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from commandbus.database.model import Lease, Outcome, OutcomeKind, OutgoingCommands
from commandbus.database.store import ReceiveOptions
from commandbus.errors import (
    CommandBusError,
    DatabaseError,
    DatabaseUnavailableError,
    DomainMovedError,
    DuplicateCommandError,
)
from commandbus.models import NewCommand
from commandbus.worker import completer as completer_module
from commandbus.worker.completer import Completer
from tests.unit.stubs import StubStore, a_lease, soon, turns


class Bench:
    """A completer at work on a stub."""

    def __init__(self) -> None:
        self.store = StubStore()
        self.ended: list[Lease] = []
        self.completer = Completer(self.store.as_store, "shop", on_settled=self._note)

    def _note(self, leases: Sequence[Lease]) -> None:
        self.ended.extend(leases)

    async def until_settling(self, number: int) -> None:
        await soon(lambda: len(self.store.settled) == number)

    def put(self, number: int = 1, **changes: object) -> list[Outcome]:
        made = [Outcome(a_lease(), OutcomeKind.COMPLETE, **changes) for _ in range(number)]  # type: ignore[arg-type]
        for outcome in made:
            self.completer.put(outcome)
        return made


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    running = asyncio.create_task(made.completer.run())
    yield made
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


def a_send() -> tuple[OutgoingCommands, ...]:
    lease = a_lease()
    command = NewCommand("Next", lease.command_id, b"{}", "", lease.correlation_id, 3)
    return (OutgoingCommands("shop", (command,)),)


async def test_outcomes_of_one_turn_are_one_group(bench: Bench) -> None:
    outcomes = bench.put(10)
    assert bench.completer.backlog == 10
    await bench.completer.drained()
    assert bench.store.settled == [outcomes]
    assert bench.ended == [outcome.lease for outcome in outcomes]
    assert bench.completer.backlog == 0


async def test_a_single_outcome_goes_at_once(bench: Bench) -> None:
    for number in range(1, 4):
        bench.put()
        await bench.completer.drained()
        assert len(bench.store.settled) == number


async def test_outcomes_gather_while_a_commit_is_in_flight(bench: Bench) -> None:
    bench.store.settle_gate = asyncio.Event()
    bench.put()
    await bench.until_settling(1)
    late = bench.put(5)
    await turns()
    assert len(bench.store.settled) == 1
    assert bench.completer.backlog == 6
    bench.store.settle_gate.set()
    await bench.completer.drained()
    assert bench.store.settled[1:] == [late]


async def test_a_group_has_an_upper_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer_module, "MAX_GROUP", 3)
    bench.put(8)
    await bench.completer.drained()
    assert sorted(len(group) for group in bench.store.settled) == [2, 3, 3]


async def test_a_group_has_at_most_a_thousand_outcomes(bench: Bench) -> None:
    bench.put(1_001)
    await bench.completer.drained()
    assert [len(group) for group in bench.store.settled] == [1_000, 1]


async def test_what_is_ready_in_the_same_turn_joins_the_group_and_nothing_is_waited_for(
    bench: Bench,
) -> None:
    await turns()
    bench.put()
    asyncio.get_running_loop().call_soon(bench.put)
    await turns(5)
    assert [len(group) for group in bench.store.settled] == [2]


async def test_an_idle_completer_commits_nothing(bench: Bench) -> None:
    bench.put(2)
    await bench.completer.drained()
    await turns()
    assert len(bench.store.settled) == 1


async def test_the_pauses_of_a_database_that_is_away_grow_to_two_seconds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)

    clock = SimpleNamespace(sleep=sleep)
    monkeypatch.setattr(completer_module, "asyncio", clock)
    bench.store.settles = [DatabaseUnavailableError("away")] * 12
    bench.put()
    await bench.completer.drained()
    assert 0.04 <= pauses[0] <= 0.05
    assert 1.6 <= pauses[-1] <= 2.0
    assert len(pauses) == 12


async def test_a_group_that_takes_too_long_is_halved_until_it_does_not(bench: Bench) -> None:
    real = bench.store.settle
    tried: list[int] = []

    async def settle(domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        tried.append(len(outcomes))
        if len(outcomes) > 100:
            error = DatabaseUnavailableError("57014")
            error.took_long = True
            raise error
        return await real(domain, outcomes)

    bench.completer.store = SimpleNamespace(settle=settle)
    outcomes = bench.put(400)
    await bench.completer.drained()
    assert tried == [400, 200, 100, 100, 200, 100, 100]
    assert bench.ended == [outcome.lease for outcome in outcomes]
    # The next ones begin small, and grow again.
    tried.clear()
    bench.put(300)
    await bench.completer.drained()
    assert max(tried) < 200
    assert sum(size for size in tried if size <= 100) == 300


async def test_a_group_is_repeated_as_it_is_while_the_database_is_away(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.settles = [DatabaseUnavailableError("away"), DatabaseUnavailableError("away")]
    outcomes = bench.put(3)
    await bench.completer.drained()
    assert bench.store.settled == [outcomes] * 3
    assert caplog.text.count("cannot commit outcomes") == 2
    assert len(bench.ended) == 3


async def test_a_late_result_is_logged_and_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    late = a_lease()
    bench.store.settles = [{late.command_id}]
    bench.completer.put(Outcome(late, OutcomeKind.COMPLETE))
    await bench.completer.drained()
    assert f"the result of {late.command_id} came after its lease" in caplog.text
    assert bench.ended == [late]


async def test_a_refused_group_is_settled_one_by_one(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = DatabaseError("no such queue, password=hunter2")
    bench.store.settles = [refusal, set(), refusal, set()]
    first, culprit, last = bench.put(3)
    await bench.completer.drained()
    assert bench.store.settled == [[first, culprit, last], [first], [culprit], [last]]
    assert f"the outcome of {culprit.lease.command_id} could not be recorded" in caplog.text
    assert "hunter2" not in caplog.text
    # The keeper lets go of it: the lease lapses, and the command is delivered again.
    assert len(bench.ended) == 3


async def test_a_refused_pair_is_settled_one_by_one_too(bench: Bench) -> None:
    bench.store.settles = [DatabaseError("no such queue")]
    first, second = bench.put(2)
    await bench.completer.drained()
    assert bench.store.settled == [[first, second], [first], [second]]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DuplicateCommandError("bank", [a_lease().command_id]), "DUPLICATE_COMMAND"),
        (DomainMovedError("domain 'bank' is not on this shard"), "SEND_REFUSED"),
    ],
    ids=["known id", "domain elsewhere"],
)
async def test_a_handler_whose_send_is_refused_is_parked_without_what_it_sent(
    bench: Bench, error: CommandBusError, code: str
) -> None:
    bench.store.settles = [error]
    (outcome,) = bench.put(sends=a_send())
    await bench.completer.drained()
    ((parked,),) = bench.store.settled[1:]
    assert (parked.kind, parked.lease, parked.sends) == (OutcomeKind.PARK, outcome.lease, ())
    assert parked.failure is not None
    assert parked.failure.code == code
    assert str(error) in parked.failure.message


async def test_a_duplicate_is_not_blamed_on_one_that_sent_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.settles = [DuplicateCommandError("bank", [a_lease().command_id])]
    bench.put()
    await bench.completer.drained()
    assert len(bench.store.settled) == 1
    assert "could not be recorded" in caplog.text


async def test_nothing_to_do_is_drained_at_once(bench: Bench) -> None:
    await asyncio.wait_for(bench.completer.drained(), 5)


async def test_a_completer_ends_when_a_commit_has_caught_its_cancel() -> None:
    bench = Bench()

    async def settle(domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        bench.store.settled.append(list(outcomes))
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return set()

    bench.store.settle = settle  # type: ignore[method-assign]
    running = asyncio.create_task(bench.completer.run())
    bench.put()
    await bench.until_settling(1)
    running.cancel()
    await asyncio.wait_for(running, 10)
    assert len(bench.ended) == 1


class StubRefills:
    """Asks for what it was told to, and keeps what came."""

    def __init__(self, *options: ReceiveOptions | None) -> None:
        self.options = list(options)
        self.came: list[list[Lease]] = []
        self.asked: list[bool] = []

    def refill(self, *, is_limited: bool) -> ReceiveOptions | None:
        self.asked.append(is_limited)
        return self.options.pop(0) if self.options else None

    def refilled(self, options: ReceiveOptions, leases: Sequence[Lease], asked_at: float) -> None:
        self.came.append(list(leases))


A_PLACE: ReceiveOptions = {"vt_seconds": 30, "quantity": 2, "worker": "w", "limits": {}}


async def test_places_are_filled_in_the_commit_that_gives_them_back(bench: Bench) -> None:
    refills = bench.completer.refills = StubRefills(A_PLACE)
    leased = [a_lease()]
    bench.store.receives = [leased]
    limited = Outcome(a_lease(is_limited=True), OutcomeKind.COMPLETE)
    bench.completer.put(limited)
    await bench.completer.drained()
    assert (bench.store.settled, refills.came) == ([[limited]], [leased])
    assert bench.ended == [limited.lease]
    # Nothing to ask for: they end as ever.
    bench.completer.put(limited)
    await bench.completer.drained()
    bench.put()
    await bench.completer.drained()
    assert len(bench.store.settled) == 3
    assert len(bench.store.asked_for) == len(refills.came) == 1
    # Who leases is told whether those that end have limits.
    assert refills.asked == [True, True, False]


async def test_a_commit_of_commands_of_a_batch_leases_nothing(bench: Bench) -> None:
    refills = bench.completer.refills = StubRefills(A_PLACE)
    lease = a_lease()
    lease.batch_id = uuid4()
    will = [bench.completer.will_refill]
    bench.completer.put(Outcome(lease, OutcomeKind.COMPLETE))
    will.append(bench.completer.will_refill)
    await bench.completer.drained()
    assert (refills.asked, bench.store.asked_for, bench.ended) == ([], [], [lease])
    bench.put()
    will.append(bench.completer.will_refill)
    await bench.completer.drained()
    assert [*will, bench.completer.will_refill] == [False, False, True, False]


async def test_a_commit_that_fails_has_filled_nothing(bench: Bench) -> None:
    refills = bench.completer.refills = StubRefills(A_PLACE, A_PLACE, A_PLACE)
    limited = [Outcome(a_lease(is_limited=True), OutcomeKind.COMPLETE) for _ in range(2)]
    bench.store.settles = [DatabaseUnavailableError("away")]
    bench.completer.put(limited[0])
    await bench.completer.drained()
    # Repeated without a receive: that may be why it has failed.
    assert (len(refills.came), len(bench.store.settled), bench.store.asked_for) == (1, 2, [])
    slow = DatabaseUnavailableError("canceled")
    slow.took_long = True
    bench.store.settles = [slow]
    for each in limited:
        bench.completer.put(each)
    await bench.completer.drained()
    assert [len(group) for group in bench.store.settled] == [1, 1, 2, 1, 1]
    assert (refills.came, bench.store.asked_for) == ([[], []], [])
    assert len(bench.ended) == 3
