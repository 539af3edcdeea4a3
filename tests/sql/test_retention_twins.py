"""Retention of one domain, while the same ids are in another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_lock_order import COMMANDS, locks_in_order
from tests.sql.test_twins_apart import OTHER, hold_all_rows, of_the_other

#: In the order of a run. Everything there is, is older than tomorrow.
STEPS = ("audit", "archives", "replies", "commands", "batches")
KINDS = STEPS[:-1]
PRUNE = "select * from commandbus.prune_{}(%s, now() + interval '1 day', 100, %s)"


async def sent(db: Session, ids: Sequence[UUID]) -> None:
    """One by itself, one that fails, one that answers to the inbox, one of a batch."""
    alone, failing, asked, counted = ids
    await db.send(alone, failing)
    await db.send(asked, reply_to="@inbox")
    await db.send(counted, batch_id=await db.batch())


async def ended(db: Session, ids: Sequence[UUID]) -> None:
    """The first was parked, so its message is in the archive, and its payload in the table."""
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await sent(db, ids)
    held = {h.command_id: h for h in await db.receive()}
    alone, failing, asked, counted = (held[i] for i in ids)
    await db.settle("park", alone.item(reason="PERMANENT", **FAILURE))
    await db.rows("select commandbus.operator_cancel(%s, %s, 'why')", db.domain, [ids[0]])
    await db.settle("fail", failing.item(**FAILURE))
    await db.settle("complete", asked.item(data=None), counted.item(data=None))


async def run(db: Session) -> dict[str, int]:
    """One run of retention in ours; how many of what went."""
    gone: dict[str, int] = {}
    for step in STEPS:
        is_done, after = False, None
        while not is_done:
            (row,) = await db.rows(PRUNE.format(step), DOMAIN, after)
            is_done, after = row["o_is_done"], row["o_after"]
            for what, number in row["o_pruned"].items():
                gone[what] = gone.get(what, 0) + number
    return gone


async def counted(db: Session) -> dict[str, int]:
    rows = [
        row
        for kind in KINDS
        for row in await db.rows(
            "select * from commandbus.count_prunable(%s, %s, now() + interval '1 day')",
            DOMAIN, kind,
        )
    ]  # fmt: skip
    return {row["what"]: row["prunable"] for row in rows}


async def replies_of_the_other(db: Session) -> list[dict[str, Any]]:
    return await db.rows(
        "select command_id::text from commandbus.command_bus_reply_inbox where domain = %s"
        f" union all select message ->> 'command_id' from pgmq.q_{OTHER}__replies order by 1",
        OTHER,
    )


ALL = {"audit events": 17, "archived messages": 2, "replies": 4, "commands": 4, "batches": 1}


@pytest.mark.parametrize("prepare", [sent, ended])
async def test_retention_of_a_domain_takes_what_is_its_own_and_waits_for_nobody_elsewhere(
    db: Session, session: Open, prepare: Any
) -> None:
    ids = [uuid4() for _ in range(4)]
    db.domain = OTHER
    await prepare(db, ids)
    if prepare is ended:
        await db.rows("update commandbus.command_bus_batch set pruning_since = now()")
    db.domain = DOMAIN
    await ended(db, ids)
    before = await of_the_other(db), await replies_of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    assert await counted(db) == ALL
    assert await run(db) == ALL
    assert (await of_the_other(db), await replies_of_the_other(db)) == before
    for table in ("command", "batch", "payload_archive", "reply_inbox"):
        assert await db.rows(
            f"select 1 from commandbus.command_bus_{table} where domain = %s", DOMAIN
        ) == []  # fmt: skip
    assert await db.rows(f"select 1 from pgmq.a_{DOMAIN}__commands") == []


async def test_a_page_of_the_audit_is_not_kept_for_what_another_domain_had_before(
    db: Session,
) -> None:
    ids = [uuid4() for _ in range(4)]
    db.domain = OTHER
    await ended(db, ids)
    last = await db.value("select max(audit_id)::text from commandbus.command_bus_audit")
    db.domain = DOMAIN
    await ended(db, ids)
    (row,) = await db.rows(PRUNE.format("audit"), DOMAIN, last)
    assert row["o_pruned"] == {"audit events": ALL["audit events"]}


async def test_a_domain_is_pruned_again_later(db: Session) -> None:
    for _ in range(2):
        await ended(db, [uuid4() for _ in range(4)])
        gone = await run(db)
        assert gone["commands"] == 4


async def test_queues_of_replies_are_those_of_the_domain_but_for_its_commands(db: Session) -> None:
    for queue in ("pay.replies", "pay_out.replies", "payxout.replies", "pay_out.more"):
        await db.value("select commandbus.ensure_queue(%s)", queue)
    await db.value("select commandbus.ensure_domain('pay_out')")
    rows = await db.rows("select commandbus.reply_tables('pay_out') as name")
    assert [row["name"] for row in rows] == [
        "a_pay_out__more", "a_pay_out__replies", "q_pay_out__more", "q_pay_out__replies",
    ]  # fmt: skip


async def test_retention_waits_for_nobody_who_holds_what_cannot_change_or_can_wait(
    db: Session, session: Open
) -> None:
    await ended(db, [uuid4() for _ in range(4)])
    blocker = await session()
    await blocker.rows(
        "select 1 from commandbus.command_bus_command where status <> 'FAILED' for update"
    )
    for table in (
        "commandbus.command_bus_batch", "commandbus.command_bus_reply_inbox",
        f"pgmq.q_{DOMAIN}__replies",
    ):  # fmt: skip
        await blocker.rows(f"select 1 from {table} for update")
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    for step, gone in (("audit", 17), ("archives", 2), ("replies", 0), ("batches", 0)):
        (row,) = await db.rows(PRUNE.format(step), DOMAIN, None)
        assert next(iter(row["o_pruned"].values())) == gone, step


async def test_the_audit_waits_for_failed_commands_in_the_order_of_their_ids(
    db: Session, session: Open
) -> None:
    ids = [(await db.put("FAILED")).command_id for _ in range(3)]
    await locks_in_order(
        db, session, COMMANDS, ids, lambda s: s.rows(PRUNE.format("audit"), DOMAIN, None)
    )


async def test_commands_that_go_are_locked_in_the_order_of_their_ids(
    db: Session, session: Open
) -> None:
    ids = [(await db.put("COMPLETED")).command_id for _ in range(3)]
    await locks_in_order(
        db, session, COMMANDS, ids, lambda s: s.rows(PRUNE.format("commands"), DOMAIN, None)
    )


async def test_a_rule_of_one_domain_leaves_the_others_alone(db: Session) -> None:
    rule = "select commandbus.set_retention(%s, 'audit', %s::interval)"
    for domain, keep in (
        (None, "9 days"),
        (DOMAIN, "1 day"),
        (DOMAIN, "2 days"),
        (OTHER, "3 days"),
    ):
        await db.value(rule, domain, keep)
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    assert await db.value("select commandbus.clear_retention(%s, 'audit')", OTHER)
    await db.value("select commandbus.clear_retention(null, 'replies')")
    due = "select now() - before = %s::interval from commandbus.retention_due(%s)"
    assert await db.value(due, "2 days", DOMAIN)
    await db.value("select commandbus.clear_retention(%s, 'audit')", DOMAIN)
    assert await db.value(due, "9 days", DOMAIN)
    await db.value("select commandbus.clear_retention(null, 'audit')")
    assert await db.rows("select * from commandbus.retention_due(%s)", DOMAIN) == []


async def test_a_page_of_the_archive_ends_between_two_messages_of_the_same_instant(
    db: Session,
) -> None:
    msg_ids = [(await db.put("IN_TROUBLESHOOTING_QUEUE")).msg_id for _ in range(2)]
    await db.rows(f"update pgmq.a_{DOMAIN}__commands set archived_at = now()")
    prune = "select * from commandbus.prune_archives(%s, now() + interval '1 day', 1, %s)"
    after: Any = None
    for msg_id in msg_ids:  # what is parked stays, and is passed by
        (row,) = await db.rows(prune, DOMAIN, after)
        after = row["o_after"]
        assert after.split("/")[1] == str(msg_id)
    (row,) = await db.rows(prune, DOMAIN, after)
    assert row["o_is_done"]


async def test_what_is_parked_keeps_its_payload(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    (row,) = await db.rows(PRUNE.format("commands"), DOMAIN, None)
    assert row["o_pruned"] == {"commands": 0}
    assert len(await db.rows("select 1 from commandbus.command_bus_payload_archive")) == 1


async def test_what_was_sent_long_ago_and_ended_just_now_stays(db: Session) -> None:
    held = await db.put("COMPLETED")
    await db.rows("update commandbus.command_bus_command set created_at = now() - interval '9 d'")
    (row,) = await db.rows(
        "select * from commandbus.prune_commands(%s, now() - interval '1 day', 9)", DOMAIN
    )
    assert row["o_pruned"] == {"commands": 0}
    assert await db.status(held.command_id) == "COMPLETED"


async def test_a_rule_for_what_is_no_domain_is_refused(db: Session) -> None:
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.set_retention('No', 'audit', interval '1 day')")
    assert info.value.sqlstate == "CB005"


async def test_what_is_no_reply_is_not_counted_among_the_replies(db: Session) -> None:
    await ended(db, [uuid4() for _ in range(4)])
    await db.rows(f"select pgmq.send('{DOMAIN}__replies', '{{\"foreign\": true}}'::jsonb)")
    assert (await counted(db))["replies"] == ALL["replies"]


async def test_what_is_open_or_parked_is_not_counted(db: Session) -> None:
    for status in ("IN_PROGRESS", "IN_TROUBLESHOOTING_QUEUE", "COMPLETED", "PENDING"):
        await db.put(status)
    assert (await counted(db))["commands"] == 1


async def test_replies_that_somebody_has_leased_are_not_counted(db: Session) -> None:
    await ended(db, [uuid4() for _ in range(4)])
    await db.rows("select * from commandbus.lease_replies(%s, 60, 1)", f"{DOMAIN}.replies")
    assert (await counted(db))["replies"] == ALL["replies"] - 1


async def test_a_batch_of_another_domain_that_has_ended_is_not_marked(db: Session) -> None:
    for domain in (OTHER, DOMAIN):
        db.domain = domain
        await ended(db, [uuid4() for _ in range(4)])
    before = await of_the_other(db)
    assert (await run(db))["batches"] == 1
    assert await of_the_other(db) == before


async def test_a_batch_that_goes_in_parts_is_marked_once(db: Session) -> None:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    await db.settle("complete", *(h.item(data=None) for h in await db.receive()))
    prune = "select commandbus.prune_batches(%s, now() + interval '1 day', 1)"
    await db.rows(prune, DOMAIN)
    since = (await db.batch_row(batch))["pruning_since"]
    assert since is not None
    await db.rows(prune, DOMAIN)
    assert len(await db.rows("select 1 from commandbus.command_bus_command")) == 1
    assert (await db.batch_row(batch))["pruning_since"] == since


@pytest.mark.parametrize("step", ["commands", "batches"])
async def test_commands_that_go_are_locked_before_their_payloads(
    db: Session, session: Open, step: str
) -> None:
    # As whoever retries them does: in the other order the two would wait for each other.
    batch = await db.batch() if step == "batches" else None
    held = await db.put("IN_TROUBLESHOOTING_QUEUE", batch)
    await db.rows(
        "insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)"
        " values (%s, %s, '{}')",
        DOMAIN, held.command_id,
    )  # fmt: skip
    await db.rows("select commandbus.operator_cancel(%s, %s, 'why')", DOMAIN, [held.command_id])
    await db.rows(PRUNE.format("batches"), DOMAIN, None)  # marks it
    blocker, pruner = await session(), await session()
    await blocker.rows("select 1 from commandbus.command_bus_command for update")
    task = asyncio.create_task(pruner.rows(PRUNE.format(step), DOMAIN, None))
    await db.until_blocked(pruner)
    free = await db.rows(
        "select command_id from commandbus.command_bus_payload_archive for update skip locked"
    )
    assert [row["command_id"] for row in free] == [held.command_id]
    await blocker.conn.rollback()
    (row,) = await task
    assert row["o_pruned"]["commands"] == 1
