"""The doctor on the database: each fault is named, alone, and what can be mended is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import CommandBus, DatabaseUnavailableError, Diagnosis, Severity
from commandbus.ops.findings import FAULTS
from commandbus.store import postgres_doctor
from tests.sql.helpers import FAILURE, Session

#: What the server of the tests is like: durability and autovacuum off, a superuser.
SURROUNDINGS = {"AUTOVACUUM_OFF", "DURABILITY_OFF", "ROLE_SUPERUSER", "DEAD_ROWS"}


def codes(found: Diagnosis, *severities: Severity) -> set[str]:
    return {
        f.code
        for f in found.findings
        if f.code not in SURROUNDINGS and (not severities or f.severity in severities)
    }


async def healthy(db: Session) -> dict[str, Any]:
    """A database with a command in every state, with and without a batch."""
    batch = await db.batch()
    states = ("IN_PROGRESS", "COMPLETED", "CANCELED", "FAILED")
    made: dict[str, Any] = {state: await db.put(state, batch) for state in states}
    made["PARKED"] = await db.put("IN_TROUBLESHOOTING_QUEUE", batch)
    made["LONE"] = await db.put("COMPLETED")
    made["ENDED_BATCH"] = await db.batch()
    await db.put("COMPLETED", made["ENDED_BATCH"])
    made["BATCH"] = batch
    made["PENDING"] = await db.put("PENDING", batch)  # last: a receive takes all that is due
    return made


def command(setting: str) -> Callable[[Session, UUID], Awaitable[Any]]:
    async def change(db: Session, command_id: UUID) -> None:
        await db.rows(
            f"update commandbus.command_bus_command set {setting} where command_id = %s", command_id
        )

    return change


async def stray(db: Session, body: dict[str, Any]) -> None:
    await db.rows(
        "select pgmq.send('payments__commands', %s::jsonb)", Jsonb(body | {"data": {"n": 1}})
    )


# -- the faults: what is done to a healthy database, by SQL


async def unknown_message(db: Session, made: dict[str, Any]) -> None:
    await stray(db, {"command_id": str(uuid4())})


async def message_without_an_id(db: Session, made: dict[str, Any]) -> None:
    await stray(db, {"hello": "world"})


async def message_of_ended(db: Session, made: dict[str, Any]) -> None:
    await stray(db, {"command_id": str(made["LONE"].command_id)})


async def message_of_parked(db: Session, made: dict[str, Any]) -> None:
    await stray(db, {"command_id": str(made["PARKED"].command_id)})


async def superseded_message(db: Session, made: dict[str, Any]) -> None:
    await stray(db, {"command_id": str(made["PENDING"].command_id)})


async def archived_message(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select pgmq.archive('payments__commands', %s)", made["PENDING"].msg_id)


async def archived_message_of_a_leased_one(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select pgmq.archive('payments__commands', %s)", made["IN_PROGRESS"].msg_id)


async def deleted_message(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select pgmq.delete('payments__commands', %s)", made["PENDING"].msg_id)


async def lease_without_a_worker(db: Session, made: dict[str, Any]) -> None:
    await command("leased_by = null")(db, made["IN_PROGRESS"].command_id)


async def lease_of_an_ended_one(db: Session, made: dict[str, Any]) -> None:
    await command("leased_by = 'w9'")(db, made["LONE"].command_id)


async def too_many_attempts(db: Session, made: dict[str, Any]) -> None:
    await command("attempts = max_attempts + 1")(db, made["PENDING"].command_id)


async def unlisted(db: Session, made: dict[str, Any]) -> None:
    await db.rows("delete from commandbus.command_bus_troubleshooting")


async def listed_though_ended(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_troubleshooting values"
        " ('payments', %s, 'Debit', 'PERMANENT', now())",
        made["LONE"].command_id,
    )


async def purged_archive(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "delete from pgmq.a_payments__commands where msg_id = %s",
        (await db.command(made["PARKED"].command_id))["msg_id"],
    )


async def wrong_counter(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set completed_count = completed_count + 1"
        " where batch_id = %s",
        made["BATCH"],
    )


async def wrong_total(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set total_count = total_count + 1 where batch_id = %s",
        made["BATCH"],
    )


async def batch_left_open(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set completed_at = null, status = 'IN_PROGRESS'"
        " where batch_id = %s",
        made["ENDED_BATCH"],
    )


async def batch_closed_too_soon(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set completed_at = now(), status = 'COMPLETED'"
        " where batch_id = %s",
        made["BATCH"],
    )


async def state_changed_by_hand(db: Session, made: dict[str, Any]) -> None:
    await command("status = 'CANCELED'")(db, made["LONE"].command_id)


async def second_end(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type)"
        " values ('payments', %s, 'COMPLETED')",
        made["LONE"].command_id,
    )


async def copied_reply(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "select pgmq.send('payments__replies', (select message from pgmq.q_payments__replies"
        " where message ->> 'command_id' = %s))",
        str(made["LONE"].command_id),
    )


async def removed_reply(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "delete from pgmq.q_payments__replies where message ->> 'command_id' = %s",
        str(made["LONE"].command_id),
    )
    await db.rows("update pgmq.q_payments__replies set enqueued_at = now() - interval '5 minutes'")


async def dropped_queue(db: Session, made: dict[str, Any]) -> None:
    # One parked in the other domain would lose its payload as well, and that is another fault.
    other = Session(db.conn, "shipping")
    await other.send()
    await db.rows("select pgmq.drop_queue('shipping__commands')")


async def silent_trigger(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "alter table commandbus.command_bus_audit disable trigger command_bus_audit_append_only"
    )


async def changed_function(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "create or replace function commandbus.closing_command_id(p_batch_id uuid, p_closing int)"
        " returns uuid language sql immutable as $$ select p_batch_id $$"
    )


async def unlogged_queue(db: Session, made: dict[str, Any]) -> None:
    await db.rows("alter table pgmq.q_payments__replies set unlogged")


async def invalid_index(db: Session, made: dict[str, Any]) -> None:
    # What a build that failed leaves behind.
    with pytest.raises(psycopg.errors.UniqueViolation):
        await db.rows(
            "create unique index concurrently broken on commandbus.command_bus_command (domain)"
        )


async def nobody_works(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update pgmq.q_payments__commands set vt = now() - interval '6 minutes' where msg_id = %s",
        made["PENDING"].msg_id,
    )


async def lease_left_behind(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update pgmq.q_payments__commands set vt = now() - interval '6 minutes' where msg_id = %s",
        made["IN_PROGRESS"].msg_id,
    )


async def silent_worker(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, heartbeat_at)"
        " values ('w-gone', 'payments', 1, now() - interval '2 minutes')"
    )


async def idle_worker_without_a_listener(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select commandbus.worker_heartbeat('w-deaf', 'payments', true, 1, 0)")


async def late_chore(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, started_at)"
        " values ('w-old', 'payments', 1, now() - interval '2 hours')"
    )


async def stuck_dispatch(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "select commandbus.create_held_batch('payments', %s, %s, null, null, null, null, false,"
        " 'two_phase')",
        uuid4(), Jsonb([{"command_id": str(uuid4()), "type": "Debit"}]),
    )  # fmt: skip
    await db.rows(
        "update commandbus.command_bus_command set created_at = now() - interval '1 hour'"
        " where dispatch_status = 'pending_queue'"
    )


async def held_without_payload(db: Session, made: dict[str, Any]) -> None:
    await stuck_dispatch(db, made)
    await db.rows("update commandbus.command_bus_command set created_at = now()")
    await db.rows("delete from commandbus.command_bus_payload_archive")


async def interrupted_load(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select commandbus.begin_load('payments', %s, 'a.csv', '{}', 'sealed')", uuid4())
    await db.rows("update commandbus.command_bus_load set updated_at = now() - interval '1 hour'")


async def interrupted_prune(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set pruning_since = now() - interval '2 hours'"
        " where batch_id = %s",
        made["ENDED_BATCH"],
    )


async def table_without_autovacuum(db: Session, made: dict[str, Any]) -> None:
    await db.rows("alter table commandbus.command_bus_command set (autovacuum_enabled = false)")


INJECTED: dict[Callable[[Session, dict[str, Any]], Awaitable[None]], str] = {
    unknown_message: "MESSAGE_UNKNOWN",
    message_without_an_id: "MESSAGE_UNKNOWN",
    message_of_ended: "MESSAGE_OF_ENDED",
    message_of_parked: "MESSAGE_OF_PARKED",
    superseded_message: "MESSAGE_SUPERSEDED",
    archived_message: "MESSAGE_LOST",
    archived_message_of_a_leased_one: "MESSAGE_LOST",
    deleted_message: "PAYLOAD_LOST",
    held_without_payload: "PAYLOAD_LOST",
    dropped_queue: "QUEUE_MISSING",
    lease_without_a_worker: "LEASE_STATE",
    lease_of_an_ended_one: "LEASE_STATE",
    too_many_attempts: "ATTEMPTS_EXCEEDED",
    unlisted: "PARKED_UNLISTED",
    listed_though_ended: "LISTED_NOT_PARKED",
    purged_archive: "PARKED_WITHOUT_PAYLOAD",
    wrong_counter: "BATCH_COUNTERS",
    wrong_total: "BATCH_COUNTERS",
    batch_left_open: "BATCH_STATE",
    batch_closed_too_soon: "BATCH_STATE",
    state_changed_by_hand: "AUDIT_MISMATCH",
    second_end: "ENDED_TWICE",
    copied_reply: "REPLY_TWICE",
    removed_reply: "REPLY_MISSING",
    silent_trigger: "AUDIT_UNPROTECTED",
    changed_function: "FUNCTION_CHANGED",
    unlogged_queue: "QUEUE_UNLOGGED",
    invalid_index: "INDEX_INVALID",
    nobody_works: "NO_WORKER",
    lease_left_behind: "LEASE_LAPSED",
    silent_worker: "WORKER_SILENT",
    idle_worker_without_a_listener: "WAKEUPS_DEAD",
    late_chore: "CHORE_LATE",
    stuck_dispatch: "DISPATCH_STUCK",
    interrupted_load: "LOAD_INTERRUPTED",
    interrupted_prune: "PRUNE_INTERRUPTED",
}
#: Mended as far as it can be: the message is lost for good.
LEAVES = {"dropped_queue": {"PAYLOAD_LOST"}}


async def test_a_command_in_every_state_is_no_fault(db: Session, bus: CommandBus) -> None:
    await healthy(db)

    found = await bus.doctor()

    assert codes(found) == set()
    assert found.is_healthy
    assert found.since is None


@pytest.mark.parametrize("inject", INJECTED, ids=lambda f: f.__name__)
async def test_an_injected_fault_is_named_alone_and_mended_if_the_doctor_says_so(
    db: Session, bus: CommandBus, inject: Callable[[Session, dict[str, Any]], Awaitable[None]]
) -> None:
    code = INJECTED[inject]
    await inject(db, await healthy(db))
    before = await db.everything()

    found = await bus.doctor()

    assert codes(found) == {code}
    (finding,) = [f for f in found.findings if f.code == code]
    assert finding.found == 1
    assert len(finding.examples) == 1
    assert "Debit" not in str(finding.examples)
    assert found.is_healthy == (finding.severity is not Severity.ERROR)
    assert await db.everything() == before, "looking changes nothing"

    mended = await bus.doctor(fix=True, operator="ada")

    if finding.can_fix:
        assert codes(mended) == LEAVES.get(inject.__name__, set())
        (repair,) = mended.repairs
        assert repair.function == FAULTS[code].repair
        rows = await db.rows(
            "select actor, details_json ->> 'code' as code from commandbus.command_bus_audit"
            " where event_type = 'DOCTOR_REPAIR'"
        )
        told = "BATCH_COUNTERS" if code == "BATCH_STATE" else code
        assert rows == [{"actor": "ada", "code": told}]
    else:
        assert codes(mended) == {code}
        assert mended.repairs == ()
        assert await db.everything() == before, "what cannot be mended is left alone"


def test_every_code_is_injected_but_those_that_sql_cannot_bring_about() -> None:
    assert set(FAULTS) - set(INJECTED.values()) == SURROUNDINGS | {
        "SCHEMA_OLD", "PGMQ_LACKS", "RIGHTS_MISSING", "QUEUE_PARTITIONED", "NOTIFY_QUEUE_FULL",
        "VACUUM_HELD_BACK", "CLOCK_DIFFERENCE", "CHECK_FAILED",
    }  # fmt: skip


# -- repairs, in detail


async def test_a_lost_message_is_sent_again_and_its_command_runs(
    db: Session, bus: CommandBus
) -> None:
    made = await healthy(db)
    await archived_message(db, made)
    pending = made["PENDING"].command_id

    await bus.doctor(fix=True)

    (held,) = [h for h in await db.receive() if h.command_id == pending]
    assert held.row["data"] == '{"n": 0}'
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.status(pending) == "COMPLETED"


async def test_the_new_message_of_a_leased_command_waits_for_its_worker(
    db: Session, bus: CommandBus
) -> None:
    made = await healthy(db)
    await archived_message_of_a_leased_one(db, made)
    held = made["IN_PROGRESS"]

    await bus.doctor(fix=True)

    assert held.command_id not in {h.command_id for h in await db.receive()}
    assert await db.settle("complete", held.item(data=None)) == []
    assert codes(await bus.doctor()) == set()


async def test_a_batch_that_should_have_ended_is_closed_and_calls_back(
    db: Session, bus: CommandBus
) -> None:
    batch = uuid4()
    (last,) = ids = [uuid4()]
    await db.rows(
        "select commandbus.create_batch('payments', %s, %s, null, null, null, %s)",
        batch, Jsonb([{"command_id": str(i), "type": "Debit"} for i in ids]),
        Jsonb({"domain": "payments", "type": "Report", "data": {}}),
    )  # fmt: skip
    (held,) = await db.receive()
    await db.rows(
        "update commandbus.command_bus_batch set total_count = 2 where batch_id = %s", batch
    )
    await db.settle("complete", held.item(data=None))
    assert (await db.batch_row(batch))["completed_at"] is None

    await bus.doctor(fix=True)

    row = await db.batch_row(batch)
    assert (row["total_count"], row["status"]) == (1, "COMPLETED")
    assert len(await db.receive()) == 1, "the command that the end of the batch asked for"
    assert await db.status(last) == "COMPLETED"


async def test_a_recount_waits_for_whoever_moves_the_counters(
    db: Session, session: Callable[[], Awaitable[Session]]
) -> None:
    batch = await db.batch()
    first = await db.put("IN_PROGRESS", batch)
    await db.put("PENDING", batch)
    await wrong_counter(db, {"BATCH": batch})
    mover = await session()
    await mover.settle("complete", first.item(data=None))
    mender = await session()

    task = asyncio.create_task(
        mender.rows("select * from commandbus.repair_batches('payments', 'ada')")
    )
    await db.until_blocked(mender)
    await mover.conn.commit()
    await task
    await mender.conn.commit()

    row = await db.batch_row(batch)
    assert (row["total_count"], row["completed_count"]) == (2, 1)


async def test_what_was_mended_meanwhile_is_left_alone(db: Session) -> None:
    await healthy(db)
    for verb in ("messages", "lost_messages", "troubleshooting", "batches", "workers", "queues"):
        assert await db.rows(f"select * from commandbus.repair_{verb}('payments', 'ada')") == []


# -- the other checks


async def test_a_limit_that_was_lowered_is_no_fault(db: Session, bus: CommandBus) -> None:
    held = await db.put("IN_PROGRESS")
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    (held,) = await db.receive()
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    assert await db.receive(limits={"Debit": 1}) == []

    assert await db.status(held.command_id) == "IN_TROUBLESHOOTING_QUEUE"
    assert codes(await bus.doctor()) == set()


async def test_two_ends_with_a_retry_between_are_no_fault(db: Session, bus: CommandBus) -> None:
    batch = await db.batch()
    await db.put("FAILED", batch)
    await db.value("select commandbus.retry_batch('payments', %s)", batch)
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))

    assert len(await db.replies(held.command_id)) == 2
    assert codes(await bus.doctor()) == set()


async def test_an_open_transaction_is_named(
    db: Session, session: Callable[[], Awaitable[Session]]
) -> None:
    other = await session()
    await other.rows("select pg_current_xact_id()")

    rows = await db.rows(
        "select subject from commandbus.check_server(p_patience => '-1 second')"
        " where code = 'VACUUM_HELD_BACK'"
    )

    assert any(f"session {other.conn.info.backend_pid} " in row["subject"] for row in rows)
    await db.rows("select subject from commandbus.check_server()")


async def test_a_role_without_rights_is_told_so_and_what_could_not_be_checked(
    db: Session, dsn: str
) -> None:
    await healthy(db)
    role = f"doctor_{uuid4().hex[:8]}"
    await db.rows(f"create role {role}")
    await db.rows(f"grant {role} to current_user")
    await db.rows(f"grant usage on schema commandbus, pgmq to {role}")
    await db.rows(
        f"grant select on commandbus.command_bus_migration, commandbus.command_bus_setting,"
        f" commandbus.command_bus_command, pgmq.meta to {role}"
    )
    try:
        async with CommandBus.connect(dsn + f" options='-c role={role}'") as bus:
            found = await bus.doctor()
    finally:
        await db.rows(f"drop owned by {role}")
        await db.rows(f"drop role {role}")

    named = {f.code: f for f in found.findings}
    assert "RIGHTS_MISSING" in named
    assert "ROLE_SUPERUSER" not in named
    assert "SQLSTATE 42501" in named["CHECK_FAILED"].examples[0]
    assert found.facts["wal_bytes"] is None
    assert len(found.unknown) == 2


async def test_tables_that_nobody_vacuums_are_named(db: Session, bus: CommandBus) -> None:
    await table_without_autovacuum(db, {})

    (finding,) = [f for f in (await bus.doctor()).findings if f.code == "AUTOVACUUM_OFF"]

    assert "commandbus.command_bus_command" in finding.examples


async def test_psql_sees_the_same_in_one_statement(db: Session) -> None:
    await message_of_ended(db, await healthy(db))

    rows = await db.rows("select code, domain, found from commandbus.doctor()")

    assert {"code": "MESSAGE_OF_ENDED", "domain": "payments", "found": 1} in rows


async def test_one_domain_can_be_looked_at_alone(db: Session, bus: CommandBus) -> None:
    await message_of_ended(db, await healthy(db))
    await Session(db.conn, "shipping").send()

    assert codes(await bus.doctor(domain="shipping")) == set()
    assert codes(await bus.doctor(domain="payments")) == {"MESSAGE_OF_ENDED"}


async def test_a_window_leaves_out_what_was_not_touched(db: Session, bus: CommandBus) -> None:
    made = await healthy(db)
    await deleted_message(db, made)
    await command("updated_at = now() - interval '2 days'")(db, made["PENDING"].command_id)
    found = await bus.doctor(window=timedelta(hours=1))

    assert codes(found) == set()
    assert found.since is not None
    assert codes(await bus.doctor(full=True)) == {"PAYLOAD_LOST"}


async def test_very_many_commands_are_looked_at_as_far_as_they_are_recent(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_doctor, "FULL_LIMIT", -1)

    assert (await bus.doctor()).since is not None
    assert (await bus.doctor(full=True)).since is None


async def test_the_doctor_writes_nothing_even_if_it_wanted_to(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_doctor, "CHECKS", ("prune_workers",))
    monkeypatch.setattr(
        postgres_doctor, "_CHECK",
        "select 'X', null, commandbus.prune_workers(), array[%%s::text, %%s::text]",
    )  # fmt: skip

    found = await bus.doctor()

    (finding,) = [f for f in found.findings if f.code == "CHECK_FAILED"]
    assert "25006" in finding.examples[0], "cannot execute DELETE in a read-only transaction"


async def test_a_lost_connection_is_an_error_and_no_finding(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        postgres_doctor, "_CHECK",
        "select pg_terminate_backend(pg_backend_pid()), %%s::text, %%s::text",
    )  # fmt: skip

    with pytest.raises((DatabaseUnavailableError, psycopg.Error)):
        await bus.doctor()
