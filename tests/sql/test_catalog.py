"""What stands in the database's catalogs, compared with what stands in our files."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus.database.migrations import FUNCTION_FILES, function_text
from commandbus.models import AuditEventType, BatchStatus, CommandStatus, ParkReason, ReplyOutcome
from tests.sql.edits import every_edit_event
from tests.sql.helpers import FAILURE, Session
from tests.sql.keyed import every_key_event
from tests.sql.schedules import every_schedule_event
from tests.sql.test_loads import begun
from tests.sql.test_recovery_rules import store_for
from tests.sql.tickets import submitted


def functions_in_files() -> list[str]:
    return re.findall(r"create or replace function commandbus\.(\w+)\s*\(", function_text())


async def test_every_function_stands_once_and_none_that_is_not_in_the_files(db: Session) -> None:
    rows = await db.rows(
        "select proname from pg_proc where pronamespace = 'commandbus'::regnamespace"
    )
    in_files = functions_in_files()
    # A migration makes this one, for good: the names of queues depend on it.
    assert Counter(row["proname"] for row in rows) == Counter([*in_files, "queue_mark"])
    assert len(in_files) == len(set(in_files))


def test_every_file_of_functions_is_loaded() -> None:
    folder = files("commandbus").joinpath("database", "sql", "functions")
    assert {entry.name for entry in folder.iterdir()} == {f"{name}.sql" for name in FUNCTION_FILES}


def test_settings_of_functions_are_in_the_files_that_are_loaded_last() -> None:
    folder = files("commandbus").joinpath("database", "sql", "functions")
    assert FUNCTION_FILES[-2:] == ("planner", "security")
    for name in FUNCTION_FILES[:-2]:
        text = folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        # Those that are made for a queue are not loaded again: they keep their settings.
        text = re.sub(r"(?s)\$verb\$.*?\$verb\$", "", text)
        assert not re.search(r"(?m)^\s*set (enable_|plan_cache_mode|search_path)", text), name
        assert not re.search(r"(?m)^\s*security (definer|invoker)", text), name


@pytest.mark.parametrize(
    ("table", "constraint", "words"),
    [
        ("command", "valid_command_status", CommandStatus),
        ("batch", "valid_status", BatchStatus),
        ("troubleshooting", "valid_reason", ParkReason),
    ],
)
async def test_the_words_in_python_are_those_of_the_check_constraint(
    db: Session, table: str, constraint: str, words: type[CommandStatus]
) -> None:
    definition = await db.value(
        "select pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid = %s::regclass and conname = %s",
        f"commandbus.command_bus_{table}", constraint,
    )  # fmt: skip
    assert set(re.findall(r"'(\w+)'::", definition)) == {word.value for word in words}


async def every_console_event(db: Session, token: str) -> None:
    session = uuid4()
    await db.rows(
        "select commandbus.begin_console_session(%s, %s, %s, 'ada', '12 hours', null, '{}')",
        session, b"x" * 32, token,
    )  # fmt: skip
    await db.rows("select commandbus.note_console_action(%s, 'ada', '{}')", session)
    await db.rows("select commandbus.note_console_refusal(%s, 'ada', '{}')", session)
    await db.rows("select commandbus.end_console_session(%s, 'ada', 'ada', '{}')", session)


async def test_the_events_in_python_are_those_that_the_sql_records(db: Session) -> None:
    batch = await db.batch()
    for status in CommandStatus:
        await db.put(status, batch)
    for verb in (
        "operator_retry(%s, %s)",
        "operator_cancel(%s, %s, 'x')",
        "operator_complete(%s, %s)",
    ):
        parked = await db.put("IN_TROUBLESHOOTING_QUEUE")
        await db.rows(f"select commandbus.{verb}", db.domain, [parked.command_id])
    noted = await db.put("PENDING")
    await db.rows("select commandbus.add_note(%s, %s, 'x')", db.domain, noted.command_id)
    await db.settle("snooze", (await db.put("IN_PROGRESS")).item(delay_seconds=60))
    await db.settle("discard", (await db.put("IN_PROGRESS")).item(reason="void"))
    asked = (await db.put("IN_PROGRESS")).command_id
    await db.rows("select commandbus.request_cancel(%s, %s, 'x')", db.domain, [asked])
    held = await db.put("IN_PROGRESS")
    await db.settle("release", held.item())
    (held, *_) = await db.receive()
    await db.lapse(held)
    await db.receive()
    await db.settle("complete", held.item(data=None))
    await db.rows("select commandbus.set_limit(%s, p_max_running => 99)", db.domain)
    await db.rows("select commandbus.clear_limit(%s)", db.domain)
    later, late = await db.send(uuid4(), uuid4(), delay_seconds=60, expires_in_seconds=90)
    await db.rows("select commandbus.reschedule_commands(%s, %s, now())", db.domain, [later])
    await db.rows("select commandbus.set_priority(%s, %s, 1)", db.domain, [later])
    await db.rows("select commandbus.set_level_seconds(%s, 60)", db.domain)
    await db.rows(
        "update commandbus.command_bus_command set expires_at = now() where command_id = %s", late
    )
    await db.rows("select commandbus.expire_in(%s, %s)", db.domain, [late])
    await db.rows("select commandbus.pause_domain(%s, 'x')", db.domain)
    await db.rows("select commandbus.resume_domain(%s)", db.domain)
    for end in ("seal_load(%s, %s)", "cancel_batch(%s, %s, 'x')"):
        load = await begun(db)
        await db.rows(f"select commandbus.{end}", db.domain, load)
    whole = await db.batch()
    await db.put("FAILED", whole)
    await db.value("select commandbus.retry_batch(%s, %s)", db.domain, whole)
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    bulk = await db.value(
        "select commandbus.start_bulk(gen_random_uuid(), %s, 'retry', p_everything => true)",
        db.domain,
    )
    for verb in ("stop_bulk", "resume_bulk", "run_bulk_chunk"):
        await db.rows(f"select commandbus.{verb}(%s)", bulk)
    for verb in ("note_group", "assign_group"):
        await db.rows(
            f"select commandbus.{verb}(g.domain, g.fingerprint, 'x')"
            " from commandbus.command_bus_failure_group g where g.domain = %s",
            db.domain,
        )
    for decision in ("approve", "reject"):
        ticket = await submitted(db, requires_approval=True)
        await db.rows(
            "select commandbus.decide_ticket(%s, %s, %s, 'petra', 'x')",
            db.domain, ticket, decision,
        )  # fmt: skip
    ticket = await submitted(db)
    for held in await db.receive():
        await db.settle("fail", held.item(**FAILURE))
    await db.rows("select commandbus.retry_ticket(%s, %s, 3, 'ada')", db.domain, ticket)
    await every_edit_event(db)
    await db.rows("select commandbus.set_exemption('ada', 'root', 'x')")
    await db.rows("select commandbus.clear_exemption('ada', 'root')")
    await db.rows("select commandbus.set_user_limits('ada', 'root', 5)")
    await db.rows("select commandbus.register_batch_types(%s)", Jsonb([
        {"domain": db.domain, "command_type": "Work", "batch_type": "B", "requires_approval": False}
    ]))  # fmt: skip
    who = Jsonb({"user": "ada", "may_bypass": True})
    command = Jsonb({"command_id": str(uuid4()), "type": "Work"})
    await db.rows("select commandbus.send_for(%s, %s, '{x}', %s)", db.domain, command, who)
    await db.rows("select commandbus.remove_governed_type(%s, 'Work', 'B')", db.domain)
    token = uuid4().hex
    await db.rows(
        "select commandbus.create_api_token(%s, 'ada', '{read}', null, null, 'x', null)", token
    )
    new = uuid4().hex
    await db.rows("select commandbus.rotate_api_token(%s, %s, 'y')", token, new)
    await db.rows("select commandbus.revoke_api_token(%s)", new)
    await every_console_event(db, token)
    await every_schedule_event(db)
    unique = "select commandbus.send_unique(%s, 'Work', %s, '{}', 'k', 'waiting', 'replace')"
    for _ in range(2):
        await db.rows(unique, db.domain, uuid4())
    await every_key_event(db)
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows("delete from commandbus.command_bus_troubleshooting")
    await db.rows("select commandbus.repair_troubleshooting(%s)", db.domain)
    await store_for(db, "far away")
    await db.rows("select commandbus.expose_unqueued(%s, '1 hour', '0 s', 10)", db.domain)
    rows = await db.rows("select distinct event_type from commandbus.command_bus_audit")
    await db.rows("select commandbus.prune_audit(%s, clock_timestamp(), 1000)", db.domain)
    rows += await db.rows("select distinct event_type from commandbus.command_bus_audit")
    assert {row["event_type"] for row in rows} == {event.value for event in AuditEventType}


def test_every_outcome_that_the_sql_replies_has_a_name_in_python() -> None:
    found = set(re.findall(r"'(SUCCESS|CANCELED|FAILED)'", function_text()))
    assert found == {outcome.value for outcome in ReplyOutcome}


async def test_every_table_and_index_of_a_command_allows_hot_updates(db: Session) -> None:
    # An index on a column that changes would make every change of state write to every index.
    changing = {
        "status", "attempts", "max_attempts", "lease_expires_at", "last_error_type",
        "last_error_code", "last_error_msg", "updated_at", "lease_epoch", "leased_by", "lapses",
        "started_alone", "last_attempt_at", "msg_id", "queue_attempt_count", "queued_at",
    }  # fmt: skip
    rows = await db.rows(
        "select i.indexrelid::regclass::text as name, m.amname, a.attname,"
        "       pg_get_expr(i.indpred, i.indrelid) as predicate"
        "  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am m on m.oid = c.relam"
        "  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)"
        " where i.indrelid = 'commandbus.command_bus_command'::regclass"
    )
    assert rows
    for row in rows:
        assert row["amname"] == "brin" or row["attname"] not in changing, row
        # A column of the predicate counts as indexed too.
        assert not changing & set(re.findall(r"\w+", row["predicate"] or "")), row


async def test_a_command_that_was_queued_lives_on_by_hot_updates(db: Session) -> None:
    # dispatch_status is indexed (002): it may change while a command is held, and not afterwards.
    batch_id = uuid4()
    held = [{"command_id": str(uuid4()), "type": "Debit"} for _ in range(3)]
    await db.rows(
        "select commandbus.create_stored_batch("
        "%s, %s, %s, null, null, null, null, false, 'two_phase')",
        db.domain, batch_id, Jsonb(held),
    )  # fmt: skip
    await db.value(
        "select commandbus.dispatch_commands(%s, %s, array['pending_queue'], 10)",
        db.domain, batch_id,
    )  # fmt: skip
    async with db.conn.transaction():
        before = await _updates(db)
        first, second, third = await db.receive(3)
        await db.settle("complete", first.item(data=None))
        await db.settle("park", second.item(reason="PERMANENT", **FAILURE))
        await db.settle("retry", third.item(delay=0, **FAILURE))
        await db.value("select commandbus.retry_batch(%s, %s)", db.domain, batch_id)
        after = await _updates(db)
    # Before PostgreSQL 16 the BRIN on updated_at stands in the way (docs/adr/0002).
    hot = 7 if db.conn.info.server_version >= 160000 else 0
    assert (after - before)["all"] == 7
    assert (after - before)["hot"] == hot


async def _updates(db: Session) -> Counter[str]:
    (row,) = await db.rows(
        'select pg_stat_get_xact_tuples_updated(c) as "all",'
        "       pg_stat_get_xact_tuples_hot_updated(c) as hot"
        " from (select 'commandbus.command_bus_command'::regclass::oid) t(c)"
    )
    return Counter(row)


async def test_pgmqs_own_notify_trigger_is_not_there(db: Session) -> None:
    await db.send()
    triggers = await db.rows(
        "select tgname, tgrelid::regclass::text as on_table from pg_trigger where not tgisinternal"
    )
    assert {row["on_table"].removeprefix("commandbus.") for row in triggers} == {
        "command_bus_audit", "command_bus_audit_first", "command_bus_audit_removal",
        "command_bus_audit_seal",
    }  # fmt: skip


async def test_pg_monitor_cannot_read_payloads(db: Session) -> None:
    # The queues of a new domain are made after the default privileges were taken back.
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.put("COMPLETED")
    tables = await db.rows(
        "select n.nspname || '.' || c.relname as name from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname in ('pgmq', 'commandbus') and c.relkind in ('r', 'p', 'v')"
    )
    names = {row["name"] for row in tables}
    assert {
        "pgmq.q_payments__commands",
        "pgmq.a_payments__commands",
        "pgmq.q_payments__replies",
    } <= names
    readable = await db.rows(
        "select t from unnest(%s::text[]) t where has_table_privilege('pg_monitor', t, 'select')",
        sorted(names),
    )
    assert readable == []


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("commandbus.send_command('payments', 'Ping', '{known}')", "CB001"),
        ("commandbus.operator_retry('payments', '{{{missing}}}')", "CB002"),
        ("commandbus.operator_retry('payments', '{{{known}}}')", "CB003"),
        ("commandbus.send_commands('payments', '[]', '{missing}')", "CB004"),
        ("commandbus.ensure_domain('Payments')", "CB005"),
        ("commandbus.operator_retry('payments', '{{{lost}}}')", "CB006"),
        ("commandbus.change_setting('a', 'b')", "CB007"),
    ],
)
async def test_a_refusal_carries_its_own_sqlstate(db: Session, call: str, state: str) -> None:
    lost = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows("delete from pgmq.a_payments__commands")
    known = await db.put("PENDING")
    text = call.format(known=known.command_id, missing=uuid4(), lost=lost.command_id)
    before = await db.everything()
    with pytest.raises(psycopg.Error) as info:
        await db.rows(f"select {text}")
    assert info.value.sqlstate == state
    assert await db.everything() == before
