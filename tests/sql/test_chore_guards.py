"""The chore of limits: whom it lets go, whom it leaves, and that it writes nothing for nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.keyed import send_keyed
from tests.sql.test_gates import limit, sent, waiting

OTHER = "orders"
TABLE = f"pgmq.q_{DOMAIN}__commands"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def tend(db: Session) -> int:
    await db.rows("set lock_timeout = '2s'")
    found: int = await db.value("select commandbus.tend_gates(%s)", db.domain)
    return found


async def aside(db: Session) -> set[UUID]:
    """Whose messages stand aside."""
    rows = await db.rows(
        f"select message ->> 'command_id' as id from pgmq.q_{db.domain}__commands"
        " where vt = 'infinity'"
    )
    return {UUID(row["id"]) for row in rows}


async def clear(db: Session, kind: str = "Debit") -> None:
    assert await db.value("select commandbus.clear_limit(%s, %s)", db.domain, kind)


async def two_wait(db: Session) -> list[UUID]:
    """At a limit that is no more."""
    await limit(db, max_running=1)
    _, *ids = await sent(db, 3)
    await db.receive()
    await clear(db)
    return ids


async def test_those_who_wait_elsewhere_at_a_gate_of_that_name_let_nobody_go(
    db: Session, other: Session
) -> None:
    ids: list[UUID] = []
    for kind in ("Debit", "Credit"):
        await limit(db, kind, max_running=1)
        ids = await sent(db, 2, type=kind)
    await db.receive()
    await other.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", OTHER)
    for _ in range(4):
        await other.send()
    await other.receive()
    theirs = await aside(other)
    await clear(db)
    assert await tend(db) == 1
    assert await aside(db) == {ids[1]}
    assert await aside(other) == theirs


async def test_who_was_put_off_by_another_hand_is_not_made_due(db: Session) -> None:
    await two_wait(db)
    await db.rows(f"update {TABLE} set vt = now() + interval '1 hour' where vt = 'infinity'")
    assert await tend(db) == 0
    assert not any(row["is_visible"] for row in await db.queued())
    assert await waiting(db) == {}


async def test_whose_message_another_session_has_waits_until_the_next_turn(
    db: Session, session: Open
) -> None:
    first, second = await two_wait(db)
    somebody = await session()
    row = await db.command(first)
    await somebody.rows(f"select from {TABLE} where msg_id = %s for update", row["msg_id"])
    assert await tend(db) == 1
    assert set(await waiting(db)) == {first}
    await somebody.conn.rollback()
    assert await tend(db) == 1
    assert await aside(db) == set()
    assert second in [held.command_id for held in await db.receive()]


async def flow_row(db: Session) -> dict[str, Any]:
    (row,) = await db.rows(
        "select has_rules, updated_at from commandbus.command_bus_flow where domain = %s",
        db.domain,
    )
    return row


async def an_hour_ago(db: Session) -> None:
    await db.rows(
        "update commandbus.command_bus_flow set updated_at = updated_at - %s", timedelta(hours=1)
    )


async def test_a_domain_without_limits_is_not_written(db: Session, other: Session) -> None:
    await send_keyed(db, "a")
    await other.send()
    await other.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", OTHER)
    await an_hour_ago(db)
    before = await flow_row(db)
    assert await tend(db) == 0
    assert await flow_row(db) == before


async def test_the_mark_of_limits_goes_when_nothing_of_them_is_left(
    db: Session, other: Session
) -> None:
    """Theirs are in use, with a place and one who waits: that is nothing to ours."""
    await limit(db, max_running=1)
    await other.send()
    await other.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", OTHER)
    await other.send()
    assert len(await other.receive()) == 1
    await clear(db)
    assert await tend(db) == 0
    assert (await flow_row(db))["has_rules"]  # changed a moment ago
    await an_hour_ago(db)
    assert await tend(db) == 0
    assert not (await flow_row(db))["has_rules"]
    assert (await flow_row(other))["has_rules"]


@pytest.mark.parametrize("what", ["rule", "place", "waits"])
async def test_the_mark_of_limits_stays_while_something_of_them_is_left(
    db: Session, session: Open, what: str
) -> None:
    somebody = await session()
    if what == "waits":
        await two_wait(db)
        # Whose message another session has.
        await somebody.rows(f"select from {TABLE} where vt = 'infinity' for update")
        await db.rows("delete from commandbus.command_bus_slot")
    else:
        await limit(db, max_running=1)
        await sent(db, 1)
        await db.receive()
        if what == "place":
            await clear(db)
            await somebody.rows(f"select from {TABLE} for update")
        else:
            await db.rows("delete from commandbus.command_bus_slot")
    await an_hour_ago(db)
    assert await tend(db) == 0
    assert (await flow_row(db))["has_rules"]
    await somebody.conn.rollback()


async def test_a_domain_whose_row_another_session_has_keeps_its_mark_until_the_next_turn(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    await clear(db)
    await an_hour_ago(db)
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_flow for update")
    assert await tend(db) == 0
    await somebody.conn.rollback()
    assert (await flow_row(db))["has_rules"]


# -- pauses of types that are over


async def pause_is_over(*sessions: Session) -> None:
    for each in sessions:
        await each.send()
        await each.value(
            "select commandbus.pause_type(%s, 'Debit', 'why', now() + interval '1 hour')",
            each.domain,
        )
        await each.rows(
            "update commandbus.command_bus_flow_rule set paused_until = clock_timestamp()"
            " where domain = %s",
            each.domain,
        )


async def paused(db: Session) -> set[str]:
    rows = await db.rows(
        "select domain from commandbus.command_bus_flow_rule where paused_at is not null"
    )
    return {row["domain"] for row in rows}


async def test_a_pause_stays_until_a_turn_that_has_the_row_of_its_domain(
    db: Session, other: Session, session: Open
) -> None:
    await pause_is_over(db, other)
    somebody = await session()
    await somebody.rows(
        "select from commandbus.command_bus_flow where domain = %s for update", DOMAIN
    )
    assert await tend(db) == 0
    assert await paused(db) == {DOMAIN, OTHER}
    await somebody.conn.rollback()
    assert await tend(db) == 0
    assert await paused(db) == {OTHER}


async def test_a_turn_that_ends_no_pause_has_no_row_that_others_wait_for(
    db: Session, other: Session, session: Open
) -> None:
    await pause_is_over(other)
    await limit(db, max_running=1)
    chore = await session()
    assert await tend(chore) == 0
    await db.rows("set lock_timeout = '2s'")
    await limit(db, max_running=2)
    await chore.conn.rollback()
