"""The key of the seals: who has it, who has not, and what becomes of the chain."""

from __future__ import annotations

import json
import logging
import struct
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus import CommandBus, Settings
from commandbus.cli.main import app
from commandbus.worker.maintenance import SEAL_DELAY_SECONDS, Maintenance
from tests.conftest import Server
from tests.security.sealed import Conn, as_owner, codes, write

AUDIT = "commandbus.command_bus_audit"
ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "keys"
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(folder))
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    return folder


def chores(bus: CommandBus, **settings: Any) -> Maintenance:
    """The chores of a worker that has run for a while: one that has just started does not seal."""
    maintenance = Maintenance(bus._store, list, Settings(**settings))
    maintenance._has_begun = True
    return maintenance


async def test_a_worker_that_has_just_started_has_other_things_to_do(
    bus: CommandBus, conn: Conn, keys: Path
) -> None:
    await write(conn)
    maintenance = Maintenance(bus._store, list, Settings())
    assert await maintenance.step() == SEAL_DELAY_SECONDS
    assert await seals(conn) == []
    await maintenance.step()
    assert len(await seals(conn)) == 1


def names_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


async def seals(conn: Conn) -> list[tuple[int, str]]:
    rows = await conn.execute(
        "select seal_number, key_id from commandbus.command_bus_audit_seal order by 1"
    )
    return [(number, key_id) for number, key_id in await rows.fetchall()]


async def test_a_newcomers_worker_makes_a_key_and_seals(
    bus: CommandBus, conn: Conn, keys: Path
) -> None:
    await write(conn)
    await chores(bus).step()

    assert (keys / "seal_key.key").stat().st_mode & 0o777 == 0o600
    assert len(await seals(conn)) == 1
    assert await codes(bus) == {}


async def test_workers_do_not_seal_if_they_are_told_not_to(
    bus: CommandBus, conn: Conn, keys: Path
) -> None:
    await write(conn)
    await chores(bus, seal_audit=False).step()

    assert await seals(conn) == []
    assert names_in(keys) == set()


async def test_a_worker_with_another_key_or_none_leaves_the_sealing_to_others(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    await write(conn)
    monkeypatch.setenv("COMMANDBUS_SEAL_KEY", ONE)
    async with CommandBus.connect(dsn) as first:
        await first.upkeep.seal_audit()
    for setting in (TWO, ""):
        monkeypatch.setenv("COMMANDBUS_SEAL_KEY", setting)
        monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "another machine"))
        await write(conn)
        async with CommandBus.connect(dsn) as other:
            maintenance = chores(other, maintenance_interval_seconds=0.05)
            with caplog.at_level(logging.WARNING, logger="commandbus.maintenance"):
                for _ in range(3):
                    await conn.execute("delete from commandbus.command_bus_chore")
                    await maintenance.step()
            found = await other.upkeep.verify_audit()
            assert [place.code for place in found.places] == ["SEAL_KEY_NEEDED"]
            assert "cannot verify the seals 1 to 1: the key " in found.places[0].text
            assert not found.is_intact
        assert len(await seals(conn)) == 1
        assert "seal_key.key" not in names_in(tmp_path / "another machine")
    # said once by each, with what to do
    assert len([r for r in caplog.records if "not sealed by this process" in r.message]) == 2
    assert "give" in caplog.records[0].message


async def test_two_machines_that_begin_at_once_with_keys_of_their_own_make_one_chain(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(conn)
    monkeypatch.setenv("COMMANDBUS_SEAL_KEY", ONE)
    async with CommandBus.connect(dsn) as one, CommandBus.connect(dsn) as two:
        key = two.upkeep._key(None, False)  # before the other has sealed
        monkeypatch.setenv("COMMANDBUS_SEAL_KEY", TWO)
        await one.upkeep.seal_audit()
        await write(conn)
        await conn.execute("select commandbus.move_audit_horizon()")
        with pytest.raises(Exception, match="give all processes the same key"):
            await two.upkeep._seal_next(key, new_key=False)
    assert len(await seals(conn)) == 1


async def test_a_new_key_goes_on_with_the_chain_and_vouches_for_what_was_before(
    bus: CommandBus, conn: Conn, keys: Path
) -> None:
    await write(conn)
    await bus.upkeep.seal_audit()
    await write(conn)
    await bus.upkeep.seal_audit(new_key=True)
    ((_, old), (_, new)) = await seals(conn)
    assert old != new
    assert await codes(bus) == {}
    assert (await bus.upkeep.verify_audit()).key_ids == tuple(sorted((old, new)))

    # without the old key, the new one's signature covers the whole chain
    (keys / f"seal_key_{old}.key").unlink()
    assert await codes(bus) == {}
    await as_owner(
        conn,
        "update commandbus.command_bus_audit_seal set row_count = 3 where seal_number = 1",
        f"update {AUDIT} set actor = 'eve' where audit_id = 4",
    )
    assert {"SEAL_FORGED", "AUDIT_ROW_CHANGED"} <= set(await codes(bus))


async def test_a_new_key_in_the_environment_must_be_another_one(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(conn)
    monkeypatch.setenv("COMMANDBUS_SEAL_KEY", ONE)
    async with CommandBus.connect(dsn) as bus:
        await bus.upkeep.seal_audit()
        await write(conn)
        with pytest.raises(Exception, match="set it to a new one"):
            await bus.upkeep.seal_audit(new_key=True)
        monkeypatch.setenv("COMMANDBUS_SEAL_KEY", TWO)
        with pytest.raises(Exception, match="--new-key"):
            await bus.upkeep.seal_audit()
        assert (await bus.upkeep.seal_audit(new_key=True)).rows == 10
        ((_, old), _) = await seals(conn)
        monkeypatch.setenv(f"COMMANDBUS_SEAL_KEY_{old.upper()}", ONE)
        assert (await bus.upkeep.verify_audit()).key_ids.__len__() == 2


async def test_the_key_is_never_in_the_database_or_in_an_error(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(conn)
    monkeypatch.setenv("COMMANDBUS_SEAL_KEY", ONE)
    async with CommandBus.connect(dsn) as bus:
        await bus.upkeep.seal_audit()
        rows = await (
            await conn.execute("select s::text from commandbus.command_bus_audit_seal s")
        ).fetchall()
        assert ONE not in str(rows)
        assert ONE.encode().hex() not in str(rows)
        monkeypatch.setenv("COMMANDBUS_SEAL_KEY", TWO)
        with pytest.raises(Exception, match="sealed with the key") as refused:
            await bus.upkeep.seal_audit()
        assert TWO not in str(refused.value)


async def test_a_copy_in_another_database_is_verified_with_the_same_seals(
    bus: CommandBus, conn: Conn, server: Server, template: str
) -> None:
    await write(conn, 20, age="40 days")
    await write(conn, 5)
    await bus.upkeep.seal_audit()
    await conn.execute("select commandbus.set_retention(null, 'audit', '12 hours')")
    await conn.execute("select commandbus.prune_audit('shop', now() - interval '1 day', 10)")
    await bus.upkeep.seal_audit()
    name = f"{conn.info.dbname}_copy"
    with server.admin() as admin:
        admin.execute(f"create database {name} template {template}".encode())
    try:
        async with await psycopg.AsyncConnection.connect(server.dsn(name)) as copy:
            await copy.execute("set timezone = 'Asia/Tokyo'; set datestyle = 'German'")
            for table in ("audit", "audit_seal", "audit_removal"):
                place = f"commandbus.command_bus_{table}"
                async with conn.cursor().copy(
                    f"copy (select * from {place}) to stdout".encode()
                ) as source:
                    data = b"".join([bytes(chunk) async for chunk in source])
                async with copy.cursor().copy(f"copy {place} from stdin".encode()) as target:
                    await target.write(data)
        async with CommandBus.connect(server.dsn(name)) as there:
            found = await there.upkeep.verify_audit()
            assert (found.is_intact, found.rows, found.removed) == (True, 26, 10)
    finally:
        with server.admin() as admin:
            admin.execute(f"drop database {name} with (force)".encode())


async def test_the_digest_of_an_event_is_the_same_on_every_server(conn: Conn) -> None:
    await conn.execute(
        "insert into commandbus.command_bus_audit"
        " (audit_id, domain, command_id, event_type, ts, details_json, batch_id, actor) values"
        " (1, 'shöp', '018f0000-0000-7000-8000-000000000001', 'SENT',"
        "  '2026-01-02 03:04:05.000006+00',"
        '  \'{"b": [1.10, null, "ü€"], "a": {"x": 1e3}}\', null, \'\'),'
        " (2, 'shop', '018f0000-0000-7000-8000-000000000001', 'SENT', 'infinity', null,"
        "  '018f0000-0000-7000-8000-000000000002', null)"
    )
    rows = await conn.execute(
        "select encode(commandbus.audit_row_digest(a), 'hex')"
        " from commandbus.command_bus_audit a order by audit_id"
    )
    who, batch = (
        bytes.fromhex("018f0000000070008000000000000001"),
        bytes.fromhex("018f0000000070008000000000000002"),
    )
    # as docs/guides/audit.md describes it; microseconds since 2000
    micros = (
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC) - datetime(2000, 1, 1, tzinfo=UTC)
    ) // timedelta(microseconds=1)
    one = b"".join(
        [
            struct.pack(">q", 1), b"\1", struct.pack(">q", micros), b"\1", who, b"\0",
            '4:shöp4:SENT0:+{"a": {"x": 1000}, "b": [1.10, null, "ü€"]}'.encode(),
        ]
    )  # fmt: skip
    two = b"".join(
        [
            struct.pack(">q", 2), b"\1", struct.pack(">q", 2**63 - 1), b"\1", who, b"\1", batch,
            b"4:shop4:SENT--",
        ]
    )  # fmt: skip
    assert [digest for (digest,) in await rows.fetchall()] == [
        sha256(each).hexdigest()[:32] for each in (one, two)
    ]


# -- the command line


@pytest.fixture
def run(dsn: str) -> Any:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


def change(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement.encode())


WRITE = (
    f"insert into {AUDIT} (domain, command_id, event_type)"
    " select 'shop', gen_random_uuid(), 'SENT' from generate_series(1, 5)"
)


def test_the_program_seals_exports_and_verifies(run: Any, dsn: str, tmp_path: Path) -> None:
    change(dsn, WRITE)
    heads = tmp_path / "heads.jsonl"
    nothing = run("seals", "export", str(heads))
    assert (nothing.exit_code, heads.exists()) == (0, False)
    assert "Nothing was ever sealed" in run("doctor", "--audit").stdout

    assert "Sealed 5 events" in run("seals", "now").stdout
    assert run("seals", "export", str(heads)).exit_code == 0
    listed = json.loads(run("seals", "list", "--json").stdout)
    assert [each["last_id"] for each in listed["seals"]] == [5]
    good = run("doctor", "--audit", "--seals", str(heads), "--since", "1h")
    assert good.exit_code == 0, good.stdout
    assert "Intact" in good.stdout

    change(dsn, f"alter table {AUDIT} disable trigger user")
    change(dsn, f"update {AUDIT} set actor = 'eve' where audit_id = 4")
    change(dsn, f"alter table {AUDIT} enable trigger user")
    bad = run("doctor", "--audit")
    assert bad.exit_code == 1
    assert "AUDIT_ROW_CHANGED" in bad.stdout
    assert "event 4 was changed after seal 1" in bad.stdout
    told = json.loads(run("doctor", "--audit", "--json").stdout)
    assert told["is_intact"] is False
    assert told["places"][0]["first_id"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--seals", "x"),
        ("doctor", "--audit", "--fix"),
        ("doctor", "--audit", "--seals", "no such file"),
        ("seals", "export", "/no such folder/file"),
    ],
)
def test_the_program_refuses_what_makes_no_sense(
    run: Any, dsn: str, arguments: tuple[str, ...]
) -> None:
    change(dsn, WRITE)
    run("seals", "now")
    refused = run(*arguments)
    assert refused.exit_code == 2, refused.output


def test_a_file_that_holds_no_heads_is_refused(run: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text('{"seal_number": 1}\n')
    refused = run("doctor", "--audit", "--seals", str(wrong))
    assert refused.exit_code == 2
    assert "line 1" in refused.output
