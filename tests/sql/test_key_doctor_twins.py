"""What the doctor says of keys, and what it repairs, beside a domain with the same ids and keys."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.keyed import complete, drain, key_row, park, send_keyed, set_policy, waiting

OTHER = "orders"  # before ours, in the order of names


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def send_twins(*sessions: Session, count: int = 3) -> list[UUID]:
    """The same commands of one key in each domain."""
    ids = [uuid4() for _ in range(count)]
    commands = [{"command_id": str(i), "type": "Debit", "ordering_key": "a"} for i in ids]
    for each in sessions:
        await each.value("select commandbus.send_commands(%s, %s)", each.domain, Jsonb(commands))
    return ids


async def findings(db: Session, domain: str | None) -> list[tuple[str, str, str]]:
    rows = await db.rows("select * from commandbus.check_keys(%s) order by 1, 2, 3", domain)
    return [(row["code"], row["domain"], row["subject"]) for row in rows]


async def repair(db: Session) -> int:
    return len(await db.rows("select commandbus.repair_keys(%s, 'doc')", db.domain))


async def change(db: Session, command_id: UUID, setting: str) -> None:
    """As somebody does who knows nothing of keys."""
    await db.rows(
        f"update commandbus.command_bus_command set {setting}"
        " where domain = %s and command_id = %s",
        db.domain, command_id,
    )  # fmt: skip


async def lose_place(db: Session, command_id: UUID) -> None:
    await db.rows(
        "delete from commandbus.command_bus_waiting where domain = %s and command_id = %s",
        db.domain, command_id,
    )  # fmt: skip


async def lose_key(db: Session) -> None:
    await db.rows("delete from commandbus.command_bus_key where domain = %s", db.domain)


async def make_due(db: Session, command_id: UUID) -> None:
    await db.rows(
        f"update pgmq.q_{db.domain}__commands set vt = now() where message ->> 'command_id' = %s",
        str(command_id),
    )


async def note(db: Session) -> None:
    await db.value("select commandbus.note_keys(%s, '{a}')", db.domain)


async def test_a_key_is_well_whatever_its_commands_have_come_to_elsewhere(
    db: Session, other: Session
) -> None:
    await send_twins(db, other)
    await drain(other)
    assert await findings(db, DOMAIN) == []


async def test_a_blocked_key_is_no_key_that_stands_where_another_domain_steps_over(
    db: Session, other: Session
) -> None:
    await send_twins(db, other)
    await set_policy(other, "skip")
    await park(db, *await db.receive())
    assert [code for code, _, _ in await findings(db, DOMAIN)] == ["KEY_BLOCKED"]
    assert await findings(db, OTHER) == []


async def test_a_key_that_the_next_receive_looks_at_does_not_stand(
    db: Session, other: Session
) -> None:
    first, _, _ = await send_twins(db, other)
    await change(db, first, "status = 'CANCELED'")
    await note(other)  # which says nothing of ours
    assert await findings(db, DOMAIN) == [("KEY_STANDS", DOMAIN, "a")]
    await note(db)
    assert await findings(db, DOMAIN) == []


async def stands(db: Session, ids: list[UUID]) -> None:
    await change(db, ids[0], "status = 'CANCELED'")


async def has_a_stray(db: Session, ids: list[UUID]) -> None:
    await change(db, ids[1], "status = 'CANCELED'")


async def has_lost_a_place(db: Session, ids: list[UUID]) -> None:
    await lose_place(db, ids[1])


async def has_a_head_out_of_the_way(db: Session, ids: list[UUID]) -> None:
    await db.rows(f"update pgmq.q_{db.domain}__commands set vt = 'infinity'")


FAULTS = {
    "KEY_STANDS": stands, "KEY_PLACE_UNKNOWN": has_a_stray, "KEY_PLACE_LOST": has_lost_a_place,
    "the head": has_a_head_out_of_the_way,
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_wrong_is_told_of_its_own_domain_and_of_no_other(
    db: Session, other: Session, name: str
) -> None:
    ids = await send_twins(db, other)
    await FAULTS[name](db, ids)
    (found,) = await findings(db, None)
    assert found[1] == DOMAIN
    assert await findings(db, DOMAIN) == [found]
    assert await findings(db, OTHER) == []


@pytest.mark.parametrize("name", FAULTS)
async def test_of_two_domains_with_the_same_fault_one_is_repaired(
    db: Session, other: Session, name: str
) -> None:
    ids = await send_twins(db, other)
    for each in (db, other):
        await FAULTS[name](each, ids)
    before = await findings(db, OTHER), await key_row(other, "a"), await waiting(other, "a")
    assert await repair(db) == 1
    assert await findings(db, DOMAIN) == []
    assert (
        await findings(db, OTHER), await key_row(other, "a"), await waiting(other, "a"),
    ) == before  # fmt: skip


async def test_a_lost_place_is_found_and_given_back_though_its_twin_has_one(
    db: Session, other: Session
) -> None:
    ids = await send_twins(db, other)
    head, *_ = await other.receive()
    await complete(other, head)  # so that the twin of ours is the head there
    await lose_place(db, ids[1])
    await make_due(db, ids[1])
    assert await findings(db, DOMAIN) == [("KEY_PLACE_LOST", DOMAIN, str(ids[1]))]
    await lose_place(db, ids[2])
    assert await repair(db) == 2
    assert await waiting(db, "a") == ids[1:]
    assert await waiting(other, "a") == ids[2:]
    assert await drain(db) == ids


async def test_places_at_a_key_that_another_domain_has_and_this_one_lost_are_unknown(
    db: Session, other: Session
) -> None:
    ids = await send_twins(db, other)
    await lose_key(db)
    found = [code for code, _, _ in await findings(db, DOMAIN)]
    assert found == ["KEY_PLACE_LOST", "KEY_PLACE_UNKNOWN", "KEY_PLACE_UNKNOWN"]
    query = "select max(since) from commandbus.command_bus_waiting where command_id = any(%s)"
    before = await db.value(query, ids[1:])
    await repair(db)
    assert await findings(db, None) == []
    assert await db.value(query, ids[1:]) == before  # who had a place still has it
    assert await drain(db) == ids


async def test_a_repair_waits_for_no_key_that_its_commands_have_elsewhere(
    db: Session, other: Session, session: Open
) -> None:
    ids = await send_twins(db)
    commands = [{"command_id": str(i), "type": "Debit", "ordering_key": "b"} for i in ids]
    await other.value("select commandbus.send_commands(%s, %s)", OTHER, Jsonb(commands))
    await lose_place(db, ids[1])
    sender = await session()
    await send_keyed(sender, "b")
    await db.rows("set lock_timeout = '2s'")
    assert await repair(db) == 1
    assert await waiting(db, "a") == ids[1:]
    await sender.conn.rollback()


async def test_what_is_leased_or_over_has_lost_no_place(db: Session) -> None:
    ids = await send_twins(db)
    await db.receive(mark=False)
    await lose_place(db, ids[1])
    await change(db, ids[1], "status = 'CANCELED'")
    await lose_place(db, ids[2])
    await change(db, ids[2], "leased_by = 'w'")
    await lose_key(db)
    assert await findings(db, DOMAIN) == []


async def test_what_has_changed_before_a_time_is_not_looked_at(db: Session) -> None:
    ids = await send_twins(db)
    await lose_place(db, ids[1])
    query = "select count(*) from commandbus.check_keys(%s, now() + cast(%s as interval))"
    assert await db.value(query, DOMAIN, "1 hour") == 0
    assert await db.value(query, DOMAIN, "-1 hour") == 1


async def test_a_domain_that_had_keys_and_has_no_queue_is_passed_over(db: Session) -> None:
    await db.rows(
        "insert into commandbus.command_bus_flow (domain, has_keys) values ('nowhere', true)"
    )
    assert await findings(db, None) == []


#: Of a command that has a place: what makes it a stray.
STRAYS = ("status = 'CANCELED'", "leased_by = 'w'", "msg_id = null", "msg_id = 77")


@pytest.mark.parametrize("setting", STRAYS)
async def test_a_place_of_what_does_not_wait_is_removed_though_its_twin_waits(
    db: Session, other: Session, setting: str
) -> None:
    ids = await send_twins(db, other)
    await change(db, ids[1], setting)
    assert await findings(db, DOMAIN) == [("KEY_PLACE_UNKNOWN", DOMAIN, str(ids[1]))]
    assert await repair(db) == 1
    places = await db.rows(
        "select msg_id from commandbus.command_bus_waiting where domain = %s and command_id = %s",
        DOMAIN, ids[1],
    )  # fmt: skip
    # One that has another message waits with that one.
    assert [row["msg_id"] for row in places] == ([77] if setting == STRAYS[3] else [])
    assert await waiting(other, "a") == ids[1:]
    assert await findings(db, None) == []
