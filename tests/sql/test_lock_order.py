"""Rows are locked in the order of their keys, whatever the order of the call.

In each case somebody holds the middle one of three: then the first is taken, and the last is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session
from tests.sql.test_cancel_of_stored import stored_batch
from tests.sql.tickets import submitted

PARKED = "IN_TROUBLESHOOTING_QUEUE"
Act = Callable[[Session], Coroutine[Any, Any, Any]]
#: Where the rows are, and by which column they are known.
COMMANDS = ("commandbus.command_bus_command", "command_id")
BATCHES = ("commandbus.command_bus_batch", "batch_id")
MESSAGES = (f"pgmq.q_{DOMAIN}__commands", "msg_id")
GROUPS = ("commandbus.command_bus_failure_group", "fingerprint")


async def locks_in_order(
    db: Session,
    session: Open,
    place: tuple[str, str],
    keys: Sequence[Any],
    act: Act,
    is_late: bool = False,
) -> None:
    table, column = place
    low, middle, high = sorted(keys)
    blocker, other = await session(), await session()
    await blocker.rows(f"select 1 from {table} where {column} = %s for update", middle)
    task = asyncio.create_task(act(other))
    await db.until_blocked(other)
    free = await db.rows(
        f"select {column} as key from {table} where {column} = any(%s) for update skip locked",
        [low, middle, high],
    )
    assert [row["key"] for row in free] == [high]
    moment = await db.value("select clock_timestamp()")
    await blocker.conn.rollback()
    await task
    await other.conn.commit()
    if is_late:
        changed = await db.value(f"select min(updated_at) from {table}")
        assert changed > moment, "the time is that of the change, not that of the call"


def calls(query: str, *params: Any) -> Act:
    return lambda s: s.rows(f"select commandbus.{query}", DOMAIN, *params)


async def three(db: Session, status: str) -> list[Held]:
    held = [await db.put(status) for _ in range(3)]
    return sorted(held, key=lambda h: h.command_id, reverse=True)


@pytest.mark.parametrize(
    "query",
    ["operator_retry(%s, %s)", "operator_cancel(%s, %s, 'why')", "operator_complete(%s, %s)"],
)
async def test_an_operator_locks_parked_commands(db: Session, session: Open, query: str) -> None:
    ids = [h.command_id for h in await three(db, PARKED)]
    await locks_in_order(db, session, COMMANDS, ids, calls(query, ids), is_late=True)


async def test_a_cancel_locks_its_commands(db: Session, session: Open) -> None:
    ids = [h.command_id for h in await three(db, "PENDING")]
    act = calls("cancel_commands(%s, %s, 'why')", ids)
    await locks_in_order(db, session, COMMANDS, ids, act, is_late=True)


@pytest.mark.parametrize(
    "query",
    [
        "mark_dispatched(%s, %s)",
        "mark_dispatch_failed(%s, %s, 'no answer')",
        "adopt_messages(%s, (select jsonb_agg(jsonb_build_object('command_id', i))"
        " from unnest(%s::uuid[]) i))",
    ],
)
async def test_a_dispatch_locks_stored_commands(db: Session, session: Open, query: str) -> None:
    _, ids = await stored_batch(db, number=3)
    await locks_in_order(db, session, COMMANDS, ids, calls(query, ids[::-1]), is_late=True)


async def test_a_receive_that_parks_locks_its_commands(db: Session, session: Open) -> None:
    ids = await db.send(*sorted((uuid4() for _ in range(3)), reverse=True), max_attempts=1)
    held = await db.receive()
    await db.settle("retry", *(h.item(delay_seconds=0, **FAILURE) for h in held))
    await locks_in_order(db, session, COMMANDS, ids, lambda s: s.receive())
    assert {await db.status(command_id) for command_id in ids} == {PARKED}


async def test_a_decision_locks_the_children_of_its_batch(db: Session, session: Open) -> None:
    ticket_id = await submitted(db, size=3, requires_approval=True)
    rows = await db.rows("select command_id from commandbus.command_bus_command")
    act = calls("decide_ticket(%s, %s, 'approve', 'bob')", ticket_id)
    ids = [row["command_id"] for row in rows]
    await locks_in_order(db, session, COMMANDS, ids, act, is_late=True)


async def test_a_retry_of_a_ticket_locks_what_failed(db: Session, session: Open) -> None:
    ticket_id = await submitted(db, size=3)
    held = await db.receive()
    await db.settle("fail", *(h.item(**FAILURE) for h in held))
    act = calls("retry_ticket(%s, %s, 9, 'ann')", ticket_id)
    ids = [h.command_id for h in held]
    await locks_in_order(db, session, COMMANDS, ids, act, is_late=True)


async def test_a_chunk_of_a_bulk_operation_locks_its_commands(db: Session, session: Open) -> None:
    ids = [h.command_id for h in await three(db, PARKED)]
    operation = uuid4()
    await db.value(
        "select commandbus.start_bulk(%s, %s, 'retry', '{}', '{}', null, 'ann', true)",
        operation, DOMAIN,
    )  # fmt: skip
    await locks_in_order(
        db, session, COMMANDS, ids,
        lambda s: s.rows("select * from commandbus.run_bulk_chunk(%s)", operation), is_late=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "more"), [("complete", {"data": None}), ("fail", FAILURE)], ids=["complete", "fail"]
)
async def test_an_outcome_locks_its_messages(
    db: Session, session: Open, verb: str, more: dict[str, Any]
) -> None:
    await db.send(*(uuid4() for _ in range(3)))
    held = await db.receive()
    items = [h.item(**more) for h in reversed(held)]
    await locks_in_order(
        db, session, MESSAGES, [h.msg_id for h in held], lambda s: s.settle(verb, *items)
    )


async def batches_of_one(db: Session) -> list[UUID]:
    batches = sorted((uuid4() for _ in range(3)), reverse=True)
    for batch in batches:  # the last comes first in the table: nobody is in order by chance
        await db.send(batch_id=await db.batch(batch_id=batch))
    return batches


async def test_a_receive_locks_the_batches_that_begin(db: Session, session: Open) -> None:
    batches = await batches_of_one(db)
    await locks_in_order(db, session, BATCHES, batches, lambda s: s.receive())


async def test_an_outcome_locks_the_batches_that_it_counts(db: Session, session: Open) -> None:
    batches = await batches_of_one(db)
    items = [h.item(data=None) for h in await db.receive()]
    await locks_in_order(db, session, BATCHES, batches, lambda s: s.settle("complete", *items))


async def test_a_mixed_group_locks_its_commands(db: Session, session: Open) -> None:
    ids = sorted((uuid4() for _ in range(3)), reverse=True)
    await db.send(*ids, batch_id=await db.batch())
    items = [h.item(data=None) for h in await db.receive()]
    act = calls("settle_commands(%s, %s)", Jsonb({"complete": items, "send": []}))
    await locks_in_order(db, session, COMMANDS, ids, act)


async def test_leaving_troubleshooting_locks_the_failure_groups(db: Session, session: Open) -> None:
    held = [await db.put("IN_PROGRESS") for _ in range(3)]
    for n, one in enumerate(held):
        await db.settle("park", one.item(reason="PERMANENT", **FAILURE | {"error_code": f"E{n}"}))
    rows = await db.rows("select fingerprint from commandbus.command_bus_failure_group")
    act = calls("operator_cancel(%s, %s, 'why')", [h.command_id for h in held])
    await locks_in_order(db, session, GROUPS, [row["fingerprint"] for row in rows], act)


async def test_parking_again_locks_the_failure_groups(db: Session, session: Open) -> None:
    def parked(held: list[Held]) -> list[dict[str, Any]]:
        codes = sorted(held, key=lambda h: h.command_id, reverse=True)
        failures = (FAILURE | {"error_code": f"E{n}"} for n in range(3))
        return [h.item(reason="PERMANENT", **f) for h, f in zip(codes, failures, strict=True)]

    ids = await db.send(*(uuid4() for _ in range(3)))
    await db.settle("park", *parked(await db.receive()))
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, ids)
    items = parked(await db.receive())
    rows = await db.rows("select fingerprint from commandbus.command_bus_failure_group")
    keys = [row["fingerprint"] for row in rows]
    await locks_in_order(db, session, GROUPS, keys, lambda s: s.settle("park", *items))


@pytest.mark.parametrize("scope", ["domain", "global"])
async def test_a_send_inserts_its_ids_in_order(db: Session, session: Open, scope: str) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    await db.value("select commandbus.change_setting('command_id_scope', %s)", scope)
    low, middle, high = sorted(uuid4() for _ in range(3))
    blocker, other, prober = await session(), await session(), await session()
    await blocker.offer(middle)
    task = asyncio.create_task(other.offer(high, middle, low))
    await db.until_blocked(other)
    assert await prober.offer(high) == []  # nobody has it yet
    await prober.conn.rollback()
    probe = asyncio.create_task(prober.offer(low))
    await db.until_blocked(prober)
    await blocker.conn.rollback()
    assert await task == []
    await other.conn.commit()
    assert await probe == [low]


async def test_storing_commands_inserts_their_ids_in_order(db: Session, session: Open) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    low, middle, high = sorted(uuid4() for _ in range(3))
    blocker, other, prober = await session(), await session(), await session()
    await blocker.offer(middle)
    commands = [{"command_id": str(i), "type": "Debit"} for i in (high, middle, low)]
    store_them = calls("store_commands(%s, %s, null, 'pending_queue')", Jsonb(commands))
    task = asyncio.create_task(store_them(other))
    await db.until_blocked(other)
    assert await prober.offer(high) == []
    await prober.conn.rollback()
    probe = asyncio.create_task(prober.offer(low))
    await db.until_blocked(prober)
    await blocker.conn.rollback()
    await task
    await other.conn.commit()
    assert await probe == [low]
