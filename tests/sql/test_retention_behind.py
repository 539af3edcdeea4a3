"""The doctor says when retention does not keep up, and only then."""

from __future__ import annotations

import pytest

from tests.sql.helpers import DOMAIN, Session


async def behind(db: Session) -> list[str]:
    rows = await db.rows("select kind from commandbus.retention_behind() where domain = %s", DOMAIN)
    return [row["kind"] for row in rows]


async def rule(db: Session, kind: str, *, age: str = "30 days") -> None:
    await db.rows(
        "insert into commandbus.command_bus_retention (domain, kind, keep, updated_at)"
        " values (%s, %s, '10 days', now() - %s::interval)",
        DOMAIN, kind, age,
    )  # fmt: skip


async def event(db: Session, age: str, command_id: object = None) -> None:
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)"
        " values (%s, coalesce(%s::uuid, commandbus.nobody()), 'NOTE', now() - %s::interval)",
        DOMAIN, command_id, age,
    )  # fmt: skip


@pytest.mark.parametrize(("age", "expected"), [("10.5 days", []), ("12 days", ["audit"])])
async def test_events_are_late_once_a_tenth_of_their_time_has_passed(
    db: Session, age: str, expected: list[str]
) -> None:
    await db.put("COMPLETED")
    await rule(db, "audit")
    await event(db, age)
    assert await behind(db) == expected


async def test_a_rule_that_was_just_set_is_not_late(db: Session) -> None:
    await db.put("COMPLETED")
    await rule(db, "audit", age="1 hour")
    await event(db, "90 days")
    assert await behind(db) == []


@pytest.mark.parametrize("status", ["PENDING", "IN_TROUBLESHOOTING_QUEUE"])
async def test_what_is_open_or_parked_is_kept_and_never_late(db: Session, status: str) -> None:
    made = await db.put(status)
    for kind in ("audit", "commands", "archives"):
        await rule(db, kind)
    await db.rows(
        "update commandbus.command_bus_command"
        " set created_at = now() - interval '90 days', updated_at = now() - interval '90 days'"
    )
    await db.rows("update pgmq.a_payments__commands set archived_at = now() - interval '90 days'")
    await event(db, "90 days", made.command_id)
    assert await behind(db) == []


async def test_ended_commands_and_their_archived_messages_are_late_until_they_are_pruned(
    db: Session,
) -> None:
    await db.put("CANCELED")
    for kind in ("commands", "archives"):
        await rule(db, kind)
    await db.rows(
        "update commandbus.command_bus_command"
        " set created_at = now() - interval '90 days', updated_at = now() - interval '90 days'"
    )
    await db.rows("update pgmq.a_payments__commands set archived_at = now() - interval '90 days'")
    assert await behind(db) == ["archives", "commands"]
    for kind in ("archives", "commands"):
        await db.rows("select commandbus.prune_due(%s, %s, now(), 1000)", kind, DOMAIN)
    assert await behind(db) == []


async def test_replies_are_late_where_they_wait_where_they_were_archived_and_in_the_inbox(
    db: Session,
) -> None:
    await db.put("COMPLETED")
    await db.rows("delete from commandbus.command_bus_retention")
    await rule(db, "replies")
    assert await behind(db) == []
    old = "now() - interval '12 days'"
    for make in (
        f"update pgmq.q_payments__replies set enqueued_at = {old}",
        f"insert into pgmq.a_payments__replies (msg_id, vt, archived_at) values (1, now(), {old})",
        "insert into commandbus.command_bus_reply_inbox (domain, command_id, reply, published_at)"
        f" values ('payments', gen_random_uuid(), '{{}}', {old})",
    ):
        await db.rows(make)
        assert await behind(db) == ["replies"], make
        await db.rows("select commandbus.prune_due('replies', %s, now(), 1000)", DOMAIN)
        assert await behind(db) == []


async def test_messages_in_parts_are_late_also_behind_what_is_kept(db: Session) -> None:
    parked = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows("update commandbus.command_bus_setting set value = '20' where name ~ '^archive_'")
    old = "now() - interval '40 days'"
    messages = (
        "insert into pgmq.a_payments__commands (msg_id, vt, archived_at, message)"
        f" select nextval('pgmq.q_payments__commands_msg_id_seq'), now(), {old},"
        " jsonb_build_object('command_id', coalesce(%s::uuid, gen_random_uuid()))"
        " from generate_series(1, %s)"
    )
    tend = "select o_did from commandbus.tend_archives()"
    await db.rows(messages, parked.command_id, 3)
    await db.rows(f"update pgmq.a_payments__commands set archived_at = {old}")
    for _ in range(3):
        await db.rows(messages, None, 20)
        while await db.value(tend):
            pass
    await rule(db, "archives")
    while await db.value(tend):
        pass
    await db.rows(messages, None, 5)  # young parts, old messages
    look = "select count(*) from commandbus.retention_behind(null, 4) where kind = 'archives'"
    assert await db.value(look) == 1
    await db.rows("select commandbus.prune_due('archives', %s, now(), 1000)", DOMAIN)
    assert await db.value(look) == 0
    kept = "select count(*) from pgmq.a_payments__commands where message ->> 'command_id' = %s"
    assert await db.value(kept, str(parked.command_id)) == 4
