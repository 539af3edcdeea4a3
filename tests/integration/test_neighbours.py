"""Two installations in one database: nothing of one reaches the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    InvalidNameError,
    PermanentCommandError,
    Settings,
)
from commandbus.database import migrations
from commandbus.database.migrations import migrate, schema_status
from commandbus.names import schema_mark, wakeup_channel
from tests.integration.looking import Conn, rows, value
from tests.waiting import until, working

OTHER = "other"
MARK = schema_mark(OTHER)


def serve(bus: CommandBus, name: str) -> None:
    @bus.handler("shop", "Echo")
    async def echo(command: Command, ctx: HandlerContext) -> str:
        return f"{name} did {command.data['n']}"

    @bus.handler("shop", "Refuse")
    async def refuse(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO", "never")


@asynccontextmanager
async def neighbours(dsn: str, *schemas: str) -> AsyncIterator[list[CommandBus]]:
    """A bus on each schema of one database, with handlers of the same types."""
    async with AsyncExitStack() as stack:
        found = []
        for schema in schemas:
            settings = Settings(schema=schema)
            bus = await stack.enter_async_context(CommandBus.connect(dsn, settings=settings))
            serve(bus, schema)
            found.append(bus)
        yield found


async def send(bus: CommandBus, number: int, reply_to: str | None = None) -> list[UUID]:
    return await bus.send_many(
        "shop", [BatchCommand("Echo", uuid4(), {"n": n}, reply_to) for n in range(number)]
    )


async def replies(bus: CommandBus, queue: str) -> set[UUID]:
    return {reply.command_id async for reply in bus.replies(queue=queue, wait=False)}


async def until_done(bus: CommandBus, number: int) -> None:
    async def done() -> bool:
        return (await bus.upkeep.figures.statuses("shop")).get(("shop", "COMPLETED")) == number  # type: ignore[call-overload]

    await until(done, f"{number} commands of the shop")


async def queues(conn: Conn) -> list[str]:
    return [name for (name,) in await rows(conn, "select queue_name from pgmq.meta order by 1")]


async def codes(bus: CommandBus) -> set[str]:
    found = await bus.upkeep.doctor()
    return {each.code for each in found.findings if each.severity != "notice"} - {"DURABILITY_OFF", "AUTOVACUUM_OFF"}


@pytest.mark.parametrize("reply_to", [None, "shared.replies", "shared"])
async def test_a_worker_takes_no_command_and_a_reader_no_reply_of_another_schema(
    dsn: str, reply_to: str | None
) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (first, second):
        ours, theirs = await send(first, 5, reply_to), await send(second, 7, reply_to)
        async with working(second, "shop"):
            await until_done(second, 7)
        async with working(first, "shop"):
            await until_done(first, 5)
        queue = reply_to or "shop.replies"
        assert await replies(first, queue) == set(ours)
        assert await replies(second, queue) == set(theirs)
        assert await codes(first) == await codes(second) == set()
