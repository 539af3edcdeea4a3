"""Lawful removals leave a signed record; others are found."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from commandbus import CommandBus
from tests.security.sealed import Conn, as_owner, codes, spots, write

AUDIT = "commandbus.command_bus_audit"
REMOVAL = "commandbus.command_bus_audit_removal"
COLUMNS = "domain, ids, row_count, sealed_to, rows_digest, before"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "keys"))


async def sealed_and_pruned(bus: CommandBus, conn: Conn) -> None:
    """Ten old events are sealed and removed by a rule; ten young ones are left: 11 to 20."""
    await conn.execute("select commandbus.ensure_domain('shop')")
    await write(conn, age="40 days")
    await write(conn)
    await bus.upkeep.seal_audit()
    await bus.upkeep.set_retention("audit", timedelta(days=30))
    await bus.upkeep.prune(kinds=["audit"])


async def test_retention_is_no_alarm_before_and_after_its_record_is_signed(
    bus: CommandBus, conn: Conn
) -> None:
    await sealed_and_pruned(bus, conn)

    found = await bus.upkeep.verify_audit()
    assert (found.is_intact, found.removed) == (True, 10)
    assert [each.code for each in found.findings] == ["REMOVAL_UNSIGNED"]
    assert (await bus.upkeep.seal_audit()).removals == 1
    found = await bus.upkeep.verify_audit()
    assert (found.findings, found.removed) == ((), 10)
    ((ids, keep),) = await (
        await conn.execute(f"select ids::text, keep_seconds from {REMOVAL}".encode())
    ).fetchall()
    assert (ids, keep) == ("{[1,11)}", 30 * 86_400)


async def test_a_removal_that_no_rule_asked_for_is_told_with_its_actor(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("select commandbus.ensure_domain('shop')")
    await write(conn, age="40 days")
    await bus.upkeep.seal_audit()
    await bus.upkeep.prune(kinds=["audit"], older_than=timedelta(days=7), operator="petra")
    await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert not found.is_intact, "the owner could have written the record, and the name"
    assert [(p.code, p.text) for p in found.places] == [
        ("REMOVAL_BY_HAND",
         "removal 1 of 10 events by petra: no retention rule asked for it"),
    ]  # fmt: skip
    assert not (await bus.upkeep.verify_audit(approved=[2])).is_intact
    found = await bus.upkeep.verify_audit(approved=[1])
    assert (found.findings, found.removed) == ((), 10)


async def test_a_rule_that_was_shortened_is_found_by_who_knows_the_right_time(
    bus: CommandBus, conn: Conn
) -> None:
    await sealed_and_pruned(bus, conn)
    await bus.upkeep.seal_audit()

    assert (await bus.upkeep.verify_audit(keep=timedelta(days=30))).is_intact
    found = await bus.upkeep.verify_audit(keep=timedelta(days=31))
    assert {place.code for place in found.places} == {"REMOVAL_UNLAWFUL"}


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_record_of_the_future_does_not_make_young_events_old(
    bus: CommandBus, conn: Conn, is_signed: bool
) -> None:
    """By its own words the rule was kept: a month has passed, or will have."""
    await write(conn)
    await bus.upkeep.seal_audit()
    await as_owner(
        conn,
        f"insert into {REMOVAL} (domain, ids, row_count, sealed_to, rows_digest, before,"
        " keep_seconds, removed_at) select 'shop', '{[4,5)}', 1, 10,"
        " sha256(commandbus.audit_row_digest(a)), now() + interval '1 minute', 2592000,"
        f" now() + interval '31 days' from {AUDIT} a where audit_id = 4",
        f"delete from {AUDIT} where audit_id = 4",
    )
    if is_signed:
        await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert not found.is_intact
    assert "later than it was" in found.places[-1].text


async def test_events_that_retention_removed_before_they_were_sealed_are_gaps(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("select commandbus.ensure_domain('shop')")
    await write(conn, age="40 days")
    await bus.upkeep.prune(kinds=["audit"], older_than=timedelta(days=30))
    await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert (found.is_intact, found.removed, found.rows) == (True, 0, 1)


async def test_a_removal_of_sealed_and_later_events_is_compared_once(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("select commandbus.set_retention(null, 'audit', '30 days')")
    await write(conn, age="40 days")
    await bus.upkeep.seal_audit()
    await write(conn, age="40 days")
    prune = "select commandbus.prune_audit('shop', now() - interval '30 days', %s, %s)"
    await conn.execute(prune, (11, None))  # the one after the seal too, which no seal will have
    await bus.upkeep.seal_audit()
    await conn.execute(prune, (3, None))  # so that the rows of that seal are looked at

    found = await bus.upkeep.verify_audit()
    assert (found.is_intact, found.removed) == (True, 13), found.places


async def test_a_removal_while_the_audit_is_verified_is_no_alarm(
    bus: CommandBus, conn: Conn, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 5)
    monkeypatch.setattr("commandbus.upkeep.verification.SNAPSHOT_SEALS", 1)
    await conn.execute("select commandbus.set_retention(null, 'audit', '30 days')")
    await write(conn, age="40 days")
    await bus.upkeep.seal_audit()

    def prune(rows: int, _: int) -> None:
        if rows == 5:  # one seal of two was read
            with psycopg.connect(dsn, autocommit=True) as other:
                other.execute(
                    "select commandbus.prune_audit('shop', now() - interval '30 days', 10)"
                )

    found = await bus.upkeep.verify_audit(progress=prune)
    assert (found.is_intact, found.removed) == (True, 5), found.places
    assert (await bus.upkeep.verify_audit()).removed == 10


async def test_a_part_that_was_dropped_is_told_and_the_rest_is_still_proven(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("select commandbus.ensure_domain('shop')")
    await conn.execute(
        "update commandbus.command_bus_setting set value = '20' where name = 'audit_part_rows'"
    )
    await bus.upkeep.tend_audit()
    for _ in range(3):
        await write(conn, 20, age="40 days")
        await bus.upkeep.tend_audit()
    await write(conn)
    await bus.upkeep.seal_audit()
    await bus.upkeep.set_retention("audit", timedelta(days=30))

    assert await bus.upkeep.tend_audit()

    found = await bus.upkeep.verify_audit()
    assert (found.is_intact, found.removed, found.dropped) == (True, 60, 60)
    assert [each.code for each in found.findings] == ["REMOVAL_UNSIGNED"]
    await bus.upkeep.seal_audit()
    found = await bus.upkeep.verify_audit(keep=timedelta(days=30))
    assert (found.findings, found.dropped) == ((), 60)
    await as_owner(conn, f"delete from {AUDIT} where audit_id = 65")
    assert ("AUDIT_ROW_REMOVED", 1, 65, 65) in spots(await bus.upkeep.verify_audit())
    assert await codes(bus, keep=timedelta(days=31)) == {
        "AUDIT_ROW_REMOVED": 1, "REMOVAL_UNLAWFUL": 1,
    }  # fmt: skip


async def test_a_part_that_its_owner_dropped_is_found(bus: CommandBus, conn: Conn) -> None:
    await write(conn)
    await bus.upkeep.seal_audit()
    await bus.upkeep.tend_audit()
    await conn.execute("drop table commandbus.command_bus_audit_first")

    assert await codes(bus) == {"AUDIT_ROW_REMOVED": 1}


async def test_a_removal_beside_a_lawful_one_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_and_pruned(bus, conn)
    await bus.upkeep.seal_audit()
    await as_owner(conn, f"delete from {AUDIT} where audit_id = 13")

    assert ("AUDIT_ROW_REMOVED", 1, 13, 13) in spots(await bus.upkeep.verify_audit())


@pytest.mark.parametrize(
    ("forgery", "expected"),
    [
        # a record of its own, which says that a seal signed it
        (f"insert into {REMOVAL} ({COLUMNS}, sealed_by)"
         " values ('shop', '{[13,14)}', 1, 20, sha256(''), now(), 2)", "was not signed by seal 2"),
        (f"insert into {REMOVAL} ({COLUMNS}, sealed_by)"
         " values ('shop', '{[13,14)}', 1, 20, sha256(''), now(), 99)", "a seal that is not there"),
        (f"insert into {REMOVAL} ({COLUMNS}, sealed_by)"
         " values ('shop', '{[13,14)}', 1, 20, sha256(''), now(), -1)", "a seal that is not there"),
        # one that was signed, made larger
        (f"update {REMOVAL} set ids = ids + '{{[13,14)}}', row_count = 11", "not as it was signed"),
    ],
)  # fmt: skip
async def test_a_forged_record_does_not_make_a_removal_lawful(
    bus: CommandBus, conn: Conn, forgery: str, expected: str
) -> None:
    await sealed_and_pruned(bus, conn)
    await bus.upkeep.seal_audit()
    await as_owner(conn, f"delete from {AUDIT} where audit_id = 13", forgery)

    found = await bus.upkeep.verify_audit()
    assert {"REMOVAL_FORGED", "AUDIT_ROW_REMOVED"} <= {place.code for place in found.places}
    assert any(expected in place.text for place in found.places)


async def test_a_record_that_was_signed_and_is_gone_is_found(bus: CommandBus, conn: Conn) -> None:
    await sealed_and_pruned(bus, conn)
    await bus.upkeep.seal_audit()
    await as_owner(conn, f"delete from {REMOVAL}")

    assert await codes(bus) == {"REMOVAL_FORGED": 1, "AUDIT_ROW_REMOVED": 1}


async def test_a_record_that_waited_while_seals_were_made_is_not_believed(
    bus: CommandBus, conn: Conn
) -> None:
    await sealed_and_pruned(bus, conn)
    await bus.upkeep.seal_audit()
    await as_owner(
        conn,
        f"delete from {AUDIT} where audit_id = 13",
        f"insert into {REMOVAL} ({COLUMNS}, removed_at)"
        " values ('shop', '{[13,14)}', 1, 20, sha256(''), now(), now() - interval '1 day')",
    )

    assert await codes(bus) == {"REMOVAL_FORGED": 1, "AUDIT_ROW_REMOVED": 1}


async def test_a_record_under_which_young_events_went_is_found_even_if_it_was_signed(
    bus: CommandBus, conn: Conn
) -> None:
    # The owner deletes, writes a record as retention would, and lets the next seal sign it.
    await write(conn)
    await bus.upkeep.seal_audit()
    await as_owner(
        conn,
        f"insert into {REMOVAL} (domain, ids, row_count, sealed_to, rows_digest, before,"
        " keep_seconds) select 'shop', '{[4,5)}', 1, 10, sha256(commandbus.audit_row_digest(a)),"
        f" now() - interval '31 days', 2592000 from {AUDIT} a where audit_id = 4",
        f"delete from {AUDIT} where audit_id = 4",
    )
    await bus.upkeep.seal_audit()

    assert spots(await bus.upkeep.verify_audit()) == {("REMOVAL_UNLAWFUL", 1, 4, 4)}


async def test_an_event_changed_so_that_retention_takes_it_is_found(
    bus: CommandBus, conn: Conn
) -> None:
    await conn.execute("select commandbus.ensure_domain('shop')")
    await write(conn, age="40 days")
    await write(conn)
    await bus.upkeep.seal_audit()
    await bus.upkeep.set_retention("audit", timedelta(days=30))
    await as_owner(conn, f"update {AUDIT} set ts = ts - interval '1 year' where audit_id = 15")
    await bus.upkeep.prune(kinds=["audit"])
    await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert spots(found) == {("AUDIT_ROW_CHANGED", 1, 1, 15)}
    assert "some had been changed" in found.places[0].text


async def test_removals_over_several_seals_and_domains_are_followed(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 7)
    for domain in ("shop", "bank"):
        await conn.execute("select commandbus.ensure_domain(%s)", (domain,))
    for _ in range(10):
        await write(conn, 2, age="40 days")
        await write(conn, 3, age="40 days", domain="bank")
    await bus.upkeep.seal_audit()
    for rule in (timedelta(days=39), timedelta(days=30)):
        await bus.upkeep.set_retention("audit", rule, domain="shop")
        await bus.upkeep.prune(kinds=["audit"])
        await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert (found.findings, found.removed) == ((), 20)
    # and of a part of the seals, whose removals began before it
    assert (await bus.upkeep.verify_audit(window=timedelta(seconds=0.001))).is_intact
