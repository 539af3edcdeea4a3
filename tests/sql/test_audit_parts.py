"""The audit is kept in parts: they are made ahead, and dropped when all in them is old."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from commandbus import CommandBus, Settings
from commandbus.database.migrations import migrate
from tests.sql.conftest import Open
from tests.sql.faults import codes
from tests.sql.helpers import DOMAIN, Session

SIZE = 20
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
async def small_parts(db: Session) -> None:
    await db.rows(
        "update commandbus.command_bus_setting set value = %s where name = 'audit_part_rows'",
        str(SIZE),
    )
    await db.rows("select commandbus.ensure_domain(%s)", DOMAIN)


async def write(
    db: Session, count: int, *, age: str = "40 days", of: UUID | None = None, domain: str = DOMAIN
) -> None:
    """Events of commands that do not exist any more, or of this one."""
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)"
        " select %s, coalesce(%s, gen_random_uuid()), 'NOTE', now() - cast(%s as interval)"
        " from generate_series(1, %s)",
        domain, of, age, count,
    )  # fmt: skip


async def tend(db: Session) -> list[str]:
    """Everything that there is to do."""
    done: list[str] = []
    while did := await db.value("select o_did from commandbus.tend_audit('ada')"):
        assert len(done) < 100, done
        done.append(did)
    return done


async def parts(db: Session) -> list[tuple[int, int]]:
    """How many events each part has, and how many of them are there, in order."""
    found = await db.rows("select part::text, first_id, below_id from commandbus.audit_parts()")
    return [
        (
            row["below_id"] - max(row["first_id"], 1),
            await db.value(f"select count(*) from {row['part']}"),
        )
        for row in found
    ]


async def trail(db: Session, of: UUID) -> int:
    return await db.value(
        "select count(*) from commandbus.command_bus_audit where command_id = %s", of
    )


async def filled(db: Session, *, age: str = "40 days") -> None:
    """Parts that are full of old events; the last ones begin anew, and are young."""
    await tend(db)
    for _ in range(4):
        await write(db, SIZE, age=age)
        await tend(db)
    await write(db, 1, age="0 s")


async def test_a_part_is_there_before_it_is_needed(db: Session) -> None:
    await tend(db)
    for _ in range(5):
        await write(db, SIZE)
        assert (await parts(db))[-1][1] == 0, "nothing lies in the part without end"
        await tend(db)
    assert sum(rows for _, rows in await parts(db)) == 5 * SIZE
    assert len(await parts(db)) > 3
    assert await tend(db) == []


async def test_events_find_their_place_though_nobody_looks_after_the_parts(db: Session) -> None:
    await tend(db)
    await write(db, 10 * SIZE)

    assert (await parts(db))[-1][1] > 5 * SIZE
    assert "AUDIT_PARTS_LATE" in {
        row["code"] for row in await db.rows("select code from commandbus.check_server()")
    }
    await tend(db)
    assert (await parts(db))[-1][1] == 0
    assert sum(rows for _, rows in await parts(db)) == 10 * SIZE


async def test_old_parts_go_as_a_whole_and_what_is_young_stays(
    db: Session, bus: CommandBus
) -> None:
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    before = len(await parts(db))

    (gone,) = await bus.upkeep.tend_audit(operator="ada")

    assert len(await parts(db)) < before
    assert gone.pruned == {"audit events": 4 * SIZE}
    rows = await db.rows(
        "select event_type, actor, details_json ->> 'events' as events"
        " from commandbus.command_bus_audit order by audit_id"
    )
    assert rows == [
        {"event_type": "NOTE", "actor": None, "events": None},
        {"event_type": "AUDIT_PRUNED", "actor": "ada", "events": str(4 * SIZE)},
    ]
    assert await bus.upkeep.tend_audit() == []
    assert "AUDIT_PART_MISSING" not in codes(await bus.upkeep.doctor())


@pytest.mark.parametrize("status", ["PENDING", "IN_PROGRESS", "IN_TROUBLESHOOTING_QUEUE"])
async def test_the_trail_of_what_is_open_or_parked_stays_when_its_part_goes(
    db: Session, bus: CommandBus, status: str
) -> None:
    await tend(db)
    held = await db.put(status)
    batch = await db.batch(total_sealed=False)
    await write(db, 1, of=batch)
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    before = await db.events(held.command_id)

    assert await bus.upkeep.tend_audit()

    assert await db.events(held.command_id) == before
    assert await trail(db, batch) == 1
    assert await db.value("select count(*) from commandbus.audit_parts() where is_kept") == 1
    # the next ones go too, and what is kept stays in one part
    await bus.upkeep.clear_retention("audit")
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    assert await bus.upkeep.tend_audit()
    assert await db.events(held.command_id) == before
    assert await db.value("select count(*) from commandbus.audit_parts() where is_kept") == 1
    assert not {"AUDIT_MISMATCH", "AUDIT_UNPROTECTED"} & codes(await bus.upkeep.doctor())


async def as_old(db: Session) -> None:
    """Commands that nothing has happened to for long; the trigger is not what is tested."""
    await db.rows(
        "update commandbus.command_bus_command"
        " set created_at = now() - interval '40 days', updated_at = now() - interval '40 days'"
    )
    await db.rows("alter table commandbus.command_bus_audit disable trigger user")
    await db.rows(
        "update commandbus.command_bus_audit set ts = now() - interval '40 days'"
        " where event_type <> 'NOTE' or ts > now() - interval '1 day'"
    )
    await db.rows("delete from commandbus.command_bus_audit_part")  # counted anew
    await db.rows("alter table commandbus.command_bus_audit enable trigger user")


async def test_what_ended_lately_and_domains_without_a_rule_keep_their_events(
    db: Session, bus: CommandBus
) -> None:
    await tend(db)
    lately = await db.put("COMPLETED")
    await as_old(db)
    await db.rows("update commandbus.command_bus_command set updated_at = now()")
    await db.rows("select commandbus.ensure_domain('ledger')")
    await write(db, 3, domain="ledger")
    await write(db, 2, domain="*")
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY, domain=DOMAIN)

    assert await bus.upkeep.tend_audit()

    assert await db.events(lately.command_id) == ["SENT", "RECEIVED", "COMPLETED"]
    kept = await db.rows(
        "select domain, count(*) as n from commandbus.command_bus_audit"
        " where event_type = 'NOTE' and domain <> %s group by 1 order by 1",
        DOMAIN,
    )
    assert kept == [{"domain": "*", "n": 2}, {"domain": "ledger", "n": 3}]


async def test_a_part_stays_until_the_longest_rule_of_its_domains_wants_it_gone(
    db: Session, bus: CommandBus
) -> None:
    await db.rows("select commandbus.ensure_domain('ledger')")
    await write(db, 3, domain="ledger")
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    await bus.upkeep.set_retention("audit", 365 * DAY, domain="ledger")
    assert await bus.upkeep.tend_audit() == []
    await bus.upkeep.set_retention("audit", 39 * DAY, domain="ledger")
    assert await bus.upkeep.tend_audit()


async def test_a_part_of_which_much_is_in_use_is_pruned_row_by_row(
    db: Session, bus: CommandBus
) -> None:
    await tend(db)
    open_one = await db.put("PENDING")
    await write(db, 2_000, of=open_one.command_id)
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)

    assert await bus.upkeep.tend_audit() == []
    await bus.upkeep.prune(kinds=["audit"])

    assert await trail(db, open_one.command_id) == 2_001
    assert await db.value(
        "select count(*) from commandbus.command_bus_audit"
        " where event_type = 'NOTE' and command_id <> %s and ts < now() - interval '1 day'",
        open_one.command_id,
    ) == 0  # fmt: skip


async def test_parts_that_fill_quickly_are_left_to_be_dropped(db: Session, bus: CommandBus) -> None:
    await filled(db, age="31 minutes")
    await bus.upkeep.set_retention("audit", timedelta(minutes=30))
    start = await db.value("select commandbus.after_quick_parts(0, now() - interval '30 minutes')")
    assert start >= 4 * SIZE
    assert await db.value(
        "select commandbus.after_quick_parts(0, now() - interval '10 minutes')"
    ) == 0, "what is overdue is not waited for"  # fmt: skip


async def test_what_was_kept_goes_once_it_has_ended_though_all_other_parts_fill_quickly(
    db: Session, bus: CommandBus
) -> None:
    await tend(db)
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await as_old(db)
    await filled(db, age="31 minutes")
    await bus.upkeep.set_retention("audit", timedelta(minutes=30))
    assert await bus.upkeep.tend_audit()
    assert await trail(db, held.command_id) == 4
    # what is kept does not make parts larger
    sequence = "commandbus.command_bus_audit_audit_id_seq"
    first = await db.value("select min(first_id) from commandbus.audit_parts() where not is_kept")
    await db.rows(f"select setval('{sequence}', %s)", first + 640)
    assert await db.value("select commandbus.audit_part_rows()") == SIZE
    await filled(db, age="20 minutes")
    due = "select commandbus.prune_due('audit', %s, now(), 1000)"
    await db.rows(due, DOMAIN)
    assert await trail(db, held.command_id) == 4

    await db.rows("update commandbus.command_bus_command set status = 'CANCELED'")
    await db.rows(due, DOMAIN)

    assert await trail(db, held.command_id) == 0


async def test_an_id_whose_history_was_dropped_is_still_known(db: Session, bus: CommandBus) -> None:
    await tend(db)
    ended = await db.put("COMPLETED")
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)

    assert await bus.upkeep.tend_audit()

    assert await db.events(ended.command_id) == []
    await db.offer(ended.command_id)
    assert await db.status(ended.command_id) == "COMPLETED"
    assert await db.events(ended.command_id) == []
    assert "AUDIT_MISMATCH" not in codes(await bus.upkeep.doctor())


async def test_a_reader_is_not_disturbed_and_keeps_nobody_waiting(
    db: Session, session: Open, bus: CommandBus
) -> None:
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    reader = await session()
    await reader.rows("select count(*) from commandbus.command_bus_audit")

    assert await bus.upkeep.tend_audit() == []
    await write(db, 1)

    await reader.conn.rollback()
    assert await bus.upkeep.tend_audit()


async def test_a_transaction_that_may_still_write_keeps_its_part(
    db: Session, session: Open, bus: CommandBus
) -> None:
    await tend(db)
    writer = await session()
    await write(writer, 1)
    await filled(db)
    await bus.upkeep.set_retention("audit", 30 * DAY)
    assert await bus.upkeep.tend_audit() == []
    await writer.conn.commit()
    assert await bus.upkeep.tend_audit()


PART_CHANGES = {
    "update": "update {} set event_type = 'X'",
    "delete": "delete from {}",
    "truncate": "truncate {}",
}


@pytest.mark.parametrize("change", PART_CHANGES)
async def test_a_change_of_a_part_is_refused_as_one_of_the_whole(db: Session, change: str) -> None:
    await filled(db)
    for row in await db.rows("select part::text from commandbus.audit_parts()"):
        with pytest.raises(psycopg.Error, match="the audit is append-only") as info:
            await db.rows(PART_CHANGES[change].format(row["part"]))
        assert info.value.sqlstate == "CB008"


async def test_the_doctor_knows_a_part_that_was_taken_away_and_one_without_its_trigger(
    db: Session, bus: CommandBus
) -> None:
    await filled(db)
    (first, second, *_) = await db.rows("select part::text from commandbus.audit_parts()")
    await db.rows(f"drop table {first['part']}")
    await db.rows(f"drop trigger command_bus_audit_append_only on {second['part']}")

    assert {"AUDIT_PART_MISSING", "AUDIT_UNPROTECTED"} <= codes(await bus.upkeep.doctor())


async def test_a_large_audit_of_an_earlier_version_becomes_a_part_while_everybody_works(
    db: Session, session: Open
) -> None:
    """The table is more than is looked at under a lock; a writer is in the way of nothing."""
    await db.rows(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, details_json)"
        " select %s, gen_random_uuid(), 'NOTE', jsonb_build_object('x', repeat('x', 1500))"
        " from generate_series(1, 45000)",
        DOMAIN,
    )
    steps: list[str] = []
    while did := await db.value("select o_did from commandbus.tend_audit()"):
        steps.append(did)
        await write(db, 1)  # at each step
    assert steps[:2] == ["begins to cut the last part", "looked through the last part"]
    assert (await parts(db))[-1][1] == 0
    assert len(await parts(db)) >= 2
    assert await db.rows("select 1 from pg_constraint where conname = 'audit_part_below'") == []


async def test_a_cut_that_was_begun_and_left_is_ended_or_begun_anew(db: Session) -> None:
    await write(db, 1)
    await db.rows(
        "alter table commandbus.command_bus_audit_first"
        " add constraint audit_part_below check (audit_id < 25) not valid"
    )
    await write(db, 10)
    assert (await tend(db))[0] == "began to cut anew"
    await write(db, 100)
    await tend(db)
    assert (await parts(db))[-1][1] == 0


async def test_a_second_migration_leaves_the_parts_as_they_are(db: Session) -> None:
    await filled(db)
    before = await parts(db)
    assert await migrate(db.conn, Settings()) == []
    assert await parts(db) == before
