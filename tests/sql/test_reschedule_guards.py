"""Another time is that of one command: not of its twin elsewhere, nor of what stands beside it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.helpers import Session
from tests.sql.keyed import send_keyed
from tests.sql.test_key_twins import send_as

OTHER = "orders"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def reschedule(db: Session, command_id: UUID, seconds: float = 1200) -> None:
    await db.rows(
        "select commandbus.reschedule_commands(%s, %s, null, %s, 'ann')",
        db.domain, [command_id], seconds,
    )  # fmt: skip


async def times(db: Session) -> dict[str, Any]:
    return {row["message"]["command_id"]: row["vt"] for row in await db.queued()}


async def test_only_the_command_that_was_named_gets_another_time(
    db: Session, other: Session
) -> None:
    """Its twin's message has the number of one of ours."""
    command_id = uuid4()
    await db.send(command_id, delay_seconds=60)
    await db.send(delay_seconds=60)
    await other.send(delay_seconds=60)
    await other.send(command_id, delay_seconds=60)
    ours, theirs, twin = await times(db), await times(other), await other.command(command_id)
    await reschedule(db, command_id)
    assert await times(other) == theirs
    assert await other.command(command_id) == twin
    after = await times(db)
    assert {i for i in ours if after[i] != ours[i]} == {str(command_id)}


async def test_what_keeps_a_twin_elsewhere_from_another_time_is_nothing_here(
    db: Session, other: Session
) -> None:
    behind, expiring = uuid4(), uuid4()
    await send_keyed(other, "a")
    await send_as(other, behind)
    await other.send(expiring, expires_in_seconds=60)
    for command_id in (behind, expiring):
        await db.send(command_id, delay_seconds=60)
        await reschedule(db, command_id)
    with pytest.raises(psycopg.Error, match="behind others"):
        await reschedule(other, behind)
    with pytest.raises(psycopg.Error, match="expires"):
        await reschedule(other, expiring)


@pytest.mark.parametrize("status", ["COMPLETED", "leased"])
async def test_what_does_not_wait_is_refused_for_that_and_not_for_its_expiry(
    db: Session, status: str
) -> None:
    (command_id,) = await db.send(expires_in_seconds=60)
    (held,) = await db.receive(mark=False)
    if status == "COMPLETED":
        await db.settle("complete", held.item(data=None))
    with pytest.raises(psycopg.Error) as info:
        await reschedule(db, command_id)
    assert info.value.sqlstate == "CB003"
    assert "expires" not in str(info.value)


async def test_who_leaves_a_limit_takes_no_twin_along(db: Session, other: Session) -> None:
    waits = uuid4()
    for each in (other, db):
        await each.value(
            "select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", each.domain
        )
        await each.send()
        await each.receive()
        await each.send(waits)
        await each.receive()
    await reschedule(db, waits)
    rows = await db.rows("select domain from commandbus.command_bus_waiting")
    assert [row["domain"] for row in rows] == [OTHER]
