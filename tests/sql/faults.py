"""A healthy database, and the faults that are done to it by SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from commandbus.upkeep import Diagnosis, Severity
from tests.sql.helpers import Session
from tests.sql.schedules import put as put_schedule

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
            f"update commandbus.command_bus_command set {setting}"
            " where domain = 'payments' and command_id = %s",
            command_id,
        )

    return change


async def stray(db: Session, body: dict[str, Any]) -> None:
    await db.rows(
        "select pgmq.send('payments__commands', %s::jsonb)", Jsonb(body | {"data": {"n": 1}})
    )


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
    await db.rows(
        "select commandbus.leave_troubleshooting('payments', array[%s]::uuid[])",
        made["PARKED"].command_id,
    )


async def uncounted(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_failure_group set parked_count = 7 where domain = 'payments'"
    )


async def group_removed(db: Session, made: dict[str, Any]) -> None:
    await db.rows("delete from commandbus.command_bus_failure_group where domain = 'payments'")


async def listed_though_ended(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "select commandbus.enter_troubleshooting("
        "'payments', array[%s]::uuid[], array['PERMANENT'], now())",
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


async def unlogged_queue(db: Session, made: dict[str, Any]) -> None:
    await db.rows("alter table pgmq.q_payments__replies set unlogged")


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


async def stuck_worker(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select commandbus.worker_heartbeat('w-stuck', 'payments', false, 4, 0, 2)")


async def late_chore(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, started_at)"
        " values ('w-old', 'payments', 1, now() - interval '2 hours')"
    )


async def overdue_schedule(db: Session, made: dict[str, Any]) -> None:
    await put_schedule(db, due=100)


async def schedule_that_cannot_be_fired(db: Session, made: dict[str, Any]) -> None:
    await put_schedule(db, due=100)
    await db.rows("update commandbus.command_bus_schedule set last_error = 'no such queue'")


async def stuck_dispatch(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "select commandbus.create_stored_batch('payments', %s, %s, null, null, null, null, false,"
        " 'two_phase')",
        uuid4(), Jsonb([{"command_id": str(uuid4()), "type": "Debit"}]),
    )  # fmt: skip
    await db.rows(
        "update commandbus.command_bus_command set created_at = now() - interval '1 hour'"
        " where dispatch_status = 'pending_queue'"
    )


async def unconfirmed_dispatch(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "select commandbus.create_stored_batch('payments', %s, %s, null, null, null, null, false,"
        " 'optimistic', null, 'far away')",
        uuid4(), Jsonb([{"command_id": str(uuid4()), "type": "Debit"}]),
    )  # fmt: skip
    await db.rows("delete from commandbus.command_bus_dispatch where queue = 'far away'")
    await db.rows(
        "update commandbus.command_bus_unconfirmed set handed_at = now() - interval '1 hour'"
    )


async def held_without_payload(db: Session, made: dict[str, Any]) -> None:
    await stuck_dispatch(db, made)
    await db.rows("update commandbus.command_bus_command set created_at = now()")
    await db.rows("delete from commandbus.command_bus_payload_archive where domain = 'payments'")


async def message_aside_for_nothing(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update pgmq.q_payments__commands set vt = 'infinity' where msg_id ="
        " (select msg_id from commandbus.command_bus_command"
        " where domain = 'payments' and command_id = %s)",
        made["PENDING"].command_id,
    )


async def waiting_without_its_message(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " select domain, 'l:t:Debit', msg_id, msg_id, command_id"
        " from commandbus.command_bus_command where domain = 'payments' and command_id = %s",
        made["PENDING"].command_id,
    )


async def place_without_a_lease(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_slot (domain, gate, command_id)"
        " values ('payments', 'l:t:Debit', %s)",
        made["PENDING"].command_id,
    )


async def gate_that_nobody_needs(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_gate (domain, gate) values ('payments', 'l:t:Never')"
    )


async def interrupted_load(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select commandbus.begin_load('payments', %s, 'a.csv', '{}', 'sealed')", uuid4())
    await db.rows("update commandbus.command_bus_load set updated_at = now() - interval '1 hour'")


async def interrupted_prune(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "update commandbus.command_bus_batch set pruning_since = now() - interval '2 hours'"
        " where batch_id = %s",
        made["ENDED_BATCH"],
    )


async def history_that_outlives_its_rule(db: Session, made: dict[str, Any]) -> None:
    await db.rows(
        "insert into commandbus.command_bus_retention (domain, kind, keep, updated_at)"
        " values (%s, 'audit', '1 day', now() - interval '3 days')",
        db.domain,
    )
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)"
        " values (%s, commandbus.nobody(), 'NOTE', now() - interval '2 days')",
        db.domain,
    )


async def replies_that_nobody_reads(db: Session, made: dict[str, Any]) -> None:
    await db.rows("update pgmq.q_payments__replies set enqueued_at = now() - interval '2 days'")


async def message_that_was_no_reply(db: Session, made: dict[str, Any]) -> None:
    await db.rows("select pgmq.archive('payments__replies', pgmq.send('payments__replies', '[]'))")


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
    uncounted: "GROUP_COUNTERS",
    group_removed: "GROUP_COUNTERS",
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
    unlogged_queue: "QUEUE_UNLOGGED",
    nobody_works: "NO_WORKER",
    lease_left_behind: "LEASE_LAPSED",
    silent_worker: "WORKER_SILENT",
    idle_worker_without_a_listener: "WAKEUPS_DEAD",
    stuck_worker: "WORKER_STUCK",
    late_chore: "CHORE_LATE",
    overdue_schedule: "SCHEDULE_OVERDUE",
    schedule_that_cannot_be_fired: "SCHEDULE_FAILS",
    message_aside_for_nothing: "WAITING_FOR_NOTHING",
    waiting_without_its_message: "WAITING_WITHOUT_MESSAGE",
    place_without_a_lease: "PLACE_WITHOUT_LEASE",
    gate_that_nobody_needs: "GATE_UNUSED",
    stuck_dispatch: "DISPATCH_STUCK",
    unconfirmed_dispatch: "DISPATCH_UNCONFIRMED",
    interrupted_load: "LOAD_INTERRUPTED",
    interrupted_prune: "PRUNE_INTERRUPTED",
    history_that_outlives_its_rule: "RETENTION_BEHIND",
    replies_that_nobody_reads: "REPLIES_UNREAD",
    message_that_was_no_reply: "REPLIES_REFUSED",
}
