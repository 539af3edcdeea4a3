"""Places that nobody has, and gates that nobody needs: which go with the chore, and which stay."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import limit

OTHER = "orders"
TABLE = f"pgmq.q_{DOMAIN}__commands"
HURRY = "set lock_timeout = '2s'"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def limited(*sessions: Session) -> None:
    for each in sessions:
        await each.value(
            "select commandbus.set_limit(%s, 'Debit', p_max_running => 9)", each.domain
        )


async def has_a_place(db: Session, command_id: UUID) -> None:
    """One that nothing entitles it to."""
    await db.rows(
        "insert into commandbus.command_bus_slot (domain, gate, command_id)"
        " values (%s, 'l:t:Debit', %s)",
        db.domain, command_id,
    )  # fmt: skip


async def places(db: Session) -> set[UUID]:
    rows = await db.rows(
        "select command_id from commandbus.command_bus_slot where domain = %s", db.domain
    )
    return {row["command_id"] for row in rows}


async def free(db: Session) -> list[UUID]:
    await db.rows(HURRY)
    rows = await db.rows(
        "select i as id from commandbus.free_unused_places(%s, 100) i order by 1", db.domain
    )
    return [row["id"] for row in rows]


async def test_only_places_without_a_lease_are_free_again(db: Session, other: Session) -> None:
    """A twin that is leased entitles to none, nor does one that is not leased take one away."""
    await limited(db, other)
    ours, theirs, unknown = uuid4(), uuid4(), uuid4()
    await db.send(theirs)
    (held,) = await db.receive()
    await other.send(ours)
    await other.receive()
    await db.send(ours)
    await other.send(theirs)
    for command_id in (ours, unknown):
        await has_a_place(db, command_id)
    await has_a_place(other, theirs)
    assert held.command_id == theirs
    assert await free(db) == sorted([ours, unknown])
    assert await places(db) == {theirs}
    assert await places(other) == {ours, theirs}
    assert await free(other) == [theirs]


async def test_a_place_that_no_limit_counts_is_free_though_one_elsewhere_counts(
    db: Session, other: Session
) -> None:
    await limited(db, other)
    await db.send()
    (held,) = await db.receive()
    assert await free(db) == []
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    assert await free(db) == [held.command_id]


@pytest.mark.parametrize("which", ["message", "command", "domain"])
async def test_what_another_session_has_is_left_to_a_later_turn(
    db: Session, other: Session, session: Open, which: str
) -> None:
    await limited(db, other)
    (command_id,) = await db.send()
    await has_a_place(db, command_id)
    somebody = await session()
    table = {
        "message": TABLE,
        "command": "commandbus.command_bus_command",
        "domain": f"commandbus.command_bus_flow where domain = '{DOMAIN}'",
    }[which]
    await somebody.rows(f"select from {table} for update")
    assert await free(db) == []
    await somebody.conn.rollback()
    assert await free(db) == [command_id]


async def test_what_others_have_in_another_domain_delays_nothing_here(
    db: Session, other: Session, session: Open
) -> None:
    await limited(db, other)
    (command_id,) = await db.send()
    await other.send(command_id)
    await has_a_place(db, command_id)
    somebody = await session()
    for table in ("command", "flow"):
        await somebody.rows(
            f"select from commandbus.command_bus_{table} where domain = %s for update", OTHER
        )
    assert await free(db) == [command_id]
    await somebody.conn.rollback()


async def test_one_message_that_another_session_has_delays_that_place_only(
    db: Session, session: Open
) -> None:
    await limited(db)
    ids = [(await db.send())[0] for _ in range(3)]
    for command_id in ids[:2]:
        await has_a_place(db, command_id)
    somebody = await session()
    row = await db.command(ids[0])
    await somebody.rows(f"select from {TABLE} where msg_id = %s for update", row["msg_id"])
    assert await free(db) == [ids[1]]
    await somebody.conn.rollback()


async def test_the_place_of_a_command_that_has_ended_is_free_whoever_has_other_messages(
    db: Session, session: Open
) -> None:
    await limited(db)
    held = await db.put("COMPLETED")
    await has_a_place(db, held.command_id)
    await db.send()
    somebody = await session()
    await somebody.rows(f"select from {TABLE} for update")
    assert await free(db) == [held.command_id]
    await somebody.conn.rollback()


async def test_a_twin_that_has_ended_frees_no_place_of_what_another_session_has(
    db: Session, other: Session, session: Open
) -> None:
    await limited(db, other)
    twin = await other.put("COMPLETED")
    await db.send(twin.command_id)
    await has_a_place(db, twin.command_id)
    somebody = await session()
    await somebody.rows(f"select from {TABLE} for update")
    assert await free(db) == []
    await somebody.conn.rollback()


async def test_the_place_of_an_unknown_command_is_free_though_it_is_known_elsewhere(
    db: Session, other: Session
) -> None:
    await limited(db, other)
    await db.send()
    (unknown,) = await other.send()
    await has_a_place(db, unknown)
    assert await free(db) == [unknown]


# -- rows of gates


async def gates(db: Session) -> list[str]:
    rows = await db.rows(
        "select gate from commandbus.command_bus_gate where domain = %s", db.domain
    )
    return [row["gate"] for row in rows]


async def test_a_gate_goes_with_its_limit_whatever_stands_at_one_of_that_name_elsewhere(
    db: Session, other: Session
) -> None:
    await limit(db, max_running=1)
    await other.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", OTHER)
    for each in (db, other):
        for _ in range(2):
            await each.send()
        for held in await each.receive():
            if each is db:
                await each.settle("complete", held.item(data=None))
    await db.rows("delete from commandbus.command_bus_waiting where domain = %s", DOMAIN)
    assert await gates(db) == await gates(other) == ["l:t:Debit"]
    await db.value("select commandbus.drop_unused_gates(%s, 100)", DOMAIN)
    assert await gates(db) == ["l:t:Debit"]  # the limit is there
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    await db.value("select commandbus.drop_unused_gates(%s, 100)", DOMAIN)
    assert (await gates(db), await gates(other)) == ([], ["l:t:Debit"])


@pytest.mark.parametrize("verb", ["drop_unused_gates(%s, 100)", "repair_places(%s)"])
async def test_a_gate_that_another_session_has_stays(db: Session, session: Open, verb: str) -> None:
    await limit(db, max_running=1)
    await db.send()
    await db.settle("complete", *(held.item(data=None) for held in await db.receive()))
    assert await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_gate for update")
    await db.rows(HURRY)
    await db.rows(f"select commandbus.{verb}", DOMAIN)
    assert await gates(db) == ["l:t:Debit"]
    await somebody.conn.rollback()
    await db.rows(f"select commandbus.{verb}", DOMAIN)
    assert await gates(db) == []


async def test_a_gate_in_use_stays_whatever_has_become_of_one_of_that_name_elsewhere(
    db: Session, other: Session
) -> None:
    await limited(db, other)
    for each in (db, other):
        await each.send()
        await each.receive()
    await other.rows("delete from commandbus.command_bus_slot where domain = %s", OTHER)
    assert await other.value("select commandbus.clear_limit(%s, 'Debit')", OTHER)
    for verb in ("drop_unused_gates(%s, 100)", "repair_places(%s)"):
        await db.rows(f"select commandbus.{verb}", DOMAIN)
    assert (await gates(db), await gates(other)) == (["l:t:Debit"], ["l:t:Debit"])


async def test_a_place_in_a_domain_that_has_no_row_is_free_though_another_has_one(
    db: Session, other: Session
) -> None:
    await limited(other)
    (command_id,) = await db.send()
    await has_a_place(db, command_id)
    assert await free(db) == [command_id]


async def test_the_look_at_places_holds_up_no_message_of_others(db: Session, session: Open) -> None:
    (command_id,) = await db.send()
    await has_a_place(db, command_id)
    (second,) = await db.send()
    chore = await session()
    assert await free(chore) == [command_id]
    assert [held.command_id for held in await db.receive()] == [second]
    await chore.conn.rollback()
