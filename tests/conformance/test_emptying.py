"""Workers that end once their queue is empty, on both stores."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from commandbus import Command, CommandBus, RetryPolicy, Settings
from commandbus.errors import DomainPausedError, InvalidSettingError, TransientCommandError
from commandbus.handler import HandlerContext
from tests.conformance.worlds import DOMAIN, World, new, retried
from tests.waiting import until

OTHER = "returns"


@pytest.fixture
def bus(world: World) -> CommandBus:
    return CommandBus(store=world.store, settings=Settings(poll_max_seconds=0.05))


async def empty(bus: CommandBus, *domains: str, include_delayed: bool = False) -> None:
    async with asyncio.timeout(20):
        await asyncio.gather(
            *(
                bus.run_worker(domain, until_empty=True, include_delayed=include_delayed)
                for domain in domains or (DOMAIN,)
            )
        )


async def test_nothing_is_left_in_an_empty_queue(world: World) -> None:
    await world.store.ensure_domain(DOMAIN)
    for include_delayed in (False, True):
        assert await world.store.what_is_left(DOMAIN, include_delayed=include_delayed) is None


async def test_what_is_due_is_left(world: World) -> None:
    await world.send(new())
    for include_delayed in (False, True):
        assert await world.store.what_is_left(DOMAIN, include_delayed=include_delayed) == "due"


async def test_what_another_worker_has_is_not_left(world: World) -> None:
    await world.send_and_receive(new())
    for include_delayed in (False, True):
        assert await world.store.what_is_left(DOMAIN, include_delayed=include_delayed) is None


async def test_what_backs_off_is_left_if_that_is_asked_for(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease))
    assert await world.store.what_is_left(DOMAIN, include_delayed=False) is None
    assert await world.store.what_is_left(DOMAIN, include_delayed=True) == "delayed"
    await world.lapse()
    assert await world.store.what_is_left(DOMAIN, include_delayed=False) == "due"


async def test_a_message_that_is_no_command_is_left_until_it_was_turned_away(world: World) -> None:
    await world.store.ensure_domain(DOMAIN)
    await world.pgmq.send(f"{DOMAIN}.commands", {"no": "command"})
    assert await world.store.what_is_left(DOMAIN, include_delayed=True) == "due"
    await world.receive()
    assert await world.store.what_is_left(DOMAIN, include_delayed=True) is None


async def test_a_worker_ends_once_all_is_done(world: World, bus: CommandBus) -> None:
    done: list[int] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        done.append(command.data["n"])

    bus.register_handler(DOMAIN, "Debit", handle)
    await world.send(*(new(data={"n": n}) for n in range(50)))
    await empty(bus)
    assert sorted(done) == list(range(50))


async def test_a_worker_ends_at_once_if_there_is_nothing(bus: CommandBus) -> None:
    await empty(bus)


async def test_more_messages_that_are_turned_away_than_are_read_at_once_are_no_end(
    world: World, bus: CommandBus
) -> None:
    done = asyncio.Event()

    async def handle(command: Command, context: HandlerContext) -> None:
        done.set()

    bus.register_handler(DOMAIN, "Debit", handle)
    await world.store.ensure_domain(DOMAIN)
    for _ in range(25):
        await world.pgmq.send(f"{DOMAIN}.commands", {"no": "command"})
    await world.send(new())
    await empty(bus)
    assert done.is_set()


async def test_what_a_handler_sends_with_its_last_outcome_is_done_too(
    world: World, bus: CommandBus
) -> None:
    done: list[int] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        done.append(command.data["n"])
        if command.data["n"]:
            context.send(DOMAIN, "Debit", uuid4(), {"n": command.data["n"] - 1})

    bus.register_handler(DOMAIN, "Debit", handle)
    await world.send(new(data={"n": 5}))
    await empty(bus)
    assert done == [5, 4, 3, 2, 1, 0]


async def test_domains_that_send_to_each_other_end_together(world: World, bus: CommandBus) -> None:
    done: list[tuple[str, int]] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        done.append((command.domain, command.data["n"]))
        if command.data["n"]:
            there = OTHER if command.domain == DOMAIN else DOMAIN
            context.send(there, "Debit", uuid4(), {"n": command.data["n"] - 1})

    for domain in (DOMAIN, OTHER):
        bus.register_handler(domain, "Debit", handle)
    await world.send(new(data={"n": 4}))
    await empty(bus, DOMAIN, OTHER)
    assert done == [(DOMAIN, 4), (OTHER, 3), (DOMAIN, 2), (OTHER, 1), (DOMAIN, 0)]


async def test_a_handler_that_runs_is_waited_for(world: World, bus: CommandBus) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(command: Command, context: HandlerContext) -> None:
        begun.set()
        await may_end.wait()
        await bus.send(OTHER, "Debit", uuid4(), {})

    async def handle_other(command: Command, context: HandlerContext) -> None:
        others.append(command.command_id)

    others: list[object] = []
    bus.register_handler(DOMAIN, "Debit", handle)
    bus.register_handler(OTHER, "Debit", handle_other)
    await world.send(new())
    emptying = asyncio.create_task(empty(bus, DOMAIN, OTHER))
    await begun.wait()
    assert not emptying.done()
    may_end.set()
    await emptying
    assert len(others) == 1


async def test_the_lease_of_another_worker_is_not_waited_for(world: World, bus: CommandBus) -> None:
    command = new()
    await world.send_and_receive(command)
    for include_delayed in (False, True):
        await empty(bus, include_delayed=include_delayed)
    assert await world.status(command.command_id) == "IN_PROGRESS"


async def test_a_retry_is_waited_for_only_if_that_is_asked_for(
    world: World, bus: CommandBus
) -> None:
    attempts: list[int] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        attempts.append(context.attempt)
        if len(attempts) == 1:
            raise TransientCommandError("BUSY", "come back")

    policy = RetryPolicy(backoff_schedule=[600])
    bus.register_handler(DOMAIN, "Debit", handle, retry_policy=policy)
    await world.send(new())
    await empty(bus)
    assert attempts == [1]
    emptying = asyncio.create_task(empty(bus, include_delayed=True))
    await until(lambda: bus._workers.running, "a worker")
    [worker] = bus._workers.running
    await worker.started.wait()
    assert not emptying.done()
    await world.advance(600)
    await emptying
    assert attempts == [1, 2]


async def test_a_worker_that_empties_can_be_stopped(world: World, bus: CommandBus) -> None:
    [lease] = await world.send_and_receive(new())
    await world.settle(retried(lease))
    emptying = asyncio.create_task(empty(bus, include_delayed=True))
    await until(lambda: bus._workers.running, "a worker")
    await bus.stop()
    await emptying


async def test_delayed_commands_without_an_end_are_refused(bus: CommandBus) -> None:
    with pytest.raises(InvalidSettingError, match="until_empty"):
        await bus.run_worker(DOMAIN, include_delayed=True)


async def test_a_paused_domain_ends_the_worker_and_the_others_at_once(
    world: World, bus: CommandBus
) -> None:
    await world.send(command := new())
    await bus.pause(DOMAIN, reason="maintenance", operator="ann")
    assert await world.store.what_is_left(DOMAIN, include_delayed=True) == "paused"
    async with asyncio.timeout(20):
        found = await asyncio.gather(
            *(bus.run_worker(each, until_empty=True) for each in (DOMAIN, OTHER)),
            return_exceptions=True,
        )
    assert isinstance(found[0], DomainPausedError)
    assert found[1] is None
    assert await world.status(command.command_id) == "PENDING"
