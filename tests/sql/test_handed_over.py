"""Which leases a handover holds still, and which another system may still be working on."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.sql.helpers import DOMAIN, Held, Session

OTHER = "orders"
BOTH = ["handed_over", "still_out"]


async def found(db: Session, function: str, *leases: tuple[UUID, int], domain: str) -> list[UUID]:
    rows = await db.rows(
        f"select command_id from commandbus.{function}(%s, %s, %s)",
        domain, [command_id for command_id, _ in leases], [epoch for _, epoch in leases],
    )  # fmt: skip
    return [row["command_id"] for row in rows]


async def handed(db: Session, worker: str = "handover:x") -> list[Held]:
    """Two commands that this one has."""
    for _ in range(2):
        await db.send()
    return await db.receive(worker=worker)


@pytest.mark.parametrize("function", BOTH)
async def test_a_lease_is_found_once_by_its_own_number(db: Session, function: str) -> None:
    first, second = await handed(db)
    asked = (first.command_id, first.lease_epoch), (second.command_id, second.lease_epoch + 1)
    assert await found(db, function, *asked, domain=DOMAIN) == [first.command_id]


@pytest.mark.parametrize("function", BOTH)
async def test_the_lease_of_a_worker_is_never_found(db: Session, function: str) -> None:
    first, _ = await handed(db, worker="w1")
    assert await found(db, function, (first.command_id, 1), domain=DOMAIN) == []


@pytest.mark.parametrize("function", BOTH)
async def test_the_lease_of_a_twin_elsewhere_is_not_found(db: Session, function: str) -> None:
    command_id, other = uuid4(), Session(db.conn, OTHER)
    await db.send(command_id, delay_seconds=60)
    await other.send(command_id)
    await other.receive(worker="handover:x")
    assert await found(db, function, (command_id, 1), domain=DOMAIN) == []
    assert await found(db, function, (command_id, 1), domain=OTHER) == [command_id]


@pytest.mark.parametrize("function", BOTH)
async def test_where_nothing_was_ever_sent_nothing_is_out(db: Session, function: str) -> None:
    assert await found(db, function, (uuid4(), 1), domain="nowhere") == []


async def test_a_lease_that_has_lapsed_is_held_and_not_out(db: Session) -> None:
    first, _ = await handed(db)
    await db.lapse(first)
    asked = first.command_id, 1
    assert await found(db, "handed_over", asked, domain=DOMAIN) == [first.command_id]
    assert await found(db, "still_out", asked, domain=DOMAIN) == []
