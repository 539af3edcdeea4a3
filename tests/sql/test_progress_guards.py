"""How far commands have come, and what is left for a worker that ends with its queue."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import FAILURE, Held, Session
from tests.sql.test_lock_order import calls, locks_in_order

OTHER = "orders"
PROGRESS = ("commandbus.command_bus_progress", "command_id")


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def tell(db: Session, held: Held, fraction: float = 0.5) -> None:
    await db.rows(
        "select commandbus.record_progress(%s, %s)",
        db.domain, Jsonb([held.item(fraction=fraction)]),
    )  # fmt: skip


async def told(db: Session, command_id: UUID) -> list[float]:
    rows = await db.rows(
        "select fraction from commandbus.progress_of(%s, array[%s])", db.domain, command_id
    )
    return [row["fraction"] for row in rows]


async def sweep(db: Session) -> int:
    await db.rows("update commandbus.command_bus_progress set at = at - interval '1 hour'")
    found: int = await db.value("select commandbus.sweep_progress()")
    return found


async def leased(db: Session, command_id: UUID) -> Held:
    await db.send(command_id)
    (held,) = await db.receive()
    return held


async def test_progress_is_written_in_the_order_of_the_commands(db: Session, session: Open) -> None:
    ids = sorted([(await db.send())[0] for _ in range(3)])
    held = await db.receive()
    for each in held:
        await tell(db, each, 0.1)
    items = [Held(i, 0, 1).item(fraction=0.2) for i in reversed(ids)]
    act = calls("record_progress(%s, %s)", Jsonb(items))
    await locks_in_order(db, session, PROGRESS, ids, act)


async def test_the_word_of_a_lease_that_is_lost_does_not_replace_a_later_one(db: Session) -> None:
    first = await leased(db, uuid4())
    await db.lapse(first)
    (second,) = await db.receive()
    await tell(db, second, 0.75)
    await tell(db, first, 0.25)
    assert await told(db, first.command_id) == [0.75]


async def test_progress_is_of_a_lease_in_one_domain(db: Session, other: Session) -> None:
    command_id = uuid4()
    ours = await leased(db, command_id)
    theirs = await leased(other, command_id)
    await tell(other, theirs, 0.25)
    assert await told(db, command_id) == []
    await tell(db, ours, 0.75)
    assert await told(db, command_id) == [0.75]
    await db.settle("complete", ours.item(data=None))
    assert await told(db, command_id) == []
    assert await told(other, command_id) == [0.25]
    assert await sweep(db) == 1
    assert await told(other, command_id) == [0.25]


async def test_progress_of_a_lease_that_is_lost_is_not_told_and_is_swept(db: Session) -> None:
    first = await leased(db, uuid4())
    await tell(db, first)
    await db.lapse(first)
    (second,) = await db.receive()
    assert await told(db, first.command_id) == []
    assert await sweep(db) == 1
    await tell(db, second)
    assert await sweep(db) == 0


async def test_progress_that_another_session_has_is_swept_later(db: Session, session: Open) -> None:
    held = await leased(db, uuid4())
    await tell(db, held)
    await db.settle("fail", held.item(**FAILURE))
    await sweepable(db)
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_progress for update")
    await db.rows("set lock_timeout = '2s'")
    assert await db.value("select commandbus.sweep_progress()") == 0
    await somebody.conn.rollback()
    assert await db.value("select commandbus.sweep_progress()") == 1


async def sweepable(db: Session) -> None:
    await db.rows("update commandbus.command_bus_progress set at = at - interval '1 hour'")


# -- what is left


async def left(db: Session) -> str | None:
    found: str | None = await db.value("select commandbus.what_is_left(%s, true)", db.domain)
    return found


async def test_what_a_worker_has_is_not_left_to_another(db: Session) -> None:
    await db.send()
    await db.receive(mark=False)
    assert await left(db) is None


async def test_a_message_of_a_command_that_is_elsewhere_is_not_left(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    held = await leased(db, command_id)
    await db.settle("complete", held.item(data=None))
    await db.rows(
        "select pgmq.send('payments__commands', %s, 60)", Jsonb({"command_id": str(command_id)})
    )
    await other.send(delay_seconds=60)
    await other.send(command_id, delay_seconds=60)
    assert await left(other) == "delayed"
    assert await left(db) is None


async def test_a_second_message_of_a_command_that_waits_behind_its_key_is_not_left(
    db: Session,
) -> None:
    await db.send(ordering_key="a")
    (second,) = await db.send(ordering_key="a")
    await db.receive()
    await db.rows(
        "select pgmq.send('payments__commands', %s, 60)", Jsonb({"command_id": str(second)})
    )
    assert await left(db) is None


async def test_limits_and_pauses_elsewhere_leave_nothing_here(db: Session, other: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", db.domain)
    await other.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", OTHER)
    for _ in range(2):
        await other.send()
    await other.receive()
    await other.rows("delete from commandbus.command_bus_slot")
    assert await left(other) == "due"
    assert await left(db) is None
    await other.value("select commandbus.pause_domain(%s, 'why')", OTHER)
    assert await left(other) == "paused"
    assert await left(db) is None
