"""The doctor: each fault is named, alone, and a healthy database has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus, DatabaseUnavailableError
from commandbus.upkeep import doctor
from commandbus.upkeep.findings import FINDINGS
from commandbus.upkeep.known import SEAL_FINDINGS
from tests.sql.faults import (
    INJECTED,
    SURROUNDINGS,
    codes,
    command,
    deleted_message,
    healthy,
    message_of_ended,
    state_changed_by_hand,
    table_without_autovacuum,
)
from tests.sql.helpers import FAILURE, Session


async def test_a_command_in_every_state_is_no_fault(db: Session, bus: CommandBus) -> None:
    await healthy(db)

    before = await db.everything()

    found = await bus.upkeep.doctor()

    assert codes(found) == set()
    assert found.is_healthy
    assert await db.everything() == before, "looking changes nothing"
    assert found.since is None


async def test_each_of_the_injected_faults_is_named_and_no_other(db: Session) -> None:
    made = await healthy(db)
    found: dict[str, list[tuple[str, int]]] = {}
    for inject in INJECTED:
        async with db.conn.transaction(force_rollback=True):
            await inject(db, made)
            rows = await db.rows("select code, found, examples from commandbus.doctor()")
            found[inject.__name__] = [
                (row["code"], row["found"]) for row in rows if row["code"] not in SURROUNDINGS
            ]
            assert "Debit" not in str(rows), "payloads and types stay where they are"

    assert found == {inject.__name__: [(code, 1)] for inject, code in INJECTED.items()}


@pytest.mark.parametrize("inject", [deleted_message, state_changed_by_hand])
async def test_what_cannot_be_repaired_is_left_alone(
    db: Session, bus: CommandBus, inject: Callable[[Session, dict[str, Any]], Awaitable[None]]
) -> None:
    await inject(db, await healthy(db))
    before = await db.everything()

    found = await bus.upkeep.doctor(fix=True)

    assert codes(found) == {INJECTED[inject]}
    assert not found.is_healthy
    assert found.repairs == ()
    assert await db.everything() == before


async def test_a_function_that_was_changed_and_an_index_that_failed_are_named(
    db: Session, bus: CommandBus
) -> None:
    await healthy(db)
    await db.rows(
        "create or replace function commandbus.closing_command_id(p_batch_id uuid, p_closing int)"
        " returns uuid language sql immutable as $$ select p_batch_id $$"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        await db.rows(
            "create unique index concurrently broken on commandbus.command_bus_command (domain)"
        )

    found = {f.code: f.examples for f in (await bus.upkeep.doctor()).findings}

    assert found["FUNCTION_CHANGED"] == ("closing_command_id",)
    assert [name.rpartition(".")[2] for name in found["INDEX_INVALID"]] == ["broken"]


def test_every_code_is_injected_but_those_that_sql_cannot_bring_about() -> None:
    # those of seals, roles and tokens are brought about in tests/security, those of keys in
    # tests/sql/test_key_repair.py, the pause in tests/sql/test_pause.py
    assert set(FINDINGS) - set(SEAL_FINDINGS) - set(INJECTED.values()) == SURROUNDINGS | {
        "SERVER_ONLY_READS",
        "FUNCTION_CHANGED", "INDEX_INVALID", "SCHEMA_OLD", "PGMQ_LACKS", "RIGHTS_MISSING",
        "QUEUE_PARTITIONED", "NOTIFY_QUEUE_FULL", "VACUUM_HELD_BACK",
        "CLOCK_DIFFERENCE", "CHECK_FAILED", "FUNCTION_OPEN", "ROLE_RIGHTS", "ROLE_OWNER",
        "TOKEN_PEPPER", "TOKEN_UNPEPPERED", "TOKEN_ENDLESS", "KEY_BLOCKED", "KEY_STANDS",
        "KEY_PLACE_UNKNOWN", "KEY_PLACE_LOST", "DOMAIN_PAUSED", "SHARD_MISSING",
    }  # fmt: skip


async def test_a_limit_that_was_lowered_is_no_fault(db: Session, bus: CommandBus) -> None:
    held = await db.put("IN_PROGRESS")
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    (held,) = await db.receive()
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    assert await db.receive(limits={"Debit": 1}) == []

    assert await db.status(held.command_id) == "IN_TROUBLESHOOTING_QUEUE"
    assert codes(await bus.upkeep.doctor()) == set()


async def test_two_ends_with_a_retry_between_are_no_fault(db: Session, bus: CommandBus) -> None:
    batch = await db.batch()
    await db.put("FAILED", batch)
    await db.value("select commandbus.retry_batch('payments', %s)", batch)
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))

    assert len(await db.replies(held.command_id)) == 2
    assert codes(await bus.upkeep.doctor()) == set()


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
            found = await bus.upkeep.doctor()
    finally:
        await db.rows(f"drop owned by {role}")
        await db.rows(f"drop role {role}")

    named = {f.code: f for f in found.findings}
    assert "ROLE_SUPERUSER" not in named
    assert "SQLSTATE 42501" in named["CHECK_FAILED"].examples[0]
    assert found.facts["wal_bytes"] is None
    assert len(found.unknown) == 2


async def test_a_queue_that_the_owner_of_the_functions_may_not_use_is_named(
    db: Session, bus: CommandBus
) -> None:
    await healthy(db)
    await db.rows("revoke insert on pgmq.q_payments__replies from current_user")

    found = {f.code: f for f in (await bus.upkeep.doctor()).findings}

    assert "pgmq.q_payments__replies" in found["RIGHTS_MISSING"].examples[0]


async def test_tables_that_nobody_vacuums_are_named(db: Session, bus: CommandBus) -> None:
    await table_without_autovacuum(db, {})

    (finding,) = [f for f in (await bus.upkeep.doctor()).findings if f.code == "AUTOVACUUM_OFF"]

    assert "commandbus.command_bus_command" in finding.examples


async def test_psql_sees_the_same_in_one_statement(db: Session) -> None:
    await message_of_ended(db, await healthy(db))

    rows = await db.rows("select code, domain, found from commandbus.doctor()")

    assert {"code": "MESSAGE_OF_ENDED", "domain": "payments", "found": 1} in rows


async def test_one_domain_can_be_looked_at_alone(db: Session, bus: CommandBus) -> None:
    await message_of_ended(db, await healthy(db))
    await Session(db.conn, "shipping").send()

    assert codes(await bus.upkeep.doctor(domain="shipping")) == set()
    assert codes(await bus.upkeep.doctor(domain="payments")) == {"MESSAGE_OF_ENDED"}


async def test_a_window_leaves_out_what_was_not_touched(db: Session, bus: CommandBus) -> None:
    made = await healthy(db)
    await deleted_message(db, made)
    await command("updated_at = now() - interval '2 days'")(db, made["PENDING"].command_id)
    found = await bus.upkeep.doctor(window=timedelta(hours=1))

    assert codes(found) == set()
    assert found.since is not None
    assert codes(await bus.upkeep.doctor(full=True)) == {"PAYLOAD_LOST"}


async def test_very_many_commands_are_looked_at_as_far_as_they_are_recent(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FULL_LIMIT", -1)

    assert (await bus.upkeep.doctor()).since is not None
    assert (await bus.upkeep.doctor(full=True)).since is None


async def test_the_doctor_writes_nothing_even_if_it_wanted_to(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = "select 'X', null, commandbus.prune_workers(), array[%s::text, %s::text]"
    monkeypatch.setattr(doctor, "CHECKS", {"prune_workers": writing})

    found = await bus.upkeep.doctor()

    (finding,) = [f for f in found.findings if f.code == "CHECK_FAILED"]
    assert "25006" in finding.examples[0], "cannot execute DELETE in a read-only transaction"


async def test_a_lost_connection_is_an_error_and_no_finding(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = "select pg_terminate_backend(pg_backend_pid()), %s::text, %s::text"
    monkeypatch.setattr(doctor, "CHECKS", {"check_messages": ending})

    with pytest.raises((DatabaseUnavailableError, psycopg.Error)):
        await bus.upkeep.doctor()


async def test_a_schema_and_a_pgmq_that_are_too_old_are_named(db: Session, bus: CommandBus) -> None:
    await db.rows("delete from commandbus.command_bus_migration")
    await db.rows("alter function pgmq.archive(text, bigint[]) rename to put_away")

    found = {f.code: f.examples for f in (await bus.upkeep.doctor()).findings}

    assert found["SCHEMA_OLD"][:2] == ("0001_initial", "0002_governance")
    assert found["PGMQ_LACKS"] == ("pgmq.archive(text, bigint[])",)


def test_a_clock_that_is_off_is_named_and_the_way_to_the_server_is_not() -> None:
    now = datetime.now(UTC)
    slow = now + timedelta(seconds=60)

    assert doctor._clock_findings(now, slow, now + timedelta(seconds=30)) == []
    (ahead,) = doctor._clock_findings(now, now, slow)
    (behind,) = doctor._clock_findings(slow, slow, now)
    assert ahead.code == behind.code == "CLOCK_DIFFERENCE"
    assert ahead.examples == behind.examples == ("60 s",)


async def test_a_role_that_may_ask_is_told_the_size_of_the_wal(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SERVER", doctor._SERVER.replace("pg_ls_waldir()", "now()"))
    monkeypatch.setattr(doctor, "_WAL_BYTES", "select sum(size) from (values (7), (8)) w(size)")

    found = await bus.upkeep.doctor()

    assert found.facts["wal_bytes"] == 15
    assert len(found.unknown) == 1
