"""Transactional handlers, and commands that handlers send: one commit, or nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    RetryPolicy,
    TransientCommandError,
)
from tests.integration.looking import (
    Conn,
    complete_as_other,
    events,
    look,
    replies,
    rows,
    seize,
    send,
    send_some,
    until_count,
    value,
)
from tests.waiting import until, until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
SOON = RetryPolicy(max_attempts=3, backoff_schedule=(0,))
WRITE = "insert into written (command_id, epoch) values (%s, %s)"


@pytest.fixture(autouse=True)
async def table(conn: Conn) -> None:
    await conn.execute("create table written (command_id uuid, epoch bigint)")


async def write(command: Command, ctx: HandlerContext) -> None:
    await ctx.conn.execute(WRITE, (command.command_id, ctx.lease_epoch))


async def written(conn: Conn) -> list[tuple[Any, ...]]:
    return await rows(conn, "select command_id, epoch from written")


async def test_what_a_handler_writes_and_its_completion_are_one_commit(
    bus: CommandBus, conn: Conn
) -> None:
    gate, has_written = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work", transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> str:
        await write(command, ctx)
        has_written.set()
        await gate.wait()
        return "done"

    sent = await send(bus)
    async with working(bus, "shop"):
        await asyncio.wait_for(has_written.wait(), 30)
        assert await written(conn) == []
        assert (await look(bus, sent)).status is CommandStatus.IN_PROGRESS
        gate.set()
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    assert await written(conn) == [(sent, 1)]
    # The same transaction wrote the row, the status, the audit and the reply.
    writers = await rows(
        conn,
        "select xmin::text from written"
        " union select xmin::text from commandbus.command_bus_command"
        " union select xmin::text from commandbus.command_bus_audit where event_type = 'COMPLETED'"
        " union select xmin::text from pgmq.q_shop__replies",
    )
    assert len(writers) == 1
    (reply,) = await replies(bus)
    assert reply.data == "done"


async def test_a_failed_attempt_leaves_nothing_of_what_it_wrote(
    bus: CommandBus, conn: Conn
) -> None:
    @bus.handler("shop", "Work", transactional=True, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        await write(command, ctx)
        if ctx.attempt < 3:
            raise TransientCommandError("NOT_YET", "again")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert await written(conn) == [(sent, 3)]
    assert (row.attempts, row.last_error_code) == (3, "NOT_YET")


async def test_a_result_that_is_no_json_leaves_nothing_of_what_was_written(
    bus: CommandBus, conn: Conn
) -> None:
    @bus.handler("shop", "Work", transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> object:
        await write(command, ctx)
        return object()

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.last_error_code == "INVALID_RESULT"
    assert await written(conn) == []


async def test_a_lost_lease_undoes_what_was_written_and_is_recorded(
    bus: CommandBus, conn: Conn
) -> None:
    gate, has_written = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work", transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> str:
        await write(command, ctx)
        ctx.send("shop", "Next", uuid4(), {})
        has_written.set()
        await gate.wait()
        return "late"

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1):
        await asyncio.wait_for(has_written.wait(), 30)
        taken = await seize(conn)
        await complete_as_other(conn, taken)
        gate.set()

        async def is_refused() -> bool:
            return "STALE_RESULT_REJECTED" in await events(bus, sent)

        await until(is_refused)
    assert await written(conn) == []
    (reply,) = await replies(bus)
    assert reply.data == "rescued"
    assert (await bus.search.commands(command_type="Next")).items == []


async def test_errors_of_the_database_reach_the_policy_as_the_driver_raised_them(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("create unique index on written (epoch)")
    policy = RetryPolicy(permanent_errors=(psycopg.errors.UniqueViolation,))

    @bus.handler("shop", "Work", transactional=True, retry_policy=policy)
    async def work(command: Command, ctx: HandlerContext) -> None:
        await write(command, ctx)
        await write(command, ctx)

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert (row.attempts, row.last_error_code) == (1, "UniqueViolation")
    assert await written(conn) == []


async def test_a_commit_that_fails_is_a_failed_attempt(bus: CommandBus, conn: Conn) -> None:
    """A deferred constraint speaks only at the very end."""
    await conn.execute(
        "alter table written add constraint late unique (epoch) deferrable initially deferred"
    )

    @bus.handler("shop", "Work", transactional=True, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        await write(command, ctx)
        if ctx.attempt == 1:
            await write(command, ctx)

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert await written(conn) == [(sent, 2)]
    assert (row.attempts, row.last_error_code) == (2, "DatabaseError")
    assert len(await replies(bus)) == 1


async def test_a_handler_that_swallowed_an_error_of_the_database_does_not_complete(
    bus: CommandBus, conn: Conn
) -> None:
    """PostgreSQL refuses everything after an error; nothing may be reported as done."""

    @bus.handler("shop", "Work", transactional=True, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        await write(command, ctx)
        if ctx.attempt == 1:
            with pytest.raises(psycopg.errors.UndefinedTable):
                await ctx.conn.execute("select from nowhere")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert await written(conn) == [(sent, 2)]
    assert row.attempts == 2


async def test_a_killed_session_undoes_what_was_written_and_the_command_comes_again(
    bus: CommandBus, conn: Conn
) -> None:
    @bus.handler("shop", "Work", transactional=True, retry_policy=RetryPolicy(max_attempts=1))
    async def work(command: Command, ctx: HandlerContext) -> None:
        await write(command, ctx)
        if ctx.lease_epoch == 1:
            await conn.execute(
                "select pg_terminate_backend(%s, 5000)", (ctx.conn.info.backend_pid,)
            )

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert await written(conn) == [(sent, 2)]
    assert len(await replies(bus)) == 1


# -- sending from a handler


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_a_handler_sends_goes_out_with_its_completion(
    bus: CommandBus, conn: Conn, transactional: bool
) -> None:
    gate, has_sent = asyncio.Event(), asyncio.Event()
    next_id, far_id = uuid4(), uuid4()

    @bus.handler("shop", "Work", transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> None:
        assert ctx.send("shop", "Next", next_id, {"by": "work"}) == next_id
        ctx.send("bank", "Far", far_id, {})
        has_sent.set()
        await gate.wait()

    @bus.handler("shop", "Next")
    async def follow(command: Command, ctx: HandlerContext) -> Any:
        return [str(command.correlation_id), command.data]

    correlation = uuid4()
    sent = await bus.send("shop", "Work", uuid4(), {}, "", correlation)
    async with working(bus, "shop"):
        await asyncio.wait_for(has_sent.wait(), 30)
        assert await bus.get_command("shop", next_id) is None
        gate.set()
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
        await until_status(bus, "shop", next_id, CommandStatus.COMPLETED)
    (reply,) = await replies(bus)
    assert reply.data == [str(correlation), {"by": "work"}]
    assert await bus.get_command("bank", far_id) is not None
    together = await rows(
        conn,
        "select distinct xmin::text from commandbus.command_bus_audit"
        " where (command_id = %s and event_type = 'COMPLETED')"
        " or (command_id = %s and event_type = 'SENT')",
        sent,
        far_id,
    )
    assert len(together) == 1


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_a_failed_attempt_sent_is_dropped(bus: CommandBus, transactional: bool) -> None:
    ids: list[UUID] = []

    @bus.handler("shop", "Work", transactional=transactional, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        ids.append(ctx.send("shop", "Next", uuid4(), {}))
        if ctx.attempt == 1:
            raise TransientCommandError("NOT_YET", "again")

    @bus.handler("shop", "Next")
    async def follow(command: Command, ctx: HandlerContext) -> None:
        pass

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    dropped, kept = ids
    assert await bus.get_command("shop", dropped) is None
    assert await bus.get_command("shop", kept) is not None


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_handler_that_sends_a_known_id_is_parked_and_harms_no_other(
    bus: CommandBus, conn: Conn, transactional: bool
) -> None:
    """The others of its group are committed, with what they send."""
    number = 12
    known = await bus.send("bank", "Old", uuid4(), {})
    gate, started = asyncio.Event(), asyncio.Barrier(number + 1)

    @bus.handler("shop", "Work", transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> str:
        if transactional:
            await write(command, ctx)
        is_culprit = command.data["n"] == 5
        ctx.send("bank", "Next", known if is_culprit else uuid4(), {})
        await started.wait()
        await gate.wait()
        return "done"

    ids = await send_some(bus, number)
    async with working(bus, "shop", concurrency=number):
        await asyncio.wait_for(started.wait(), 30)
        gate.set()
        row = await until_status(bus, "shop", ids[5], PARKED)
        await until_count(conn, "COMPLETED", number - 1)

    assert (row.last_error_code, row.attempts) == ("DUPLICATE_COMMAND", 1)
    assert str(known) in (row.last_error_msg or "")
    assert {reply.command_id for reply in await replies(bus)} == {*ids} - {ids[5]}
    assert await value(
        conn, "select count(*) from commandbus.command_bus_command where command_type = 'Next'"
    ) == (number - 1)
    assert ids[5] not in {command_id for command_id, _ in await written(conn)}
    stale = await value(
        conn,
        "select count(*) from commandbus.command_bus_audit"
        " where event_type = 'STALE_RESULT_REJECTED'",
    )
    assert stale == 0
