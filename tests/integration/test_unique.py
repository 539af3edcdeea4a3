"""Unique keys with workers that run: nothing that was sent is lost, and nothing is sent twice."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg

from commandbus import Command, CommandBus, HandlerContext
from tests.waiting import until, working

REPLACE: Any = {"unique_key": "k", "unique_while": "waiting", "on_duplicate": "replace"}


async def test_the_newest_payload_is_always_run(bus: CommandBus) -> None:
    run: list[int] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        run.append(command.data["n"])

    bus.register_handler("index", "Update", handle)
    async with working(bus, "index", concurrency=1):
        for n in range(200):
            await bus.send("index", "Update", uuid4(), {"n": n}, **REPLACE)
        await until(lambda: run and run[-1] == 199, "the newest payload")
    assert run == sorted(set(run))


async def test_a_skipped_send_is_made_up_for_by_a_run_that_sees_its_data(
    bus: CommandBus, dsn: str
) -> None:
    """Each sender writes a row and asks for a run; what is skipped relies on the one that waits."""
    seen: list[int] = []

    async def handle(command: Command, context: HandlerContext) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as own:
            cursor = await own.execute("select coalesce(max(n), -1) from written")
            row = await cursor.fetchone()
        assert row is not None
        seen.append(row[0])

    bus.register_handler("index", "Collect", handle)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create table written (n int)")
        await bus._store.ensure_domain("index")
        skipped = 0
        async with working(bus, "index", concurrency=1):
            for n in range(100):
                async with conn.transaction():
                    await conn.execute("insert into written values (%s)", (n,))
                    mine = uuid4()
                    holder = await bus.send(
                        "index", "Collect", mine, {}, unique_key="k", unique_while="waiting",
                        on_duplicate="skip", conn=conn,
                    )  # fmt: skip
                    skipped += holder != mine
                    await asyncio.sleep(0)
            await until(lambda: seen and seen[-1] == 99, "a run that sees all rows")
    assert seen == sorted(seen)


async def test_a_throttle_lets_one_of_many_senders_through(bus: CommandBus) -> None:
    ids = [uuid4() for _ in range(50)]
    found = await asyncio.gather(
        *(
            bus.send(
                "alerts", "Page", each, {}, unique_key="disk", unique_while=600,
                on_duplicate="skip",
            )
            for each in ids
        )
    )  # fmt: skip
    assert len(set(found)) == 1
    assert len((await bus.search.commands(domain="alerts")).items) == 1


async def test_workers_remove_keys_that_nobody_holds(bus: CommandBus, conn: Any) -> None:
    await bus.send("alerts", "Page", uuid4(), {}, unique_key="disk", unique_while=0.001)

    async def is_empty() -> bool:
        cursor = await conn.execute("select count(*) from commandbus.command_bus_unique")
        (count,) = await cursor.fetchone()
        return bool(count == 0)

    async with working(bus, "alerts"):
        await until(is_empty, "the chore")
