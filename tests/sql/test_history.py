"""Finished commands move to the history: found there, their ids known, dropped in whole parts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest

from commandbus import CommandBus, CommandStatus
from commandbus.errors import InvalidOperationError
from commandbus.names import new_id
from tests.sql.conftest import Open
from tests.sql.faults import codes
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_retention import DAY, age, batch_of, total

MOVED = "commands moved to the history"
GONE = "commands of the history"


@pytest.fixture
async def rules(bus: CommandBus) -> None:
    await bus.upkeep.set_retention("commands", 7 * DAY)
    await bus.upkeep.set_retention("history", 700 * DAY)


async def ended(
    db: Session, count: int = 3, *, old: bool = True, ids: list[UUID] | None = None
) -> list[UUID]:
    """Commands that were canceled, 40 days ago."""
    sent = await db.send(*(ids or [new_id() for _ in range(count)]))
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, sent)
    if old:
        await age(db)
    return sent


async def part_rows(db: Session) -> list[int]:
    found = await db.rows("select part::text from commandbus.history_parts(%s)", DOMAIN)
    return [await db.value(f"select count(*) from {row['part']}") for row in found]


async def turn_back(db: Session, days: int) -> None:
    """What is in the history was moved so much earlier."""
    await db.rows(
        "update commandbus.command_bus_history set moved_at = moved_at - make_interval(days => %s)",
        days,
    )
    await db.rows(
        "update commandbus.command_bus_batch"
        " set history_since = history_since - make_interval(days => %s)",
        days,
    )


async def test_a_row_of_the_history_has_the_columns_of_a_command(db: Session) -> None:
    columns = await db.rows(
        "select attrelid::regclass::text as name, attname, format_type(atttypid, atttypmod) as type"
        " from pg_attribute where attnum > 0 and not attisdropped and attrelid in"
        " ('commandbus.command_bus_command'::regclass, 'commandbus.command_bus_history'::regclass)"
        " order by attnum"
    )
    rows = {
        name: [(c["attname"], c["type"]) for c in columns if c["name"].endswith(name)]
        for name in ("_command", "_history")
    }
    assert rows["_history"][4:] == rows["_command"]


async def test_finished_commands_are_removed_without_a_rule_for_the_history(
    db: Session, bus: CommandBus
) -> None:
    ids = await ended(db)
    await bus.upkeep.set_retention("commands", 7 * DAY)

    assert (await total(await bus.upkeep.prune()))["commands"] == 3
    assert await bus.get_command(DOMAIN, ids[0]) is None
    assert await db.offer(ids[0]) == []


async def test_finished_commands_are_moved_as_they_are_and_found(
    db: Session, bus: CommandBus, rules: None
) -> None:
    ids = await ended(db)
    before = {i: await bus.get_command(DOMAIN, i) for i in ids}
    fresh = await ended(db, 1, old=False)

    dry = await total(await bus.upkeep.prune(dry_run=True))
    real = await total(await bus.upkeep.prune())

    assert dry == real
    assert real[MOVED] == 3
    for command_id in ids:
        found = await bus.search.require(DOMAIN, command_id)
        assert found.history_since is not None
        assert replace(found, history_since=None) == before[command_id]
        life = await bus.troubleshooting.life(DOMAIN, command_id)
        assert [step.event.event_type for step in life.steps] == ["SENT", "CANCELED"]
        assert (life.steps[0].event.details or {})["type"] == "Debit"
        assert life.actions == ()
        assert await bus.search.domains(command_id) == [DOMAIN]
    kept = await bus.get_command(DOMAIN, fresh[0])
    assert kept is not None
    assert kept.history_since is None
    assert {each.command_id for each in (await bus.search.commands()).items} == set(fresh)
    assert codes(await bus.upkeep.doctor()) == set()


async def test_the_history_is_searched_by_all_that_commands_are_searched_by(
    db: Session, bus: CommandBus, rules: None
) -> None:
    batch = await batch_of(db, 5)
    ids = await ended(db, 40)
    other = (await bus.search.require(DOMAIN, ids[0])).correlation_id
    await bus.upkeep.prune()
    search = bus.search

    first = await search.commands(history=True, limit=30)
    rest = await search.commands(history=True, limit=30, cursor=first.next_cursor)
    assert (
        Counter(each.command_id for each in [*first.items, *rest.items]).most_common(1)[0][1] == 1
    )
    assert len(first.items) + len(rest.items) == 45
    times = [each.created_at for each in [*first.items, *rest.items]]
    assert times == sorted(times, reverse=True)

    async def many(**criteria: object) -> int:
        return len((await search.commands(history=True, limit=100, **criteria)).items)  # type: ignore[arg-type]

    assert await many(batch_id=batch) == 5
    assert await many(correlation_id=other) == 1
    assert await many(command_id=ids[3]) == 1
    assert await many(domain="reports") == 0
    assert await many(status=CommandStatus.CANCELED) == 45
    assert await many(status=CommandStatus.COMPLETED) == 0
    assert await many(command_type="Debit", created_before=times[0]) == 45 - times.count(times[0])
    assert await many(error_code="NONE") == 0
    assert len([each async for each in search.every_command(history=True)]) == 45


async def test_what_nobody_can_do_with_a_command_of_the_history_says_where_it_is(
    db: Session, bus: CommandBus, rules: None
) -> None:
    known = (await ended(db, 1))[0]
    await bus.upkeep.prune()
    for verb, arguments in (
        (bus.cancel, ("why",)),
        (bus.troubleshooting.retry, ()),
        (bus.troubleshooting.cancel, ("why",)),
        (bus.troubleshooting.complete, ()),
        (bus.troubleshooting.note, ("a remark",)),
        (partial(bus.reschedule, delay=5), ()),
        (bus.set_priority, (1,)),
    ):
        with pytest.raises(InvalidOperationError, match=f"command {known} is in the history since"):
            await verb(DOMAIN, known, *arguments)


async def test_a_batch_stays_with_its_counters_and_its_commands_are_in_the_history(
    db: Session, bus: CommandBus, rules: None
) -> None:
    batch = await batch_of(db, 7)
    await age(db)
    before = await bus.get_batch(DOMAIN, batch)
    page = await bus.batches.page_commands(DOMAIN, batch)

    dry = await total(await bus.upkeep.prune(dry_run=True))
    assert await total(await bus.upkeep.prune()) == dry
    assert dry["batches moved to the history"] == 1

    kept = await bus.get_batch(DOMAIN, batch)
    assert kept is not None
    assert before is not None
    assert kept.history_since is not None
    assert replace(kept, history_since=None) == before
    moved = await bus.batches.page_commands(DOMAIN, batch)
    assert [each.command_id for each in moved.items] == [each.command_id for each in page.items]
    for limit in (1, 3):
        found, cursor = [], None
        while True:
            some = await bus.batches.page_commands(
                DOMAIN, batch, status=CommandStatus.CANCELED, limit=limit, cursor=cursor
            )
            found += [each.command_id for each in some.items]
            cursor = some.next_cursor
            if cursor is None:
                break
        assert found == [each.command_id for each in page.items]
    with pytest.raises(InvalidOperationError, match="is in the history since"):
        await bus.batches.retry(DOMAIN, batch)
    assert (await total(await bus.upkeep.prune()))["batches moved to the history"] == 0
    assert codes(await bus.upkeep.doctor()) == set()


async def test_parts_are_dropped_when_all_in_them_is_older_than_the_rule(
    db: Session, bus: CommandBus, rules: None
) -> None:
    await db.rows("select commandbus.change_setting('history_part_rows', '1000')")
    await db.rows(
        "update commandbus.command_bus_setting set value = '4' where name = 'history_part_rows'"
    )
    batch = await batch_of(db, 3)
    old = await ended(db, 6)
    await bus.upkeep.prune()
    assert await part_rows(db) == [4, 4, 1]
    await turn_back(db, 600)
    new = await ended(db, 2)
    await bus.upkeep.prune()
    # the part that was begun long ago is left as it is
    assert await part_rows(db) == [4, 4, 1, 2]
    await turn_back(db, 150)

    dry = await total(await bus.upkeep.prune(dry_run=True))
    real = await total(await bus.upkeep.prune())

    assert dry == real
    assert real[GONE] == 9
    assert real["batches of the history"] == 1
    assert await part_rows(db) == [2]
    assert await bus.get_batch(DOMAIN, batch) is None
    assert await bus.get_command(DOMAIN, old[0]) is None
    assert await db.offer(old[0]) == []
    assert await db.offer(new[0]) == [new[0]]


async def test_a_search_goes_on_when_a_part_is_dropped_meanwhile(
    db: Session, bus: CommandBus, rules: None
) -> None:
    await db.rows(
        "update commandbus.command_bus_setting set value = '5' where name = 'history_part_rows'"
    )
    await ended(db, 10)
    await bus.upkeep.prune()
    await turn_back(db, 600)
    await ended(db, 10)
    await bus.upkeep.prune()
    await turn_back(db, 150)
    await db.rows(
        "update commandbus.command_bus_history"
        " set created_at = created_at + history_no * interval '1 s'"
    )

    first = await bus.search.commands(history=True, limit=8)
    assert (await total(await bus.upkeep.prune()))[GONE] == 10
    rest = await bus.search.commands(history=True, limit=8, cursor=first.next_cursor)
    assert len(first.items) == 8
    assert len(rest.items) == 2
    assert rest.next_cursor is None


async def test_two_who_move_at_once_move_each_command_once(
    db: Session, dsn: str, bus: CommandBus, rules: None
) -> None:
    await ended(db, 300)
    async with CommandBus.connect(dsn) as second:
        results = await asyncio.gather(bus.upkeep.prune(), second.upkeep.prune())
    assert sum([(await total(r))[MOVED] for r in results]) == 300
    numbers = await db.rows("select history_no as n from commandbus.command_bus_history order by 1")
    assert [row["n"] for row in numbers] == list(range(1, 301))


async def test_a_move_that_is_cut_off_leaves_everything_where_it_was(
    db: Session, session: Open, bus: CommandBus, rules: None
) -> None:
    await ended(db, 5)
    mover = await session()
    await mover.value("select o_pruned from commandbus.prune_commands(%s, now(), 100)", DOMAIN)
    await db.rows("select pg_terminate_backend(%s)", mover.conn.info.backend_pid)

    assert (await total(await bus.upkeep.prune()))[MOVED] == 5
    assert await part_rows(db) == [5]
    assert codes(await bus.upkeep.doctor()) == set()


async def test_history_that_is_long_overdue_is_a_finding(
    db: Session, bus: CommandBus, rules: None
) -> None:
    await ended(db, 1)
    await bus.upkeep.prune()
    await turn_back(db, 1000)
    await db.rows(
        "update commandbus.command_bus_retention set updated_at = now() - interval '300 days'"
    )
    assert "RETENTION_BEHIND" in codes(await bus.upkeep.doctor())
    await bus.upkeep.prune()
    assert "RETENTION_BEHIND" not in codes(await bus.upkeep.doctor())


async def test_a_batch_that_is_on_its_way_shows_all_its_commands_and_is_not_opened(
    db: Session, bus: CommandBus, rules: None
) -> None:
    batch = await batch_of(db, 5)
    await age(db)
    everything = [each.command_id for each in await bus.list_batch_commands(DOMAIN, batch)]
    prune = "select o_pruned from commandbus.prune_batches(%s, now(), 2)"
    await db.value(prune, DOMAIN)  # marks it
    assert (await db.value(prune, DOMAIN))[MOVED] == 2

    page = (await bus.batches.page_commands(DOMAIN, batch)).items
    assert [each.command_id for each in page] == everything
    assert len([each for each in page if each.history_since]) == 2
    assert [each.command_id for each in await bus.list_batch_commands(DOMAIN, batch)] == everything
    some = await bus.list_batch_commands(DOMAIN, batch, limit=2, offset=2)
    assert [each.command_id for each in some] == everything[2:4]
    with pytest.raises(InvalidOperationError, match="is being moved to the history"):
        await bus.batches.retry(DOMAIN, batch)
    # a run that was cut off is gone on with
    assert (await total(await bus.upkeep.prune()))[MOVED] == 3
    assert [each.command_id for each in await bus.list_batch_commands(DOMAIN, batch)] == everything


async def test_a_batch_that_is_retried_at_this_moment_is_not_moved(
    db: Session, session: Open, bus: CommandBus, rules: None
) -> None:
    batch = await db.batch()
    failed = await db.put("FAILED", batch)
    await age(db)
    operator = await session()
    assert await operator.value("select commandbus.retry_batch(%s, %s)", DOMAIN, batch) == 1

    assert (await total(await bus.upkeep.prune()))[MOVED] == 0
    await operator.conn.commit()
    assert (await total(await bus.upkeep.prune()))[MOVED] == 0
    assert await db.status(failed.command_id) == "PENDING"


async def test_a_drop_gives_way_to_who_reads_the_history(
    db: Session, session: Open, bus: CommandBus, rules: None
) -> None:
    await ended(db, 2)
    await bus.upkeep.prune()
    await turn_back(db, 800)
    reader = await session()
    assert await reader.value("select count(*) from commandbus.command_bus_history") == 2

    assert (await total(await bus.upkeep.prune()))[GONE] == 0
    await reader.conn.rollback()
    assert (await total(await bus.upkeep.prune()))[GONE] == 2


async def test_a_look_of_its_own_plan_finds_the_same(
    db: Session, bus: CommandBus, rules: None
) -> None:
    ids = await ended(db, 3)
    await bus.upkeep.prune()
    for function in ("history_rows", "history_rows_once", "history_rows_anew"):
        for domain, wanted in ((DOMAIN, 3), ("reports", 0)):
            found = await db.value(
                f"select count(*) from commandbus.{function}(%s, %s::uuid[])", domain, ids
            )
            assert found == wanted, function
