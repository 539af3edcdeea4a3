"""commandbus.testing: what applications test with, without PostgreSQL (004 §12.1)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    DuplicateCommandError,
    HandlerContext,
    InvalidOperationError,
    InvalidSettingError,
    PermanentCommandError,
    ReplyTimeoutError,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.names import NO_REPLY
from commandbus.testing import FakeClock, fake_bus, run_until_idle, sent, store_of
from tests.conformance.worlds import DOMAIN

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def fake(clock: FakeClock) -> CommandBus:
    return fake_bus(clock=clock)


class Recorder:
    """A handler that does what it is told, attempt by attempt, and remembers."""

    def __init__(self, *plan: Any) -> None:
        self.plan = list(plan)
        self.seen: list[tuple[int, dict[str, Any]]] = []

    async def __call__(self, command: Command, ctx: HandlerContext) -> Any:
        self.seen.append((ctx.attempt, command.data))
        step = self.plan.pop(0) if self.plan else None
        if isinstance(step, Exception):
            raise step
        return step


async def _status(fake: CommandBus, command_id: UUID) -> CommandStatus:
    found = await fake.get_command(DOMAIN, command_id)
    assert found is not None
    return found.status


async def _events(fake: CommandBus, command_id: UUID) -> list[str]:
    return [event.event_type for event in await fake.get_audit_trail(command_id)]


async def _replies(fake: CommandBus) -> list[Any]:
    return [reply async for reply in fake.replies(DOMAIN, wait=False)]


# -- the list of 004 §12.1


async def test_a_second_send_of_an_id_is_refused_and_one_is_processed(fake: CommandBus) -> None:
    handler = Recorder()
    fake.register_handler(DOMAIN, "Debit", handler)
    command_id = uuid4()
    await fake.send(DOMAIN, "Debit", command_id, {"amount": 1})

    with pytest.raises(DuplicateCommandError):
        await fake.send(DOMAIN, "Debit", command_id, {"amount": 2})

    await run_until_idle(fake, DOMAIN)
    assert handler.seen == [(1, {"amount": 1})]
    with pytest.raises(DuplicateCommandError):
        await fake.send(DOMAIN, "Debit", command_id, {"amount": 1})


async def test_each_command_goes_to_the_handler_of_its_type(fake: CommandBus) -> None:
    debit, credit = Recorder({"ok": 1}), Recorder()
    fake.register_handler(DOMAIN, "Debit", debit)
    fake.register_handler(DOMAIN, "Credit", credit)

    @fake.handler("shipping", "Ship")
    def ship(command: Command, ctx: HandlerContext) -> str:  # a blocking one, in a thread
        return f"shipped {command.data['n']}"

    first = await fake.send(DOMAIN, "Debit", uuid4(), {"n": 1})
    await fake.send(DOMAIN, "Credit", uuid4(), {"n": 2})
    await fake.send("shipping", "Ship", uuid4(), {"n": 3})
    unknown = await fake.send(DOMAIN, "Transfer", uuid4(), {})

    await run_until_idle(fake)

    assert (debit.seen, credit.seen) == ([(1, {"n": 1})], [(1, {"n": 2})])
    assert {reply.command_id for reply in await _replies(fake)} >= {first}
    shipped = [reply.data async for reply in fake.replies("shipping", wait=False)]
    assert shipped == ["shipped 3"]
    [item] = await fake.list_troubleshooting(DOMAIN)
    assert (item.command_id, item.last_error_code) == (unknown, "HANDLER_NOT_FOUND")


async def test_a_transient_failure_is_retried_by_its_schedule(
    fake: CommandBus, clock: FakeClock
) -> None:
    busy = TransientCommandError("BUSY", "later")
    handler = Recorder(busy, busy, {"done": True})
    policy = RetryPolicy(max_attempts=3, backoff_schedule=(10, 60))
    fake.register_handler(DOMAIN, "Debit", handler, retry_policy=policy)
    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})

    await run_until_idle(fake, DOMAIN)
    assert len(handler.seen) == 1
    clock.advance(9)
    await run_until_idle(fake, DOMAIN)
    assert len(handler.seen) == 1
    clock.advance(1)
    await run_until_idle(fake, DOMAIN)
    assert len(handler.seen) == 2
    clock.advance(59)
    await run_until_idle(fake, DOMAIN)
    assert len(handler.seen) == 2
    clock.advance(1)
    await run_until_idle(fake, DOMAIN)

    assert [attempt for attempt, _ in handler.seen] == [1, 2, 3]
    assert await _status(fake, command_id) is CommandStatus.COMPLETED
    assert [reply.data for reply in await _replies(fake)] == [{"done": True}]
    assert await _events(fake, command_id) == [
        "SENT", "RECEIVED", "FAILED", "RECEIVED", "FAILED", "RECEIVED", "COMPLETED",
    ]  # fmt: skip


async def test_waits_can_be_skipped_until_the_attempts_are_used_up(
    fake: CommandBus, clock: FakeClock
) -> None:
    handler = Recorder(*[ConnectionError("down")] * 5)
    fake.register_handler(DOMAIN, "Debit", handler)
    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})
    before = clock.now()

    await run_until_idle(fake, DOMAIN, skip_waits=True)

    assert [attempt for attempt, _ in handler.seen] == [1, 2, 3]
    assert timedelta(seconds=70) <= clock.now() - before < timedelta(seconds=71)
    [item] = await fake.list_troubleshooting(DOMAIN)
    assert (item.command_id, item.reason) == (command_id, "EXHAUSTED")
    assert await _replies(fake) == []


async def test_a_permanent_failure_goes_to_troubleshooting_without_a_reply(
    fake: CommandBus,
) -> None:
    handler = Recorder(PermanentCommandError("NO_ACCOUNT", "there is none", {"id": 7}))
    fake.register_handler(DOMAIN, "Debit", handler)
    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {"amount": 5})

    await run_until_idle(fake, DOMAIN)

    assert len(handler.seen) == 1
    [item] = await fake.list_troubleshooting(DOMAIN)
    assert (item.command_id, item.reason, item.data) == (command_id, "PERMANENT", {"amount": 5})
    assert item.last_error_code == "NO_ACCOUNT"
    assert await _replies(fake) == []


async def _parked(fake: CommandBus, *plan: Any) -> UUID:
    handler = Recorder(PermanentCommandError("NO_ACCOUNT", "there is none"), *plan)
    fake.register_handler(DOMAIN, "Debit", handler)
    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {"amount": 5})
    await run_until_idle(fake, DOMAIN)
    assert await _status(fake, command_id) is PARKED
    return command_id


async def test_an_operator_retries_a_parked_command(fake: CommandBus) -> None:
    command_id = await _parked(fake, {"balance": 1})

    await fake.operator_retry(DOMAIN, command_id, operator="ann")
    await run_until_idle(fake, DOMAIN)

    assert await _status(fake, command_id) is CommandStatus.COMPLETED
    assert [reply.data for reply in await _replies(fake)] == [{"balance": 1}]


async def test_an_operator_cancels_a_parked_command(fake: CommandBus) -> None:
    command_id = await _parked(fake)

    await fake.operator_cancel(DOMAIN, command_id, "not wanted", operator="ann")

    assert await _status(fake, command_id) is CommandStatus.CANCELED
    [reply] = await _replies(fake)
    assert (reply.outcome, reply.error and reply.error.message) == ("CANCELED", "not wanted")
    with pytest.raises(InvalidOperationError):
        await fake.operator_retry(DOMAIN, command_id)


async def test_an_operator_completes_a_parked_command(fake: CommandBus) -> None:
    command_id = await _parked(fake)

    await fake.operator_complete(DOMAIN, command_id, {"by": "hand"})

    assert await _status(fake, command_id) is CommandStatus.COMPLETED
    [reply] = await _replies(fake)
    assert (reply.outcome, reply.data) == ("SUCCESS", {"by": "hand"})


# -- sent


async def test_sent_lists_what_was_sent_whatever_became_of_it(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Debit", Recorder())
    relation = uuid4()
    first = await fake.send(DOMAIN, "Debit", uuid4(), {"n": 1}, NO_REPLY, relation)
    await run_until_idle(fake, DOMAIN)
    await fake.send(DOMAIN, "Credit", uuid4(), {"n": 2})
    await fake.send("shipping", "Ship", uuid4(), {"n": 3})

    assert [command.data["n"] for command in sent(fake, DOMAIN)] == [1, 2]
    assert [command.data["n"] for command in sent(store_of(fake), "shipping", "Ship")] == [3]
    assert sent(fake, DOMAIN, "Other") == []
    [debit] = sent(fake, DOMAIN, "Debit")
    assert (debit.command_id, debit.correlation_id, debit.reply_to) == (first, relation, None)


async def test_what_sent_lists_is_a_copy(fake: CommandBus) -> None:
    await fake.send(DOMAIN, "Debit", uuid4(), {"lines": [1]})
    sent(fake, DOMAIN)[0].data["lines"].append(2)

    assert sent(fake, DOMAIN)[0].data == {"lines": [1]}


async def test_what_a_handler_sends_is_listed_too(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Debit")
    async def debit(command: Command, ctx: HandlerContext) -> None:
        ctx.send("shipping", "Ship", uuid4(), {"order": command.data["order"]})

    await fake.send(DOMAIN, "Debit", uuid4(), {"order": 7})
    await run_until_idle(fake, DOMAIN)

    [shipped] = sent(fake, "shipping", "Ship")
    assert shipped.data == {"order": 7}


# -- run_until_idle


async def test_nothing_to_do_is_done_at_once(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Debit", Recorder())

    await run_until_idle(fake)
    await run_until_idle(fake, DOMAIN, skip_waits=True)


async def test_commands_that_follow_from_commands_are_run_too(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Count")
    async def count(command: Command, ctx: HandlerContext) -> None:
        if command.data["n"]:
            ctx.send(DOMAIN, "Count", uuid4(), {"n": command.data["n"] - 1})

    await fake.send(DOMAIN, "Count", uuid4(), {"n": 20})
    await run_until_idle(fake, DOMAIN)

    counted = [await fake.get_command(DOMAIN, each.command_id) for each in sent(fake, DOMAIN)]
    assert len(counted) == 21
    assert {each and each.status for each in counted} == {CommandStatus.COMPLETED}


async def test_a_thousand_commands_are_a_matter_of_a_second(fake: CommandBus) -> None:
    handler = Recorder()
    fake.register_handler(DOMAIN, "Debit", handler)
    for n in range(1_000):
        await fake.send(DOMAIN, "Debit", uuid4(), {"n": n})

    await run_until_idle(fake, DOMAIN)

    assert sorted(data["n"] for _, data in handler.seen) == list(range(1_000))


async def test_a_handler_that_hangs_fails_the_test(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Hang")
    async def hang(command: Command, ctx: HandlerContext) -> None:
        await asyncio.Event().wait()

    command_id = await fake.send(DOMAIN, "Hang", uuid4(), {})

    with pytest.raises(TimeoutError, match="payments still busy"):
        await run_until_idle(fake, DOMAIN, timeout=0.05)

    assert await _status(fake, command_id) is CommandStatus.PENDING


async def test_a_worker_that_cannot_run_says_why(fake: CommandBus) -> None:
    await fake.send(DOMAIN, "Debit", uuid4(), {})

    with pytest.raises(InvalidSettingError):
        await run_until_idle(fake, DOMAIN, concurrency=0)


async def test_a_lease_of_a_dead_worker_is_taken_over_when_its_time_is_over(
    fake: CommandBus, clock: FakeClock
) -> None:
    handler = Recorder()
    fake.register_handler(DOMAIN, "Debit", handler)
    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})
    store = store_of(fake)
    await store.receive(DOMAIN, vt_seconds=30, quantity=1, worker="dead", limits={})

    await run_until_idle(fake, DOMAIN)
    assert handler.seen == []
    clock.advance(30)
    await run_until_idle(fake, DOMAIN)

    assert handler.seen == [(1, {})]
    assert "LEASE_EXPIRED" in await _events(fake, command_id)


async def test_a_running_worker_is_woken_when_time_passes(
    fake: CommandBus, clock: FakeClock
) -> None:
    again = asyncio.Event()

    @fake.handler(DOMAIN, "Debit")
    async def debit(command: Command, ctx: HandlerContext) -> None:
        if ctx.attempt == 1:
            raise TransientCommandError("BUSY", "later")
        again.set()

    failed_once = asyncio.Event()
    store = store_of(fake)

    def look() -> None:
        if any(event.event_type == "FAILED" for event in store._state.audit):
            failed_once.set()

    worker = asyncio.create_task(fake.run_worker(DOMAIN))
    with store.watched_by(look):
        await fake.send(DOMAIN, "Debit", uuid4(), {})
        await asyncio.wait_for(failed_once.wait(), 10)
    clock.advance(10)
    await asyncio.wait_for(again.wait(), 10)
    await fake.stop()
    await worker


async def test_a_call_is_answered_by_a_running_worker(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Debit", Recorder({"ok": True}))
    worker = asyncio.create_task(fake.run_worker(DOMAIN))

    reply = await fake.call(DOMAIN, "Debit", {})
    await fake.close()
    await worker

    assert reply.data == {"ok": True}


async def test_a_call_that_nobody_answers_times_out(fake: CommandBus) -> None:
    with pytest.raises(ReplyTimeoutError):
        await fake.call(DOMAIN, "Debit", {}, timeout=0.01)
    await fake.close()
