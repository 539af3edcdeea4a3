"""Seals against the owner of the database: whatever is done to a sealed event is found."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidOperationError
from commandbus.upkeep.heads import append_heads
from tests.security.sealed import Conn, as_owner, codes, forge_seal, spots, write

AUDIT = "commandbus.command_bus_audit"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a folder of keys of its own."""
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "keys"))
    return tmp_path / "keys"


def forget_heads(keys: Path) -> None:
    """As on a machine that never sealed."""
    for kept in keys.glob("seals_*.jsonl"):
        kept.unlink()


async def sealed_twice(bus: CommandBus, conn: Conn) -> None:
    """Ten events in each of two seals: 1 to 10 and 11 to 20."""
    for _ in range(2):
        await write(conn)
        await bus.upkeep.seal_audit()


async def test_a_change_of_any_column_of_a_sealed_event_is_found_at_its_place(
    bus: CommandBus, conn: Conn
) -> None:
    changes = [
        "domain = 'other'",
        "command_id = gen_random_uuid()",
        "event_type = 'COMPLETED'",
        "ts = ts + interval '1 microsecond'",
        "ts = 'infinity'",
        "details_json = details_json || '{\"n\": 99}'",
        "details_json = null",
        "details_json = '\"\"'",
        "batch_id = null",
        "batch_id = gen_random_uuid()",
        "actor = null",
        "actor = ''",
        # one after the other the texts are what they were
        "domain = 'shopS', event_type = 'ENT'",
    ]
    await sealed_twice(bus, conn)
    assert await codes(bus) == {}

    await as_owner(
        conn,
        *(
            f"update {AUDIT} set {change} where audit_id = {at}"
            for at, change in enumerate(changes, 1)
        ),
        f"update {AUDIT} set audit_id = 1000 where audit_id = 17",
    )
    found = await bus.upkeep.verify_audit()

    assert spots(found) == {
        ("AUDIT_ROW_CHANGED", 1, 1, 10),
        ("AUDIT_ROW_CHANGED", 2, 11, len(changes)),
        ("AUDIT_ROW_REMOVED", 2, 17, 17),
    }
    assert not found.is_intact
    assert "event 17 was removed after seal 2 of " in found.places[-1].text


async def test_what_is_the_same_value_in_other_words_is_no_change(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await sealed_twice(bus, conn)
    await as_owner(
        conn,
        f'update {AUDIT} set details_json = \'{{"type": "Buy",   "n": 4}}\' where audit_id = 4',
        f"update {AUDIT} set ts = ts at time zone 'UTC' at time zone 'UTC' where audit_id = 5",
    )
    # and no setting of a session makes a difference
    name = conn.info.dbname
    for setting in ("timezone = 'Asia/Tokyo'", "datestyle = 'German'", "intervalstyle = 'iso_8601'",
                    "bytea_output = 'escape'", "extra_float_digits = -5"):  # fmt: skip
        await conn.execute(f"alter database {name} set {setting}".encode())
    async with CommandBus.connect(dsn) as other:
        assert await codes(other) == {}


async def test_a_null_and_an_empty_text_are_not_the_same(bus: CommandBus, conn: Conn) -> None:
    await write(conn)
    await as_owner(conn, f"update {AUDIT} set actor = null where audit_id = 3")
    await bus.upkeep.seal_audit()
    await as_owner(conn, f"update {AUDIT} set actor = '' where audit_id = 3")

    assert spots(await bus.upkeep.verify_audit()) == {("AUDIT_ROW_CHANGED", 1, 3, 3)}


async def test_two_events_that_changed_places_are_both_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(
        conn,
        f"update {AUDIT} set audit_id = -5 where audit_id = 5",
        f"update {AUDIT} set audit_id = 5 where audit_id = 16",
        f"update {AUDIT} set audit_id = 16 where audit_id = -5",
    )

    found = spots(await bus.upkeep.verify_audit())
    assert found == {("AUDIT_ROW_CHANGED", 1, 5, 5), ("AUDIT_ROW_CHANGED", 2, 16, 16)}


async def test_a_removed_event_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(conn, f"delete from {AUDIT} where audit_id in (3, 4, 5, 12)")

    found = spots(await bus.upkeep.verify_audit())
    assert found == {("AUDIT_ROW_REMOVED", 1, 3, 5), ("AUDIT_ROW_REMOVED", 2, 12, 12)}


async def test_an_emptied_audit_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(conn, f"truncate {AUDIT}")

    found = spots(await bus.upkeep.verify_audit())
    assert found == {("AUDIT_ROW_REMOVED", 1, 1, 10), ("AUDIT_ROW_REMOVED", 2, 11, 20)}


async def test_an_event_inserted_into_a_gap_is_found(bus: CommandBus, conn: Conn) -> None:
    await write(conn)
    async with conn.transaction(force_rollback=True):
        await write(conn, 3)
    await write(conn, 1)
    await bus.upkeep.seal_audit()
    assert await codes(bus) == {}

    await conn.execute(
        f"insert into {AUDIT} (audit_id, domain, command_id, event_type)"
        " values (12, 'shop', gen_random_uuid(), 'APPROVED'),"
        " (-7, 'shop', gen_random_uuid(), 'APPROVED')".encode()
    )
    found = await bus.upkeep.verify_audit()
    assert spots(found) == {("AUDIT_ROW_INSERTED", 1, 12, 12), ("AUDIT_ROW_INSERTED", None, -7, -7)}


async def test_an_event_without_what_must_not_be_null_does_not_slip_through(
    bus: CommandBus, conn: Conn
) -> None:
    await write(conn)
    async with conn.transaction(force_rollback=True):
        await write(conn, 3)
    await bus.upkeep.seal_audit()
    for column in ("domain", "command_id", "event_type", "ts"):
        await conn.execute(f"alter table {AUDIT} alter column {column} drop not null".encode())
    await conn.execute(
        f"insert into {AUDIT} (audit_id, domain, command_id, event_type, ts)"
        " values (11, null, null, null, null)".encode()
    )

    assert spots(await bus.upkeep.verify_audit()) == {("AUDIT_ROW_INSERTED", 1, 11, 11)}


async def test_an_event_in_a_sealed_range_without_events_is_found(
    bus: CommandBus, conn: Conn
) -> None:
    await write(conn)
    await bus.upkeep.seal_audit()
    async with conn.transaction(force_rollback=True):
        await write(conn, 3)
    await bus.upkeep.seal_audit()
    await conn.execute(
        f"insert into {AUDIT} (audit_id, domain, command_id, event_type)"
        " values (12, 'shop', gen_random_uuid(), 'APPROVED')".encode()
    )

    assert spots(await bus.upkeep.verify_audit()) == {("AUDIT_ROW_INSERTED", 2, 12, 12)}


async def test_the_same_id_twice_is_found(bus: CommandBus, conn: Conn) -> None:
    await write(conn)
    await bus.upkeep.seal_audit()
    await conn.execute(
        f"alter table {AUDIT} drop constraint command_bus_audit_pkey cascade".encode()
    )
    await conn.execute(f"insert into {AUDIT} select * from {AUDIT} where audit_id = 4".encode())

    assert ("AUDIT_ROW_INSERTED", 1, 4, 4) in spots(await bus.upkeep.verify_audit())


async def test_a_trigger_that_is_off_is_told(bus: CommandBus, conn: Conn) -> None:
    names = {"command_bus_audit", "command_bus_audit_seal", "command_bus_audit_removal"}
    for name in names:
        await conn.execute(
            f"alter table commandbus.{name} disable trigger {name}_append_only".encode()
        )

    found = await bus.upkeep.verify_audit()
    assert {place.text for place in found.places} == {
        f"{name}: its trigger is missing or disabled" for name in names
    }
    told = [f for f in (await bus.upkeep.doctor()).findings if f.code == "AUDIT_UNPROTECTED"]
    assert {example for finding in told for example in finding.examples} == names


async def test_a_table_that_shows_other_rows_than_it_has_is_told(
    bus: CommandBus, conn: Conn
) -> None:
    await sealed_twice(bus, conn)
    await conn.execute(f"alter table {AUDIT} enable row level security".encode())

    found = await bus.upkeep.verify_audit()
    assert [place.text for place in found.places] == [
        "command_bus_audit: it has row security, which can hide rows"
    ]


async def test_functions_that_the_owner_replaced_do_not_help(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await sealed_twice(bus, conn)
    await conn.execute(
        "create schema evil; create function evil.sha256(bytea) returns bytea language sql"
        " as $$ select pg_catalog.sha256('') $$;"
        "create or replace function commandbus.audit_row_digest("
        "p_event commandbus.command_bus_audit) returns bytea"
        " language sql as $$ select '\\x00'::bytea $$"
    )
    name = conn.info.dbname
    await conn.execute(f"alter database {name} set search_path = evil, pg_catalog".encode())
    await as_owner(conn, f"update {AUDIT} set actor = 'eve' where audit_id = 14")

    async with CommandBus.connect(dsn) as other:
        assert spots(await other.upkeep.verify_audit()) == {("AUDIT_ROW_CHANGED", 2, 14, 14)}


# -- the seals themselves


async def test_seals_and_removals_cannot_be_changed_in_passing(bus: CommandBus, conn: Conn) -> None:
    await write(conn, age="2 days")
    await bus.upkeep.seal_audit()
    await conn.execute("select commandbus.prune_audit('shop', now() - interval '1 day', 100)")
    for table, column in (("seal", "row_count"), ("removal", "row_count")):
        for statement in (
            f"update commandbus.command_bus_audit_{table} set {column} = 1",
            f"delete from commandbus.command_bus_audit_{table}",
            f"truncate commandbus.command_bus_audit_{table}",
        ):
            with pytest.raises(Exception, match="append-only"):
                await conn.execute(statement.encode())
    await bus.upkeep.seal_audit()
    with pytest.raises(Exception, match="append-only"):
        await conn.execute("update commandbus.command_bus_audit_removal set sealed_by = 1")


async def test_a_seal_removed_from_the_middle_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await write(conn)
    await bus.upkeep.seal_audit()
    await as_owner(conn, "delete from commandbus.command_bus_audit_seal where seal_number = 2")

    found = await bus.upkeep.verify_audit()
    assert [(p.code, p.text) for p in found.places] == [
        ("SEAL_MISSING", "seal 2 is missing; nothing proves the events 11 to 20")
    ]


async def test_the_last_seal_removed_is_found_by_what_is_known_outside(
    bus: CommandBus, conn: Conn, keys: Path, tmp_path: Path
) -> None:
    await sealed_twice(bus, conn)
    exported = tmp_path / "heads.jsonl"
    append_heads(exported, await bus.upkeep.get_seal_heads())
    await as_owner(
        conn,
        "delete from commandbus.command_bus_audit_seal where seal_number = 2",
        f"update {AUDIT} set actor = 'eve' where audit_id = 15",
    )

    # the machine that seals has kept the head; it neither goes on nor stays silent
    assert await codes(bus) == {"SEAL_MISSING": 1}
    with pytest.raises(Exception, match="seals were removed or replaced"):
        await bus.upkeep.seal_audit()
    # another one has it from the exported file
    forget_heads(keys)
    assert await codes(bus) == {}
    assert await codes(bus, heads=exported) == {"SEAL_MISSING": 1}
    # sealed again with the key, it is another seal
    await bus.upkeep.seal_audit()
    assert await codes(bus, heads=exported) == {"SEAL_FORGED": 1}


async def test_all_seals_removed_is_found_by_what_is_known_outside(
    bus: CommandBus, conn: Conn
) -> None:
    await sealed_twice(bus, conn)
    await as_owner(conn, "delete from commandbus.command_bus_audit_seal")

    assert await codes(bus) == {"SEAL_MISSING": 1, "AUDIT_UNSEALED": 1}
    with pytest.raises(Exception, match="seals were removed or replaced"):
        await bus.upkeep.seal_audit()


class _Tomorrow(datetime):
    """A clock that is a day ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(days=1)


async def test_an_end_that_was_cut_off_and_sealed_again_later_is_late(
    bus: CommandBus, conn: Conn, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sealed_twice(bus, conn)
    forget_heads(keys)
    await as_owner(
        conn,
        "delete from commandbus.command_bus_audit_seal where seal_number = 2",
        f"update {AUDIT} set actor = 'eve' where audit_id = 14",
    )
    monkeypatch.setattr("commandbus.upkeep.sealing.datetime", _Tomorrow)
    await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert spots(found) == {("SEAL_LATE", 2, 11, 20)}
    assert "waited 24.0 hours" in found.places[0].text


async def test_a_seal_made_anew_without_the_key_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(conn, f"update {AUDIT} set actor = 'eve' where audit_id = 14")
    await forge_seal(bus, conn, 2)

    found = await bus.upkeep.verify_audit()
    assert ("SEAL_FORGED", 2, 11, 20) in spots(found)
    assert "signature of seal 2" in found.places[0].text


async def test_a_chain_made_anew_from_a_seal_on_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(conn, f"update {AUDIT} set actor = 'eve' where audit_id = 4")
    await forge_seal(bus, conn, 1)
    assert {(code, seal) for code, seal, *_ in spots(await bus.upkeep.verify_audit())} == {
        ("SEAL_FORGED", 1), ("SEAL_FORGED", 2),
    }  # fmt: skip
    ((digest,),) = await (
        await conn.execute(
            "select digest from commandbus.command_bus_audit_seal where seal_number = 1"
        )
    ).fetchall()
    await forge_seal(bus, conn, 2, previous=bytes(digest))
    assert (await codes(bus))["SEAL_FORGED"] >= 2


async def test_seals_of_another_key_are_not_taken_for_ours(
    bus: CommandBus, conn: Conn, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await sealed_twice(bus, conn)
    # the owner removes all and seals again, with a key of his own
    await as_owner(
        conn,
        "delete from commandbus.command_bus_audit_seal",
        f"update {AUDIT} set actor = 'eve' where audit_id = 4",
    )
    ours = str(tmp_path / "keys")
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "his"))
    async with CommandBus.connect(dsn) as his:
        await his.upkeep.seal_audit()
        assert await codes(his) == {}
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", ours)
    async with CommandBus.connect(dsn) as again:
        found = await codes(again)
        assert found["SEAL_KEY_NEEDED"] == 1
        assert "SEAL_KEY_OTHER" in {f.code for f in (await again.upkeep.doctor()).findings}
        with pytest.raises(Exception, match=r"removed or replaced|sealed with the key"):
            await again.upkeep.seal_audit()


async def test_digests_in_a_seal_that_were_changed_are_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_twice(bus, conn)
    await as_owner(
        conn,
        f"update {AUDIT} set actor = 'eve' where audit_id = 14",
        "update commandbus.command_bus_audit_seal"
        " set entries = overlay(entries placing '\\x00'::bytea from 70) where seal_number = 2",
    )

    assert await codes(bus) == {"SEAL_FORGED": 1}


async def test_a_change_of_any_column_of_a_seal_is_found(bus: CommandBus, conn: Conn) -> None:
    table = "commandbus.command_bus_audit_seal"
    await sealed_twice(bus, conn)
    await conn.execute(
        f"create table saved as select * from {table} where seal_number = 2".encode()
    )
    for change in (
        "last_id = 25", "first_id = 10", "row_count = 9", "oldest_ts = oldest_ts + interval '1 s'",
        "oldest_ts = null", "sealed_at = sealed_at - interval '1 microsecond'",
        "sealed_at = 'infinity'", "key_id = 'somebody'", "digest = sha256('')",
        "previous = sha256('')", "removals = '\\x00'", "signature = sha256('')",
        "entries_digest = sha256('')",
    ):  # fmt: skip
        await as_owner(conn, f"update {table} set {change} where seal_number = 2")

        found = await bus.upkeep.verify_audit()
        assert not found.is_intact, change
        assert {"SEAL_FORGED", "SEAL_KEY_NEEDED"} & {place.code for place in found.places}, change

        await as_owner(
            conn, f"delete from {table} where seal_number = 2", f"insert into {table} table saved"
        )
        assert await codes(bus) == {}


async def test_a_crash_between_two_seals_leaves_the_chain_whole(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(conn, 30)
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 10)

    def stop(result: object) -> None:
        raise RuntimeError("the process is gone")

    with pytest.raises(RuntimeError):
        await bus.upkeep.seal_audit(progress=stop)
    assert (await bus.upkeep.verify_audit()).unsealed == 20
    assert (await bus.upkeep.seal_audit()).rows == 20
    assert await codes(bus) == {}


async def test_two_that_seal_at_once_make_one_chain(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 10)
    await write(conn, 200)

    results = await asyncio.gather(*(bus.upkeep.seal_audit() for _ in range(4)))

    assert sum(each.rows for each in results) == 200
    found = await bus.upkeep.verify_audit()
    assert (found.is_intact, found.seals, found.rows, found.unsealed) == (True, 20, 200, 0)


async def test_the_owner_does_not_get_the_chain_signed_once_more(
    bus: CommandBus, conn: Conn
) -> None:
    """The functions that draft a seal are the owner's: they ask for the first one again."""
    await sealed_twice(bus, conn)
    await as_owner(conn, f"update {AUDIT} set actor = 'eve' where audit_id = 4")
    ((text,),) = await (
        await conn.execute(
            "select pg_get_functiondef(cast('commandbus.draft_seal(int)' as regprocedure))"
        )
    ).fetchall()
    forged = text.replace(
        "from commandbus.command_bus_audit_seal s order by",
        "from commandbus.command_bus_audit_seal s where s.seal_number < {} order by",
    )
    assert forged != text
    add = "select pg_get_functiondef(oid) from pg_proc where proname = 'add_seal'"
    ((adding,),) = await (await conn.execute(add.encode())).fetchall()
    # what was signed is put aside, to be put in place later
    aside = adding.replace(
        "insert into commandbus.command_bus_audit_seal (", "insert into public.aside ("
    )
    await conn.execute("create table public.aside (like commandbus.command_bus_audit_seal)")
    await conn.execute(aside.replace("raise exception", "raise notice").encode())
    await write(conn)
    for number in (1, 2):
        await conn.execute(forged.replace("{}", str(number)).encode())
        with pytest.raises(InvalidOperationError, match="changed its functions"):
            await bus.upkeep.seal_audit()
    ((signed,),) = await (await conn.execute("select count(*) from public.aside")).fetchall()
    assert signed == 0
    assert ("AUDIT_ROW_CHANGED", 1, 4, 4) in spots(await bus.upkeep.verify_audit())


async def test_an_audit_without_any_seal_is_not_called_proven(
    bus: CommandBus, conn: Conn, keys: Path
) -> None:
    """For a machine that never sealed: the owner may have removed all of them."""
    assert (await bus.upkeep.verify_audit()).findings == ()  # there is nothing to prove
    await sealed_twice(bus, conn)
    await as_owner(conn, "delete from commandbus.command_bus_audit_seal")
    assert await codes(bus) == {"SEAL_MISSING": 1, "AUDIT_UNSEALED": 1}
    forget_heads(keys)
    assert await codes(bus) == {"AUDIT_UNSEALED": 1}
