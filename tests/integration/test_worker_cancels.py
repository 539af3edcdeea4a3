"""Workers that are asked to end what they run: async handlers, threads, transactions, dead ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    Fail,
    HandlerContext,
    InvalidInputError,
    InvalidOperationError,
    PermanentCommandError,
    ReplyOutcome,
    RetryPolicy,
    Snooze,
)
from commandbus.errors import CommandCanceledError
from tests.integration.looking import (
    Conn,
    another_bus,
    events,
    lapse,
    replies,
    rows,
    send,
    take_over,
)
from tests.waiting import until, until_status, working

CANCELED = CommandStatus.CANCELED


async def request(bus: CommandBus, sent: UUID) -> None:
    answer = await bus.cancel("shop", sent, "not needed", running="request", operator="ann")
    assert answer == "requested"


async def test_an_async_handler_is_cancelled_within_a_second(bus: CommandBus, conn: Conn) -> None:
    started = asyncio.Event()
    ended: list[BaseException] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        try:
            await asyncio.sleep(3_600)
        except BaseException as error:
            assert ctx.should_stop
            ended.append(error)
            raise

    sent = await send(bus)
    async with working(bus, "shop", vt_seconds=600):
        await asyncio.wait_for(started.wait(), 30)
        asked_at = time.monotonic()
        await request(bus, sent)
        row = await until_status(bus, "shop", sent, CANCELED)
        assert time.monotonic() - asked_at < 5  # a third of the lease would be 200

    assert isinstance(ended[0], asyncio.CancelledError)
    (reply,) = await replies(bus)
    assert reply.outcome is ReplyOutcome.CANCELED
    assert reply.error is not None
    assert reply.error.message == "not needed"
    assert row.attempts == 1
    assert await events(bus, sent) == ["SENT", "RECEIVED", "CANCEL_REQUESTED", "CANCELED"]
    (last,) = [e for e in await bus.get_audit_trail(sent) if e.event_type == "CANCELED"]
    assert (last.actor, last.details) == ("ann", {"reason": "not needed"})


async def test_without_hints_the_extension_of_the_lease_brings_the_request(
    bus: CommandBus,
) -> None:
    started = asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        await asyncio.sleep(3_600)

    sent = await send(bus)
    async with working(bus, "shop", vt_seconds=3, use_notify=False):
        await asyncio.wait_for(started.wait(), 30)
        await request(bus, sent)
        await until_status(bus, "shop", sent, CANCELED)


@pytest.mark.parametrize("asks", ["raise_if_canceled", "should_stop"])
async def test_a_thread_learns_of_it_and_ends(bus: CommandBus, asks: str) -> None:
    started = threading.Event()

    @bus.handler("shop", "Work", retry_policy=RetryPolicy(max_attempts=1))
    def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        while True:
            if asks == "raise_if_canceled":
                ctx.raise_if_canceled()
            elif ctx.should_stop:
                raise RuntimeError("stopped between two pages")
            time.sleep(0.01)

    sent = await send(bus)
    async with working(bus, "shop"):
        await until(started.is_set)
        await request(bus, sent)
        row = await until_status(bus, "shop", sent, CANCELED)

    assert await bus.list_troubleshooting("shop") == []
    assert row.leased_by is None
    (last,) = [e for e in await bus.get_audit_trail(sent) if e.event_type == "CANCELED"]
    assert ("error" in (last.details or {})) == (asks == "should_stop")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda: "done", CommandStatus.COMPLETED),
        (lambda: Fail("A", "b"), CommandStatus.FAILED),
        (lambda: PermanentCommandError("A", "b"), CommandStatus.IN_TROUBLESHOOTING_QUEUE),
        (lambda: Snooze(600), CANCELED),
        (lambda: RuntimeError("no"), CANCELED),
    ],
)
async def test_what_the_handler_says_after_the_request_decides(
    bus: CommandBus, end: Callable[[], Any], status: CommandStatus
) -> None:
    started = asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> Any:
        started.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            said = end()
            if type(said) is RuntimeError:
                raise said from None
            return said

    sent = await send(bus)
    async with working(bus, "shop"):
        await asyncio.wait_for(started.wait(), 30)
        await request(bus, sent)
        await until_status(bus, "shop", sent, status)
        # The task that was cancelled goes on to work for others.
        other = await bus.send("shop", "Work", uuid4(), {})
        started.clear()
        await asyncio.wait_for(started.wait(), 30)
        await request(bus, other)
        await until_status(bus, "shop", other, status)


async def test_a_transactional_handler_that_is_canceled_leaves_nothing(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("create table written (command_id uuid)")
    started = asyncio.Event()

    @bus.handler("shop", "Work", transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> None:
        await ctx.conn.execute("insert into written values (%s)", (command.command_id,))
        ctx.send("shop", "Next", uuid4(), {})
        started.set()
        await asyncio.sleep(3_600)

    sent = await send(bus)
    async with working(bus, "shop"):
        await asyncio.wait_for(started.wait(), 30)
        await request(bus, sent)
        await until_status(bus, "shop", sent, CANCELED)

    assert await rows(conn, "select * from written") == []
    assert await rows(conn, "select 1 from commandbus.command_bus_command offset 1") == []


async def test_what_waits_for_a_slot_of_the_worker_is_canceled_without_a_start(
    bus: CommandBus,
) -> None:
    started: list[UUID] = []
    gate = asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.append(command.command_id)
        await gate.wait()

    first, second = [await bus.send("shop", "Work", uuid4(), {}) for _ in range(2)]
    async with working(bus, "shop", concurrency=1):
        await until(lambda: started)
        waiting = second if started == [first] else first
        answer = await bus.cancel("shop", waiting, "why", running="request")
        assert answer in {"canceled", "requested"}
        await until_status(bus, "shop", waiting, CANCELED)
        gate.set()
        await until_status(bus, "shop", started[0], CommandStatus.COMPLETED)

    assert len(started) == 1


async def test_the_command_of_a_dead_worker_is_canceled_by_the_next_receive(
    bus: CommandBus, conn: Conn
) -> None:
    ran: list[UUID] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        ran.append(command.command_id)

    sent = await send(bus)
    await take_over(conn)
    await request(bus, sent)
    await lapse(conn)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CANCELED)

    assert ran == []
    assert (await events(bus, sent))[-2:] == ["LEASE_EXPIRED", "CANCELED"]


async def test_a_stop_of_the_worker_ends_what_was_asked_for(dsn: str) -> None:
    started = asyncio.Event()
    ended = asyncio.Event()
    async with another_bus(dsn, shutdown_grace_seconds=1.0) as bus:

        @bus.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            started.set()
            while True:  # it does not listen
                try:
                    await asyncio.sleep(3_600)
                except asyncio.CancelledError:
                    if ctx.should_stop and ended.is_set():
                        raise

        sent = await send(bus)
        async with working(bus, "shop"):
            await asyncio.wait_for(started.wait(), 30)
            await request(bus, sent)
            ended.set()
        assert (await bus.get_command("shop", sent)).status is CANCELED  # type: ignore[union-attr]


async def test_a_cancel_refuses_what_runs_unless_it_is_asked_for(
    bus: CommandBus, conn: Conn
) -> None:
    sent = await send(bus)
    await take_over(conn)
    with pytest.raises(InvalidOperationError, match="leased by a worker"):
        await bus.cancel("shop", sent, "why")
    with pytest.raises(InvalidInputError, match="use 'refuse' or 'request'"):
        await bus.cancel("shop", sent, "why", running="kill")  # type: ignore[arg-type]
    assert await events(bus, sent) == ["SENT", "RECEIVED"]


async def test_a_batch_is_canceled_with_what_runs_of_it(bus: CommandBus) -> None:
    from commandbus import BatchCommand

    started: list[UUID] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        started.append(command.command_id)
        await asyncio.sleep(3_600)

    batch = await bus.create_batch(
        "shop", [BatchCommand("Work", uuid4(), {}) for _ in range(5)], name="b"
    )
    async with working(bus, "shop", concurrency=2):
        await until(lambda: len(started) == 2)
        count = await bus.batches.cancel("shop", batch, "why", running="request", operator="ann")
        assert count == 5

        async def is_over() -> bool:
            found = await bus.get_batch("shop", batch)
            return found is not None and found.completed_at is not None

        await until(is_over)
    found = await bus.get_batch("shop", batch)
    assert found is not None
    assert (found.canceled_count, found.total_count) == (5, 5)


async def test_progress_of_async_handlers_and_of_threads_is_shown(bus: CommandBus) -> None:
    gate = threading.Event()

    @bus.handler("shop", "Thread")
    def in_thread(command: Command, ctx: HandlerContext) -> None:
        number = 0
        while not gate.is_set():
            number += 1
            ctx.progress(0.5, f"round {number} of {command.data['password']}")
            time.sleep(0.001)

    @bus.handler("shop", "Async")
    async def here(command: Command, ctx: HandlerContext) -> None:
        ctx.progress(1)
        with pytest.raises(InvalidInputError, match="use 0 to 1"):
            ctx.progress(1.5)
        while not gate.is_set():
            await asyncio.sleep(0.01)

    threads = [
        await bus.send("shop", "Thread", uuid4(), {"password": "h7-secret"}) for _ in range(3)
    ]
    other = await bus.send("shop", "Async", uuid4(), {})

    async def shown() -> bool:
        found = await bus.search.progress("shop", [*threads, other])
        if len(found) < 4:
            return False
        assert {found[each].fraction for each in threads} == {0.5}
        assert (found[other].fraction, found[other].message) == (1.0, None)
        for each in threads:
            message = found[each].message
            assert message is not None
            assert message.startswith("round ")
            assert "h7-secret" not in message
        return True

    async with working(bus, "shop", concurrency=5):
        await until(shown)
        gate.set()
        for each in (*threads, other):
            await until_status(bus, "shop", each, CommandStatus.COMPLETED)
    assert await bus.search.progress("shop", [*threads, other]) == {}


def test_the_error_of_a_cancel_says_what_to_do_with_it() -> None:
    assert "let this error pass" in (CommandCanceledError.__doc__ or "")
