"""What a worker asks of a store beside the verbs: its own connections, hints, signs of life."""

import asyncio
from contextlib import suppress

from commandbus.database.store import Store
from commandbus.names import INBOX, inbox_channel, wakeup_channel
from tests.conformance.worlds import DOMAIN, World, done, new, parked, released
from tests.waiting import until


async def _say_idle(store: Store, worker: str = "w1") -> None:
    await store.heartbeat(worker, DOMAIN, is_idle=True, concurrency=1, in_flight=0)


async def test_a_dedicated_store_sees_the_same_commands(world: World, store: Store) -> None:
    command = new()
    await world.send(command)

    async with store.dedicated("control", 2) as own:
        leases = await own.receive(DOMAIN, vt_seconds=30, quantity=9, worker="w", limits={})
        assert await own.settle(DOMAIN, [done(lease) for lease in leases]) == set()

    assert await world.status(command.command_id) == "COMPLETED"


async def test_a_usable_store_passes_its_check(store: Store) -> None:
    await store.check()


async def test_a_worker_may_come_and_go_twice(store: Store) -> None:
    await _say_idle(store)
    await _say_idle(store)
    await store.worker_gone("w1")
    await store.worker_gone("w1")


async def test_whoever_listens_is_woken_by_what_concerns_it(world: World, store: Store) -> None:
    await store.ensure_domain(DOMAIN)
    await _say_idle(store)
    listener = store.listener()
    workers, inbox, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    listener.subscribe(wakeup_channel(DOMAIN), workers.set)
    listener.subscribe(inbox_channel(DOMAIN), inbox.set)
    listener.subscribe(wakeup_channel(DOMAIN), gone.set)
    running = asyncio.create_task(listener.run())
    try:
        # Once at the start, to have a look.
        for event in (workers, inbox, gone):
            await until(event.is_set, "the first wake-up")
            event.clear()
        listener.unsubscribe(wakeup_channel(DOMAIN), gone.set)

        async def woken_by(event: asyncio.Event, verb) -> None:
            event.clear()
            await verb
            await until(event.is_set, "a wake-up")

        command = new(reply_to=INBOX)
        await woken_by(workers, world.send(command))
        [lease] = await world.receive()
        await woken_by(workers, world.settle(released(lease)))
        [lease] = await world.receive()
        await world.settle(parked(lease))
        await woken_by(
            workers,
            store.operator_retry(DOMAIN, [command.command_id], actor=None, reset_attempts=True),
        )
        [lease] = await world.receive()
        await woken_by(inbox, world.settle(done(lease)))
        assert not gone.is_set()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_nobody_is_woken_by_a_call_that_failed(world: World, store: Store) -> None:
    known = new()
    await world.send(known)
    await _say_idle(store)
    listener = store.listener()
    wakes: list[str] = []
    listener.subscribe(wakeup_channel(DOMAIN), lambda: wakes.append("first"))
    running = asyncio.create_task(listener.run())
    try:
        await until(lambda: wakes, "the first wake-up")
        with suppress(Exception):
            await world.send(new(), known)
        with suppress(ZeroDivisionError):
            async with store.transaction() as transaction:
                await store.send(DOMAIN, [new()], conn=transaction.conn)
                _ = 1 / 0
        await world.send(new())
        await until(lambda: len(wakes) > 1, "the wake-up of the send that went well")
        assert len(wakes) == 2
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
