"""Places that are given back and taken in one transaction: who waits has them without a gap."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Held, Session
from tests.sql.test_gates import findings, limit, places, sent, waiting


async def hand_on(
    db: Session, *held: Held, quantity: int = 10, places: int | None = None
) -> tuple[list[UUID], list[Held]]:
    """What was lost, and what was leased."""
    rows = await db.rows(
        "select * from commandbus.complete_and_receive("
        "%s, %s, 60, %s, 'w1', '{}', true, '{}', '{}', %s) order by msg_id",
        DOMAIN, Jsonb([h.item(data=None) for h in held]), quantity, places,
    )  # fmt: skip
    lost = [row["command_id"] for row in rows if row["is_lost"]]
    leased = [
        Held(row["command_id"], row["msg_id"], row["lease_epoch"], row)
        for row in rows
        if not row["is_lost"]
    ]
    return lost, leased


async def test_the_places_of_commands_that_end_are_never_seen_free(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=2)
    ids = await sent(db, 5)
    held = await db.receive()
    other = await session()
    lost, leased = await hand_on(other, *held, places=2)
    assert lost == []
    assert [h.command_id for h in leased] == ids[2:4]
    # Not committed: the old ones have them. Afterwards the new ones.
    assert [await db.status(each) for each in ids[:3]] == ["IN_PROGRESS", "IN_PROGRESS", "PENDING"]
    await other.conn.commit()
    assert [await db.status(each) for each in ids[:3]] == ["COMPLETED", "COMPLETED", "IN_PROGRESS"]
    assert await places(db) == ["l:t:Debit"] * 2
    assert set(await waiting(db)) == {ids[4]}
    assert await findings(db) == []


async def test_ends_that_are_rolled_back_hand_nothing_on(db: Session, session: Open) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    held = await db.receive()
    other = await session()
    assert len((await hand_on(other, *held))[1]) == 1
    await other.conn.rollback()
    assert [await db.status(each) for each in ids] == ["IN_PROGRESS", "PENDING"]
    assert await places(db) == ["l:t:Debit"]
    assert await findings(db) == []


async def test_a_lost_lease_is_told_beside_what_was_leased(db: Session) -> None:
    await limit(db, max_running=2)
    ids = await sent(db, 3)
    held = await db.receive()
    await db.lapse(held[0])
    (again,) = await db.receive(1, worker="w2")
    lost, leased = await hand_on(db, *held)
    assert lost == [again.command_id] == [ids[0]]
    assert [h.command_id for h in leased] == [ids[2]]
    assert await places(db) == ["l:t:Debit"] * 2


@pytest.mark.parametrize("reason", ["keys", "a batch", "a pause"])
async def test_nothing_is_handed_on_where_a_receive_of_its_own_is_needed(
    db: Session, reason: str
) -> None:
    await limit(db, max_running=1)
    more: dict[str, Any] = {"ordering_key": "a"} if reason == "keys" else {}
    batch_id = await db.batch() if reason == "a batch" else None
    ids = await sent(db, 2, **more, batch_id=batch_id)
    (held,) = await db.receive(1)
    if reason == "a pause":
        await db.value("select commandbus.pause_domain(%s, 'why', null, null)", DOMAIN)
    assert await hand_on(db, held) == ([], [])
    assert [await db.status(each) for each in ids] == ["COMPLETED", "PENDING"]
    if reason == "a pause":
        await db.value("select commandbus.resume_domain(%s, null, null)", DOMAIN)
    (second,) = await db.receive(1)
    assert second.command_id == ids[1]


async def test_without_limits_ends_and_leases_are_one_commit_as_well(
    db: Session, session: Open
) -> None:
    ids = await sent(db, 4)
    held = await db.receive(2)
    other = await session()
    lost, leased = await hand_on(other, *held, quantity=1)
    assert (lost, [h.command_id for h in leased]) == ([], ids[2:3])
    assert await db.status(ids[0]) == "IN_PROGRESS"
    await other.conn.commit()
    states = [await db.status(each) for each in ids]
    assert states == ["COMPLETED", "COMPLETED", "IN_PROGRESS", "PENDING"]
    # What it leased can be ended and lost like any other lease.
    await db.lapse(*leased)
    assert len(await db.receive(2, worker="w2")) == 2
    assert await hand_on(db, *leased, quantity=1) == (ids[2:3], [])


async def test_without_limits_and_with_keys_a_receive_of_its_own_follows(
    db: Session,
) -> None:
    (keyed,) = await sent(db, 1, ordering_key="a")
    (held,) = await db.receive(1)
    await sent(db, 1)
    assert await hand_on(db, held) == ([], [])
    assert await db.status(keyed) == "COMPLETED"


async def test_a_command_that_somebody_else_has_locked_is_not_waited_for(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    held = await db.receive()
    other = await session()
    # Who waits for the first one, and has the second: with a wait for it both would wait for ever.
    await other.rows(
        "select from commandbus.command_bus_command where command_id = %s for update", ids[1]
    )
    await db.rows("set lock_timeout = '7s'")
    began = time.monotonic()
    assert await hand_on(db, *held) == ([], [])
    assert time.monotonic() - began < 5
    assert await db.value("show lock_timeout") == "7s"
    assert await db.status(ids[0]) == "COMPLETED"
    assert await places(db) == []
    await other.conn.rollback()
    assert [h.command_id for h in await db.receive()] == [ids[1]]


async def test_ends_stand_where_commands_cannot_be_received(
    db: Session, conn: psycopg.AsyncConnection[Any]
) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    held = await db.receive()
    # A receive under a limit is refused at this level.
    await db.rows("set default_transaction_isolation = 'repeatable read'")
    assert await hand_on(db, *held) == ([], [])
    assert [await db.status(each) for each in ids] == ["COMPLETED", "PENDING"]
    assert await places(db) == []
