"""What is listed as waiting for its time or something else: once, in its domain, by pages."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session

OTHER = "orders"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def scheduled(
    db: Session, after: dict[str, Any] | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    return await db.rows(
        "select place, msg_id, (command).command_id as id, (command).domain as domain"
        " from commandbus.scheduled_commands(%s, null, %s, %s, %s)",
        db.domain, after and after["place"], after and after["msg_id"], limit,
    )  # fmt: skip


async def waiting(
    db: Session, after: dict[str, Any] | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    names = ("gate", "seq", "msg_id")
    return await db.rows(
        "select gate, seq, msg_id, (command).command_id as id, (command).domain as domain"
        " from commandbus.waiting_commands(%s, null, %s, %s, %s, %s)",
        db.domain, *(after and after[name] for name in names), limit,
    )  # fmt: skip


def ids(rows: list[dict[str, Any]]) -> list[UUID]:
    return [row["id"] for row in rows]


async def one_runs(db: Session, *waits: UUID, **more: Any) -> None:
    """At a limit of one."""
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", db.domain)
    await db.send()
    await db.receive()  # before the others: they may go first by their level
    for command_id in waits:
        await db.send(command_id, **more)
    await db.receive()


async def test_nothing_is_scheduled_where_nothing_was_ever_sent(db: Session) -> None:
    assert await scheduled(Session(db.conn, "nowhere")) == []


@pytest.mark.parametrize("priority", [None, 1])
async def test_only_what_is_due_later_is_scheduled(db: Session, priority: int | None) -> None:
    await one_runs(db, uuid4(), priority=priority)
    await db.send(type="Credit", priority=priority)
    (later,) = await db.send(delay_seconds=60, priority=priority)
    assert ids(await scheduled(db)) == [later]


async def test_what_a_worker_has_is_not_scheduled(db: Session) -> None:
    await db.send()
    await db.receive(mark=False)
    assert await scheduled(db) == []


async def test_a_second_message_of_a_command_is_not_scheduled(db: Session) -> None:
    (later,) = await db.send(delay_seconds=60)
    await db.rows(
        "select pgmq.send('payments__commands', %s, 30)", Jsonb({"command_id": str(later)})
    )
    assert ids(await scheduled(db)) == [later]


async def test_what_is_scheduled_is_listed_page_by_page(db: Session) -> None:
    sent = [(await db.send(delay_seconds=60 * n, priority=n % 2 or None))[0] for n in range(1, 5)]
    first = await scheduled(db, limit=2)
    second = await scheduled(db, first[-1], limit=2)
    assert [ids(first), ids(second)] == [sent[:2], sent[2:]]
    assert await scheduled(db, second[-1]) == []


async def test_what_has_a_twin_is_listed_once_in_each_domain(db: Session, other: Session) -> None:
    later, waits = uuid4(), uuid4()
    for each in (db, other):
        await one_runs(each, waits)
        await each.send(later, delay_seconds=60)
    for each in (db, other):
        listed = [*await scheduled(each), *await waiting(each)]
        assert ids(listed) == [later, waits]
        assert {row["domain"] for row in listed} == {each.domain}


async def test_those_who_wait_at_a_limit_are_listed_page_by_page(db: Session) -> None:
    sent = [uuid4() for _ in range(3)]
    await one_runs(db, *sent)
    first = await waiting(db, limit=2)
    assert ids(first) == sent[:2]
    assert ids(await waiting(db, first[-1])) == sent[2:]


# -- another level


async def test_another_level_is_that_of_one_domain(db: Session, other: Session) -> None:
    """Theirs is the level of the twin, and what it is worth."""
    waits = uuid4()
    await other.value("select commandbus.set_level_seconds(%s, 1000000)", OTHER)
    for each in (db, other):
        await one_runs(each, waits)
    ours, theirs = (await waiting(db))[0], await waiting(other)
    before = await other.command(waits)
    await db.value("select commandbus.set_level_seconds(%s, 60)", DOMAIN)
    await db.value("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [waits])
    assert await other.command(waits) == before
    assert await waiting(other) == theirs
    assert (await waiting(db))[0]["seq"] == ours["seq"] - 60 * 1_000_000
