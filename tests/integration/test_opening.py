"""A bus is left cleanly, whatever happens while it is opened, used or closed."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidOperationError
from commandbus.opening import Opening
from tests.waiting import until


async def sessions_of(dsn: str) -> int:
    """Sessions of a database beside the one that looks."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        cursor = await conn.execute(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


async def assert_nothing_is_left(dsn: str) -> None:
    async def is_alone() -> bool:
        return await sessions_of(dsn) == 0

    await until(is_alone, "the end of all sessions")


async def test_an_error_of_the_block_comes_out_as_it_is(dsn: str) -> None:
    async def use() -> None:
        async with CommandBus.connect(dsn) as bus:
            await bus.check()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as info:
        await use()
    assert info.value.__cause__ is None
    assert info.value.__context__ is None
    await assert_nothing_is_left(dsn)


async def test_a_bus_that_is_entered_by_hand_may_be_left_in_another_task(dsn: str) -> None:
    opening = CommandBus.connect(dsn)
    bus = await asyncio.create_task(opening.__aenter__())
    await bus.check()
    with pytest.raises(InvalidOperationError, match="open already"):
        await opening.__aenter__()
    error = ZeroDivisionError()
    await asyncio.create_task(opening.__aexit__(type(error), error, None))
    await opening.__aexit__(None, None, None)
    await assert_nothing_is_left(dsn)


async def test_cancelled_at_any_moment_of_its_opening_it_leaves_nothing(dsn: str) -> None:
    async def cancelled_after(turns: int) -> None:
        opening = CommandBus.connect(dsn)
        task = asyncio.create_task(opening.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await opening.__aexit__(None, None, None)

    for turns in range(0, 200, 19):
        await cancelled_after(turns)
    gc.collect()  # psycopg leaves a connection that was cancelled half-way to the collector
    await assert_nothing_is_left(dsn)


async def test_an_error_while_closing_does_not_hide_the_error_of_the_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def begin(stack: Any) -> str:
        async def fail() -> None:
            raise OSError("cannot close")

        stack.push_async_callback(fail)
        return "open"

    async def use() -> None:
        async with Opening(begin) as opened:
            assert opened == "open"
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        await use()
    assert "closing failed too: cannot close" in caplog.text
    with pytest.raises(OSError, match="cannot close"):
        async with Opening(begin):
            pass


async def test_a_bus_that_was_forgotten_says_so() -> None:
    async def begin(stack: Any) -> str:
        return "open"

    opening = Opening(begin)
    await opening.__aenter__()
    with pytest.warns(ResourceWarning, match="never closed"):
        opening.__del__()
    await opening.__aexit__(None, None, None)
