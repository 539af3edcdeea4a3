"""Domains that leave a shard: what keeps them, what does not, and whom a move of one concerns."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session
from tests.sql.schedules import put

OTHER = "refunds"


@pytest.fixture
async def other(db: Session) -> Session:
    """The same session, for another domain."""
    await db.value("select commandbus.ensure_domain(%s)", OTHER)
    return Session(db.conn, OTHER)


async def adopt(db: Session, version: int, **elsewhere: str) -> bool:
    """Say that this is shard one, and which domains are on another."""
    adopted: bool = await db.value(
        "select commandbus.adopt_map('one', %s, 'one', %s)", version, Jsonb(elsewhere)
    )
    return adopted


async def left(db: Session) -> dict[str, int]:
    rows = await db.rows("select * from commandbus.left_in_domain(%s)", db.domain)
    return {row["what"]: row["amount"] for row in rows if row["amount"]}


async def closed(db: Session) -> list[str]:
    rows = await db.rows("select c from commandbus.closed_domains() c order by 1")
    return [row["c"] for row in rows]


async def put_message(db: Session) -> None:
    """As who made sure of the queue long ago."""
    await db.value(f"select pgmq.send('{db.domain}__commands', '{{}}')")


async def test_a_domain_that_the_map_puts_elsewhere_does_not_begin_here(db: Session) -> None:
    assert await adopt(db, 1, refunds="two")
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    with pytest.raises(errors.DatabaseError, match="'refunds' is not on this shard"):
        await db.value("select commandbus.ensure_domain(%s)", OTHER)


async def test_a_later_map_takes_one_domain_away_and_the_next_brings_it_back(
    db: Session, other: Session
) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await adopt(db, 1)
    assert await adopt(db, 2, refunds="two")
    await put_message(db)
    with pytest.raises(errors.DatabaseError, match="version 2 of the map puts it on 'two'"):
        await put_message(other)
    assert await adopt(db, 3)
    await put_message(other)


async def test_into_a_domain_that_has_left_the_move_that_brings_it_back_writes(
    db: Session, other: Session
) -> None:
    await adopt(db, 1, refunds="two")
    for moving in ("", DOMAIN):
        await db.value("select set_config('commandbus_move.domain', %s, false)", moving)
        with pytest.raises(errors.DatabaseError, match="not on this shard"):
            await put_message(other)
    await db.value("select set_config('commandbus_move.domain', %s, false)", OTHER)
    await put_message(other)


async def test_the_domains_that_are_named_are_closed_and_no_other(
    db: Session, other: Session
) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value("select commandbus.close_domains(array[%s])", OTHER)
    assert await closed(db) == [OTHER]
    await put_message(db)
    with pytest.raises(errors.DatabaseError, match="is being moved"):
        await put_message(other)


async def test_what_has_to_be_done_keeps_its_own_domain_and_no_other(
    db: Session, other: Session
) -> None:
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    await put(db, "x", due=-60)
    batch_id = await db.batch()
    await db.put("PENDING", batch_id)
    await db.rows(
        "update commandbus.command_bus_command set dispatch_status = 'pending_queue'"
        " where batch_id = %s",
        batch_id,
    )
    await db.rows("delete from pgmq.q_payments__replies")
    assert await left(db) == {
        "commands that wait or run": 1, "parked commands": 1, "schedules": 1, "open batches": 1,
        "commands that are stored and not queued": 1,
    }  # fmt: skip
    assert await left(other) == {}
    # What has ended keeps nobody.
    await db.rows("update commandbus.command_bus_command set status = 'CANCELED'")
    await db.rows("update commandbus.command_bus_batch set status = 'COMPLETED'")
    await db.rows("update commandbus.command_bus_schedule set next_tick_at = null")
    await db.rows("delete from commandbus.command_bus_troubleshooting")
    await db.rows("delete from pgmq.q_payments__commands")
    assert await left(db) == {}


async def test_a_unique_key_keeps_a_domain_as_long_as_its_own_command_is_open(
    db: Session, other: Session
) -> None:
    ended = (await db.put("CANCELED")).command_id
    await db.rows(
        "insert into commandbus.command_bus_unique"
        " (domain, unique_key, command_id, holds_while, holds_until, first_at, look_at)"
        " values (%s, 'a', %s, 'open', null, now(), now())",
        DOMAIN, ended,
    )  # fmt: skip
    await other.send(ended)  # the same id, of another domain
    await db.rows("delete from pgmq.q_payments__replies")
    assert await left(db) == {}
    await db.rows("delete from commandbus.command_bus_command where domain = %s", DOMAIN)
    (command_id,) = await db.send()
    await db.rows("update commandbus.command_bus_unique set command_id = %s", command_id)
    assert (await left(db))["unique keys that are held"] == 1


async def test_of_a_domain_that_was_copied_and_is_frozen_something_may_be_left(
    db: Session, other: Session
) -> None:
    await db.send()
    move = (
        "insert into commandbus.command_bus_move"
        " (move_id, domain, is_leaving, from_shard, to_shard, phase, is_frozen)"
        " values (%s, %s, true, 'one', 'two', 'verified', true)"
    )
    let_go = "select commandbus.let_domain_go(%s)"
    await db.rows(move, uuid4(), OTHER)  # of another, which is nothing to this one
    with pytest.raises(errors.DatabaseError, match="cannot leave this shard yet: 1 "):
        await db.value(let_go, DOMAIN)
    await db.rows(move, uuid4(), DOMAIN)
    await db.value(let_go, DOMAIN)
