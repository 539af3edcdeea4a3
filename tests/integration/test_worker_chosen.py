"""Workers whose handlers choose what becomes of their commands."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    Discard,
    Fail,
    HandlerContext,
    ReplyOutcome,
    RetryAfter,
    RetryPolicy,
    Snooze,
)
from tests.integration.looking import Conn, events, replies, rows, send
from tests.waiting import until_status, working


@pytest.mark.parametrize("kind", ["async", "thread", "transactional"])
async def test_a_handler_snoozes_until_it_is_ready_and_no_attempt_is_counted(
    bus: CommandBus, kind: str
) -> None:
    seen: list[tuple[int, int]] = []

    def judge(command: Command, ctx: HandlerContext) -> Any:
        seen.append((ctx.attempt, ctx.snoozes))
        if ctx.snoozes < 3:
            raise Snooze(0, reason="too early")
        return "done"

    async def judge_here(command: Command, ctx: HandlerContext) -> Any:
        return judge(command, ctx)

    bus.register_handler(
        "shop", "Work", judge if kind == "thread" else judge_here,
        transactional=kind == "transactional", retry_policy=RetryPolicy(max_attempts=1),
    )  # fmt: skip
    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    assert seen == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert row.attempts == 1
    assert await events(bus, sent) == [
        "SENT",
        *["RECEIVED", "SNOOZED"] * 3,
        "RECEIVED",
        "COMPLETED",
    ]


async def test_a_handler_that_snoozes_without_end_is_parked_by_its_limit(bus: CommandBus) -> None:
    policy = RetryPolicy(max_attempts=1, max_snoozes=2)

    @bus.handler("shop", "Work", retry_policy=policy)
    async def work(command: Command, ctx: HandlerContext) -> Snooze:
        return Snooze(0)

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.IN_TROUBLESHOOTING_QUEUE)

    assert (row.last_error_code, row.attempts) == ("SNOOZED_TOO_OFTEN", 1)
    assert (await events(bus, sent)).count("SNOOZED") == 2


@pytest.mark.parametrize(
    ("said", "status", "last"),
    [
        (Discard("void"), CommandStatus.CANCELED, "DISCARDED"),
        (Fail("VOID", "void"), CommandStatus.FAILED, "GIVEN_UP"),
    ],
)
@pytest.mark.parametrize("is_raised", [True, False])
async def test_what_a_transactional_handler_did_before_it_said_so_is_undone(
    bus: CommandBus, conn: Conn, said: Exception, status: CommandStatus, last: str, is_raised: bool
) -> None:
    await conn.execute("create table written (command_id uuid)")

    @bus.handler("shop", "Work", transactional=True)
    async def work(command: Command, ctx: HandlerContext) -> Any:
        await ctx.conn.execute("insert into written values (%s)", (command.command_id,))
        ctx.send("shop", "Next", uuid4(), {})
        if is_raised:
            raise said
        return said

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, status)

    assert await rows(conn, "select * from written") == []
    assert await rows(conn, "select 1 from commandbus.command_bus_command offset 1") == []
    (reply,) = await replies(bus)
    assert reply.outcome is ReplyOutcome(str(status))
    assert reply.error is not None
    assert reply.error.message == "void"
    assert (await events(bus, sent))[-1] == last


async def test_a_retry_that_names_its_delay_counts_and_is_exhausted(bus: CommandBus) -> None:
    @bus.handler("shop", "Work", retry_policy=RetryPolicy(max_attempts=2))
    async def work(command: Command, ctx: HandlerContext) -> RetryAfter:
        return RetryAfter(0, "BUSY", "later")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.IN_TROUBLESHOOTING_QUEUE)

    assert (row.attempts, row.last_error_code) == (2, "BUSY")
    trail = await bus.get_audit_trail(sent)
    failed = [event.details for event in trail if event.event_type == "FAILED"]
    assert failed[0] is not None
    assert failed[0]["retry_in_seconds"] == 0
