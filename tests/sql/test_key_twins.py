"""Keys of two domains that have the same names and ids, and looks that find nothing to do."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.keyed import complete, key_row, park, receive_ids, send_keyed

OTHER = "refunds"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def send_as(db: Session, *ids: UUID, key: str = "a") -> None:
    commands = [{"command_id": str(i), "type": "Debit", "ordering_key": key} for i in ids]
    await db.value("select commandbus.send_commands(%s, %s)", db.domain, Jsonb(commands))


async def noted(db: Session) -> list[str]:
    """The keys that the next receive looks at."""
    rows = await db.rows(
        "select ordering_key from commandbus.command_bus_key_due where domain = %s", db.domain
    )
    return [row["ordering_key"] for row in rows]


async def test_a_key_whose_turn_is_over_elsewhere_promotes_nobody_here(
    db: Session, other: Session
) -> None:
    await send_keyed(other, "a")
    await other.rows(
        "update commandbus.command_bus_key set head = commandbus.nobody() where domain = %s", OTHER
    )
    first, _ = await send_keyed(db, "a", "a")
    await db.value("select commandbus.promote_keys(%s, '{a}')", DOMAIN)
    assert (await key_row(db, "a"))["head"] == first
    assert await receive_ids(db) == [first]


async def test_an_end_that_has_let_the_next_go_leaves_no_look_to_a_receive(db: Session) -> None:
    await send_keyed(db, "a", "a")
    await complete(db, *await db.receive())
    assert await noted(db) == []


async def test_an_end_holds_up_no_key_of_another_domain(
    db: Session, other: Session, session: Open
) -> None:
    ids = [uuid4(), uuid4()]
    for each in (db, other):
        await send_as(each, *ids)
    ours, theirs = await db.receive(), await other.receive()
    first = await session()
    await complete(first, *ours)
    await complete(other, *theirs)
    assert await receive_ids(other) == [ids[1]]
    await first.conn.rollback()


async def note(db: Session, key: str = "a") -> None:
    await db.value("select commandbus.note_keys(%s, array[%s])", db.domain, key)


async def looks(session: Session, domain: str = DOMAIN) -> None:
    """What a receive does first; whatever it locks is locked until the session ends its work."""
    await session.rows("set lock_timeout = '2s'")
    await session.value("select commandbus.resume_keys(%s)", domain)


async def test_a_look_holds_up_no_look_in_another_domain(
    db: Session, other: Session, session: Open
) -> None:
    _, theirs = await send_keyed(other, "a", "a")
    await other.rows("update commandbus.command_bus_key set head = commandbus.nobody()")
    await note(other)
    first = await session()
    await looks(first)
    assert theirs in await receive_ids(other)
    await first.conn.rollback()


async def test_a_look_holds_up_no_end_in_another_domain(
    db: Session, other: Session, session: Open
) -> None:
    await send_keyed(db, "a")
    await note(db)
    _, second = await send_keyed(other, "a", "a")
    held = await other.receive()
    first = await session()
    await looks(first)
    await complete(other, *held)
    assert await receive_ids(other) == [second]
    await first.conn.rollback()


async def test_a_look_at_a_key_that_is_open_elsewhere_only_is_the_last(
    db: Session, other: Session
) -> None:
    await send_keyed(db, "b")
    await send_keyed(other, "a")
    await note(db)
    await looks(db)
    assert await noted(db) == []


async def test_two_looks_at_a_key_that_is_no_more_do_not_wait_for_each_other(
    db: Session, session: Open
) -> None:
    await send_keyed(db, "b")
    await note(db)
    first = await session()
    await looks(first)
    await looks(db)
    assert await noted(db) == ["a"]  # the first may still be rolled back
    await first.conn.rollback()


async def test_a_retry_unblocks_no_key_of_another_domain(db: Session, other: Session) -> None:
    ids = [uuid4(), uuid4()]
    for each in (db, other):
        await send_as(each, *ids)
        await park(each, *await each.receive())
    await db.value("select commandbus.operator_retry(%s, %s, 'ann')", DOMAIN, ids[:1])
    assert (await key_row(db, "a"))["blocked_by"] is None
    assert (await key_row(other, "a"))["blocked_by"] == ids[0]


async def test_a_retry_waits_for_no_key_that_its_command_has_in_another_domain(
    db: Session, other: Session, session: Open
) -> None:
    (command_id,) = await db.send(uuid4())
    await send_as(other, command_id)
    for each in (db, other):
        await park(each, *await each.receive())
    await send_keyed(db, "b")  # so that the domain has keys
    sender = await session()
    await send_keyed(sender, "a")
    await db.rows("set lock_timeout = '2s'")
    await db.value("select commandbus.operator_retry(%s, %s, 'ann')", DOMAIN, [command_id])
    assert await db.status(command_id) == "PENDING"
    await sender.conn.rollback()


async def test_a_domain_with_limits_may_use_keys(db: Session) -> None:
    await db.value("select commandbus.set_limit(%s, p_max_running => 5)", DOMAIN)
    first, _ = await send_keyed(db, "a", "a")
    assert await receive_ids(db) == [first]


async def test_who_sends_with_a_key_waits_for_nobody_who_has_the_row_of_the_domain(
    db: Session, session: Open
) -> None:
    await send_keyed(db, "a")
    operator = await session()
    await operator.rows("select from commandbus.command_bus_flow for update")
    await db.rows("set lock_timeout = '2s'")
    await send_keyed(db, "b")
    await operator.conn.rollback()


async def test_a_governed_head_of_another_domain_does_not_hide_the_head_of_this_one(
    db: Session,
) -> None:
    elsewhere = Session(db.conn, "orders")  # before ours, in the order of rows and of names
    ids = [uuid4(), uuid4()]
    for each in (elsewhere, db):
        await send_as(each, *ids)
    batch_id = await elsewhere.batch()
    await db.rows(
        "update commandbus.command_bus_batch set batch_type = 'B', created_by = 'ada'"
        " where batch_id = %s",
        batch_id,
    )
    await db.rows(
        "update commandbus.command_bus_command set batch_id = %s where domain = 'orders'", batch_id
    )
    said = "select commandbus.waiting_text(%s, %s)"
    assert await db.value(said, DOMAIN, ids[1]) == f"number 1 behind {ids[0]} of key a"
    assert await db.value(said, "orders", ids[1]) == "number 1 behind others of key a"
