"""bus.consumer: commands that a program leases and settles itself, on both stores."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    Fail,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
    LeaseLostError,
    PermanentCommandError,
    RetryPolicy,
    Settings,
    TransientCommandError,
)
from commandbus.database.store import Store
from commandbus.worker import Consumer, LeasedCommand
from tests.conformance.worlds import DOMAIN, World

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
DOWN = TransientCommandError("BANK_DOWN", "no answer", {"host": "b1"})


@pytest.fixture
def bus(store: Store) -> CommandBus:
    return CommandBus(store=store, settings=Settings(poll_max_seconds=0.05))


async def send(bus: CommandBus, number: int = 1, **options: Any) -> list[UUID]:
    return [await bus.send(DOMAIN, "Debit", uuid4(), {"n": n}, **options) for n in range(number)]


async def one(consumer: Consumer) -> LeasedCommand:
    [leased] = await consumer.receive()
    return leased


async def test_a_consumer_gets_what_was_sent_and_completes_it_with_a_result(
    world: World, bus: CommandBus
) -> None:
    [sent] = await send(bus)
    async with bus.consumer(DOMAIN) as consumer:
        leased = await one(consumer)
        assert (leased.command.command_id, leased.command.data) == (sent, {"n": 0})
        assert (leased.attempt, leased.max_attempts, leased.lease_epoch) == (1, 3, 1)
        assert await world.status(sent) is CommandStatus.IN_PROGRESS
        await leased.complete({"taken": 5})
        assert leased.ended_as == "completed"

    assert await world.events(sent) == ["SENT", "RECEIVED", "COMPLETED"]
    [reply] = await world.replies()
    assert (reply["outcome"], reply["data"]) == ("SUCCESS", {"taken": 5})


async def test_a_retried_command_comes_again_after_the_delay_that_was_given(
    world: World, bus: CommandBus
) -> None:
    [sent] = await send(bus)
    async with bus.consumer(DOMAIN) as consumer:
        await (await one(consumer)).retry(DOWN, delay_seconds=600)
        assert await consumer.receive() == []
        await world.advance(601)
        leased = await one(consumer)
        assert leased.attempt == 2
        await leased.retry(DOWN)

    assert [found["retry_in_seconds"] for found in await world.details(sent, "FAILED")] == [600, 60]
    assert (await world.command(sent)).last_error_code == "BANK_DOWN"


@pytest.mark.parametrize(
    ("policy", "error", "status"),
    [
        (RetryPolicy(), PermanentCommandError("NO", "never"), PARKED),
        (RetryPolicy(), Fail("NO", "never"), CommandStatus.FAILED),
        (RetryPolicy(when_exhausted="fail"), PermanentCommandError("NO", "never"), "FAILED"),
        (RetryPolicy(permanent_errors=(KeyError,)), KeyError("x"), PARKED),
    ],
)
async def test_the_policy_decides_what_a_failure_leads_to(
    world: World, bus: CommandBus, policy: RetryPolicy, error: Exception, status: str
) -> None:
    [sent] = await send(bus)
    async with bus.consumer(DOMAIN, retry_policy=policy) as consumer:
        await (await one(consumer)).retry(error)
    assert await world.status(sent) == status


async def test_a_retry_without_an_attempt_left_parks_with_the_error(
    world: World, bus: CommandBus
) -> None:
    [sent] = await send(bus, max_attempts=1)
    async with bus.consumer(DOMAIN) as consumer:
        await (await one(consumer)).retry(DOWN)
    row = await world.command(sent)
    assert (row.status, row.last_error_code) == (PARKED, "BANK_DOWN")


async def test_a_command_can_be_parked_or_failed_at_once(world: World, bus: CommandBus) -> None:
    parked, failed = await send(bus, 2)
    async with bus.consumer(DOMAIN) as consumer:
        first, second = await consumer.receive(2)
        await first.park(ValueError("look at password=hunter2"))
        await second.fail(Fail("EXPIRED", "too old"))

    row = await world.command(parked)
    assert (row.status, row.last_error_type, row.last_error_msg) == (
        PARKED, "PERMANENT", "look at password=[REDACTED]",
    )  # fmt: skip
    assert (await world.command(failed)).status is CommandStatus.FAILED
    assert [reply["error"]["code"] for reply in await world.replies()] == ["EXPIRED"]


async def test_a_failure_does_not_repeat_what_a_worker_has_declared_as_secret(
    world: World, store: Store, bus: CommandBus
) -> None:
    await store.ensure_domain(DOMAIN)
    await store.declare_secrets(DOMAIN, {"Debit": {"iban"}})
    sent = await bus.send(DOMAIN, "Debit", uuid4(), {"iban": "DE123456"})
    async with bus.consumer(DOMAIN) as consumer:
        await (await one(consumer)).retry(ValueError("no account DE123456"))
    assert (await world.command(sent)).last_error_msg == "no account [REDACTED]"


async def test_what_is_not_settled_goes_back_at_the_end_of_the_block_uncounted(
    world: World, bus: CommandBus
) -> None:
    [released, left] = await send(bus, 2)
    with pytest.raises(KeyError):  # noqa: PT012
        async with bus.consumer(DOMAIN) as consumer:
            first, second = await consumer.receive(2)
            await first.release()
            raise KeyError("the program")

    assert second.ended_as == "released"
    for command_id in (released, left):
        row = await world.command(command_id)
        assert (row.status, row.attempts, row.leased_by) == (CommandStatus.PENDING, 0, None)
        assert (await world.events(command_id))[-1] == "RELEASED"
    with pytest.raises(InvalidOperationError, match="was released already"):
        await second.complete()


@pytest.mark.parametrize("verb", ["complete", "retry", "fail", "park", "release", "extend"])
async def test_a_verb_after_the_lease_changes_nothing_and_says_so(
    world: World, bus: CommandBus, verb: str
) -> None:
    [sent] = await send(bus)
    arguments: dict[str, tuple[Any, ...]] = {"complete": (), "release": (), "extend": (60,)}
    async with bus.consumer(DOMAIN) as late, bus.consumer(DOMAIN) as other:
        leased = await one(late)
        await world.lapse()
        again = await one(other)
        with pytest.raises(LeaseLostError, match="nothing was changed"):
            await getattr(leased, verb)(*arguments.get(verb, (DOWN,)))
        assert leased.ended_as == "lost"
        assert (await world.command(sent)).lease_epoch == again.lease_epoch
        with pytest.raises(InvalidOperationError, match="was lost already"):
            await leased.complete()
        await again.complete()

    rejected = (await world.events(sent)).count("STALE_RESULT_REJECTED")
    assert rejected == (0 if verb == "extend" else 1)
    assert await world.status(sent) is CommandStatus.COMPLETED


async def test_a_command_is_settled_once(world: World, bus: CommandBus) -> None:
    [sent] = await send(bus)
    async with bus.consumer(DOMAIN) as consumer:
        leased = await one(consumer)
        results = await asyncio.gather(
            leased.complete(1), leased.complete(2), leased.retry(DOWN), return_exceptions=True
        )
        assert [type(found) for found in results].count(InvalidOperationError) == 2
        with pytest.raises(InvalidOperationError, match="was completed already"):
            await leased.extend(60)
    assert (await world.events(sent)).count("COMPLETED") == 1


async def test_an_extended_lease_lasts_longer(world: World, bus: CommandBus) -> None:
    await send(bus)
    async with bus.consumer(DOMAIN, vt_seconds=30) as consumer:
        leased = await one(consumer)
        await leased.extend(600)
        await world.advance(300)
        assert await consumer.receive() == []
        await leased.complete()


async def test_a_completion_is_part_of_the_transaction_of_the_caller(
    world: World, store: Store, bus: CommandBus
) -> None:
    undone, done = await send(bus, 2)
    async with bus.consumer(DOMAIN) as consumer:
        first, second = await consumer.receive(2)
        with pytest.raises(KeyError):  # noqa: PT012
            async with store.transaction() as transaction:
                await first.complete("no", conn=transaction.conn)
                raise KeyError
        assert await world.status(undone) is CommandStatus.IN_PROGRESS
        await first.retry(DOWN)
        async with store.transaction() as transaction:
            await second.complete("yes", conn=transaction.conn)
            assert await world.status(done) is CommandStatus.IN_PROGRESS

    assert await world.status(done) is CommandStatus.COMPLETED
    assert (await world.command(undone)).last_error_code == "BANK_DOWN"
    assert [reply["data"] for reply in await world.replies()] == ["yes"]


async def test_a_late_completion_in_a_transaction_undoes_it(
    world: World, store: Store, bus: CommandBus
) -> None:
    await send(bus)
    new = uuid4()
    async with bus.consumer(DOMAIN) as late, bus.consumer(DOMAIN) as other:
        leased = await one(late)
        await world.lapse()
        await one(other)
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with store.transaction() as transaction:
                await bus.send(DOMAIN, "Debit", new, {}, conn=transaction.conn)
                await leased.complete(conn=transaction.conn)
    assert await bus.get_command(DOMAIN, new) is None


async def test_many_are_completed_at_once_and_the_lost_ones_are_named(
    world: World, bus: CommandBus
) -> None:
    ids = await send(bus, 3)
    async with bus.consumer(DOMAIN) as consumer, bus.consumer(DOMAIN) as other:
        leased = await consumer.receive(3)
        await world.lapse()
        [taken] = await other.receive()
        lost = await consumer.complete_all((each, n) for n, each in enumerate(leased))
        assert [each.command.command_id for each in lost] == [taken.command.command_id]
        assert await consumer.complete_all([]) == []

    ended = [await world.status(command_id) for command_id in ids]
    assert sorted(ended) == ["COMPLETED", "COMPLETED", "PENDING"]


async def test_a_command_that_is_given_twice_completes_nothing(
    world: World, bus: CommandBus
) -> None:
    ids = await send(bus, 2)
    async with bus.consumer(DOMAIN) as consumer:
        first, second = await consumer.receive(2)
        with pytest.raises(InvalidOperationError):
            await consumer.complete_all([(first, 1), (second, 2), (first, 3)])
        assert await consumer.complete_all([(first, 1), (second, 2)]) == []
    assert [await world.status(each) for each in ids] == [CommandStatus.COMPLETED] * 2


async def test_a_result_that_cannot_be_stored_leaves_the_command_open(bus: CommandBus) -> None:
    await send(bus)
    async with bus.consumer(DOMAIN) as consumer:
        leased = await one(consumer)
        with pytest.raises(InvalidPayloadError):
            await leased.complete(object())
        await leased.complete()


async def test_a_payload_that_cannot_be_read_is_parked_and_not_given(
    world: World, store: Store, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, good = await send(bus, 2)
    real = store.receive

    async def receive(*args: Any, **options: Any) -> Any:
        return [
            replace(lease, payload="{") if lease.command_id == broken else lease
            for lease in await real(*args, **options)
        ]

    monkeypatch.setattr(store, "receive", receive)
    async with bus.consumer(DOMAIN) as consumer:
        [leased] = await consumer.receive(2)
        assert leased.command.command_id == good
    assert (await world.command(broken)).last_error_code == "PAYLOAD_UNDECODABLE"


async def test_a_consumer_may_wait_for_a_command(bus: CommandBus) -> None:
    async with bus.consumer(DOMAIN) as consumer:
        assert await consumer.receive(wait_seconds=0.02) == []
        waiting = asyncio.create_task(consumer.receive(5, wait_seconds=30))
        [sent] = await send(bus)
        [leased] = await waiting
        assert leased.command.command_id == sent


async def test_a_receive_that_is_cancelled_loses_no_command(
    world: World, store: Store, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    [sent] = await send(bus)
    real, leased, go = store.receive, asyncio.Event(), asyncio.Event()

    async def receive(*args: Any, **options: Any) -> Any:
        found = await real(*args, **options)
        leased.set()
        await go.wait()
        return found

    monkeypatch.setattr(store, "receive", receive)
    async with bus.consumer(DOMAIN) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await leased.wait()
        waiting.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    row = await world.command(sent)
    assert (row.status, row.attempts) == (CommandStatus.PENDING, 0)


async def test_a_call_that_the_database_did_not_answer_may_be_repeated(
    world: World, store: Store, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    [sent] = await send(bus)
    real = store.settle
    has_answered: list[bool] = []

    async def settle(*args: Any, **options: Any) -> Any:
        found = await real(*args, **options)
        if not has_answered:
            has_answered.append(True)
            raise DatabaseUnavailableError("the connection was cut")
        return found

    monkeypatch.setattr(store, "settle", settle)
    async with bus.consumer(DOMAIN) as consumer:
        leased = await one(consumer)
        with pytest.raises(DatabaseUnavailableError):
            await leased.complete(1)
        await leased.complete(1)
    assert (await world.events(sent)).count("COMPLETED") == 1
    assert len(await world.replies()) == 1


async def test_a_block_ends_though_its_leases_cannot_be_given_back(
    world: World, store: Store, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    [sent] = await send(bus)

    async def settle(*args: Any, **options: Any) -> Any:
        raise DatabaseUnavailableError("no server")

    async with bus.consumer(DOMAIN) as consumer:
        await one(consumer)
        monkeypatch.setattr(store, "settle", settle)
    assert await world.status(sent) is CommandStatus.IN_PROGRESS  # until its lease lapses


async def test_a_consumer_that_counts_every_lapse_leases_as_often_as_there_are_attempts(
    world: World, bus: CommandBus
) -> None:
    [sent] = await send(bus, max_attempts=2)
    policy = RetryPolicy(count_lapses="every")
    async with bus.consumer(DOMAIN, retry_policy=policy) as consumer:
        for attempt in (1, 2):
            assert (await one(consumer)).attempt == attempt
            await world.lapse()
        assert await consumer.receive() == []
    assert await world.status(sent) is PARKED


@pytest.mark.parametrize(
    ("limit", "options"), [(0, {}), (1, {"wait_seconds": -1}), (True, {}), (10_001, {})]
)
async def test_nonsense_is_refused_before_anything_is_leased(
    bus: CommandBus, limit: Any, options: dict[str, Any]
) -> None:
    await send(bus)
    async with bus.consumer(DOMAIN) as consumer:
        with pytest.raises(InvalidSettingError):
            await consumer.receive(limit, **options)
        leased = await one(consumer)
        with pytest.raises(InvalidSettingError):
            await leased.retry(DOWN, delay_seconds=-1)
        with pytest.raises(InvalidSettingError):
            await leased.extend(0)
        await leased.complete()
    with pytest.raises(InvalidSettingError):
        bus.consumer(DOMAIN, vt_seconds=0)
