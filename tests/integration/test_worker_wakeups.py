"""Wake-ups: hints for idle workers, silence for busy ones, polling below both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext
from commandbus.worker import receiver as receiver_module
from commandbus.worker import shared as shared_module
from tests.integration.looking import Conn, another_bus, rows, send, send_some, value
from tests.waiting import until, until_status, working

IDLE = "select is_idle from commandbus.command_bus_worker"


@pytest.fixture
async def sleepy_bus(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CommandBus]:
    """Its worker looks once and then not for the best part of a minute, unless it is woken."""
    monkeypatch.setattr(receiver_module, "FIRST_POLL_SECONDS", 60.0)
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", -1.0)
    async with another_bus(dsn, poll_max_seconds=60.0) as bus:

        @bus.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            pass

        yield bus


async def until_idle(conn: Conn, expected: bool = True) -> None:
    async def is_so() -> bool:
        return await rows(conn, IDLE) == [(expected,)]

    await until(is_so, f"a worker with is_idle = {expected}")


async def until_listening(conn: Conn) -> None:
    async def is_listening() -> Any:
        return await value(
            conn,
            "select count(*) from pg_stat_activity where datname = current_database()"
            """ and query = 'listen "commandbus.shop"'""",
        )

    await until(is_listening, "a session that listens")


@asynccontextmanager
async def listening(dsn: str, channel: str) -> AsyncIterator[list[str]]:
    """Hear what is notified on a channel."""
    heard: list[str] = []
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(f'listen "{channel}"'.encode())

        async def hear() -> None:
            async for notify in conn.notifies():
                heard.append(notify.payload)  # noqa: PERF401  (looked at while it grows)

        hearing = asyncio.create_task(hear())
        try:
            yield heard
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})


async def test_an_idle_worker_is_woken_by_a_hint(sleepy_bus: CommandBus, conn: Conn) -> None:
    async with working(sleepy_bus, "shop"):
        await until_idle(conn)
        await until_listening(conn)
        # The first may still be found by the look that follows the LISTEN; polling would take
        # longer than `until` waits, so nothing but a hint explains the others.
        for _ in range(4):
            sent = await send(sleepy_bus)
            await until_status(sleepy_bus, "shop", sent, CommandStatus.COMPLETED)


async def test_a_released_command_wakes_another_idle_worker(
    sleepy_bus: CommandBus, conn: Conn, dsn: str
) -> None:
    """A worker that stops does not let what it gives back lie until the next poll."""
    started = asyncio.Event()
    async with another_bus(dsn, shutdown_grace_seconds=0.0) as leaving:

        @leaving.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            started.set()
            await asyncio.Event().wait()

        sent = await send(sleepy_bus)
        worker = asyncio.create_task(leaving.run_worker("shop"))
        await asyncio.wait_for(started.wait(), 30)
        async with working(sleepy_bus, "shop"):
            await until_listening(conn)

            async def one_waits() -> bool:
                return (True,) in await rows(conn, IDLE)

            await until(one_waits)
            await leaving.stop()
            await worker
            await until_status(sleepy_bus, "shop", sent, CommandStatus.COMPLETED)


async def test_a_worker_without_hints_finds_its_work_by_polling_and_asks_for_none(
    bus: CommandBus, conn: Conn, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(receiver_module, "IDLE_AFTER_SECONDS", -1.0)

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    async def heartbeat() -> datetime | None:
        found = await rows(conn, "select heartbeat_at from commandbus.command_bus_worker")
        return found[0][0] if found else None

    async with listening(dsn, "commandbus.shop") as heard, working(bus, "shop", use_notify=False):
        for _ in range(3):
            sent = await send(bus)
            await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
            before = await until(heartbeat)

            async def has_beaten(before: datetime = before) -> bool:
                now = await heartbeat()
                return now is not None and now > before

            await until(has_beaten)
            assert await rows(conn, IDLE) == [(False,)]
        listeners = await value(
            conn,
            "select count(*) from pg_stat_activity where datname = current_database()"
            """ and query = 'listen "commandbus.shop"' and pid <> pg_backend_pid()""",
        )
    assert listeners == 1  # the test itself
    assert heard == []


async def test_a_busy_worker_is_not_sent_hints(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "BUSY_AFTER_SECONDS", 0.0)

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    async with working(bus, "shop", concurrency=2):
        await until_idle(conn)

        async def is_busy() -> bool:
            await send_some(bus, 50)
            return await rows(conn, IDLE) == [(False,)]

        await until(is_busy)
        # And idle again once it has found nothing for a while.
        await until_idle(conn)


async def test_a_hint_is_sent_only_if_a_worker_waits(bus: CommandBus, conn: Conn, dsn: str) -> None:
    async with listening(dsn, "commandbus.shop") as heard:
        await send(bus)
        await conn.execute("select commandbus.worker_heartbeat('w', 'shop', false, 1, 0)")
        await send(bus)
        await conn.execute("select commandbus.worker_heartbeat('x', 'bank', true, 1, 0)")
        await send(bus)
        assert heard == []
        await conn.execute("select commandbus.worker_heartbeat('v', 'shop', true, 1, 0)")
        await send(bus)
        await until(lambda: heard == ["shop.commands"], "one hint")
