"""What a receive ends and leaves is its own, and it waits for no batch but those it ends in."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session
from tests.sql.test_lock_order import BATCHES, locks_in_order

#: Before ours in the order of names.
OTHER = "orders"
HURRY = "set lock_timeout = '2s'"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def expire(db: Session, *ids: UUID) -> None:
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp()"
        " where domain = %s and command_id = any(%s)", db.domain, list(ids),
    )  # fmt: skip


async def hold(session: Session, batch_id: UUID) -> None:
    await session.rows(
        "select from commandbus.command_bus_batch where batch_id = %s for update", batch_id
    )


async def test_what_is_left_to_the_next_receive_is_nothing_that_has_a_twin(
    db: Session, other: Session
) -> None:
    running, late = ids = [uuid4(), uuid4()]
    for each in (db, other):
        for command_id in ids:
            await each.send(command_id, batch_id=await each.batch())
    await expire(db, late)
    (held,) = await db.receive()
    assert held.command_id == running
    visible = [row["msg_id"] for row in await db.queued() if row["is_visible"]]
    assert held.msg_id not in visible


async def test_a_receive_that_ends_a_command_waits_for_no_other_batch(
    db: Session, session: Open
) -> None:
    (late,) = await db.send(batch_id=await db.batch())
    await expire(db, late)
    somebody = await session()
    await hold(somebody, await db.batch())
    await db.rows(HURRY)
    assert await db.receive() == []
    assert await db.status(late) == "CANCELED"
    await somebody.conn.rollback()


async def test_a_receive_that_ends_a_command_waits_for_no_batch_of_its_twin(
    db: Session, other: Session, session: Open
) -> None:
    late, theirs = uuid4(), await other.batch()
    await other.send(late, batch_id=theirs)
    await other.receive()
    await db.send(late, batch_id=await db.batch())
    await expire(db, late)
    somebody = await session()
    await hold(somebody, theirs)
    await db.rows(HURRY)
    assert await db.receive() == []
    await somebody.conn.rollback()


async def test_a_receive_that_clears_away_a_message_waits_for_no_batch(
    db: Session, session: Open
) -> None:
    batch_id = await db.batch()
    held = await db.put("COMPLETED", batch_id)
    await db.rows(
        "select pgmq.send('payments__commands', jsonb_build_object('command_id', %s::uuid))",
        held.command_id,
    )
    somebody = await session()
    await hold(somebody, batch_id)
    await db.rows(HURRY)
    assert await db.receive() == []
    assert await db.queued() == []
    await somebody.conn.rollback()


async def test_a_lease_in_a_batch_that_runs_waits_for_nobody_who_has_the_batch(
    db: Session, session: Open
) -> None:
    batch_id = await db.batch(total_sealed=False)
    await db.put("IN_PROGRESS", batch_id)
    (next_one,) = await db.send(batch_id=batch_id)
    (alone,) = await db.send()
    await expire(db, alone)
    somebody = await session()
    await hold(somebody, batch_id)
    await db.rows(HURRY)
    assert [held.command_id for held in await db.receive()] == [next_one]
    assert await db.status(alone) == "CANCELED"
    await somebody.conn.rollback()


async def spend(db: Session, batch_id: UUID) -> None:
    """A command of this batch without an attempt left."""
    await db.send(max_attempts=1, batch_id=batch_id)
    held: list[Held] = await db.receive()
    await db.settle("retry", *(each.item(delay_seconds=0, **FAILURE) for each in held))


async def test_a_receive_that_ends_and_parks_locks_all_batches_in_one_order(
    db: Session, session: Open
) -> None:
    low, middle, high = batches = sorted([await db.batch() for _ in range(3)])
    (late,) = await db.send(batch_id=high)
    held = await db.receive()  # the batch runs
    await db.settle("retry", *(each.item(delay_seconds=0, **FAILURE) for each in held))
    for batch_id in (middle, low):
        await db.rows(f"update pgmq.q_{DOMAIN}__commands set vt = 'infinity'")
        await spend(db, batch_id)
    await db.rows(f"update pgmq.q_{DOMAIN}__commands set vt = clock_timestamp()")
    await expire(db, late)
    await locks_in_order(db, session, BATCHES, batches, lambda s: s.receive())
