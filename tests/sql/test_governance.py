"""Tickets, limits and decisions in SQL: statuses by C17, and what two sessions do to each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import FAILURE, Session
from tests.sql.tickets import DEFAULTS, begun, submitted, ticket

# -- statuses: each child's fate, and what the ticket then is

C17 = {
    "nothing received yet": ("", "PENDING", "IN_PROGRESS"),
    "open": ("c", "IN_PROGRESS", "IN_PROGRESS"),
    "open, some parked": ("t", "IN_PROGRESS", "IN_PROGRESS"),
    "none open, some parked, some succeeded": ("cct", "IN_PROGRESS", "PARTIAL_SUCCESS"),
    "none open, some parked, none succeeded": ("ttt", "IN_PROGRESS", "FAILED"),
    "none open, parked and canceled": ("txx", "IN_PROGRESS", "FAILED"),
    "all completed": ("ccc", "COMPLETED", "COMPLETED"),
    "some succeeded, some failed": ("cff", "COMPLETED_WITH_FAILURES", "PARTIAL_SUCCESS"),
    "some succeeded, some canceled": ("ccx", "COMPLETED_WITH_FAILURES", "PARTIAL_SUCCESS"),
    "none succeeded, some failed": ("fxx", "COMPLETED_WITH_FAILURES", "FAILED"),
    "all failed": ("fff", "COMPLETED_WITH_FAILURES", "FAILED"),
    "all canceled": ("xxx", "COMPLETED_WITH_FAILURES", "CANCELED"),
}
FATES: dict[str, tuple[str, dict[str, Any]]] = {
    "c": ("complete", {"data": None}),
    "t": ("park", {"reason": "PERMANENT", **FAILURE}),
    "f": ("fail", FAILURE),
}


async def test_a_ticket_has_the_status_that_its_counters_give(db: Session) -> None:
    for number, (row, (fates, core, expected)) in enumerate(C17.items()):
        # A domain for each: what one leaves open is not received by the next.
        await assert_status(Session(db.conn, f"row{number}"), row, fates, core, expected)


async def assert_status(db: Session, row: str, fates: str, core: str, expected: str) -> None:
    ticket_id = await submitted(db, size=3)
    canceled = fates.count("x")
    if canceled:
        await db.rows(
            "select commandbus.cancel_batch(%s, %s, 'why', null, %s)",
            db.domain, ticket_id, canceled,
        )  # fmt: skip
    held = await db.receive(len(fates) - canceled) if len(fates) > canceled else []
    for lease, fate in zip(held, fates.replace("x", ""), strict=True):
        verb, more = FATES[fate]
        await db.settle(verb, lease.item(**more))
    found = await ticket(db, ticket_id)
    assert (await db.batch_row(ticket_id))["status"] == core
    assert found["status"] == expected, row
    assert found["pending_count"] == 3 - len(fates)
    assert found["success_count"] == fates.count("c")
    assert found["failed_count"] == fates.count("t") + fates.count("f")
    assert found["canceled_count"] == canceled
    assert found["is_pending"] == (expected in {"IN_PROGRESS", "PENDING_APPROVAL"})
    assert (found["updated_at"] > found["created_at"]) == bool(fates)


async def test_a_batch_that_nobody_approved_waits_for_it(db: Session) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    assert (await ticket(db, ticket_id))["status"] == "PENDING_APPROVAL"
    assert (await db.batch_row(ticket_id))["status"] == "PENDING"
    assert await db.queued() == []


async def test_children_are_shown_in_the_words_of_003(db: Session) -> None:
    ticket_id = await submitted(db, size=4)
    held = await db.receive(3)
    for lease, fate in zip(held, "ctf", strict=True):
        verb, more = FATES[fate]
        await db.settle(verb, lease.item(**more | {"error_msg": "x" * 600} if more else more))
    rows = await db.rows(
        "select * from commandbus.approval_tickets where parent_ticket_id = %s"
        " order by sequence_no",
        ticket_id,
    )
    assert [row["status"] for row in rows] == ["SUCCESS", "FAILED", "FAILED", "PENDING"]
    assert [len(row["error_message"] or "") for row in rows] == [0, 512, 512, 0]
    assert [row["attempt_count"] for row in rows] == [1, 1, 1, 1]
    assert [row["last_attempt_at"] is None for row in rows] == [False, False, False, True]


# -- limits


async def test_limits_are_counted_from_what_is_pending(db: Session) -> None:
    await submitted(db, size=2)
    parked = await submitted(db, size=1)
    await submitted(db, "bob", size=5)
    (held,) = [h for h in await db.receive(10) if h.row["batch_id"] == parked]
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    found = (await begun(db))["limits"]
    states = {state["limit_type"]: (state["current_value"], state["max_value"]) for state in found}
    assert states == {
        "global_api_requests": (0, 1000),
        "global_pending_batches": (2, 100),
        "user_pending_batches": (1, 3),
        "user_cooldown": (0, 0),
        "user_pending_children": (2, 30),
    }


@pytest.mark.parametrize(
    ("limits", "size", "verdict", "limit_type"),
    [
        ({}, 1, "go", None),
        ({"global_pending_batches": 2}, 1, "limit", "global_pending_batches"),
        ({"user_pending_batches": 2}, 1, "limit", "user_pending_batches"),
        ({"user_pending_batches": 3, "user_cooldown": 100}, 1, "limit", "user_cooldown"),
        ({"user_pending_children": 10}, 7, "limit", "user_pending_children"),
        ({"user_pending_children": 10}, 6, "go", None),
        ({"user_pending_children": 6}, 7, "size", "user_pending_children"),
        ({"user_pending_children": 6, "global_pending_batches": 0}, 7, "size", None),
        ({"global_pending_batches": 0, "user_pending_batches": 0}, 1, "limit",
         "global_pending_batches"),
    ],
)  # fmt: skip
async def test_the_first_limit_that_is_reached_refuses(
    db: Session, limits: dict[str, Any], size: int, verdict: str, limit_type: str | None
) -> None:
    await submitted(db, size=3)
    await submitted(db, size=1)
    found = await begun(db, size=size, **limits)
    assert found["verdict"] == verdict
    if limit_type is not None:
        assert found["refusal"]["limit_type"] == limit_type
    if verdict == "limit":
        assert 1 <= found["refusal"]["retry_after"] <= 100


async def test_a_cooldown_counts_down_from_the_last_submission(db: Session) -> None:
    await submitted(db)
    await db.rows("update commandbus.rate_limit_counter set window_start = now() - interval '60 s'")
    refused = await begun(db, user_cooldown=100)
    assert refused["refusal"]["retry_after"] in {39, 40}
    assert (await begun(db, user_cooldown=60))["verdict"] == "go"
    assert (await begun(db, "bob", user_cooldown=100))["verdict"] == "go"
    await submitted(db)
    assert await db.value("select count(*) from commandbus.rate_limit_counter") == 1


async def test_an_exemption_lifts_the_user_layer_and_not_the_global_one(db: Session) -> None:
    await submitted(db, size=5)
    await db.rows("select commandbus.set_exemption('ada', 'root', 'migration week')")
    tight: dict[str, Any] = {
        "user_pending_batches": 0,
        "user_pending_children": 1,
        "user_cooldown": 100,
    }
    assert (await begun(db, size=40, **tight))["verdict"] == "go"
    refused = await begun(db, global_pending_batches=1)
    assert refused["refusal"]["limit_type"] == "global_pending_batches"
    await db.rows(
        "update commandbus.rate_limit_exemption set expires_at = clock_timestamp()"
    )  # it ends
    assert (await begun(db, **tight))["verdict"] == "limit"


async def test_an_override_is_changed_in_parts_and_ends_when_nothing_is_given(db: Session) -> None:
    change = "select * from commandbus.set_user_limits('ada', 'root', %s, %s, %s)"
    await db.rows(change, 5, None, None)
    (row,) = await db.rows(change, None, 60, None)
    assert (row["max_pending_batches"], row["max_pending_children"]) == (5, 60)
    assert (await begun(db, size=50))["verdict"] == "go"
    assert await db.rows(change, None, None, None) == []
    assert (await begun(db, size=50))["verdict"] == "size"
    assert await db.events(await db.value("select commandbus.nobody()")) == ["LIMITS_CHANGED"] * 3


async def test_requests_are_counted_by_the_minute_and_old_minutes_are_forgotten(
    db: Session,
) -> None:
    count = "select * from commandbus.count_request(%s::timestamptz)"
    found = [await db.rows(count, f"2026-01-01 10:00:{second}Z") for second in (10, 59, 59.9)]
    assert [row["current_value"] for (row,) in found] == [1, 2, 3]
    assert [row["reset_seconds"] for (row,) in found] == [50, 1, 1]
    ((row,),) = [await db.rows(count, "2026-01-01 10:01:00Z")]
    assert (row["current_value"], row["reset_seconds"]) == (1, 60)
    await db.rows(count, "2026-01-01 12:00:00Z")
    assert await db.value("select count(*) from commandbus.rate_limit_counter") == 1


# -- repeats


async def test_a_repeat_finds_its_batch_even_when_every_limit_is_reached(db: Session) -> None:
    key = uuid4()
    made = await submitted(db, request_id=key)
    full: dict[str, Any] = dict.fromkeys(DEFAULTS, 0) | {"user_cooldown": 1000}
    found = await begun(db, request_id=key, **full)
    assert (found["verdict"], found["ticket_id"]) == ("replay", made)
    assert (await begun(db, request_id=key, digest=b"other", **full))["verdict"] == "mismatch"
    assert (await begun(db, "bob", request_id=key))["verdict"] == "go"


async def test_a_repeat_that_comes_at_the_same_time_waits_and_finds_the_batch(
    db: Session, session: Open
) -> None:
    key = uuid4()
    first, second = await session(), await session()
    assert (await begun(first, request_id=key))["verdict"] == "go"
    again = asyncio.create_task(begun(second, request_id=key))
    await db.until_blocked(second)
    made = await submitted(first, request_id=key)
    await first.conn.commit()
    found = await again
    assert (found["verdict"], found["ticket_id"]) == ("replay", made)


async def test_a_submission_counts_what_was_committed_while_it_waited(
    db: Session, session: Open
) -> None:
    first, second = await session(), await session()
    assert (await begun(first, "ada", global_pending_batches=1))["verdict"] == "go"
    other = asyncio.create_task(begun(second, "bob", global_pending_batches=1))
    await db.until_blocked(second)
    await submitted(first)
    await first.conn.commit()
    assert (await other)["verdict"] == "limit"


async def test_a_submission_with_one_snapshot_for_all_is_refused(session: Open) -> None:
    strict = await session()
    await strict.rows("set transaction isolation level repeatable read")
    with pytest.raises(psycopg.Error, match="read committed") as info:
        await begun(strict)
    assert info.value.sqlstate == "CB007"


async def test_a_governed_batch_takes_no_further_commands(db: Session) -> None:
    ticket_id = await submitted(db)
    before = await db.everything()
    with pytest.raises(psycopg.Error, match="is governed") as info:
        await db.send(batch_id=ticket_id)
    assert info.value.sqlstate == "CB003"
    assert await db.everything() == before


# -- decisions


async def test_an_approval_queues_the_children_in_their_order(db: Session) -> None:
    ticket_id = await submitted(db, size=3, requires_approval=True)
    await db.rows(
        "select commandbus.decide_ticket(%s, %s, 'approve', 'petra')", db.domain, ticket_id
    )
    assert [m["message"]["data"]["n"] for m in await db.queued()] == [0, 1, 2]
    found = await ticket(db, ticket_id)
    assert (found["status"], found["decided_by"]) == ("IN_PROGRESS", "petra")
    assert await db.events(ticket_id) == ["BATCH_SUBMITTED", "BATCH_APPROVED"]


async def test_a_rejection_cancels_the_children_with_the_reason(db: Session) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    await db.rows(
        "select commandbus.decide_ticket(%s, %s, 'reject', 'petra', 'not now')",
        db.domain, ticket_id,
    )  # fmt: skip
    found = await ticket(db, ticket_id)
    assert (found["status"], found["decision_reason"]) == ("CANCELED", "not now")
    assert await db.queued() == []
    reasons = await db.rows(
        "select details_json ->> 'reason' as why from commandbus.command_bus_audit"
        " where batch_id = %s and event_type = 'CANCELED'",
        ticket_id,
    )
    assert [row["why"] for row in reasons] == ["not now", "not now"]
    assert await db.value("select count(*) from commandbus.command_bus_payload_archive") == 0


async def test_the_same_decision_twice_is_one_and_the_other_way_is_refused(db: Session) -> None:
    ticket_id = await submitted(db, requires_approval=True)
    decide = "select commandbus.decide_ticket(%s, %s, %s, 'petra', 'x')"
    await db.rows(decide, db.domain, ticket_id, "approve")
    before = await db.everything()
    await db.rows(decide, db.domain, ticket_id, "approve")
    with pytest.raises(psycopg.Error, match="it was approved"):
        await db.rows(decide, db.domain, ticket_id, "reject")
    assert await db.everything() == before


@pytest.mark.parametrize(
    ("case", "text"),
    [("own", "same user"), ("plain", "needs no approval"), ("ended", "has ended"),
     ("missing", "no batch")],
)  # fmt: skip
async def test_a_decision_that_makes_no_sense_is_refused(db: Session, case: str, text: str) -> None:
    ticket_id = await submitted(db, requires_approval=case != "plain")
    if case == "ended":
        await db.rows("select commandbus.cancel_batch(%s, %s, 'why')", db.domain, ticket_id)
    with pytest.raises(psycopg.Error, match=text):
        await db.rows(
            "select commandbus.decide_ticket(%s, %s, 'approve', %s)",
            db.domain, uuid4() if case == "missing" else ticket_id,
            "ada" if case == "own" else "petra",
        )  # fmt: skip


async def test_of_two_deciders_who_disagree_the_second_is_refused(
    db: Session, session: Open
) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    first, second = await session(), await session()
    decide = "select commandbus.decide_ticket(%s, %s, %s, 'petra', 'x')"
    await first.rows(decide, db.domain, ticket_id, "reject")
    late = asyncio.create_task(second.rows(decide, db.domain, ticket_id, "approve"))
    await db.until_blocked(second)
    await first.conn.commit()
    with pytest.raises(psycopg.Error, match="it was rejected"):
        await late
    assert await db.queued() == []


async def test_an_approval_waits_for_a_cancel_and_queues_what_that_leaves(
    db: Session, session: Open
) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    canceler, approver = await session(), await session()
    await canceler.rows(
        "select commandbus.cancel_batch(%s, %s, 'x', null, 1)", db.domain, ticket_id
    )
    approval = asyncio.create_task(
        approver.rows(
            "select commandbus.decide_ticket(%s, %s, 'approve', 'petra')", db.domain, ticket_id
        )
    )
    await db.until_blocked(approver)
    await canceler.conn.rollback()
    await approval
    await approver.conn.commit()
    assert len(await db.queued()) == 2


async def test_recovery_never_queues_what_waits_for_approval(db: Session) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    await db.rows(
        "update commandbus.command_bus_command set updated_at = now() - interval '1 day',"
        " created_at = now() - interval '1 day'"
    )
    (row,) = await db.rows("select * from commandbus.recover_dispatch(%s, '0 s')", db.domain)
    assert (row["queued"], row["failed"], row["given_up"]) == (0, 0, 0)
    assert await db.queued() == []
    assert (await ticket(db, ticket_id))["status"] == "PENDING_APPROVAL"
    assert await db.rows("select * from commandbus.check_commands()") == []
    assert await db.rows("select * from commandbus.check_batches()") == []
    assert await db.rows("select * from commandbus.check_audit()") == []


# -- retries


async def fail_all(db: Session) -> None:
    for held in await db.receive(10):
        await db.settle("park", held.item(reason="PERMANENT", **FAILURE))


async def test_a_retry_sends_failed_children_again_up_to_the_cap(db: Session) -> None:
    ticket_id = await submitted(db, size=3)
    done, *bad = await db.receive(3)
    await db.settle("complete", done.item(data=None))
    await db.settle("park", bad[0].item(reason="PERMANENT", **FAILURE))
    await db.settle("fail", bad[1].item(**FAILURE))
    retry = "select * from commandbus.retry_ticket(%s, %s, 3, 'ada', 'again')"
    (row,) = await db.rows(retry, db.domain, ticket_id)
    assert (row["retried"], row["exhausted"]) == ([2, 3], None)
    (row,) = await db.rows(retry, db.domain, ticket_id)
    assert (row["retried"], row["exhausted"]) == (None, None)
    await fail_all(db)
    (row,) = await db.rows(retry, db.domain, ticket_id)
    assert row["retried"] == [2, 3]
    await fail_all(db)
    (row,) = await db.rows(retry, db.domain, ticket_id)
    assert (row["retried"], row["exhausted"]) == (None, [2, 3])
    assert Counter(await db.events(ticket_id))["BATCH_RETRIED"] == 2


async def test_the_second_of_two_retries_at_once_retries_nothing(
    db: Session, session: Open
) -> None:
    ticket_id = await submitted(db, size=2)
    await fail_all(db)
    first, second = await session(), await session()
    retry = "select * from commandbus.retry_ticket(%s, %s, 3, 'ada')"
    (row,) = await first.rows(retry, db.domain, ticket_id)
    assert row["retried"] == [1, 2]
    late = asyncio.create_task(second.rows(retry, db.domain, ticket_id))
    await db.until_blocked(second)
    await first.conn.commit()
    ((row,)) = await late
    await second.conn.commit()
    assert (row["retried"], row["exhausted"]) == (None, None)
    assert len(await db.queued()) == 2


async def test_counters_of_a_governed_batch_change_by_hot_updates(db: Session) -> None:
    await submitted(db, size=4)
    held = await db.receive(4)
    async with db.conn.transaction():
        before = await batch_updates(db)
        for lease in held[:2]:
            await db.settle("complete", lease.item(data=None))
        await db.settle("park", held[2].item(reason="PERMANENT", **FAILURE))
        after = await batch_updates(db)
    assert after - before == Counter(all=3, hot=3)


async def batch_updates(db: Session) -> Counter[str]:
    (row,) = await db.rows(
        'select pg_stat_get_xact_tuples_updated(c) as "all",'
        "       pg_stat_get_xact_tuples_hot_updated(c) as hot"
        " from (select 'commandbus.command_bus_batch'::regclass::oid) t(c)"
    )
    return Counter(row)


async def test_what_decides_about_tickets_is_the_row_and_not_the_payload(db: Session) -> None:
    ask = "select commandbus.decision_maker(%s, %s, 'ORDERS')"
    ticket_id = await submitted(db, "petra")
    (held,) = await db.receive()
    assert await db.value(ask, db.domain, held.command_id) == "petra"
    (plain,) = await db.send()
    assert await db.value(ask, db.domain, plain) is None
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    edit = {str(held.command_id): {"data": {"n": 9}, "previous_msg_id": held.msg_id, "changes": {}}}
    await db.rows(
        "select commandbus.operator_retry(%s, %s, 'olga', true, true, %s)",
        db.domain, [held.command_id], Jsonb(edit),
    )  # fmt: skip
    assert (await ticket(db, ticket_id))["status"] == "PENDING_APPROVAL"
    await db.rows(
        "select commandbus.decide_edit(%s, %s, 'approve', 'bob', null,"
        " (select encode(digest, 'hex') from commandbus.command_bus_edit), false)",
        db.domain, held.command_id,
    )  # fmt: skip
    assert await db.value(ask, db.domain, held.command_id) is None
    assert (await ticket(db, ticket_id))["status"] == "IN_PROGRESS"
