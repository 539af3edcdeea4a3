"""Ids of commands that are in the history are known to everybody who sends."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import BatchCommand, CommandBus, DuplicateCommandError
from commandbus.names import new_id
from tests.sql.conftest import Open
from tests.sql.faults import codes
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_history import ended, part_rows, rules

__all__ = ["rules"]  # a fixture of this module as well


@pytest.mark.parametrize("make", [new_id, uuid4])
async def test_an_id_in_the_history_is_refused_on_every_way_to_send(
    db: Session, bus: CommandBus, rules: None, make: object
) -> None:
    known, other = await ended(db, ids=[make(), make()])  # type: ignore[operator]
    await bus.upkeep.prune()
    events = await db.events(known)
    new = new_id()
    item = {"command_id": str(known), "type": "Debit"}
    fresh = {"command_id": str(new), "type": "Debit"}

    assert await db.offer(new, known, other) == sorted([known, other])
    one = ("select commandbus.offer_one(%s, %s, 'Debit', '', %s, 3, %s)", DOMAIN, known, uuid4())
    message = f'"command_id":"{known}","type":"Debit","data":{{}}}}'
    assert await db.value(*one, message) == [known]
    for refused in (
        ("select commandbus.send_commands(%s, %s)", DOMAIN, Jsonb([fresh, item])),
        ("select commandbus.send_command(%s, 'Debit', %s)", DOMAIN, known),
        ("select commandbus.send_unique(%s, 'Debit', %s, '{}', 'key')", DOMAIN, known),
        (
            "select commandbus.store_commands(%s, %s, null, 'scheduled')",
            DOMAIN,
            Jsonb([fresh, item]),
        ),
        (
            "select commandbus.create_stored_batch("
            "%s, %s, %s, null, null, null, null, false, 'two_phase')",
            DOMAIN,
            uuid4(),
            Jsonb([fresh, item]),
        ),
    ):
        with pytest.raises(psycopg.Error) as error:
            await db.rows(*refused)
        assert error.value.sqlstate == "CB001", error.value
        assert str(known) in (error.value.diag.message_detail or "")
    assert await db.value(
        "select commandbus.create_batch(%s, %s, %s)", DOMAIN, uuid4(), Jsonb([fresh, item])
    ) == [known]
    assert await db.value("select commandbus.offer_new(%s, %s)", DOMAIN, Jsonb([item, item])) == [
        1,
        2,
    ]
    with pytest.raises(DuplicateCommandError) as single:
        await bus.send(DOMAIN, "Debit", known, {})
    assert list(single.value.command_ids) == [known]
    await bus.send(DOMAIN, "Debit", new, {})
    assert await db.events(known) == events
    assert len(await db.queued()) == 1
    assert codes(await bus.upkeep.doctor()) == set()


async def test_a_large_send_with_an_id_of_the_history_is_refused_and_leaves_nothing(
    db: Session, bus: CommandBus, rules: None
) -> None:
    known = (await ended(db, 1))[0]
    await bus.upkeep.prune()
    live = (await ended(db, 1, old=False))[0]
    commands = [BatchCommand("Debit", new_id(), {}) for _ in range(700)]

    for more in ([known], [known, live]):
        call = [*commands, *(BatchCommand("Debit", i, {}) for i in more)]
        with pytest.raises(DuplicateCommandError) as error:
            await bus.send_many(DOMAIN, call)
        assert set(error.value.command_ids) == set(more)
    assert await db.queued() == []
    assert await db.value("select count(*) from commandbus.command_bus_command") == 1


async def test_an_id_of_the_history_is_known_in_all_domains_if_ids_are_global(
    db: Session, bus: CommandBus, rules: None
) -> None:
    known = (await ended(db, 1))[0]
    await bus.upkeep.prune()
    await db.rows("select commandbus.ensure_domain('reports')")
    there = Session(db.conn, "reports")
    assert await there.offer(new_id()) == []
    await db.rows("select commandbus.change_setting('command_id_scope', 'global')")

    assert await there.offer(known) == [known]
    assert await db.offer(known) == [known]


async def test_a_send_of_an_id_that_is_being_moved_waits_and_is_refused(
    db: Session, session: Open, rules: None
) -> None:
    known = (await ended(db, 1))[0]
    mover = await session()
    await mover.value("select o_pruned from commandbus.prune_commands(%s, now(), 100)", DOMAIN)

    sending = asyncio.create_task(db.offer(known))
    watcher = await session()
    await watcher.conn.set_autocommit(True)
    await watcher.until_blocked(db)
    await mover.conn.commit()

    assert await sending == [known]
    assert await db.queued() == []
    assert await part_rows(db) == [1]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_older_snapshot_does_not_send_what_was_moved_meanwhile(
    db: Session, session: Open, bus: CommandBus, rules: None, level: str
) -> None:
    known = (await ended(db, 1))[0]
    older = await session()
    await older.rows(f"set transaction isolation level {level}")
    await older.value("select count(*) from commandbus.command_bus_setting")
    await bus.upkeep.prune()

    with pytest.raises(psycopg.errors.SerializationFailure):
        await older.offer(known)
    await older.conn.rollback()
    await older.rows(f"set transaction isolation level {level}")
    assert await older.offer(known) == [known]


async def test_the_doctor_names_a_command_whose_id_is_in_the_history(
    db: Session, bus: CommandBus, rules: None
) -> None:
    known = (await ended(db, 1))[0]
    await bus.upkeep.prune()
    await db.rows(
        "insert into commandbus.command_bus_command select r.*"
        " from commandbus.command_bus_history h, jsonb_populate_record("
        "null::commandbus.command_bus_command, to_jsonb(h)) r"
    )
    assert "IN_HISTORY_TOO" in codes(await bus.upkeep.doctor())
    assert (await db.status(known)) == "CANCELED"
