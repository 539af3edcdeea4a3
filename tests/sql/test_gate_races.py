"""Limits hold when sessions receive, end and lose leases at the same moment."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_gates import findings, limit, places, sent, waiting

#: Whose lease has lapsed and who waits again has no lease any more: its epoch is a new one.
LEASED = (
    "select count(*) from commandbus.command_bus_command c"
    " where leased_by is not null and command_type = 'Debit' and not exists"
    " (select from commandbus.command_bus_waiting w where w.command_id = c.command_id)"
)


async def work(session: Session, name: str, left: set[UUID], chance: random.Random) -> None:
    """Lease and end commands in all ways, drop some leases, until all have ended."""
    while left:
        held = await session.receive(chance.randint(1, 4), worker=name)
        await session.conn.commit()
        if not held:
            await asyncio.sleep(0.002)
        for each in held:
            what = chance.random()
            if what < 0.1:  # a crash: nothing is said, and another session notices
                await session.lapse(each)
            elif what < 0.2:
                await session.settle("retry", each.item(delay_seconds=0, **FAILURE))
            elif what < 0.3:
                await session.settle("release", each.item())
            elif await session.settle("complete", each.item(data=None)) == []:
                left.discard(each.command_id)
            await session.conn.commit()
            left -= await ended(session, left)
            await session.conn.commit()


async def ended(session: Session, left: set[UUID]) -> set[UUID]:
    rows = await session.rows(
        "select command_id from commandbus.command_bus_command where command_id = any(%s)"
        " and status not in ('PENDING', 'IN_PROGRESS')",
        list(left),
    )
    return {row["command_id"] for row in rows}


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_moment_has_more_leases_than_the_limits_allow(
    db: Session, session: Open, seed: int
) -> None:
    await limit(db, None, max_running=4)
    await limit(db, max_running=3)
    await limit(db, by_key=True, max_running=1)
    chance = random.Random(seed)
    left: set[UUID] = set()
    for key in "abc":
        left |= set(await sent(db, 25, limit_key=key, max_attempts=1000))
    left |= set(await sent(db, 25, type="Credit", max_attempts=1000))
    seen: dict[str, int] = {}

    async def watch() -> None:
        while left:
            rows = await db.rows(
                "select gate, count(*) as n from commandbus.command_bus_slot group by gate"
            )
            for row in rows:
                seen[row["gate"]] = max(seen.get(row["gate"], 0), row["n"])
            seen["leased"] = max(seen.get("leased", 0), await db.value(LEASED))
            await asyncio.sleep(0.001)

    workers = [await session() for _ in range(4)]
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for number, each in enumerate(workers):
            group.create_task(work(each, f"w{number}", left, chance))
    assert seen["l:d"] <= 4
    assert seen["l:t:Debit"] <= 3
    assert seen["leased"] <= 3
    assert max(seen.get(f"l:k:Debit/{key}", 0) for key in "abc") == 1
    assert await places(db) == []
    assert await waiting(db) == {}
    assert await findings(db) == []


async def test_a_session_that_dies_while_it_receives_takes_no_place(
    db: Session, session: Open, dsn: str
) -> None:
    await limit(db, max_running=1)
    (command_id,) = await sent(db, 1)
    dying = Session(await psycopg.AsyncConnection.connect(dsn))
    assert len(await dying.receive()) == 1
    await dying.conn.close()

    async def again() -> list[UUID]:
        return [held.command_id for held in await db.receive()]

    async with asyncio.timeout(10):
        while (got := await again()) == []:
            await asyncio.sleep(0.01)
    assert got == [command_id]
    assert await places(db) == ["l:t:Debit"]


async def test_an_end_that_is_not_committed_yet_still_counts(db: Session, session: Open) -> None:
    await limit(db, max_running=1)
    await sent(db, 2)
    (held,) = await db.receive()
    other = await session()
    await other.settle("complete", held.item(data=None))
    assert await db.receive() == []
    await other.conn.commit()
    assert len(await db.receive()) == 1


async def test_a_receive_does_not_wait_for_one_that_is_not_committed(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=5)
    await limit(db, by_key=True, max_running=1)
    await sent(db, 1, limit_key="a")
    other = await session()
    assert len(await other.receive()) == 1  # has the gates, one of which it has just made
    await sent(db, 1, limit_key="b")
    await db.rows("set statement_timeout = '2s'")
    assert await db.receive() == []
    await other.conn.rollback()
    assert len(await db.receive()) == 2


async def test_a_cancel_and_a_receive_of_one_who_waits_end_in_one_way(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    other = await session()
    await other.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [ids[1]])
    assert await db.receive() == []
    await other.conn.commit()
    assert await db.receive() == []
    assert await db.status(ids[1]) == "CANCELED"
    assert await waiting(db) == {}


async def test_two_sessions_set_limits_one_after_the_other(db: Session, session: Open) -> None:
    other = await session()
    await limit(other, max_running=2)
    second = asyncio.create_task(limit(db, max_running=3))
    await other.conn.commit()
    await second
    value = await db.value("select max_running from commandbus.command_bus_flow_rule")
    assert value == 3
