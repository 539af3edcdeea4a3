"""Replies that nobody reads: counted, reported, and removed after seven days."""

from __future__ import annotations

from datetime import timedelta

import pytest

from commandbus import CommandBus, Settings
from commandbus.database.migrations import migrate
from tests.sql.helpers import Session

REPLY = """'{"domain": "payments", "outcome": "SUCCESS"}'"""
WEEK = timedelta(days=7)


async def put(db: Session, queue: str, number: int, days: float = 0) -> None:
    """So many replies, published so many days ago."""
    await db.conn.execute("select commandbus.ensure_queue(%s)", (queue,))
    table = "q_" + queue.replace(".", "__")
    await db.conn.execute(
        f"insert into pgmq.{table} (vt, enqueued_at, message)"
        f" select t, t, {REPLY}::jsonb"
        " from generate_series(1, %s), (select now() - make_interval(secs => %s) as t) t".encode(),
        (number, days * 86_400),
    )


async def codes(bus: CommandBus) -> dict[str, tuple[str, ...]]:
    found = (await bus.upkeep.doctor()).findings
    return {each.code: each.examples for each in found if each.code.startswith("REPLIES_")}


async def count(db: Session, table: str) -> int:
    (row,) = await db.rows(f"select count(*) as n from pgmq.{table}")
    return int(row["n"])


async def test_a_new_database_keeps_replies_for_seven_days(bus: CommandBus) -> None:
    assert [(r.domain, r.kind, r.keep) for r in await bus.upkeep.get_retention()] == [
        (None, "replies", WEEK)
    ]


@pytest.mark.parametrize("rule", ["set", "cleared", "forever"])
async def test_what_an_operator_has_decided_survives_a_migration(
    db: Session, bus: CommandBus, rule: str
) -> None:
    if rule == "cleared":
        await bus.upkeep.clear_retention("replies")
    else:
        await bus.upkeep.set_retention("replies", None if rule == "forever" else 2 * WEEK)
    before = await bus.upkeep.get_retention()
    await migrate(db.conn, Settings())
    assert await bus.upkeep.get_retention() == before


@pytest.mark.parametrize("queue", ["payments.replies", "shared.replies", "payments.answers"])
async def test_replies_that_nobody_reads_are_removed_after_a_week(
    db: Session, bus: CommandBus, queue: str
) -> None:
    await put(db, "payments.commands", 0)
    await put(db, queue, 2_500, days=8)
    await put(db, queue, 40, days=6)
    table = "q_" + queue.replace(".", "__")

    planned = await bus.upkeep.prune(dry_run=True, kinds=["replies"])
    done = await bus.upkeep.prune(kinds=["replies"])

    assert sum(each.pruned["replies"] for each in planned) == 2_500
    assert sum(each.pruned["replies"] for each in done) == 2_500
    assert await count(db, table) == 40


async def test_a_look_at_a_long_queue_with_nothing_old_reads_its_head_only(
    db: Session, bus: CommandBus
) -> None:
    await put(db, "payments.replies", 5_000)
    (row,) = await db.rows(
        "select * from commandbus.prune_replies('payments', now() - interval '7 days', 100)"
    )
    assert (row["o_is_done"], row["o_pruned"]) == (True, {"replies": 0})


async def test_old_replies_behind_some_that_are_leased_are_removed_too(
    db: Session, bus: CommandBus
) -> None:
    await put(db, "payments.replies", 1_500, days=8)
    await put(db, "payments.replies", 3, days=8)
    await db.conn.execute(
        "update pgmq.q_payments__replies set vt = now() + interval '1 hour' where msg_id <= 1500"
    )
    await bus.upkeep.prune(kinds=["replies"])
    assert await count(db, "q_payments__replies") == 1_500


async def test_what_was_archived_as_no_reply_is_removed_after_a_week(
    db: Session, bus: CommandBus
) -> None:
    await db.conn.execute("select commandbus.ensure_domain('payments')")
    for _ in range(3):
        await db.conn.execute("select pgmq.send('payments__replies', '[]')")
    await db.conn.execute("select pgmq.archive('payments__replies', array[1, 2, 3]::bigint[])")
    await db.conn.execute(
        "update pgmq.a_payments__replies set archived_at = now() - interval '8 days'"
        " where msg_id < 3"
    )
    assert await codes(bus) == {"REPLIES_REFUSED": ("payments.replies: 3",)}
    (planned,) = await bus.upkeep.prune(dry_run=True, kinds=["replies"])
    (done,) = await bus.upkeep.prune(kinds=["replies"])
    assert planned.pruned == done.pruned == {"replies": 2}
    assert await codes(bus) == {"REPLIES_REFUSED": ("payments.replies: 1",)}


@pytest.mark.parametrize("has_commands", [False, True])
async def test_a_queue_that_another_program_made_is_left_alone(
    db: Session, bus: CommandBus, has_commands: bool
) -> None:
    await db.rows("select pgmq.create('mailer__replies')")
    if has_commands:
        await db.rows("select pgmq.create('mailer__commands')")
    for message in ("[]", '{"outcome": "sent"}'):
        await db.rows("select pgmq.send('mailer__replies', %s::jsonb)", message)
    await db.rows("select pgmq.archive('mailer__replies', 1)")
    await db.rows("update pgmq.a_mailer__replies set archived_at = '2000-01-01'")

    await bus.upkeep.prune(kinds=["replies"])

    assert (await count(db, "a_mailer__replies"), await count(db, "q_mailer__replies")) == (1, 1)
    if not has_commands:
        assert await bus.upkeep.figures.domains() == []


@pytest.mark.parametrize(
    ("number", "days", "is_found"),
    [(1_000, 0, True), (999, 0, False), (1, 2, True), (1, 0.5, False)],
)
async def test_the_doctor_reports_replies_that_nobody_reads(
    db: Session, bus: CommandBus, number: int, days: float, is_found: bool
) -> None:
    await put(db, "payments.replies", number, days)
    found = await codes(bus)
    assert found == ({"REPLIES_UNREAD": (f"payments.replies: {number}",)} if is_found else {})


async def test_replies_that_a_reader_has_seen_are_not_called_unread(
    db: Session, bus: CommandBus
) -> None:
    await put(db, "payments.replies", 1_000, days=2)
    await db.conn.execute("update pgmq.q_payments__replies set read_ct = 1")
    assert await codes(bus) == {}


async def test_the_doctor_says_how_to_stop_replies(db: Session, bus: CommandBus) -> None:
    await put(db, "payments.replies", 1_000)
    (found,) = [f for f in (await bus.upkeep.doctor()).findings if f.code == "REPLIES_UNREAD"]
    assert "COMMANDBUS_REPLIES=none" in found.advice
    assert "commandbus db retention set replies 7d" in found.advice


async def test_figures_count_replies_and_estimate_what_is_beyond_ten_thousand(
    db: Session, bus: CommandBus
) -> None:
    await db.conn.execute("select commandbus.ensure_domain('payments')")
    await put(db, "payments.replies", 7)
    await put(db, "payments.answers", 2)
    await put(db, "shared.replies", 10_400)
    await db.conn.execute("analyze pgmq.q_shared__replies")
    figures = {each.domain: each for each in await bus.upkeep.figures.domains()}
    assert {name: each.replies for name, each in figures.items()} == {
        "payments": 9, "shared": 10_400,
    }  # fmt: skip
    assert figures["shared"].ready == 0
