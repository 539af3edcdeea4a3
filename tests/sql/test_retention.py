"""Retention: what is finished and old goes, in chunks; what is open or parked stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import CommandBus
from commandbus.upkeep import PruneResult, retention
from tests.sql.faults import codes, healthy
from tests.sql.helpers import Session

DAY = timedelta(days=1)


async def age(db: Session, days: int = 40) -> None:
    """Make everything that there is so much older."""
    shift = f"interval '{days} days'"
    # Session-wide, and not the trigger's business: the test turns back the clock.
    await db.rows("alter table commandbus.command_bus_audit disable trigger user")
    for table, columns in {
        "command": ("created_at", "updated_at"), "batch": ("created_at", "completed_at"),
        "audit": ("ts",), "troubleshooting": ("parked_at",), "reply_inbox": ("published_at",),
    }.items():  # fmt: skip
        changes = ", ".join(f"{c} = {c} - {shift}" for c in columns)
        await db.rows(f"update commandbus.command_bus_{table} set {changes}")
    await db.rows("alter table commandbus.command_bus_audit enable trigger user")
    for queue in await db.rows("select queue_name as name from pgmq.meta"):
        await db.rows(f"update pgmq.q_{queue['name']} set enqueued_at = enqueued_at - {shift}")
        await db.rows(
            f"update pgmq.a_{queue['name']} set enqueued_at = enqueued_at - {shift},"
            f" archived_at = archived_at - {shift}"
        )


async def statuses(db: Session) -> Counter[str]:
    rows = await db.rows("select status from commandbus.command_bus_command")
    return Counter(row["status"] for row in rows)


async def batch_of(db: Session, size: int, domain: str = "payments") -> UUID:
    """A batch whose commands have all ended."""
    batch = uuid4()
    ids = [str(uuid4()) for _ in range(size)]
    await db.rows(
        "select commandbus.create_batch(%s, %s, %s)",
        domain, batch, Jsonb([{"command_id": i, "type": "Debit"} for i in ids]),
    )  # fmt: skip
    await db.rows("select commandbus.cancel_batch(%s, %s, 'why')", domain, batch)
    return batch


async def total(results: list[PruneResult]) -> Counter[str]:
    found: Counter[str] = Counter()
    for result in results:
        found.update(result.pruned)
    return found


async def test_nothing_is_removed_unless_somebody_said_how_long_to_keep_it(
    db: Session, bus: CommandBus
) -> None:
    await healthy(db)
    await age(db)
    await bus.upkeep.clear_retention("replies")
    before = await db.everything()

    assert await bus.upkeep.prune() == []
    assert await db.everything() == before


async def test_what_is_open_or_parked_stays_with_all_that_belongs_to_it(
    db: Session, bus: CommandBus
) -> None:
    lone = await db.put("IN_TROUBLESHOOTING_QUEUE")
    made = await healthy(db)
    await age(db)
    kept = [lone.command_id, *(made[s].command_id for s in ("PENDING", "IN_PROGRESS", "PARKED"))]
    trails = {i: await db.events(i) for i in kept}

    await bus.upkeep.prune(older_than=30 * DAY, operator="ada")

    # The batch is open: all of its commands stay, those that ended too.
    assert await statuses(db) == Counter(
        PENDING=1, IN_PROGRESS=1, IN_TROUBLESHOOTING_QUEUE=2, COMPLETED=1, CANCELED=1, FAILED=1
    )
    assert {i: await db.events(i) for i in kept} == trails
    assert codes(await bus.upkeep.doctor()) == set()
    for parked in (lone.command_id, made["PARKED"].command_id):
        await bus.operator_retry("payments", parked)
        assert await db.status(parked) == "PENDING"


async def test_what_is_finished_and_old_is_gone_and_what_is_younger_is_not(
    db: Session, bus: CommandBus
) -> None:
    await db.put("COMPLETED")
    await db.put("CANCELED")
    batch = await batch_of(db, 3)
    await db.rows(
        "insert into commandbus.command_bus_reply_inbox values ('payments', %s, '{}')", uuid4()
    )
    await age(db)
    young = await db.put("COMPLETED")

    await bus.upkeep.prune(older_than=30 * DAY, operator="ada")

    assert await statuses(db) == Counter(COMPLETED=1)
    assert await db.events(young.command_id) == ["SENT", "RECEIVED", "COMPLETED"]
    assert len(await db.queued("replies")) == 1
    assert await db.archived() == []
    for table in ("batch", "reply_inbox", "payload_archive", "creation_metric"):
        assert await db.rows(f"select 1 from commandbus.command_bus_{table}") == []
    rows = await db.rows(
        "select actor, (details_json ->> 'events')::int as n from commandbus.command_bus_audit"
        " where event_type = 'AUDIT_PRUNED'"
    )
    assert rows == [{"actor": "ada", "n": 3 + 2 + 6 + 1}]
    assert await db.events(batch) == []
    assert codes(await bus.upkeep.doctor()) == set()


async def test_a_dry_run_counts_exactly_and_changes_nothing(db: Session, bus: CommandBus) -> None:
    await healthy(db)
    await batch_of(db, 5)
    await age(db)
    await db.put("COMPLETED")
    before = await db.everything()

    counted = await bus.upkeep.prune(older_than=30 * DAY, dry_run=True)

    assert await db.everything() == before
    pruned = await bus.upkeep.prune(older_than=30 * DAY)
    assert await total(counted) == await total(pruned)
    assert (await total(pruned))["commands"] == 7
    assert not +await total(await bus.upkeep.prune(older_than=30 * DAY, dry_run=True))


async def test_a_dry_run_is_exact_also_if_the_kinds_are_kept_for_different_times(
    db: Session, bus: CommandBus
) -> None:
    await db.put("COMPLETED")
    await age(db, 20)
    await db.put("FAILED")
    await age(db, 15)
    for kind, days in {"audit": 30, "archives": 10, "replies": 20, "commands": 5}.items():
        await bus.upkeep.set_retention(kind, days * DAY)

    counted = await bus.upkeep.prune(dry_run=True)

    assert [result.kind for result in counted] == ["audit", "archives", "replies", "commands"]
    assert await total(counted) == await total(await bus.upkeep.prune())
    assert codes(await bus.upkeep.doctor()) <= {"REPLIES_UNREAD"}


async def test_a_domain_may_have_a_rule_of_its_own(db: Session, bus: CommandBus) -> None:
    other = Session(db.conn, "shipping")
    third = Session(db.conn, "billing")
    for session in (db, other, third):
        await session.put("COMPLETED")
    await age(db, 40)
    await bus.upkeep.clear_retention("replies")
    await bus.upkeep.set_retention("commands", 30 * DAY, operator="ada")
    await bus.upkeep.set_retention("commands", 60 * DAY, domain="shipping")
    await bus.upkeep.set_retention("commands", None, domain="billing")

    results = await bus.upkeep.prune()

    assert {(r.domain, r.pruned["commands"]) for r in results} == {("payments", 1), ("shipping", 0)}
    rows = await db.rows("select domain from commandbus.command_bus_command order by 1")
    assert [row["domain"] for row in rows] == ["billing", "shipping"]
    rules = {(rule.domain, rule.keep, rule.updated_by) for rule in await bus.upkeep.get_retention()}
    assert rules == {
        (None, 30 * DAY, "ada"), ("shipping", 60 * DAY, None), ("billing", None, None),
    }  # fmt: skip

    assert await bus.upkeep.clear_retention("commands", domain="shipping")
    assert not await bus.upkeep.clear_retention("commands", domain="shipping")
    (shipping,) = await bus.upkeep.prune(domain="shipping")
    assert shipping.pruned["commands"] == 1


async def test_a_run_that_is_cut_off_between_chunks_does_no_harm(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 2)
    for _ in range(3):
        await db.put("COMPLETED")
    await batch_of(db, 5)
    await age(db)
    counted = await total(await bus.upkeep.prune(older_than=30 * DAY, dry_run=True))

    seen: Counter[str] = Counter()
    cuts = 0
    while True:
        last: dict[tuple[str, str], PruneResult] = {}

        def cut(result: PruneResult, last: dict[tuple[str, str], PruneResult] = last) -> None:
            last[result.domain, result.kind] = result
            if sum(result.pruned.values()) > 1:
                raise KeyboardInterrupt

        try:
            await bus.upkeep.prune(older_than=30 * DAY, progress=cut)
        except KeyboardInterrupt:
            cuts += 1
        seen.update(await total(list(last.values())))
        found = codes(await bus.upkeep.doctor())
        assert found <= {"REPLIES_UNREAD"}, "half a batch is no fault"
        if not last or not any(sum(r.pruned.values()) > 1 for r in last.values()):
            break

    assert cuts > 5
    assert seen == counted
    assert await statuses(db) == Counter()


async def test_a_batch_goes_as_a_whole_or_not_at_all(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 3)
    old = await batch_of(db, 10)
    await age(db)
    # One command of it is older than the rest of the batch, which ended yesterday.
    late = await batch_of(db, 4)
    await db.rows(
        "update commandbus.command_bus_command set updated_at = now() - interval '50 days',"
        " created_at = now() - interval '50 days' where batch_id = %s and sequence_no = 1",
        late,
    )

    (result,) = await bus.upkeep.prune(older_than=30 * DAY, kinds=["commands"])

    assert result.pruned == {"commands": 10, "batches": 1}
    rows = await db.rows("select batch_id from commandbus.command_bus_batch")
    assert [row["batch_id"] for row in rows] == [late] != [old]
    assert await statuses(db) == Counter(CANCELED=4)


async def test_a_batch_that_is_being_removed_cannot_be_opened_again(db: Session) -> None:
    batch = await db.batch()
    await db.put("FAILED", batch)
    await age(db)
    # The first chunk only marks it.
    await db.rows("select commandbus.prune_batches('payments', now(), 10)")

    with pytest.raises(psycopg.Error, match="is being removed by retention") as info:
        await db.value("select commandbus.retry_batch('payments', %s)", batch)

    assert info.value.sqlstate == "CB003"
    assert await statuses(db) == Counter(FAILED=1)


async def test_a_batch_retry_that_was_first_keeps_the_batch(
    db: Session, session: Callable[[], Awaitable[Session]]
) -> None:
    batch = await db.batch()
    await db.put("FAILED", batch)
    await age(db)
    retrier = await session()
    await retrier.value("select commandbus.retry_batch('payments', %s)", batch)

    # It holds the batch: pruning passes by, and the audit waits for its command.
    await db.rows("select commandbus.prune_batches('payments', now(), 10)")
    pruner = await session()
    task = asyncio.create_task(
        pruner.rows("select o_pruned from commandbus.prune_audit('payments', now(), 100)")
    )
    await db.until_blocked(pruner)
    await retrier.conn.commit()

    assert await task == [{"o_pruned": {"audit events": 0}}]
    await pruner.conn.commit()
    await db.rows("select commandbus.prune_batches('payments', now(), 10)")
    assert (await db.batch_row(batch))["pruning_since"] is None
    assert await statuses(db) == Counter(PENDING=1)


async def test_an_end_that_was_committed_late_does_not_lose_its_event_before_the_others(
    db: Session, bus: CommandBus
) -> None:
    held = await db.put("IN_PROGRESS")
    prune = "select * from commandbus.prune_audit('payments', now() + interval '1 hour', 2, %s)"
    (first,) = await db.rows(prune, None)
    await db.settle("complete", held.item(data=None))

    (second,) = await db.rows(prune, first["o_after"])

    assert first["o_pruned"] == second["o_pruned"] == {"audit events": 0}
    assert await db.events(held.command_id) == ["SENT", "RECEIVED", "COMPLETED"]
    assert codes(await bus.upkeep.doctor()) == set()
    (whole,) = await bus.upkeep.prune(older_than=timedelta(0), kinds=["audit"])
    assert whole.pruned == {"audit events": 3}
    assert codes(await bus.upkeep.doctor()) == set()


async def test_a_batch_that_holds_something_open_is_let_go_again(db: Session) -> None:
    batch = await db.batch()
    await db.put("PENDING", batch)
    await db.rows(
        "update commandbus.command_bus_batch set completed_at = now(), pruning_since = now()"
    )

    rows = await db.rows(
        "select * from commandbus.prune_batches('payments', now() - interval '1d', 9)"
    )

    assert rows[0]["o_pruned"] == {"commands": 0, "batches": 0}
    assert rows[0]["o_is_done"]
    assert (await db.batch_row(batch))["pruning_since"] is None


async def test_a_reply_that_a_consumer_has_leased_is_left_to_him(
    db: Session, bus: CommandBus
) -> None:
    await db.put("COMPLETED")
    await db.put("COMPLETED")
    await db.rows("select pgmq.send('payments__replies', '{\"foreign\": true}'::jsonb)")
    await age(db)
    await db.rows("select * from commandbus.read_replies('payments.replies', 60, 1)")

    (result,) = await bus.upkeep.prune(older_than=30 * DAY, kinds=["replies"])

    assert result.pruned == {"replies": 1}
    assert len(await db.queued("replies")) == 2


async def test_chunks_are_found_by_indexes(db: Session) -> None:
    await db.rows("set enable_seqscan = off")
    for query, index in {
        "select * from commandbus.command_bus_command c where c.created_at < now()"
        " and c.created_at >= '-infinity' and (c.created_at, c.command_id) > ('-infinity',"
        " commandbus.nobody()) order by c.created_at, c.command_id limit 10":
            "ix_command_bus_command_created",
        "select * from commandbus.command_bus_audit a where a.audit_id > 5"
        " order by a.audit_id limit 10": "command_bus_audit_first_pkey",
        "select * from commandbus.command_bus_batch b where b.pruning_since is not null"
        " and b.domain = 'payments' order by b.batch_id": "ix_batch_pruning",
    }.items():  # fmt: skip
        plan = "\n".join(str(row) for row in await db.rows(f"explain {query}"))
        assert index in plan
        assert "Seq Scan" not in plan
