"""What is said of a lease is said of this one: of its worker, its domain, and not of a twin."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

OTHER = "orders"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def lapsed_lease(db: Session, command_id: UUID) -> dict[str, Any] | None:
    found: dict[str, Any] | None = await db.value(
        "select commandbus.lapsed_lease(%s, %s)", db.domain, command_id
    )
    return found


async def test_whose_lease_it_is_is_said_of_the_command_of_this_domain(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    for each in (db, other):
        await each.send(command_id)
        await each.receive(worker=f"w-{each.domain}")
    for each in (db, other):
        found = await lapsed_lease(each, command_id)
        assert found is not None
        assert found["worker"] == f"w-{each.domain}"


async def test_a_worker_that_nobody_heard_of_was_not_seen_though_another_was(db: Session) -> None:
    await db.rows(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, heartbeat_at)"
        " values ('w2', %s, 1, now())",
        DOMAIN,
    )
    (command_id,) = await db.send()
    await db.receive(worker="w1")
    found = await lapsed_lease(db, command_id)
    assert found is not None
    assert "worker_seen_at" not in found


async def test_a_command_that_nobody_has_has_no_lease_that_lapsed(db: Session) -> None:
    held = await db.put("COMPLETED")
    assert await lapsed_lease(db, held.command_id) is None


async def test_where_a_failure_was_raised_is_said_of_this_domain(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    for each in (db, other):
        await each.send(command_id)
        (held,) = await each.receive()
        stack = [{"in": each.domain}]
        await each.settle("fail", held.item(**FAILURE, error_stack=stack))
    for each in (db, other):
        found = await db.value("select commandbus.failure_stack(%s, %s)", each.domain, command_id)
        assert found == [{"in": each.domain}]


async def test_a_repeat_is_not_stale_because_a_twin_has_another_lease(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    await other.send(command_id)
    (theirs,) = await other.receive()
    await db.send(command_id)
    (held,) = await db.receive()
    await other.lapse(theirs)
    await other.receive(worker="w2")
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.settle("complete", held.item(data=None)) == []


# -- leases that have lapsed while a domain or a type is paused


async def cancels(db: Session, command_id: UUID) -> bool:
    """Whether the command is nobody's, so that a cancel ends it."""
    code = None
    try:
        await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    except psycopg.Error as error:
        code = error.sqlstate
    assert code in {None, "CB003"}
    return code is None


async def pause_elsewhere(other: Session) -> None:
    await other.send()
    await pause(other, "select commandbus.pause_domain(%s, 'why')")
    await pause(other, "select commandbus.pause_type(%s, 'Debit', 'why')")


async def pause(each: Session, query: str) -> None:
    await each.value(query, each.domain)


@pytest.mark.parametrize("has_limit", [False, True])
async def test_a_pause_elsewhere_ends_no_lease_that_has_lapsed_here(
    db: Session, other: Session, has_limit: bool
) -> None:
    await pause_elsewhere(other)
    await db.send()
    if has_limit:
        await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 5)", DOMAIN)
    (held,) = await db.receive()
    await db.lapse(held)
    assert not await cancels(db, held.command_id)


async def test_a_lease_that_holds_stays_in_a_paused_domain_where_others_are_due(
    db: Session,
) -> None:
    await db.send()
    (held,) = await db.receive()
    await db.send()
    await pause(db, "select commandbus.pause_domain(%s, 'why')")
    assert not await cancels(db, held.command_id)


async def test_a_lapsed_twin_is_left_to_its_own_domain(db: Session, other: Session) -> None:
    command_id = uuid4()
    await other.send(command_id)
    (theirs,) = await other.receive()
    await db.send(command_id)
    await pause(db, "select commandbus.pause_domain(%s, 'why')")
    await other.lapse(theirs)
    assert await cancels(db, command_id)
    assert await other.status(command_id) == "IN_PROGRESS"


async def test_a_lease_that_holds_stays_where_its_lapsed_twin_has_the_number_of_another(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    await db.send(command_id)
    (held,) = await db.receive()
    await db.send()
    await other.send()
    await other.send(command_id)
    await other.receive()
    await pause(db, "select commandbus.pause_domain(%s, 'why')")
    assert not await cancels(db, held.command_id)


async def test_what_has_gone_with_its_domain_is_stale_and_a_repeat_is_not(
    db: Session, other: Session
) -> None:
    repeated = await db.put("COMPLETED")
    (gone,) = await other.send()  # which says nothing of ours
    items = [Held(gone, 77, 1).item(data=None), repeated.item(data=None)]
    move = (
        "insert into commandbus.command_bus_move"
        " (move_id, domain, is_leaving, from_shard, to_shard, phase)"
        " values (gen_random_uuid(), %s, true, 'one', 'two', 'switched')"
    )
    await db.rows(move, other.domain)
    assert await db.settle("complete", *items) == []
    await db.rows(move, DOMAIN)
    assert await db.settle("complete", *items) == [gone]


async def test_a_lease_that_has_lapsed_ends_without_that_of_its_twin(
    db: Session, other: Session
) -> None:
    (command_id,) = await db.send()
    await other.send(command_id)
    for each in (db, other):
        assert len(await each.receive()) == 1
    await db.value("select commandbus.end_lapsed(%s, %s, clock_timestamp())", DOMAIN, [command_id])
    assert await db.status(command_id) == "PENDING"
    assert await other.status(command_id) == "IN_PROGRESS"
