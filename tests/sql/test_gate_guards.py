"""Who waits at a limit: what is looked at, what is left to others, and what a twin elsewhere is not
taken for."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.keyed import send_keyed
from tests.sql.test_gates import complete, limit, places, sent, waiting

OTHER = "orders"
TABLE = f"pgmq.q_{DOMAIN}__commands"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def receive_but(db: Session, kind: str) -> list[UUID]:
    """What a worker gets that has no handler for a type."""
    rows = await db.rows(
        "select command_id from commandbus.receive_commands(%s, 60, 10, 'w1', p_except => %s)",
        DOMAIN, [kind],
    )  # fmt: skip
    return [row["command_id"] for row in rows]


async def forget(db: Session, *ids: UUID) -> int:
    found: int = await db.value("select commandbus.forget_waiting(%s, %s)", DOMAIN, list(ids))
    return found


async def one_runs_and_others_wait(db: Session, count: int = 1) -> list[UUID]:
    await limit(db, max_running=1)
    ids = await sent(db, 1 + count)
    await db.receive()
    assert len(await waiting(db)) == count
    return ids[1:]


async def test_nobody_is_due_at_a_limit_with_room_while_the_domain_is_full(db: Session) -> None:
    await one_runs_and_others_wait(db)
    await limit(db, None, max_running=1)
    await limit(db, max_running=5)
    # Not before the lease that fills it may have lapsed.
    assert await db.value("select commandbus.next_due(%s)", DOMAIN) > 1


async def test_who_waits_is_not_given_to_a_worker_that_leaves_its_type_out(db: Session) -> None:
    await limit(db, None, max_running=1)
    first, second = await sent(db, 2)
    held = await db.receive()
    await complete(db, *held)
    assert await receive_but(db, "Debit") == []
    assert await receive_but(db, "Credit") == [second]
    assert held[0].command_id == first


async def test_who_waits_is_not_left_out_because_a_twin_is_of_that_type(
    db: Session, other: Session
) -> None:
    await limit(db, None, max_running=1)
    _, second = await sent(db, 2)
    await other.send(second, type="Credit")
    held = await db.receive()
    await complete(db, *held)
    assert await receive_but(db, "Credit") == [second]


async def test_a_place_that_is_free_starts_nobody_who_waits_for_another_reason(
    db: Session,
) -> None:
    (second,) = await one_runs_and_others_wait(db)
    head, _ = await send_keyed(db, "a", "a", type="Credit")
    await limit(db, max_running=2)
    found = {held.command_id for held in await db.receive()}
    assert found | {held.command_id for held in await db.receive()} == {second, head}


async def test_who_was_put_off_by_another_hand_is_not_started_by_its_place_in_the_line(
    db: Session,
) -> None:
    (second,) = await one_runs_and_others_wait(db)
    await db.rows(f"update {TABLE} set vt = now() + interval '1 hour' where vt = 'infinity'")
    await limit(db, max_running=2)
    assert await db.receive() == []
    assert await db.status(second) == "PENDING"
    assert await waiting(db) == {}


# -- rows of those whose message does not wait


async def test_only_who_does_not_wait_loses_its_place_in_the_line(db: Session) -> None:
    first, second = await one_runs_and_others_wait(db, 2)
    assert await forget(db, first, second) == 0
    row = await db.command(first)
    await db.rows(f"update {TABLE} set vt = now() where msg_id = %s", row["msg_id"])
    assert await forget(db, first, second) == 1
    assert set(await waiting(db)) == {second}


async def test_a_twin_that_waits_keeps_its_place_in_the_line(db: Session, other: Session) -> None:
    (second,) = await one_runs_and_others_wait(db)
    await other.send(second)
    await db.rows("update commandbus.command_bus_waiting set domain = %s, msg_id = 99", OTHER)
    assert await forget(db, second) == 0


async def test_a_place_in_the_line_that_another_session_has_is_left_to_it(
    db: Session, session: Open
) -> None:
    (second,) = await one_runs_and_others_wait(db)
    await db.rows(f"update {TABLE} set vt = now() where vt = 'infinity'")
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_waiting for update")
    await db.rows("set lock_timeout = '2s'")
    assert await forget(db, second) == 0
    await somebody.conn.rollback()
    assert await forget(db, second) == 1


# -- gates whose token should be there


async def ready(db: Session) -> list[str]:
    rows = await db.rows(
        "select gate from commandbus.command_bus_gate where ready_at <= clock_timestamp()"
    )
    return [row["gate"] for row in rows]


async def test_a_token_that_nobody_waits_for_is_not_looked_at_again(db: Session) -> None:
    await limit(db, rate=1, per=3600, burst=5)
    await sent(db, 1)
    assert len(await db.receive()) == 1
    await db.rows("update commandbus.command_bus_gate set ready_at = clock_timestamp()")
    assert await db.receive() == []
    assert await ready(db) == []


async def test_a_gate_that_another_session_has_is_looked_at_later(
    db: Session, session: Open
) -> None:
    await limit(db, rate=1, per=3600, burst=5)
    await sent(db, 1)
    assert len(await db.receive()) == 1
    await db.rows("update commandbus.command_bus_gate set ready_at = clock_timestamp()")
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_gate for update")
    await db.rows("set lock_timeout = '2s'")
    assert await db.receive() == []
    assert len(await ready(db)) == 1
    await somebody.conn.rollback()


# -- rules and gates of the same names elsewhere


async def limit_there(other: Session, **values: Any) -> None:
    names = "".join(f", p_{name} => %s" for name in values)
    await other.value(
        f"select commandbus.set_limit(%s, p_type => 'Debit'{names})", OTHER, *values.values()
    )


async def test_the_room_of_a_limit_is_that_of_its_own_domain(db: Session, other: Session) -> None:
    await limit_there(other, max_running=100)
    await one_runs_and_others_wait(db)
    assert await db.value("select commandbus.next_due(%s)", DOMAIN) > 1


async def test_the_tokens_of_a_limit_are_those_of_its_own_domain(
    db: Session, other: Session
) -> None:
    rate: dict[str, Any] = {"rate": 1, "per": 3600, "burst": 1}
    await limit_there(other, **rate)
    await other.send()
    await other.receive()
    await db.rows("update commandbus.command_bus_gate set tokens = 1")
    await limit(db, **rate)
    await sent(db, 2)
    assert len(await db.receive()) == 1
    assert await db.value("select commandbus.next_due(%s)", DOMAIN) > 1


async def test_a_limit_is_set_although_somebody_has_the_row_of_another_domain(
    db: Session, other: Session, session: Open
) -> None:
    await limit_there(other, max_running=1)
    await sent(db, 1)
    somebody = await session()
    await somebody.rows("select from commandbus.command_bus_flow for update")
    await db.rows("set lock_timeout = '2s'")
    await limit(db, max_running=1)
    await somebody.conn.rollback()


async def test_a_new_limit_moves_no_token_of_another_domain(db: Session, other: Session) -> None:
    await limit_there(other, rate=1, per=3600, burst=1)
    for _ in range(2):
        await other.send()
    await other.receive()
    gates = "select ready_at from commandbus.command_bus_gate where domain = %s"
    before = await db.rows(gates, OTHER)
    assert before[0]["ready_at"] is not None
    await limit(db, max_running=1)
    assert await db.rows(gates, OTHER) == before


async def test_a_command_that_waits_has_no_place_because_its_twin_runs(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    for each in (db, other):
        await each.send(command_id)
        await each.receive()
    (held,) = [await db.command(command_id)]
    item = {"command_id": str(command_id), "msg_id": held["msg_id"], "lease_epoch": 1}
    await db.settle("retry", item | {"delay_seconds": 0} | FAILURE)
    await limit(db, max_running=1)
    assert await places(db) == []


async def test_the_pause_of_a_type_elsewhere_is_ended_by_its_own_chore(
    db: Session, other: Session
) -> None:
    for each in (db, other):
        await each.send()
        await each.value(
            "select commandbus.pause_type(%s, 'Debit', 'why', now() + interval '1 hour')",
            each.domain,
        )
    await db.rows("update commandbus.command_bus_flow_rule set paused_until = clock_timestamp()")
    await db.value("select commandbus.end_type_pauses(%s)", DOMAIN)
    rows = await db.rows(
        "select domain from commandbus.command_bus_flow_rule where paused_at is not null"
    )
    assert [row["domain"] for row in rows] == [OTHER]


async def test_a_group_of_free_and_limited_ones_is_given_once_and_no_more_than_has_room(
    db: Session,
) -> None:
    await limit(db, max_running=1)
    limited = await sent(db, 2)
    free = await sent(db, 2, type="Credit")
    given = [held.command_id for held in await db.receive()]
    assert sorted(given) == sorted([limited[0], *free])
    assert await waiting(db) == {limited[1]: "l:t:Debit"}


async def test_who_cancels_what_another_worker_would_have_had_wakes_one_where_there_are_limits(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    (command_id,) = await db.send(delay_seconds=60)
    await db.rows(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, is_idle)"
        " values ('w2', %s, 1, true)",
        DOMAIN,
    )
    listener = await session()
    await listener.rows(f'listen "{await db.value("select commandbus.channel(%s)", DOMAIN)}"')
    await listener.conn.commit()
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    assert [note async for note in listener.conn.notifies(timeout=5, stop_after=1)] != []
