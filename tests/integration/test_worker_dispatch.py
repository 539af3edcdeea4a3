"""Dispatch: the right handler, never too many at once, in order, on the loop or in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import UTC, datetime
from uuid import uuid4

from commandbus import BatchCommand, Command, CommandBus, CommandStatus, HandlerContext
from tests.integration.looking import (
    Conn,
    another_bus,
    events,
    look,
    send,
    send_some,
    until_count,
)
from tests.waiting import until, until_status, working

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Gauge:
    """Counts how many are inside, and how many were inside at most."""

    def __init__(self) -> None:
        self.inside = 0
        self.peak = 0

    def __enter__(self) -> None:
        self.inside += 1
        self.peak = max(self.peak, self.inside)

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


async def test_a_command_goes_to_the_handler_of_its_domain_and_type(bus: CommandBus) -> None:
    for domain in ("shop", "bank"):
        for command_type in ("Open", "Close"):

            async def handle(
                command: Command, ctx: HandlerContext, name: str = f"{domain}/{command_type}"
            ) -> str:
                return name

            bus.register_handler(domain, command_type, handle)

    async with working(bus, "shop"), working(bus, "bank"):
        for domain in ("shop", "bank"):
            for command_type in ("Open", "Close"):
                reply = await bus.call(domain, command_type, {})
                assert reply.data == f"{domain}/{command_type}"


async def test_no_more_handlers_run_at_once_than_concurrency_allows(
    bus: CommandBus, conn: Conn
) -> None:
    gauge, gate = Gauge(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        with gauge:
            await gate.wait()

    await send_some(bus, 12)
    async with working(bus, "shop", concurrency=4):
        await until(lambda: gauge.inside == 4, "four handlers at once")
        gate.set()
        await until_count(conn, "COMPLETED", 12)

    assert gauge.peak == 4


async def test_no_more_handlers_run_at_once_when_fast_ones_are_leased_ahead(
    bus: CommandBus, conn: Conn
) -> None:
    gauge = Gauge()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        with gauge:
            await asyncio.sleep(0)

    await send_some(bus, 1_000)
    async with working(bus, "shop", concurrency=3):
        await until_count(conn, "COMPLETED", 1_000)

    assert gauge.peak == 3


async def test_a_single_slot_works_in_the_order_of_sending(bus: CommandBus, conn: Conn) -> None:
    order: list[int] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        order.append(command.data["n"])

    await send_some(bus, 200)
    async with working(bus, "shop", concurrency=1):
        await until_count(conn, "COMPLETED", 200)

    is_in_order = order == list(range(200))
    assert is_in_order


async def test_a_sync_handler_does_not_block_the_others(bus: CommandBus) -> None:
    started, gate = threading.Event(), threading.Event()

    @bus.handler("shop", "Slow")
    def slow(command: Command, ctx: HandlerContext) -> bool:
        started.set()
        return gate.wait(30)

    @bus.handler("shop", "Quick")
    async def quick(command: Command, ctx: HandlerContext) -> str:
        return "done"

    async with working(bus, "shop", concurrency=2):
        sent = await send(bus, "Slow")
        await until(started.is_set, "the sync handler")
        assert (await bus.call("shop", "Quick", {})).data == "done"
        gate.set()
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)


async def test_sync_handlers_run_side_by_side_and_their_threads_are_used_again(
    bus: CommandBus, conn: Conn
) -> None:
    together = threading.Barrier(3)
    names: set[str] = set()

    @bus.handler("shop", "Work")
    def work(command: Command, ctx: HandlerContext) -> None:
        together.wait(30)
        names.add(threading.current_thread().name)

    await send_some(bus, 12)
    async with working(bus, "shop", concurrency=3):
        await until_count(conn, "COMPLETED", 12)

    assert len(names) == 3
    assert all(name.startswith("commandbus-handler") for name in names)


async def test_objects_that_can_be_called_are_handlers(bus: CommandBus) -> None:
    loop_thread = threading.get_ident()

    class OnTheLoop:
        async def __call__(self, command: Command, ctx: HandlerContext) -> bool:
            return threading.get_ident() == loop_thread

    class InAThread:
        def __call__(self, command: Command, ctx: HandlerContext) -> bool:
            return threading.get_ident() != loop_thread

    bus.register_handler("shop", "Async", OnTheLoop())
    bus.register_handler("shop", "Sync", InAThread())
    async with working(bus, "shop"):
        assert (await bus.call("shop", "Async", {})).data is True
        assert (await bus.call("shop", "Sync", {})).data is True


async def test_context_variables_reach_handlers_on_the_loop_and_in_threads(
    bus: CommandBus,
) -> None:
    @bus.handler("shop", "Async")
    async def on_the_loop(command: Command, ctx: HandlerContext) -> str:
        return who.get()

    @bus.handler("shop", "Sync")
    def in_a_thread(command: Command, ctx: HandlerContext) -> str:
        seen = who.get()
        who.set("a handler that must not be heard outside")
        return seen

    who.set("ada")
    async with working(bus, "shop"):
        for command_type in ("Async", "Sync", "Sync"):
            assert (await bus.call("shop", command_type, {})).data == "ada"


async def test_the_context_tells_a_handler_about_its_lease(bus: CommandBus) -> None:
    seen: list[HandlerContext] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(ctx)

    correlation = uuid4()
    before = datetime.now(UTC)
    sent = await bus.send("shop", "Work", uuid4(), {"a": 1}, correlation_id=correlation)
    queued = await look(bus, sent)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    (ctx,) = seen
    assert (ctx.attempt, ctx.max_attempts, ctx.lease_epoch) == (1, 3, 1)
    assert (ctx.msg_id, ctx.correlation_id) == (queued.msg_id, correlation)
    command = ctx.command
    assert (command.domain, command.command_type, command.command_id) == ("shop", "Work", sent)
    assert (command.data, command.correlation_id) == ({"a": 1}, correlation)
    assert (command.reply_to, command.batch_id) == ("shop.replies", None)
    assert abs((command.created_at - before).total_seconds()) < 60


async def test_a_command_that_wants_no_reply_has_no_reply_queue(bus: CommandBus) -> None:
    seen: list[str | None] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(command.reply_to)

    sent = await bus.send("shop", "Work", uuid4(), {}, reply_to="")
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert seen == [None]
    assert [reply async for reply in bus.replies("shop", wait=False)] == []


async def test_a_leased_command_stays_pending_when_in_progress_is_not_marked(dsn: str) -> None:
    """C8: the flag changes what is shown, and nothing else."""
    async with another_bus(dsn, mark_in_progress=False) as bus:
        gate, started = asyncio.Event(), asyncio.Event()

        @bus.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> str:
            started.set()
            await gate.wait()
            return "done"

        sent = await send(bus)
        async with working(bus, "shop"):
            await asyncio.wait_for(started.wait(), 30)
            during = await look(bus, sent)
            gate.set()
            after = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

        assert (during.status, during.attempts) == (CommandStatus.PENDING, 1)
        assert during.leased_by is not None
        assert (after.attempts, after.leased_by) == (1, None)
        assert await events(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]


async def test_a_leased_command_shows_as_in_progress(bus: CommandBus) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        await gate.wait()

    sent = await send(bus)
    async with working(bus, "shop"):
        await asyncio.wait_for(started.wait(), 30)
        during = await look(bus, sent)
        gate.set()
    assert during.status is CommandStatus.IN_PROGRESS
    assert during.lease_expires_at is not None


async def test_one_bus_serves_two_domains_at_once(bus: CommandBus) -> None:
    together = asyncio.Barrier(2)
    for domain in ("shop", "bank"):

        @bus.handler(domain, "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            await asyncio.wait_for(together.wait(), 30)

    ids = {
        domain: (await bus.send_many(domain, [BatchCommand("Work", uuid4(), {})]))[0]
        for domain in ("shop", "bank")
    }
    async with working(bus, "shop"), working(bus, "bank"):
        for domain, command_id in ids.items():
            await until_status(bus, domain, command_id, CommandStatus.COMPLETED)
