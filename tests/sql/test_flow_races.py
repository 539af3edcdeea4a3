"""Two sessions that change the flow of a domain at the same time, and rows of two domains that are
alike: the second sees what the first has done, and each has its own row."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql import schedules
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

OTHER = "orders"
HURRY = "set lock_timeout = '2s'"
HOUR = "clock_timestamp() + interval '1 hour'"
OVER = "update commandbus.command_bus_{} set paused_until = clock_timestamp() where domain = %s"


async def events(db: Session, event: str, domain: str = DOMAIN) -> int:
    found: int = await db.value(
        "select count(*) from commandbus.command_bus_audit where domain = %s and event_type = %s",
        domain, event,
    )  # fmt: skip
    return found


async def in_a_row(db: Session, first: Session, second: Session, query: str, *params: Any) -> Any:
    """Both call it; the second waits for the commit of the first. What the second was told."""
    await first.value(query, *params)
    waiting = asyncio.create_task(second.value(query, *params))
    await db.until_blocked(second)
    await first.conn.commit()
    found = await waiting
    await second.conn.commit()
    return found


async def paused_in(db: Session, domain: str, until: str = "null") -> None:
    await db.value("select commandbus.ensure_domain(%s)", domain)
    await db.value(f"select commandbus.pause_domain(%s, 'why', {until}, 'ann')", domain)


# -- pauses


async def test_of_two_who_resume_a_domain_one_has_done_it(db: Session, session: Open) -> None:
    await paused_in(db, DOMAIN)
    told = await in_a_row(
        db, await session(), await session(), "select commandbus.resume_domain(%s, 'bob')", DOMAIN
    )
    assert told is False
    assert await events(db, "RESUMED") == 1


async def test_of_two_who_resume_a_type_one_has_done_it(db: Session, session: Open) -> None:
    await db.send()
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    told = await in_a_row(
        db, await session(), await session(), "select commandbus.resume_type(%s, 'Debit')", DOMAIN
    )
    assert told is False
    assert await events(db, "RESUMED") == 1


async def test_of_two_who_clear_a_limit_one_has_done_it(db: Session, session: Open) -> None:
    await db.send()
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", DOMAIN)
    told = await in_a_row(
        db, await session(), await session(), "select commandbus.clear_limit(%s, 'Debit')", DOMAIN
    )
    assert told is False
    assert await events(db, "EXECUTION_LIMIT_CLEARED") == 1


async def test_of_two_who_set_a_limit_the_second_says_what_was_before(
    db: Session, session: Open
) -> None:
    await db.send()
    first, second = await session(), await session()
    set_limit = "select commandbus.set_limit(%s, 'Debit', p_max_running => %s)"
    await first.value(set_limit, DOMAIN, 1)
    waiting = asyncio.create_task(second.value(set_limit, DOMAIN, 2))
    await db.until_blocked(second)
    await first.conn.commit()
    await waiting
    await second.conn.commit()
    before = await db.rows(
        "select details_json -> 'before' ->> 'max_running' as n from commandbus.command_bus_audit"
        " where event_type = 'EXECUTION_LIMIT_SET' order by audit_id"
    )
    assert [row["n"] for row in before] == [None, "1"]


async def test_of_two_new_pauses_one_says_that_the_former_is_over(
    db: Session, session: Open
) -> None:
    await paused_in(db, DOMAIN, HOUR)
    await db.rows(OVER.format("flow"), DOMAIN)
    await in_a_row(
        db, await session(), await session(), "select commandbus.pause_domain(%s, 'more')", DOMAIN
    )
    assert (await events(db, "RESUMED"), await events(db, "PAUSED")) == (1, 3)


async def test_a_pause_and_a_resume_leave_a_former_row_of_another_domain_alone(
    db: Session,
) -> None:
    """Its pause is over, and its chore has not come yet; or it is paused, and we are not."""
    await paused_in(db, OTHER, HOUR)
    await db.rows(OVER.format("flow"), OTHER)
    await paused_in(db, DOMAIN)
    assert await events(db, "RESUMED", OTHER) == 0
    assert await db.value("select commandbus.resume_domain(%s, 'bob')", DOMAIN)
    await paused_in(db, OTHER)
    assert not await db.value("select commandbus.resume_domain(%s, 'bob')", DOMAIN)
    assert await events(db, "RESUMED") == 1


async def test_the_chore_of_pauses_waits_for_nobody_and_ends_nothing_that_is_renewed(
    db: Session, session: Open
) -> None:
    await db.send()
    await db.value(f"select commandbus.pause_type(%s, 'Debit', 'why', {HOUR})", DOMAIN)
    await paused_in(db, DOMAIN, HOUR)
    for table in ("flow", "flow_rule"):
        await db.rows(OVER.format(table), DOMAIN)
    operator = await session()
    await operator.value(f"select commandbus.pause_type(%s, 'Debit', 'more', {HOUR})", DOMAIN)
    await db.rows(HURRY)
    await db.value("select commandbus.keep_pauses()")
    assert await events(db, "RESUMED") == 0
    await operator.conn.commit()
    await db.value("select commandbus.keep_pauses()")
    types = await db.rows("select pause_reason from commandbus.paused_types()")
    assert types == [{"pause_reason": "more"}]
    assert await events(db, "RESUMED") == 1


# -- another domain

#: What changes the flow of a domain, or looks at all of it.
CHANGES = (
    "set_limit(%s, 'Debit', p_max_running => 3)", "tend_gates(%s)", "clear_limit(%s, 'Debit')",
    "pause_type(%s, 'Debit', 'why')", "resume_type(%s, 'Debit')", "pause_domain(%s, 'why')",
    "resume_domain(%s)", "set_key_policy(%s, 'skip')", "use_keys(%s)",
    "set_level_seconds(%s, 9)", "repair_places(%s)", "repair_waiting(%s)", "repair_keys(%s)",
)  # fmt: skip


async def test_what_is_locked_in_another_domain_holds_up_nothing_here(
    db: Session, session: Open
) -> None:
    ids = [uuid4() for _ in range(4)]
    for domain in (OTHER, DOMAIN):
        db.domain = domain
        await db.value("select commandbus.ensure_domain(%s)", domain)
        await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", domain)
        await db.send(*ids[:2])
        await db.send(*ids[2:], ordering_key="a", type="Pay")
        await db.receive()
    other = await session()
    for table in ("flow", "flow_rule", "gate", "key", "waiting", "slot", "command"):
        await other.rows(
            f"select 1 from commandbus.command_bus_{table} where domain = %s for update", OTHER
        )
    await db.rows(HURRY)
    for change in CHANGES:
        await db.value(f"select commandbus.{change}", DOMAIN)
        await db.receive()
    for id_ in ids:
        assert (await db.command(id_))["status"] in {"PENDING", "IN_PROGRESS"}


async def test_a_twin_that_has_expired_elsewhere_ends_nothing_here(db: Session) -> None:
    command_id = uuid4()
    for db.domain in (OTHER, DOMAIN):
        await db.send(command_id, expires_in_seconds=3600)
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp()"
        " where domain = %s", OTHER,
    )  # fmt: skip
    assert await db.value("select commandbus.expire_in(%s, %s)", DOMAIN, [command_id]) == 0
    assert await db.status(command_id) == "PENDING"


# -- gates


async def stray(db: Session, command_id: UUID, msg_id: int | None = None) -> int:
    """Another message of a command, with this number or a new one."""
    number = "default" if msg_id is None else str(msg_id)
    found: int = await db.value(
        f"insert into pgmq.q_{DOMAIN}__commands (msg_id, vt, message)"
        f" overriding system value values ({number}, clock_timestamp(), %s) returning msg_id",
        Jsonb({"command_id": str(command_id), "type": "Debit", "data": {}}),
    )
    return found


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_without_work_takes_no_place(db: Session, is_done: bool) -> None:
    await db.send()
    if is_done:
        (held,) = await db.receive()
        await db.settle("complete", held.item(data=None))
    command = await db.value("select command_id from commandbus.command_bus_command")
    row = await db.command(command)
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", DOMAIN)
    if not is_done:
        await db.rows(f"update pgmq.q_{DOMAIN}__commands set vt = vt + interval '1 hour'")
    await stray(db, command, row["msg_id"] if is_done else None)
    assert await db.receive() == []
    assert await db.rows("select * from commandbus.command_bus_slot") == []
    (after,) = await db.send()
    assert [h.command_id for h in await db.receive()] == [after]


# -- keys


async def test_of_two_who_step_over_a_blocked_key_one_has_done_it(
    db: Session, session: Open
) -> None:
    await db.send(uuid4(), uuid4(), ordering_key="a")
    (held,) = await db.receive()
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    skip = "select commandbus.skip_key(%s, 'a', 'ann', 'why')"
    first, second = await session(), await session()
    await first.value(skip, DOMAIN)
    waiting = asyncio.create_task(second.value(skip, DOMAIN))
    await db.until_blocked(second)
    await first.conn.commit()
    with pytest.raises(psycopg.Error, match="is not blocked"):
        await waiting
    await second.conn.rollback()
    assert len(await db.receive()) == 1


async def test_a_key_of_the_same_name_elsewhere_is_not_stepped_over(db: Session) -> None:
    db.domain = OTHER
    await db.send(uuid4(), uuid4(), ordering_key="a")
    await db.receive()
    db.domain = DOMAIN
    await db.send(uuid4(), uuid4(), ordering_key="a")
    (held,) = await db.receive()
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    skip = "select commandbus.skip_key(%s, 'a', 'ann', 'why')"
    assert await db.value(skip, DOMAIN) == held.command_id
    for domain in (OTHER, DOMAIN):
        with pytest.raises(psycopg.Error, match="is not blocked"):
            await db.value(skip, domain)


async def test_of_two_new_policies_the_second_knows_the_first(db: Session, session: Open) -> None:
    await db.send(ordering_key="a")
    first, second = await session(), await session()
    policy = "select commandbus.set_key_policy(%s, %s, 'ann', 'why')"
    await first.value(policy, DOMAIN, "skip")
    waiting = asyncio.create_task(second.value(policy, DOMAIN, "skip"))
    await db.until_blocked(second)
    await first.conn.commit()
    await waiting
    await second.conn.commit()
    assert await events(db, "KEY_POLICY_SET") == 1


# -- schedules


async def test_of_two_changes_of_a_schedule_the_second_is_told_to_look_again(
    db: Session, session: Open
) -> None:
    await schedules.put(db)
    first, second = await session(), await session()
    await schedules.put(first, version=1, data={"n": 2})
    waiting = asyncio.create_task(schedules.put(second, version=1, data={"n": 3}))
    await db.until_blocked(second)
    await first.conn.commit()
    assert await waiting == "stale"
    await second.conn.commit()
    assert (await schedules.row(db))["data"] == {"n": 2}


async def test_of_two_who_resume_a_schedule_one_has_done_it(db: Session, session: Open) -> None:
    await schedules.put(db)
    await db.value("select commandbus.pause_schedule(%s, 'x')", DOMAIN)
    told = await in_a_row(
        db, await session(), await session(),
        "select commandbus.resume_schedule(%s, 'x', 2, now(), false)", DOMAIN,
    )  # fmt: skip
    assert told == "stale"


async def test_a_trigger_sends_what_a_change_before_it_has_put(db: Session, session: Open) -> None:
    await schedules.put(db)
    changer, caller = await session(), await session()
    await schedules.put(changer, version=1, data={"n": 2})
    trigger = "select commandbus.trigger_schedule(%s, 'x', %s)"
    waiting = asyncio.create_task(caller.value(trigger, DOMAIN, uuid4()))
    await db.until_blocked(caller)
    await changer.conn.commit()
    assert await waiting == "sent"
    await caller.conn.commit()
    (message,) = await db.queued()
    assert message["message"]["data"] == {"n": 2}


async def test_who_fires_leaves_alone_what_another_has_just_now(db: Session, session: Open) -> None:
    await schedules.put(db, due=500)
    found = await schedules.row(db)
    other = await session()
    await other.rows("select * from commandbus.command_bus_schedule for update")
    await db.rows(HURRY)
    assert await schedules.fire(db, schedules.fire_of(found)) == []
    failed = (found["schedule_id"], 1, found["next_tick_at"], "no", 1.0)
    fail = "select commandbus.fail_schedule(%s, %s, %s, %s, %s)"
    assert await db.value(fail, *failed) is False
    await other.conn.rollback()
    assert await schedules.fire(db, schedules.fire_of(found)) == [("fired", 1, 0)]
    assert await db.value(fail, *failed) is False
    assert (await schedules.row(db))["last_error"] is None


async def test_a_type_that_is_governed_in_another_domain_is_fired_here(db: Session) -> None:
    await schedules.put(db, whom=schedules.USER)
    await db.rows(
        "select commandbus.register_batch_types(%s)",
        Jsonb([{"domain": OTHER, "command_type": "Work", "batch_type": "B",
                "requires_approval": True}]),
    )  # fmt: skip
    found = await schedules.row(db)
    assert await schedules.fire(db, schedules.fire_of(found)) == [("fired", 1, 0)]


async def test_an_open_twin_elsewhere_holds_no_tick_and_is_not_overdue_here(db: Session) -> None:
    await schedules.put(db, due=500)
    first = uuid4()
    found = await schedules.row(db)
    await schedules.fire(
        db, schedules.fire_of(found, ids=[str(first)], next=found["updated_at"].isoformat())
    )
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    db.domain = OTHER
    await db.send(first)
    await schedules.put(db, due=500)
    db.domain = DOMAIN
    assert await schedules.fire(db, schedules.fire_of(await schedules.row(db))) == [("fired", 1, 0)]
    overdue = "select domain from commandbus.check_schedules(%s)"
    assert await db.rows(overdue, DOMAIN) == []
    assert await db.rows(overdue, OTHER) == [{"domain": OTHER}]
