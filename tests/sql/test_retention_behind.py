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
