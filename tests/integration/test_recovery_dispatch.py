"""Recovery of what was stored and not queued: once, by any process, at its rate, with a limit."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, ReplyOutcome, Settings
from commandbus.batches import RecoveryReport
from commandbus.worker.maintenance import Maintenance
from tests.integration.test_dispatch import commands, queued_ids, register, rows
from tests.intercepting import refuse
from tests.waiting import until, working

Connection = psycopg.AsyncConnection[Any]

#: How a process ends that was killed right after its rows were stored.
STORE = (
    "select commandbus.create_stored_batch('shop', %s, %s, null, null, null, null, false, %s, %s)"
)

QUEUE = (
    "select commandbus.queue_stored('shop', %s, array['pending_queue', 'pending_retry', 'queued'])"
)


async def stored_batch(
    conn: Connection, count: int, *, pattern: str = "two_phase", rate: float | None = None
) -> tuple[UUID, list[UUID]]:
    batch_id, ids = uuid4(), [uuid4() for _ in range(count)]
    await conn.execute("select commandbus.ensure_domain('shop')")
    items = [{"command_id": str(i), "type": "Work", "data": {"n": n}} for n, i in enumerate(ids)]
    await conn.execute(STORE, (batch_id, Jsonb(items), pattern, rate))
    return batch_id, ids


async def age(conn: Connection, minutes: float, *, dispatch: bool = True) -> None:
    """Let what is stored be older than it is."""
    await conn.execute(
        "update commandbus.command_bus_command set updated_at = updated_at - %s::interval,"
        " created_at = created_at - %s::interval",
        (f"{minutes} minutes",) * 2,
    )
    if dispatch:
        await conn.execute(
            "update commandbus.command_bus_dispatch set heartbeat_at = heartbeat_at - %s::interval",
            (f"{minutes} minutes",),
        )


async def break_queue(conn: Connection) -> None:
    await conn.execute("alter table pgmq.q_shop__commands rename to q_shop__broken")


@pytest.mark.parametrize("pattern", ["two_phase", "optimistic"])
async def test_what_a_dead_process_left_is_queued_after_the_grace(
    bus: CommandBus, conn: Connection, pattern: str
) -> None:
    """A crash after the insert, before the dispatch."""
    batch_id, ids = await stored_batch(conn, 250, pattern=pattern)
    assert await bus.batches.recover_dispatch("shop") == RecoveryReport()
    await age(conn, 3)
    assert await bus.batches.recover_dispatch("shop") == RecoveryReport(queued=250)
    assert await queued_ids(conn) == [str(i) for i in ids]
    assert await bus.batches.recover_dispatch("shop", grace_seconds=0) == RecoveryReport()
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", batch_id, timeout=30)
    assert sorted(seen) == sorted(ids)


async def test_a_slow_process_that_shows_signs_of_life_is_left_alone(
    bus: CommandBus, conn: Connection
) -> None:
    batch_id, _ = await stored_batch(conn, 3)
    await age(conn, 3)
    await rows(conn, "select commandbus.dispatch_heartbeat(%s)", batch_id)
    assert (await bus.batches.recover_dispatch("shop")).queued == 0


async def test_a_process_that_was_only_slow_sends_nothing_twice(
    bus: CommandBus, conn: Connection
) -> None:
    _, ids = await stored_batch(conn, 5)
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 5
    for late, nothing in (
        (QUEUE, []),
        ("select commandbus.mark_dispatched('shop', %s)", 0),
        ("select commandbus.mark_dispatch_failed('shop', %s, 'too late')", 0),
    ):
        assert await rows(conn, late, ids) == [(nothing,)]
    assert len(await queued_ids(conn)) == 5
    assert await rows(
        conn,
        "select distinct dispatch_status, queue_attempt_count, last_queue_error"
        " from commandbus.command_bus_command",
    ) == [("queued", 1, None)]


async def test_two_recoverers_at_once_send_nothing_twice(dsn: str, conn: Connection) -> None:
    async with CommandBus.connect(dsn) as first, CommandBus.connect(dsn) as second:
        for _ in range(5):
            await stored_batch(conn, 300)
            await stored_batch(conn, 300, pattern="optimistic")
            await asyncio.gather(
                *(b.batches.recover_dispatch("shop", grace_seconds=0) for b in (first, second) * 2)
            )
        await first.batches.recover_dispatch("shop", grace_seconds=0)
    found = await queued_ids(conn)
    assert len(found) == len(set(found)) == 3_000


async def test_what_another_session_holds_is_passed_over(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    _, ids = await stored_batch(conn, 3)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(
            "select 1 from commandbus.command_bus_command where command_id = %s for update",
            (ids[0],),
        )
        assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 2
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 1


async def test_pages_follow_one_another_until_everything_is_queued(
    bus: CommandBus, conn: Connection
) -> None:
    await stored_batch(conn, 1_500)
    await stored_batch(conn, 1_000)
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 2_500


async def test_what_is_stored_for_another_reason_is_not_touched(
    bus: CommandBus, conn: Connection
) -> None:
    await stored_batch(conn, 2)
    for reason in ("awaiting_approval", "scheduled"):
        await conn.execute(
            "update commandbus.command_bus_command set dispatch_status = %s", (reason,)
        )
        assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 0


async def test_giving_up_after_three_fails_the_command_with_counters_reply_and_audit(
    bus: CommandBus, conn: Connection
) -> None:
    ended = []

    async def on_complete(batch: Any) -> None:
        ended.append(batch.status)

    work = commands(2)
    result = await bus.batches.dispatch("shop", work, on_complete=on_complete)
    await conn.execute("select pgmq.purge_queue('shop__commands')")
    # as if neither had ever been queued
    await conn.execute(
        "update commandbus.command_bus_command"
        " set msg_id = null, dispatch_status = 'pending_queue', queue_attempt_count = 0"
    )
    await conn.execute(
        "insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)"
        " select 'shop', command_id, jsonb_build_object('command_id', command_id, 'data',"
        " jsonb_build_object()) from commandbus.command_bus_command"
    )
    await break_queue(conn)
    for attempt in (1, 2):
        report = await bus.batches.recover_dispatch("shop", grace_seconds=0)
        assert report == RecoveryReport(failed=2)
        found = await rows(
            conn,
            "select distinct status, dispatch_status, queue_attempt_count"
            " from commandbus.command_bus_command",
        )
        assert found == [("PENDING", "pending_retry", attempt)]
    assert await bus.batches.recover_dispatch("shop", grace_seconds=0) == RecoveryReport(
        failed=2, given_up=2
    )
    command = await bus.get_command("shop", work[0].command_id)
    assert command is not None
    assert (command.status, command.last_error_msg) == ("FAILED", "Max queue retries exceeded")
    found = await rows(
        conn,
        "select distinct dispatch_status, queue_attempt_count, last_queue_error like '%%42P01%%'"
        " from commandbus.command_bus_command",
    )
    assert found == [("failed", 3, True)]
    batch = await bus.get_batch("shop", result.batch_id)
    assert batch is not None
    assert (batch.failed_count, batch.status) == (2, "COMPLETED_WITH_FAILURES")
    await until(lambda: ended == ["COMPLETED_WITH_FAILURES"])
    replies = [reply async for reply in bus.replies("shop", wait=False)]
    assert [r.outcome for r in replies] == [ReplyOutcome.FAILED] * 2
    assert {r.error.message for r in replies if r.error} == {"Max queue retries exceeded"}
    events = [e.event_type for e in await bus.get_audit_trail(work[0].command_id)]
    assert events == ["SENT", "FAILED", "GIVEN_UP"]

    assert await bus.batches.recover_dispatch("shop", grace_seconds=0) == RecoveryReport()
    await conn.execute("alter table pgmq.q_shop__broken rename to q_shop__commands")
    assert await bus.batches.retry("shop", result.batch_id) == 2
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert sorted(seen) == sorted(c.command_id for c in work)
    assert await rows(
        conn, "select distinct dispatch_status from commandbus.command_bus_command"
    ) == [("queued",)]


async def test_one_that_cannot_be_queued_does_not_take_its_group_with_it(
    bus: CommandBus, conn: Connection
) -> None:
    _, ids = await stored_batch(conn, 100)
    await conn.execute(
        "update commandbus.command_bus_payload_archive set payload_json = payload_json"
        " || jsonb_build_object('poison', true) where command_id = %s",
        (ids[37],),
    )
    await conn.execute("alter table pgmq.q_shop__commands add check (not (message ? 'poison'))")
    assert await bus.batches.recover_dispatch("shop", grace_seconds=0) == RecoveryReport(
        queued=99, failed=1
    )
    assert await queued_ids(conn) == [str(i) for n, i in enumerate(ids) if n != 37]


async def test_a_lost_payload_is_counted_as_a_failure(bus: CommandBus, conn: Connection) -> None:
    _, ids = await stored_batch(conn, 3)
    await conn.execute(
        "delete from commandbus.command_bus_payload_archive where command_id = %s", (ids[0],)
    )
    report = await bus.batches.recover_dispatch("shop", grace_seconds=0)
    assert report == RecoveryReport(queued=2, failed=1)


async def test_what_is_canceled_while_it_waits_is_never_queued(
    bus: CommandBus, conn: Connection
) -> None:
    batch_id, _ = await stored_batch(conn, 2)
    assert await bus.batches.cancel("shop", batch_id, "not wanted") == 2
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 0
    assert await rows(conn, "select * from commandbus.command_bus_dispatch") == []


async def test_recovery_goes_on_at_the_rate_of_the_batch(bus: CommandBus, conn: Connection) -> None:
    await stored_batch(conn, 1_000, rate=1.0)
    await age(conn, 5)
    first = await bus.batches.recover_dispatch("shop")
    assert 300 <= first.queued <= 310
    assert (await bus.batches.recover_dispatch("shop")).queued == 0
    await age(conn, 3)
    second = await bus.batches.recover_dispatch("shop")
    assert 180 <= second.queued <= 190


async def test_old_commands_are_resolved_and_reported(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """30 minutes are an alert, not an exclusion."""
    await stored_batch(conn, 2)
    await age(conn, 60)
    await stored_batch(conn, 1)
    maintenance = Maintenance(bus._store, lambda: ["shop"], Settings())
    with caplog.at_level(logging.INFO, logger="commandbus.maintenance"):
        await maintenance.step()
    assert "2 commands of shop waited more than 30 minutes" in caplog.text
    assert len(await queued_ids(conn)) == 2


async def test_one_process_does_a_chore_and_not_before_it_is_due(
    bus: CommandBus, conn: Connection
) -> None:
    gateway = bus._store.gateway
    claim = "select {schema}.claim_chore('sweep', interval '60 s')"
    claims = await asyncio.gather(*(gateway.value(claim) for _ in range(8)))
    assert sum(claims) == 1
    assert not await gateway.value(claim)
    await conn.execute(
        "update commandbus.command_bus_chore set started_at = started_at - interval '61 s'"
    )
    assert await gateway.value(claim)


async def test_interrupted_loads_are_reported_and_vanished_workers_removed(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    batch_id, _ = await stored_batch(conn, 1)
    await conn.execute(
        "insert into commandbus.command_bus_load (batch_id, domain, source, row_format, start_mode,"
        " rows_committed, updated_at)"
        " values (%s, 'shop', 'a.csv', '{}', 'sealed', 7, now() - interval '6 minutes')",
        (batch_id,),
    )
    await conn.execute(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, heartbeat_at)"
        " values ('gone', 'shop', 1, now() - interval '2 hours'), ('here', 'shop', 1, now())"
    )
    await Maintenance(bus._store, lambda: ["shop"], Settings()).step()
    assert f"load {batch_id} of shop (a.csv) stopped after 7 rows" in caplog.text
    assert await rows(conn, "select worker_id from commandbus.command_bus_worker") == [("here",)]


async def test_a_chore_that_fails_does_not_keep_the_others_from_their_turn(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, bus, "recover_dispatch")
    pruned = refuse(monkeypatch, bus, "prune_workers", calls=set())
    await Maintenance(bus._store, lambda: ["shop"], Settings()).step()
    assert "recover dispatch of shop failed" in caplog.text
    assert len(pruned) == 1


@pytest.mark.parametrize("is_on", [True, False])
async def test_workers_recover_by_themselves_unless_told_not_to(
    dsn: str, conn: Connection, is_on: bool
) -> None:
    settings = Settings(
        maintenance=is_on, maintenance_interval_seconds=0.05, dispatch_grace_seconds=0
    )

    async def chores() -> int:
        return len(await rows(conn, "select * from commandbus.command_bus_chore"))

    async def has_done_all_chores() -> bool:
        return await chores() >= 6

    async with CommandBus.connect(dsn, settings=settings) as bus:
        seen = register(bus)
        await stored_batch(conn, 3)
        async with working(bus, "shop"):
            if is_on:
                await until(lambda: len(seen) == 3)
                await until(has_done_all_chores)
            else:
                await bus.send("shop", "Work", uuid4(), {})
                await until(lambda: len(seen) == 1)
    assert (await chores() > 0) is is_on


async def test_views_show_where_commands_are(bus: CommandBus, conn: Connection) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    done = (await bus.batches.dispatch("shop", commands(4))).batch_id
    async with working(bus, "shop"):
        await bus.batches.wait("shop", done, timeout=30)
    part, ids = await stored_batch(conn, 6)
    await rows(conn, QUEUE, ids[:3])
    await rows(conn, "select commandbus.mark_dispatch_failed('shop', %s, 'down')", ids[3:5])
    await conn.execute("select * from commandbus.receive_commands('shop', 60, 1, 'w', '{}', false)")
    await bus.create_batch("other", [BatchCommand("Work", uuid4(), {})])

    found = await rows(
        conn,
        "select batch_id, pending_tasks, max_attempts, oldest_task = (select min(created_at) from"
        " commandbus.command_bus_command where command_id = any(%s)), domain"
        " from commandbus.v_pending_retry",
        ids[3:5],
    )
    assert found == [(part, 2, 1, True, "shop")]
    lag = await rows(
        conn,
        "select batch_id, pending, queued, processing, completed, pending_retry"
        " from commandbus.v_queue_lag where domain = 'shop'",
    )
    assert sorted(lag) == sorted([(done, 0, 0, 0, 4, 0), (part, 1, 2, 1, 0, 2)])
    rate = await rows(
        conn,
        "select total_batches, successful_batches, avg_attempts, success_rate"
        " from commandbus.v_batch_success_rate where domain = 'shop'",
    )
    total, successful, attempts, share = rate[0]
    # four at once, three of six at once, two failed once, one not tried
    assert (total, successful, float(attempts), float(share)) == (2, 1, 0.9, 0.5)


async def test_an_ordinary_update_of_a_command_writes_no_index(
    bus: CommandBus, conn: Connection
) -> None:
    """No index of dispatch may be on a column that changes, or each update costs them all."""
    await bus.send("shop", "Work", uuid4(), {})
    async with conn.transaction():
        await conn.execute("select * from commandbus.receive_commands('shop', 60, 1, 'w')")
        found = await rows(
            conn,
            "select pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c)"
            " from (select 'commandbus.command_bus_command'::regclass::oid) t(c)",
        )
    assert found == [(1, 1)]
