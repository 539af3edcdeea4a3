"""Archives of PGMQ that have grown are kept in parts, which are dropped when all in them is old."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus
from tests.sql.conftest import Open
from tests.sql.faults import codes
from tests.sql.helpers import DOMAIN, Session

SIZE = 20
DAY = timedelta(days=1)
ARCHIVE = "pgmq.a_payments__commands"
TEND = "select o_did from commandbus.tend_archives()"
LOOK_AGAIN = "update commandbus.command_bus_archive_part set look_after = '-infinity'"
PIECES = f"select * from commandbus.archive_pieces('{ARCHIVE}')"


@pytest.fixture(autouse=True)
async def small_parts(db: Session) -> None:
    await db.rows(
        "update commandbus.command_bus_setting set value = %s where name = 'archive_part_rows'",
        str(SIZE),
    )
    await db.rows("select commandbus.ensure_domain(%s)", DOMAIN)


async def archive(
    db: Session, count: int, *, age: str = "40 days", of: UUID | None = None,
    queue: str = "payments__commands",
) -> None:  # fmt: skip
    """Messages of commands that do not exist any more, or of this one, as PGMQ leaves them."""
    await db.rows(
        f"insert into pgmq.a_{queue} (msg_id, vt, archived_at, message)"
        f" select nextval('pgmq.q_{queue}_msg_id_seq'), now(), now() - cast(%s as interval),"
        " jsonb_build_object('command_id', coalesce(%s, gen_random_uuid()), 'data', '{\"n\": 1}')"
        " from generate_series(1, %s)",
        age, of, count,
    )  # fmt: skip


async def tend(db: Session) -> list[str]:
    """Everything that there is to do."""
    done: list[str] = []
    while did := await db.value(TEND):
        assert len(done) < 100, done
        done.append(did)
    return done


async def parts(db: Session, *, kept: bool = False) -> list[int]:
    """How many messages are in each part, in order."""
    return [
        await db.value(f"select count(*) from {row['piece']}")
        for row in await db.rows(PIECES)
        if row["is_kept"] == kept
    ]


async def count(db: Session, where: str = "true") -> int:
    return await db.value(f"select count(*) from {ARCHIVE} where {where}")


async def tables(db: Session, name: str) -> int:
    return await db.value("select count(*) from pg_class where relname like %s", name)


async def filled(db: Session, *, age: str = "40 days") -> None:
    """Full parts of old messages, and one message that is young."""
    for _ in range(4):
        await archive(db, SIZE, age=age)
        await tend(db)
    await archive(db, 1, age="0 s")


async def ended(bus: CommandBus) -> dict[str, int]:
    """What a turn of the chore dropped."""
    found: dict[str, int] = {}
    for each in await bus.upkeep.tend_archives():
        found.update(each.pruned)
    return found


async def as_old(db: Session) -> None:
    await db.rows(f"update {ARCHIVE} set archived_at = now() - interval '40 days'")


async def test_an_archive_stays_a_plain_table_until_it_has_grown(db: Session) -> None:
    await db.rows("select commandbus.change_setting('archive_part_rows', '250000')")
    await archive(db, 3 * SIZE)
    assert await tend(db) == []
    assert await db.value("select relkind = 'r' from pg_class where oid = %s::regclass", ARCHIVE)

    await db.rows("update commandbus.command_bus_setting set value = '20' where name ~ '^archive_'")
    done = await tend(db)

    assert done[0] == "divides the archive of payments__commands"
    assert await count(db) == 3 * SIZE
    assert await parts(db) == [3 * SIZE, 0]
    names = await db.rows(
        "select c.relname as n from pg_index i join pg_class c on c.oid = i.indexrelid"
        " where i.indrelid = %s::regclass order by 1",
        ARCHIVE,
    )
    assert [row["n"] for row in names] == [
        "a_payments__commands_pkey", "archived_at_idx_payments__commands",
    ]  # fmt: skip
    # 128 bytes a row: the empty archive of replies is none that has grown
    assert await tables(db, "a_%replies#%") == 0


async def test_everything_works_on_an_archive_in_parts(db: Session, bus: CommandBus) -> None:
    await filled(db)
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.put("CANCELED")
    assert await db.value("select pgmq.archive('payments__commands', pgmq.send(%s, '{}'))",
                          "payments__commands")  # fmt: skip
    assert await count(db, "archived_at > now() - interval '1 hour'") == 4
    await bus.operator_retry(DOMAIN, held.command_id)
    assert await db.status(held.command_id) == "PENDING"
    assert not {"QUEUE_PARTITIONED", "RIGHTS_MISSING", "INDEX_INVALID"} & codes(
        await bus.upkeep.doctor()
    )
    # the queue and all parts of its archive
    await db.rows("select pgmq.drop_queue('payments__commands')")
    assert await tables(db, "a_payments__commands%") == 0


async def test_old_parts_go_as_a_whole_and_what_is_young_stays(
    db: Session, bus: CommandBus
) -> None:
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    before = len(await parts(db))

    assert await ended(bus) == {"archived messages": 4 * SIZE}

    assert await count(db) == 1
    assert len(await parts(db)) < before
    assert await ended(bus) == {}
    assert await db.value("select count(*) from commandbus.command_bus_archive_part") == 0


async def test_numbers_of_parts_that_were_dropped_still_have_a_place(
    db: Session, bus: CommandBus
) -> None:
    """A restored or moved message may have any number."""
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert await ended(bus)
    for msg_id in (-5, 1, 2 * SIZE, 10_000_000):
        await db.rows(f"insert into {ARCHIVE} (msg_id, vt) values (%s, now())", msg_id)
    assert len(await parts(db, kept=True)) == 1


@pytest.mark.parametrize("status", ["PENDING", "IN_PROGRESS", "IN_TROUBLESHOOTING_QUEUE"])
async def test_messages_of_what_is_open_or_parked_stay_when_their_part_goes(
    db: Session, bus: CommandBus, status: str
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await archive(db, 1, of=held.command_id)  # of an attempt before
    await db.rows("update commandbus.command_bus_command set status = %s", status)
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    own = f"message ->> 'command_id' = '{held.command_id}'"

    assert await ended(bus) == {"archived messages": 4 * SIZE}

    assert await count(db, own) == 2
    assert await parts(db, kept=True) == [2]
    assert await db.value("select count(*) from pg_constraint where conname = 'part_range'") == 0
    # the next ones go too, and what is kept stays in one part
    await bus.upkeep.clear_retention("archives")
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert (await ended(bus))["archived messages"] >= 4 * SIZE
    assert await count(db, own) == 2
    assert await parts(db, kept=True) == [2]
    if status == "IN_TROUBLESHOOTING_QUEUE":
        await bus.operator_retry(DOMAIN, held.command_id)
        assert await db.status(held.command_id) == "PENDING"
    # once it has ended, its messages go row by row
    await db.rows("update commandbus.command_bus_command set status = 'CANCELED'")
    await bus.upkeep.prune(kinds=["archives"])
    assert await count(db, own) == 0


async def test_a_part_with_a_live_message_stays_and_is_pruned_by_rows(
    db: Session, bus: CommandBus
) -> None:
    await archive(db, 5)
    await tend(db)
    live = await db.value("select pgmq.send('payments__commands', '{}', 600)")
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    home = f"msg_id between {live - 5} and {live + 5}"

    dropped = await ended(bus)

    assert 0 < dropped["archived messages"] < 4 * SIZE, "only those behind it"
    assert await count(db, home) > 0
    await bus.upkeep.prune(kinds=["archives"])
    assert await count(db, home) == 0
    assert len(await parts(db)) == 1 + len(await parts(db, kept=False)) - 1
    # it ends: nothing comes any more
    await db.rows("select pgmq.archive('payments__commands', %s)", live)
    assert await count(db, f"msg_id = {live}") == 1
    await as_old(db)
    assert (await ended(bus))["archived messages"] >= 1
    assert await count(db, f"msg_id = {live}") == 0


async def test_a_transaction_that_may_still_send_keeps_its_part(
    db: Session, session: Open, bus: CommandBus
) -> None:
    sender = await session()
    sent = await sender.value("select pgmq.send('payments__commands', '{}')")
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await ended(bus)
    pieces = [r for r in await db.rows(PIECES) if r["first_id"] <= sent < r["below_id"]]
    assert [r["is_kept"] for r in pieces] == [False]

    await sender.rows("select pgmq.archive('payments__commands', %s)", sent)
    await sender.conn.commit()

    assert await count(db, f"msg_id = {sent}") == 1
    await ended(bus)
    assert await count(db, f"msg_id = {sent}") == 1, "it is young"
    await as_old(db)
    assert await ended(bus)
    assert await count(db, f"msg_id = {sent}") == 0


async def test_a_prepared_transaction_keeps_its_part_too(db: Session, bus: CommandBus) -> None:
    if await db.value("show max_prepared_transactions") == "0":
        pytest.skip("this server has no prepared transactions")
    await db.rows("begin")
    await db.rows("select pgmq.send('payments__commands', '{}')")
    await db.rows("prepare transaction 'sends'")
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert (await ended(bus)).get("archived messages", 0) < 4 * SIZE
    await db.rows("rollback prepared 'sends'")
    assert await ended(bus)


async def test_a_sequence_that_gives_numbers_ahead_keeps_all_parts(
    db: Session, bus: CommandBus
) -> None:
    await db.rows("alter sequence pgmq.q_payments__commands_msg_id_seq cache 10")
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert await ended(bus) == {}


@pytest.mark.parametrize("rule", ["none", "longer", "forever", "another domain"])
async def test_a_part_stays_unless_the_rule_of_its_domain_wants_all_of_it_gone(
    db: Session, bus: CommandBus, rule: str
) -> None:
    await filled(db)
    if rule == "longer":
        await bus.upkeep.set_retention("archives", 50 * DAY)
    elif rule == "forever":
        await bus.upkeep.set_retention("archives", 30 * DAY)
        await bus.upkeep.set_retention("archives", None, domain=DOMAIN)
    elif rule == "another domain":
        await bus.upkeep.set_retention("archives", 30 * DAY, domain="ledger")
    assert await ended(bus) == {}
    assert await count(db) == 4 * SIZE + 1


async def test_parts_without_messages_go_without_a_rule(db: Session, bus: CommandBus) -> None:
    await filled(db)
    await db.rows(f"delete from {ARCHIVE} where msg_id > {SIZE} and msg_id <= {4 * SIZE}")
    before = len(await parts(db))
    assert await ended(bus) == {}
    assert len(await parts(db)) < before
    assert await count(db) == SIZE + 1


async def test_parts_behind_one_that_stays_go_and_what_was_kept_before_it_stays_its_own(
    db: Session, bus: CommandBus
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await ended(bus)
    await db.value("select pgmq.send('payments__commands', '{}', 600)")
    await bus.upkeep.clear_retention("archives")
    await filled(db)
    await db.rows(LOOK_AGAIN)
    await as_old(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)

    assert (await ended(bus))["archived messages"] > 0

    kinds = [row["is_kept"] for row in await db.rows(PIECES)]
    assert kinds[:3] == [True, False, True], "the live message is between"
    assert await count(db, f"message ->> 'command_id' = '{held.command_id}'") == 1


async def test_one_young_message_keeps_its_part(db: Session, bus: CommandBus) -> None:
    await filled(db)
    await db.rows(f"update {ARCHIVE} set archived_at = now() where msg_id = 3")
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await ended(bus)
    assert await count(db, "msg_id = 3") == 1
    (first, *_) = await db.rows(PIECES)
    assert not first["is_kept"]


async def test_a_part_of_which_much_is_in_use_is_pruned_row_by_row(
    db: Session, bus: CommandBus
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await archive(db, 1_001, of=held.command_id)
    await archive(db, 40)
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)

    assert (await tend(db)).count("leaves a part of which too much is in use") == 1
    assert await tend(db) == [], "looked at again at its time only"
    (first, *_) = await db.rows(PIECES)
    assert not first["is_kept"]
    await bus.upkeep.prune(kinds=["archives"])

    assert await count(db) == 1_002 + 1
    assert await tables(db, "a_%#%\\_") == 0


async def test_archives_of_replies_that_were_none_go_by_their_own_rule(
    db: Session, bus: CommandBus
) -> None:
    await bus.upkeep.clear_retention("replies")
    waits = await db.put("PENDING")  # what it was answered too early is not kept for it
    for _ in range(4):
        await archive(db, SIZE, queue="payments__replies", of=waits.command_id)
        await tend(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert await ended(bus) == {}
    await bus.upkeep.set_retention("replies", 30 * DAY)
    assert await bus.upkeep.tend_archives(kinds=["archives"]) == []
    assert await bus.upkeep.tend_archives(domain="ledger") == []
    assert await ended(bus) == {"replies": 4 * SIZE}


async def test_a_dry_run_counts_what_then_goes_by_parts_and_by_rows(
    db: Session, bus: CommandBus
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.put("CANCELED")
    await as_old(db)
    await filled(db)
    await archive(db, 7)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await bus.upkeep.clear_retention("replies")
    (counted,) = await bus.upkeep.prune(dry_run=True)

    pruned = await bus.upkeep.prune()

    assert [(r.domain, r.kind, r.pruned) for r in pruned] == [
        (DOMAIN, "archives", counted.pruned)
    ]  # fmt: skip
    assert await count(db) == 2
    assert await count(db, f"message ->> 'command_id' = '{held.command_id}'") == 1


async def test_rows_of_a_part_that_will_soon_be_dropped_are_left_alone_until_then(
    db: Session, bus: CommandBus
) -> None:
    await filled(db, age="31 minutes")
    # all but the last message of the part have outlived the rule
    await db.rows(
        f"update {ARCHIVE} set archived_at = now() - interval '25 minutes'"
        ' where msg_id in (select max(msg_id) from pgmq."a_payments__commands#first")'
    )
    await bus.upkeep.set_retention("archives", timedelta(minutes=30))
    await bus.upkeep.set_retention("archives", None)
    await tend(db)
    await bus.upkeep.set_retention("archives", timedelta(minutes=30))
    await db.rows("select commandbus.prune_due('archives', %s, now(), 1000)", DOMAIN)
    first = 'select count(*) from pgmq."a_payments__commands#first"'
    assert await db.value(first) > 1

    # by an age, or when it is overdue by more than that, it goes row by row
    await db.rows(
        f"update {ARCHIVE} set archived_at = now() - interval '55 minutes'"
        f" where archived_at < now() - interval '30 minutes'"
    )
    await db.rows("select commandbus.prune_due('archives', %s, now(), 1000)", DOMAIN)
    assert await db.value(first) == 1
    await db.rows(
        "select commandbus.prune_archives(%s, now() - interval '24 minutes', 1000)", DOMAIN
    )
    assert await db.value(first) == 0


async def test_rows_of_a_part_that_should_have_been_dropped_long_ago_are_pruned(
    db: Session, bus: CommandBus
) -> None:
    await filled(db, age="55 minutes")
    await tend(db)
    await bus.upkeep.set_retention("archives", timedelta(minutes=30))
    await db.rows("select commandbus.prune_due('archives', %s, now(), 1000)", DOMAIN)
    assert await count(db) == 1


async def test_pruning_by_rows_goes_from_part_to_part_in_chunks(db: Session) -> None:
    await filled(db)
    # the later parts have older messages
    await db.rows(
        f"update {ARCHIVE} set archived_at = archived_at - msg_id * interval '1 minute'"
        " where archived_at < now() - interval '1 day'"
    )
    after, seen = None, []
    while True:
        row = (await db.rows(
            "select * from commandbus.prune_archives(%s, now() - interval '1 day', 7, %s)",
            DOMAIN, after,
        ))[0]  # fmt: skip
        seen.append(row["o_pruned"]["archived messages"])
        after = row["o_after"]
        if row["o_is_done"]:
            break
    assert sum(seen) == 4 * SIZE
    assert max(seen) == 7
    assert await count(db) == 1


async def test_one_who_prunes_rows_and_one_who_drops_parts_keep_apart(
    db: Session, session: Open, bus: CommandBus
) -> None:
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    pruner = await session()
    await pruner.rows("select commandbus.prune_archives(%s, now() - interval '1 day', 1)", DOMAIN)
    assert await ended(bus) == {}
    await pruner.conn.rollback()
    assert await ended(bus) == {"archived messages": 4 * SIZE}


async def test_a_reader_is_not_disturbed_and_keeps_nobody_waiting(
    db: Session, session: Open, bus: CommandBus
) -> None:
    await archive(db, 2 * SIZE)
    reader = await session()
    await reader.rows(f"select count(*) from {ARCHIVE}")
    assert await tend(db) == [], "not divided"
    await reader.conn.rollback()
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await reader.rows(f"select count(*) from {ARCHIVE}")

    assert await ended(bus) == {}
    await archive(db, 1)
    assert await tables(db, "a_%#%\\_") == 0
    await db.rows(LOOK_AGAIN)
    await reader.conn.rollback()
    assert await ended(bus)


async def test_a_domain_that_moves_keeps_its_archive_as_it_is(db: Session, bus: CommandBus) -> None:
    await archive(db, 2 * SIZE)
    await db.rows(MOVE, uuid4())
    assert await tend(db) == []
    await db.rows("delete from commandbus.command_bus_move")
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await archive(db, 3 * SIZE)
    await db.rows(MOVE, uuid4())
    assert await tend(db) == []
    await db.rows("delete from commandbus.command_bus_move")
    assert await ended(bus)


MOVE = (
    "insert into commandbus.command_bus_move (move_id, domain, is_leaving, from_shard, to_shard)"
    " values (%s, 'payments', true, 'one', 'two')"
)


@pytest.mark.parametrize("step", ["divide", "drop"])
async def test_a_move_that_begins_while_a_change_waits_for_its_lock_is_heeded(
    db: Session, session: Open, bus: CommandBus, step: str
) -> None:
    for name in ("divide_archive", "drop_archive_parts"):
        await db.rows(f"alter function commandbus.{name} set lock_timeout = '30s'")
    if step == "divide":
        await archive(db, 2 * SIZE)
    else:
        await filled(db)
        await tend(db)
        await bus.upkeep.set_retention("archives", 30 * DAY)
    before = await db.rows(PIECES)
    reader, tender = await session(), await session()
    await reader.rows(f"select count(*) from {ARCHIVE}")
    task = asyncio.create_task(tender.value(TEND))
    await db.until_blocked(tender)
    await db.rows(MOVE, uuid4())
    await reader.conn.commit()

    assert await task is None
    await tender.conn.commit()
    assert await db.rows(PIECES) == before


BUILT = {
    "a view": f"create view public.seen as select msg_id from {ARCHIVE}",
    "a trigger": f"create trigger t before update on {ARCHIVE} for each row"
    " execute function suppress_redundant_updates_trigger()",
    "an index": f"create index extra on {ARCHIVE} (read_ct)",
    "a publication": f"create publication p for table {ARCHIVE}",
    "a function": f"create function public.f({ARCHIVE}) returns int language sql return 1",
    "a child": f"create table public.child () inherits ({ARCHIVE})",
}


@pytest.mark.parametrize(
    "what",
    [each if each == "a view" else pytest.param(each, marks=pytest.mark.long) for each in BUILT],
)
async def test_an_archive_on_which_somebody_built_stays_a_plain_table(
    db: Session, what: str
) -> None:
    await db.rows(BUILT[what])
    await archive(db, 2 * SIZE)
    assert await tend(db) == []


async def test_rights_go_over_to_the_whole(db: Session) -> None:
    await db.rows(f"grant select on {ARCHIVE} to pg_read_all_settings")
    await archive(db, 2 * SIZE)
    await tend(db)
    allowed = "select has_table_privilege('pg_read_all_settings', %s::regclass, 'select')"
    assert await db.value(allowed, ARCHIVE)
    for row in await db.rows("select piece::text as piece from commandbus.archive_pieces(%s)",
                             ARCHIVE):  # fmt: skip
        assert not await db.value(allowed, row["piece"])


async def test_a_part_that_a_view_reads_stays_and_its_rows_are_pruned(
    db: Session, bus: CommandBus
) -> None:
    await filled(db)
    await db.rows('create view public.seen as select * from pgmq."a_payments__commands#first"')
    await bus.upkeep.set_retention("archives", 30 * DAY)
    assert await ended(bus) == {}
    await bus.upkeep.prune(kinds=["archives"])
    assert await db.value("select count(*) from public.seen") == 0


async def test_a_queue_that_is_made_again_knows_nothing_of_the_parts_before(db: Session) -> None:
    await filled(db)
    assert await db.value("select count(*) from commandbus.command_bus_archive_part") > 0
    await db.rows("select pgmq.drop_queue('payments__commands')")
    await db.rows("select commandbus.ensure_domain(%s)", DOMAIN)
    await archive(db, SIZE // 2)
    await db.value(TEND)
    assert await db.value("select count(*) from commandbus.command_bus_archive_part") == 0


async def test_what_is_kept_for_long_does_not_make_parts_larger(
    db: Session, bus: CommandBus
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await as_old(db)
    await filled(db)
    await bus.upkeep.set_retention("archives", 30 * DAY)
    await ended(bus)
    assert await count(db, f"message ->> 'command_id' = '{held.command_id}'") == 1
    for last in (100_000, 110_000):
        await db.rows("select setval('pgmq.q_payments__commands_msg_id_seq', %s)", last)
        await archive(db, 1)
        await as_old(db)
        await ended(bus)
    assert await count(db, f"message ->> 'command_id' = '{held.command_id}'") == 1
    (rows,) = await db.rows(
        "select commandbus.archive_part_rows(%s, 'pgmq.q_payments__commands_msg_id_seq') as n",
        ARCHIVE,
    )
    assert rows["n"] < 110_000 / 32 / 5


async def test_archives_are_not_tended_in_a_transaction_that_sees_one_moment(db: Session) -> None:
    await filled(db)
    await tend(db)
    await db.rows("begin isolation level repeatable read")
    with pytest.raises(psycopg.Error, match="read committed"):
        await db.rows(TEND)
    await db.rows("rollback")
