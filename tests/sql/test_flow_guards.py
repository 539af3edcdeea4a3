"""When a command is due, when a domain is, and what its end leaves: each by its own row."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import complete, limit, places

OTHER = "orders"
HOUR = "clock_timestamp() + interval '1 hour'"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def due_at(
    db: Session, status: str, msg_id: int | None, time: str, domain: str = DOMAIN
) -> datetime | None:
    found: datetime | None = await db.value(
        f"select commandbus.due_at(%s, %s, null, %s, {time})", domain, status, msg_id
    )
    return found


async def test_what_has_ended_is_due_at_no_time(db: Session) -> None:
    await db.send()
    assert await due_at(db, "CANCELED", None, HOUR) is None
    assert await due_at(db, "PENDING", None, HOUR) is not None


async def test_where_there_is_no_queue_a_command_is_due_when_it_says(db: Session) -> None:
    assert await due_at(db, "PENDING", 1, HOUR, "nowhere") is not None


async def test_a_command_is_due_when_its_own_message_is(db: Session) -> None:
    ids: list[UUID] = [(await db.send(delay_seconds=seconds))[0] for seconds in (100, 200, 300)]
    for command_id in ids:
        row: dict[str, Any] = await db.command(command_id)
        assert await due_at(db, "PENDING", row["msg_id"], "null") == row["deliver_at"]


async def next_due(db: Session) -> float | None:
    found: float | None = await db.value("select commandbus.next_due(%s)", db.domain)
    return found


async def test_a_key_that_is_to_be_looked_at_makes_its_own_domain_due(
    db: Session, other: Session
) -> None:
    for each in (db, other):
        await each.send(ordering_key="a")
        for held in await each.receive():
            await each.settle("complete", held.item(data=None))
        assert await next_due(each) is None
    await db.value("select commandbus.note_keys(%s, '{a}')", DOMAIN)
    assert await next_due(db) == 0
    assert await next_due(other) is None


async def test_another_time_to_look_at_what_expires_takes_the_place_of_the_first(
    db: Session,
) -> None:
    (command_id,) = await db.send(expires_in_seconds=60)
    await db.rows(
        f"select commandbus.watch_expiry(%s, array[%s], array[{HOUR}])", DOMAIN, command_id
    )
    assert await db.value(
        "select look_at > now() + interval '10 minutes' from commandbus.command_bus_expiry"
    )


@pytest.mark.parametrize("first", [DOMAIN, OTHER])
async def test_an_end_gives_its_place_back_whether_another_domain_has_limits_or_not(
    db: Session, other: Session, first: str
) -> None:
    async def without_limits() -> None:
        await other.value("select commandbus.set_level_seconds(%s, 60)", OTHER)

    if first == OTHER:
        await without_limits()
    await limit(db, max_running=1)
    if first == DOMAIN:
        await without_limits()
    await db.send()
    await complete(db, *await db.receive())
    assert await places(db) == []
