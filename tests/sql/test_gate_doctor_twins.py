"""What the doctor says of limits, and what it repairs, beside a domain with the same ids."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session

OTHER = "orders"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def set_limit(db: Session) -> None:
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", db.domain)


async def one_runs_and_two_wait(*sessions: Session) -> list[UUID]:
    ids = [uuid4() for _ in range(3)]
    for each in sessions:
        await set_limit(each)
        await each.send(*ids)
        assert len(await each.receive()) == 1
    return ids


async def findings(db: Session, domain: str | None) -> list[tuple[str, str, str]]:
    rows = await db.rows("select * from commandbus.check_gates(%s) order by 1, 2, 3", domain)
    return [(row["code"], row["domain"], row["subject"]) for row in rows]


async def repair(db: Session, verb: str = "repair_waiting") -> list[str]:
    rows = await db.rows(f"select commandbus.{verb}(%s, 'doc') as subject", db.domain)
    return [row["subject"] for row in rows]


async def aside(db: Session) -> set[UUID]:
    rows = await db.rows(
        "select (message ->> 'command_id')::uuid as id"
        f" from pgmq.q_{db.domain}__commands where vt = 'infinity'"
    )
    return {row["id"] for row in rows}


async def waiting(db: Session) -> set[UUID]:
    rows = await db.rows(
        "select command_id from commandbus.command_bus_waiting where domain = %s", db.domain
    )
    return {row["command_id"] for row in rows}


async def set_vt(db: Session, command_id: UUID, vt: str) -> None:
    await db.rows(
        f"update pgmq.q_{db.domain}__commands set vt = {vt} where message ->> 'command_id' = %s",
        str(command_id),
    )


async def lose_row(db: Session, command_id: UUID) -> None:
    await db.rows(
        "delete from commandbus.command_bus_waiting where domain = %s and command_id = %s",
        db.domain, command_id,
    )  # fmt: skip


async def waits_for_nothing(db: Session, ids: list[UUID]) -> None:
    await lose_row(db, ids[1])


async def waits_without_message(db: Session, ids: list[UUID]) -> None:
    await set_vt(db, ids[1], "now() + interval '1 hour'")


async def has_a_place(db: Session, ids: list[UUID]) -> None:
    await db.rows(
        "update commandbus.command_bus_command set leased_by = null, status = 'PENDING'"
        " where domain = %s and command_id = %s",
        db.domain, ids[0],
    )  # fmt: skip


async def has_a_gate(db: Session, ids: list[UUID]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_gate (domain, gate) values (%s, 'l:t:Credit')",
        db.domain,
    )


FAULTS = {
    "WAITING_FOR_NOTHING": waits_for_nothing, "WAITING_WITHOUT_MESSAGE": waits_without_message,
    "PLACE_WITHOUT_LEASE": has_a_place, "GATE_UNUSED": has_a_gate,
}  # fmt: skip


def repair_of(code: str) -> str:
    return "repair_waiting" if code.startswith("WAITING") else "repair_places"


@pytest.mark.parametrize("code", FAULTS)
async def test_what_is_wrong_is_told_of_its_own_domain_alone_and_repaired_there(
    db: Session, other: Session, code: str
) -> None:
    ids = await one_runs_and_two_wait(db, other)
    assert await findings(db, None) == []
    await FAULTS[code](db, ids)
    (found,) = await findings(db, None)
    assert found[:2] == (code, DOMAIN)
    assert await findings(db, DOMAIN) == [found]
    assert await findings(db, OTHER) == []
    assert len(await repair(db, repair_of(code))) == 1
    assert await findings(db, None) == []


@pytest.mark.parametrize("code", FAULTS)
async def test_of_two_domains_with_the_same_fault_one_is_repaired(
    db: Session, other: Session, code: str
) -> None:
    ids = await one_runs_and_two_wait(db, other)
    for each in (db, other):
        await FAULTS[code](each, ids)
    before = await findings(db, OTHER)
    assert len(await repair(db, repair_of(code))) == 1
    assert await findings(db, None) == before
    assert ids[2] in await aside(db)  # who waits rightly still does
    assert await aside(other) >= {ids[2]}


async def test_who_waits_in_the_one_domain_needs_no_message_in_the_other(
    db: Session, other: Session
) -> None:
    await one_runs_and_two_wait(other)
    await set_limit(db)
    assert await findings(db, DOMAIN) == []


async def test_a_gate_of_a_limit_is_of_use_whatever_the_other_domain_limits(
    db: Session, other: Session
) -> None:
    await one_runs_and_two_wait(db)
    await other.value("select commandbus.ensure_domain(%s)", OTHER)
    for each in (db, other):
        await each.value(
            "insert into commandbus.command_bus_gate (domain, gate) values (%s, 'l:t:Debit')"
            " on conflict do nothing",
            each.domain,
        )
    assert [found[:2] for found in await findings(db, None)] == [("GATE_UNUSED", OTHER)]
    # A gate that is in use here goes with none of that name elsewhere.
    assert await repair(db, "repair_places") == []
    query = "select count(*) from commandbus.command_bus_gate where domain = %s"
    assert await db.value(query, DOMAIN) == 1


async def test_a_gate_of_a_key_is_of_use_while_its_type_has_a_limit_by_key(db: Session) -> None:
    by_key = "p_type => 'Debit', p_by_key => true"
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value(f"select commandbus.set_limit(%s, {by_key}, p_max_running => 1)", DOMAIN)
    await db.rows(
        "insert into commandbus.command_bus_gate (domain, gate) values (%s, 'l:k:Debit/x')", DOMAIN
    )
    assert await findings(db, DOMAIN) == []
    await db.value(f"select commandbus.clear_limit(%s, {by_key})", DOMAIN)
    assert [code for code, _, _ in await findings(db, DOMAIN)] == ["GATE_UNUSED"]


async def test_a_row_of_another_message_is_no_reason_to_wait(db: Session) -> None:
    ids = await one_runs_and_two_wait(db)
    await db.rows(
        "update commandbus.command_bus_waiting set msg_id = 77 where command_id = %s", ids[1]
    )
    assert [code for code, _, _ in await findings(db, DOMAIN)] == [
        "WAITING_FOR_NOTHING", "WAITING_WITHOUT_MESSAGE",
    ]  # fmt: skip
    assert await repair(db) == [str(ids[1])] * 2
    assert await aside(db) == await waiting(db) == {ids[2]}
    assert await findings(db, DOMAIN) == []


async def test_those_who_wait_at_a_key_are_left_to_another_repair(
    db: Session, other: Session
) -> None:
    """And a twin that has a key keeps nobody from being repaired."""
    ids = await one_runs_and_two_wait(db)
    await other.send(*ids, ordering_key="a")
    for each in (db, other):
        await lose_row(each, ids[1])
    assert await repair(other) == []
    assert await aside(other) == set(ids[1:])
    assert await repair(db) == [str(ids[1])]
    assert await aside(db) == {ids[2]}


#: What another session does to a message that was found, and whether the fault is over then.
MEANWHILE = {
    "it has a reason to wait": (waits_for_nothing, "'infinity'", True),
    "it is later": (waits_for_nothing, "now() + interval '1 hour'", False),
    "it waits again": (waits_without_message, "'infinity'", True),
}


@pytest.mark.parametrize("name", MEANWHILE)
async def test_what_is_well_again_before_its_turn_is_left_alone(
    db: Session, session: Open, name: str
) -> None:
    ids = await one_runs_and_two_wait(db)
    fault, vt, is_aside = MEANWHILE[name]
    lost = "select * from commandbus.command_bus_waiting where command_id = %s"
    (row,) = await db.rows(lost, ids[1])
    await fault(db, ids)
    helper, doctor = await session(), await session()
    await set_vt(helper, ids[1], vt)
    if name == "it has a reason to wait":
        await helper.rows(
            "insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
            " values (%s, %s, %s, %s, %s)",
            DOMAIN, row["gate"], row["seq"], row["msg_id"], ids[1],
        )  # fmt: skip
    repairing = asyncio.create_task(repair(doctor))
    await db.until_blocked(doctor)
    await helper.conn.commit()
    assert await repairing == []
    await doctor.conn.commit()
    assert (ids[1] in await aside(db)) is is_aside
    assert (ids[1] in await waiting(db)) is is_aside
    assert await findings(db, DOMAIN) == []


async def test_limits_of_all_domains_are_listed_and_of_one(db: Session, other: Session) -> None:
    await one_runs_and_two_wait(db, other)
    query = "select domain, running, waiting from commandbus.list_limits(%s)"

    async def listed(domain: str | None) -> list[tuple[str, int, int]]:
        rows = await db.rows(query, domain)
        return [(row["domain"], row["running"], row["waiting"]) for row in rows]

    assert await listed(None) == [(OTHER, 1, 2), (DOMAIN, 1, 2)]
    assert await listed(DOMAIN) == [(DOMAIN, 1, 2)]
