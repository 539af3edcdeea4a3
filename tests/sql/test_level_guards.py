"""Reading by level, and the chore of levels: of one domain, and without waiting for anybody."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session

OTHER = "orders"
TEND = "select commandbus.tend_levels()"
HURRY = "set lock_timeout = '2s'"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def use_levels_long_ago(*sessions: Session) -> None:
    for each in sessions:
        await each.send(priority=1)
        await each.rows(
            "update commandbus.command_bus_flow set updated_at = now() - interval '3 hours'"
            " where domain = %s",
            each.domain,
        )


async def with_levels(db: Session) -> set[str]:
    rows = await db.rows("select domain from commandbus.command_bus_flow where has_levels")
    return {row["domain"] for row in rows}


async def end_all(db: Session) -> None:
    await db.settle("complete", *(held.item(data=None) for held in await db.receive()))


async def test_a_domain_is_read_with_levels_as_long_as_its_own_messages_have_them(
    db: Session, other: Session
) -> None:
    await use_levels_long_ago(db, other)
    await end_all(db)
    assert await db.value(TEND) == 1
    assert await with_levels(db) == {OTHER}
    await end_all(other)
    assert await db.value(TEND) == 1
    assert await with_levels(db) == set()


async def test_the_chore_of_levels_waits_for_nobody_who_has_the_row_of_a_domain(
    db: Session, other: Session, session: Open
) -> None:
    await use_levels_long_ago(db, other)
    for each in (db, other):
        await end_all(each)
    somebody = await session()
    await somebody.rows(
        "select from commandbus.command_bus_flow where domain = %s for update", OTHER
    )
    await db.rows(HURRY)
    assert await db.value(TEND) == 1
    assert await with_levels(db) == {OTHER}
    await somebody.conn.rollback()


@pytest.mark.parametrize("priority", [None, 1])
async def test_what_stands_aside_is_not_due_at_any_time(db: Session, priority: int | None) -> None:
    await db.send(priority=priority)
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    assert await db.receive() == []
    assert await db.value("select commandbus.next_due(%s)", DOMAIN) is None


async def test_a_look_at_the_head_waits_for_no_message_that_another_session_has(
    db: Session, session: Open
) -> None:
    await db.send()
    (second,) = await db.send()
    await db.send(priority=1, delay_seconds=60)
    somebody = await session()
    await somebody.rows(f"select from pgmq.q_{DOMAIN}__commands order by msg_id limit 1 for update")
    await db.rows(HURRY)
    assert [held.command_id for held in await db.receive(from_head=True)] == [second]
    await somebody.conn.rollback()


async def test_what_is_not_due_takes_no_share_of_what_is_given(db: Session) -> None:
    """By its time alone it would go before the low one, which is worth less by its level."""
    await db.value("select commandbus.set_level_seconds(%s, 1000)", DOMAIN)
    await db.send(delay_seconds=30)
    (low,) = await db.send(priority=-1)
    assert [held.command_id for held in await db.receive(1)] == [low]
    await db.send(delay_seconds=30, priority=1)
    (lower,) = await db.send(priority=-2)
    assert [held.command_id for held in await db.receive(1)] == [lower]


@pytest.mark.parametrize("from_head", [True, False])
async def test_two_who_read_by_level_get_each_message_once_and_do_not_wait(
    db: Session, session: Open, from_head: bool
) -> None:
    ids = [(await db.send(priority=priority))[0] for priority in (None, None, 1, 1)]
    first = await session()
    one = [held.command_id for held in await first.receive(2, from_head=from_head)]
    await db.rows(HURRY)
    two = [held.command_id for held in await db.receive(4, from_head=from_head)]
    assert not set(one) & set(two)
    await first.conn.commit()
    rest = [held.command_id for held in await db.receive(4)]
    assert sorted([*one, *two, *rest]) == sorted(ids)


@pytest.mark.parametrize("priority", [None, 1])
async def test_in_place_of_what_another_session_has_nobody_is_started_early(
    db: Session, session: Open, priority: int | None
) -> None:
    await db.send(priority=2, delay_seconds=60)
    first, second = [(await db.send(priority=priority))[0] for _ in range(2)]
    await db.send(priority=priority, delay_seconds=30)
    row = await db.command(first)
    somebody = await session()
    await somebody.rows(
        f"select from pgmq.q_{DOMAIN}__commands where msg_id = %s for update", row["msg_id"]
    )
    assert [held.command_id for held in await db.receive(2)] == [second]
    await somebody.conn.rollback()


async def receive_but(db: Session, kind: str, quantity: int) -> list[UUID]:
    """What a worker gets that has no handler for a type."""
    rows = await db.rows(
        "select command_id from commandbus.receive_commands(%s, 60, %s, 'w1', p_except => %s)",
        DOMAIN, quantity, [kind],
    )  # fmt: skip
    return [row["command_id"] for row in rows]


@pytest.mark.parametrize(("early", "due"), [(2, None), (None, -2)])
async def test_what_is_not_due_takes_no_share_where_types_are_left_out(
    db: Session, early: int | None, due: int | None
) -> None:
    await db.value("select commandbus.set_level_seconds(%s, 1000)", DOMAIN)
    await db.send(delay_seconds=60, priority=2)
    await db.send(delay_seconds=30, priority=early)
    (now,) = await db.send(priority=due)
    assert await receive_but(db, "Credit", 1) == [now]


async def test_two_who_leave_types_out_get_each_message_once_and_do_not_wait(
    db: Session, session: Open
) -> None:
    ids = [(await db.send(priority=priority))[0] for priority in (None, 1)]
    first = await session()
    one = await receive_but(first, "Credit", 1)
    await db.rows(HURRY)
    two = await receive_but(db, "Credit", 1)
    assert not set(one) & set(two)
    await first.conn.commit()
    assert sorted([*one, *two, *await receive_but(db, "Credit", 2)]) == sorted(ids)


@pytest.mark.parametrize("status", ["IN_TROUBLESHOOTING_QUEUE", "COMPLETED", "leased"])
async def test_what_does_not_wait_gets_no_other_level(db: Session, status: str) -> None:
    if status == "leased":
        (command_id,) = await db.send()
        await db.receive(mark=False)
    else:
        command_id = (await db.put(status)).command_id
    with pytest.raises(psycopg.Error) as info:
        await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [command_id])
    assert info.value.sqlstate == "CB003"
    assert (await db.command(command_id))["priority"] is None
