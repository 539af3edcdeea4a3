"""Killed, paused and poisoned workers: nothing lost, nothing doubled, nobody wrongly blamed."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import BatchCommand, CommandBus, CommandStatus
from tests.acceptance.conftest import Effects
from tests.acceptance.processes import worker_process
from tests.waiting import until, until_status

pytestmark = pytest.mark.long

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def lapse(conn: psycopg.AsyncConnection[Any]) -> None:
    """Let every lease run out now (PGMQ's clock cannot be moved, but its timeouts can)."""
    await conn.execute("update pgmq.q_shop__commands set vt = clock_timestamp()")


async def test_a_command_that_kills_its_worker_is_parked_and_its_neighbours_are_done(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any], effects: Effects
) -> None:
    """Lesson 1 and F9: never an endless loop, at most five starts, no innocent one blamed."""
    poison = await bus.send("shop", "Poison", uuid4(), {})
    innocent = await bus.send_many(
        "shop", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(30)]
    )

    async def is_parked() -> bool:
        row = await bus.get_command("shop", poison)
        return row is not None and row.status is PARKED

    deaths = 0
    while not await is_parked():
        async with worker_process(dsn, concurrency=4) as worker:
            ending = asyncio.ensure_future(worker.ended())

            async def is_over(ending: asyncio.Future[int] = ending) -> bool:
                return ending.done() or await is_parked()

            await until(is_over)
            if ending.done():
                deaths += 1
                assert ending.result() == -signal.SIGKILL
                await lapse(conn)
            else:
                for command_id in innocent:
                    await until_status(bus, "shop", command_id, CommandStatus.COMPLETED)
                worker.signal(signal.SIGTERM)
                await ending
    row = await bus.get_command("shop", poison)
    assert row is not None
    assert row.last_error_code == "LEASE_EXPIRED"
    assert len([e for e in await effects(poison) if e[1] == "start"]) == deaths <= 5
    for command_id in innocent:
        done = await bus.get_command("shop", command_id)
        assert done is not None
        assert done.status is CommandStatus.COMPLETED
        # Two lapses are nobody's fault, and after them the suspects run one by one.
        assert done.attempts == 1
        assert 1 <= len(await effects(command_id)) <= 3
    assert len(await bus.list_troubleshooting("shop")) == 1


async def test_killed_workers_lose_and_double_nothing(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any], effects: Effects
) -> None:
    ids = await bus.send_many("shop", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(600)])

    async def completed() -> int:
        cursor = await conn.execute(
            "select count(*) from commandbus.command_bus_command where status = 'COMPLETED'"
        )
        row = await cursor.fetchone()
        return int(row[0]) if row else 0

    for _ in range(3):
        async with worker_process(dsn, concurrency=8) as worker:
            before = await completed()

            async def is_moving(before: int = before) -> bool:
                return await completed() > before or before == len(ids)

            await until(is_moving)
            worker.signal(signal.SIGKILL)
            await worker.ended()
        await lapse(conn)
    async with worker_process(dsn, concurrency=8):

        async def all_done() -> bool:
            return await completed() == len(ids)

        await until(all_done, "all commands completed")
    replies = [reply.command_id async for reply in bus.replies("shop", wait=False)]
    assert sorted(replies) == sorted(ids)
    cursor = await conn.execute("select count(*) from pgmq.q_shop__commands")
    assert await cursor.fetchone() == (0,)


@pytest.mark.parametrize("command_type", ["Slow", "SlowWrite"])
async def test_the_late_result_of_a_paused_worker_changes_nothing(
    bus: CommandBus,
    dsn: str,
    conn: psycopg.AsyncConnection[Any],
    effects: Effects,
    command_type: str,
) -> None:
    """F2, 50 zombies for each kind of handler: what a transactional one wrote is rolled back."""
    tries = 50
    ids = await bus.send_many(
        "shop", [BatchCommand(command_type, uuid4(), {}) for _ in range(tries)]
    )
    async with worker_process(dsn, concurrency=tries) as zombie:

        async def all_started() -> bool:
            cursor = await conn.execute("select count(*) from effect where step = 'start'")
            row = await cursor.fetchone()
            return row == (tries,)

        await until(all_started)
        zombie.signal(signal.SIGSTOP)
        await lapse(conn)
        # Somebody else takes over, finishes all of them, and moves on.
        cursor = await conn.execute(
            "select command_id, msg_id, lease_epoch"
            " from commandbus.receive_commands('shop', 600, %s, 'rescuer')",
            (tries,),
        )
        taken = await cursor.fetchall()
        assert len(taken) == tries
        await _complete(conn, taken)
        before = await _everything(conn)
        await conn.execute("update gate set is_open = true")
        zombie.signal(signal.SIGCONT)

        async def all_rejected() -> bool:
            cursor = await conn.execute(
                "select count(distinct command_id) from commandbus.command_bus_audit"
                " where event_type = 'STALE_RESULT_REJECTED'"
            )
            row = await cursor.fetchone()
            return row == (tries,)

        await until(all_rejected, "every late result refused")
        after = await _everything(conn)
    # Compared here, not by pytest: explaining a difference of this size would take for ever.
    changed = [
        number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]
    ]
    assert changed == []
    for command_id in ids:
        assert "written" not in {step for _, step in await effects(command_id)}


async def _complete(conn: psycopg.AsyncConnection[Any], taken: list[Any]) -> None:
    items = [
        {"command_id": str(command_id), "msg_id": msg_id, "lease_epoch": epoch, "data": "rescued"}
        for command_id, msg_id, epoch in taken
    ]
    await conn.execute("select commandbus.complete_commands('shop', %s)", (Jsonb(items),))


async def _everything(conn: psycopg.AsyncConnection[Any]) -> list[Any]:
    """All that a late result could have changed."""
    queries = (
        "select * from commandbus.command_bus_command order by command_id",
        "select msg_id, message from pgmq.q_shop__replies order by msg_id",
        "select msg_id from pgmq.q_shop__commands order by msg_id",
        "select msg_id from pgmq.a_shop__commands order by msg_id",
        "select event_type, count(*) from commandbus.command_bus_audit"
        " where event_type <> 'STALE_RESULT_REJECTED' group by 1 order by 1",
    )
    return [await (await conn.execute(query.encode())).fetchall() for query in queries]


async def test_sigterm_lets_running_handlers_finish_and_gives_the_rest_back(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any], effects: Effects
) -> None:
    running = await bus.send("shop", "Slow", uuid4(), {})
    async with worker_process(dsn, concurrency=1) as worker:
        await until(lambda: effects(running), "the handler started")
        waiting = await bus.send("shop", "Work", uuid4(), {})
        worker.signal(signal.SIGTERM)
        await conn.execute("update gate set is_open = true")
        assert await worker.ended() == 0
    done = await bus.get_command("shop", running)
    left = await bus.get_command("shop", waiting)
    assert done is not None
    assert left is not None
    assert done.status is CommandStatus.COMPLETED
    assert (left.status, left.leased_by, left.attempts) == (CommandStatus.PENDING, None, 0)


async def test_two_workers_share_the_work_and_neither_doubles_it(
    bus: CommandBus, dsn: str, conn: psycopg.AsyncConnection[Any], effects: Effects
) -> None:
    ids: list[UUID] = []
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(worker_process(dsn, concurrency=4))
        ids = await bus.send_many(
            "shop", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(400)]
        )
        for command_id in ids:
            await until_status(bus, "shop", command_id, CommandStatus.COMPLETED)
    cursor = await conn.execute("select count(*), count(distinct command_id) from effect")
    assert await cursor.fetchone() == (400, 400)
