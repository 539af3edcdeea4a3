"""Chores leave a domain alone that is on its way, and go on with the others."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.sql import schedules
from tests.sql.helpers import DOMAIN, Session
from tests.sql.moves import OTHER, adopt, arriving, as_it_is, leaving

PUT_FLOW = (
    "insert into commandbus.command_bus_flow as f (domain) values (%s) on conflict do nothing"
)
#: By chore: what makes it due in a domain, what does it, and in which domains it was done.
CHORES = {
    "expiry": (
        "insert into commandbus.command_bus_expiry values (%s, gen_random_uuid(), now())",
        "select commandbus.end_expired(1), commandbus.end_expired(1)",
        "select domain from commandbus.command_bus_expiry where domain = %s",
    ),
    "unique keys": (
        "insert into commandbus.command_bus_unique"
        " (domain, unique_key, command_id, holds_while, holds_until, first_at, look_at)"
        " values (%s, 'k', null, 'until', now(), now(), now())",
        "select commandbus.prune_unique(10)",
        "select domain from commandbus.command_bus_unique where domain = %s",
    ),
    "pauses": (
        "insert into commandbus.command_bus_flow (domain, paused_at, paused_until, pause_reason)"
        " values (%s, now(), now(), 'x')",
        "select commandbus.end_pauses()",
        "select domain from commandbus.command_bus_flow"
        " where paused_until is not null and domain = %s",
    ),
    "pauses of types": (
        "with f as (insert into commandbus.command_bus_flow (domain, has_rules) values (%s, true)"
        " returning domain)"
        " insert into commandbus.command_bus_flow_rule"
        " (domain, command_type, by_key, paused_at, paused_until, pause_reason)"
        " select domain, 'Debit', false, now(), now(), 'x' from f",
        "select commandbus.keep_pauses()",
        "select domain from commandbus.command_bus_flow_rule"
        " where paused_until is not null and domain = %s",
    ),
    "levels": (
        "insert into commandbus.command_bus_flow (domain, has_levels, updated_at)"
        " values (%s, true, now() - interval '3 hours')",
        "select commandbus.tend_levels()",
        "select domain from commandbus.command_bus_flow where has_levels and domain = %s",
    ),
}  # fmt: skip


async def done_in(db: Session, chore: str) -> set[str]:
    """In which of the two domains a chore does what is due."""
    due, act, left = CHORES[chore]
    for domain in (DOMAIN, OTHER):
        await db.rows(due, domain)
    await db.rows(act)
    return {domain for domain in (DOMAIN, OTHER) if not await db.rows(left, domain)}


@pytest.mark.parametrize("chore", CHORES)
@pytest.mark.parametrize("where", ["leaving", "arriving"])
async def test_a_chore_leaves_a_domain_alone_that_moves(
    db: Session, chore: str, where: str
) -> None:
    for domain in (DOMAIN, OTHER):
        await db.value("select commandbus.ensure_domain(%s)", domain)
    if where == "leaving":
        await leaving(db, "closing")
    else:
        await arriving(db)
    assert await done_in(db, chore) == {OTHER}


async def test_a_domain_is_on_the_way_from_its_closing_to_its_switch(db: Session) -> None:
    on_the_way = "select commandbus.domains_on_the_way()"
    assert await db.value(on_the_way) == []
    phases = ("copying", "closing", "verified", "switched", "finished", "canceled")
    found: dict[str, list[str]] = {}
    for make in (leaving, arriving):
        for phase in phases:
            await db.rows("delete from commandbus.command_bus_move")
            await make(db, phase)
            if await db.value(on_the_way):
                found.setdefault(make.__name__, []).append(phase)
    assert found == {
        "leaving": ["closing", "verified", "switched"],
        "arriving": ["copying", "closing", "verified"],
    }


async def test_schedules_limits_and_bulk_operations_of_it_are_nobodys_work(db: Session) -> None:
    other = Session(db.conn, OTHER)
    start = (
        "select commandbus.start_bulk(%s, %s, 'cancel', '{}', '{\"reason\": \"x\"}', null, null,"
        " true, 1)"
    )
    for each in (db, other):
        await each.value("select commandbus.ensure_domain(%s)", each.domain)
        await schedules.put(each, due=-10)
        await each.rows(PUT_FLOW, each.domain)
        await each.put("IN_TROUBLESHOOTING_QUEUE")
        await each.value(start, uuid4(), each.domain)
    await db.rows("update commandbus.command_bus_flow set has_rules = true")
    await db.rows(
        "update commandbus.command_bus_schedule set next_tick_at = now() - interval '5 seconds',"
        " look_at = now() - interval '5 seconds'"
    )

    async def seen() -> tuple[set[str], set[str], set[str]]:
        due = await db.rows(
            "select s.domain from commandbus.due_schedules(10) d"
            " join commandbus.command_bus_schedule s using (schedule_id)"
        )
        ruled = await db.rows("select d from commandbus.ruled_domains() d")
        bulks = await db.rows(
            "select d from unnest(array['payments', 'refunds']) d"
            " where commandbus.next_bulk(d, 'me') is not null"
        )
        return {r["domain"] for r in due}, {r["d"] for r in ruled}, {r["d"] for r in bulks}

    both = {DOMAIN, OTHER}
    assert await seen() == (both, both, both)
    move = await leaving(db, "closing")
    assert await seen() == ({OTHER}, {OTHER}, {OTHER})
    await as_it_is(db, move, "canceled", is_frozen=False)
    assert await seen() == (both, both, both)


async def test_decisions_that_are_late_wait_for_the_end_of_the_move(db: Session) -> None:
    for domain in (DOMAIN, OTHER):
        await db.rows(
            "with b as (insert into commandbus.command_bus_batch (batch_id, domain, batch_type,"
            "   created_by, total_count, requires_approval)"
            "  values (gen_random_uuid(), %s, 'T', 'ada', 1, true) returning batch_id)"
            " insert into commandbus.command_bus_content"
            "   (batch_id, salt, digest, child_digests, expires_at)"
            " select batch_id, batch_id, '', '{}', now() from b",
            domain,
        )
        await db.rows(
            "insert into commandbus.command_bus_edit (domain, command_id, batch_id, data, changes,"
            "  reset_attempts, salt, digest, editor, created_at, expires_at)"
            " values (%s, gen_random_uuid(), gen_random_uuid(), '{}', '{}', true,"
            "  gen_random_uuid(), '', 'ada', now(), now())",
            domain,
        )
    found = "select domain from commandbus.expired_decisions(10) order by 1"
    assert [row["domain"] for row in await db.rows(found)] == [DOMAIN, DOMAIN, OTHER, OTHER]
    await arriving(db)
    assert [row["domain"] for row in await db.rows(found)] == [OTHER, OTHER]


async def stored(db: Session) -> UUID:
    """A command that waits to be queued once more."""
    (command_id,) = await db.send()
    await db.rows("delete from pgmq.q_payments__commands")
    await db.rows(
        "update commandbus.command_bus_command set msg_id = null, dispatch_status = 'pending_retry'"
    )
    await db.rows(
        "insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)"
        " values (%s, %s, '{}')",
        DOMAIN, command_id,
    )  # fmt: skip
    return command_id


async def test_a_closed_domain_is_no_reason_to_give_commands_up(db: Session) -> None:
    command_id = await stored(db)
    recover = "select * from commandbus.recover_dispatch(%s)"
    await db.value("select commandbus.close_domains(%s)", [DOMAIN])
    for _ in range(4):
        with pytest.raises(errors.DatabaseError, match="is being moved"):
            await db.rows(recover, DOMAIN)
    await leaving(db, "closing")
    (found,) = await db.rows(recover, DOMAIN)
    assert (found["queued"], found["failed"], found["next_after"]) == (0, 0, None)
    row = await db.command(command_id)
    assert (row["status"], row["queue_attempt_count"]) == ("PENDING", 0)


async def test_a_closed_domain_is_no_failure_of_what_an_operator_retries(db: Session) -> None:
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    operation = uuid4()
    await db.value(
        "select commandbus.start_bulk(%s, %s, 'retry', '{}', '{}', null, null, true, 1)",
        operation, DOMAIN,
    )  # fmt: skip
    await db.value("select commandbus.close_domains(%s)", [DOMAIN])
    chunk = "select acted from commandbus.run_bulk_chunk(%s)"
    with pytest.raises(errors.DatabaseError, match="is being moved"):
        await db.value(chunk, operation)
    await db.rows("select commandbus.open_domains()")
    assert await db.value(chunk, operation) == 1
    (row,) = await db.rows("select * from commandbus.command_bus_bulk_operation")
    assert (row["done"], row["failed"], row["status"]) == (1, 0, "finished")


async def test_nothing_begins_where_a_domain_has_left(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await adopt(db)
    await adopt(db, 2, payments="two")
    moved = pytest.raises(errors.DatabaseError, match="not on this shard")
    with moved:
        await schedules.put(db)
    with moved:
        await db.value(
            "select commandbus.begin_load(%s, %s, 'x', '{}', 'as_it_loads')", DOMAIN, uuid4()
        )
    with moved:
        await db.value("select commandbus.load_chunk(%s, %s, 1, 1, '[]', '')", DOMAIN, uuid4())
    with moved:
        await db.value("select commandbus.pause_domain(%s, 'x')", DOMAIN)
    with moved:
        await db.value(
            "select commandbus.store_commands(%s, %s, %s, 'awaiting_approval')",
            DOMAIN, Jsonb([{"command_id": str(uuid4()), "type": "Debit"}]), uuid4(),
        )  # fmt: skip
