"""The records of moves: what may be done when, and by whom."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.moves import OTHER, adopt, arriving, as_it_is, leaving, record

NOTE = "select commandbus.note_move(%s, %s)"
MARK = "select commandbus.mark_frozen(%s)"
VERIFIED = "select commandbus.note_verified(%s, '{\"a\": 1}', %s)"
ADOPT = "select commandbus.adopt_moved_map(%s, 'one', %s, 'one', %s)"
ARRIVE = "select commandbus.begin_arriving(%s, %s, 'two', 'one', %s)"
FREEZE = "select commandbus.freeze_table(%s, %s::regclass, %s)"
THAW = "select commandbus.thaw_table(%s, %s::regclass)"
ICE = "select t::text as t from commandbus.tables_with_ice(%s) t"
FLOW = "insert into commandbus.command_bus_flow (domain) values (%s) on conflict do nothing"
REFUSED = errors.DatabaseError


async def test_a_move_begins_where_the_domain_is_and_is_the_one_that_goes_on(db: Session) -> None:
    with pytest.raises(REFUSED, match="is not on this shard"):
        await db.value("select commandbus.begin_leaving(%s, 'two')", DOMAIN)
    await adopt(db, 1, refunds="two")
    with pytest.raises(REFUSED, match="'refunds' is not on this shard"):
        await db.value("select commandbus.begin_leaving(%s, 'three')", OTHER)
    other = await leaving(Session(db.conn, "third"))
    move = await leaving(db)
    assert await leaving(db) == move != other
    with pytest.raises(REFUSED, match="is on its way from 'one' to 'two'"):
        await db.value("select commandbus.begin_leaving(%s, 'three')", DOMAIN)
    await as_it_is(db, move, "canceled", is_frozen=False)
    assert await leaving(db) != move
    await db.rows("delete from commandbus.command_bus_move")
    await arriving(db)
    with pytest.raises(REFUSED, match="is on its way from 'two' to 'one'"):
        await leaving(db)


async def test_a_domain_arrives_where_nothing_of_it_is_and_nobody_sends_to_it(db: Session) -> None:
    await adopt(db, 1, payments="two")
    await db.rows(FLOW, DOMAIN)  # what processes tell every database
    move, queues = uuid4(), [f"{DOMAIN}.commands", f"{DOMAIN}.done"]
    for _ in range(2):
        await db.value(ARRIVE, move, DOMAIN, queues)
        row = await record(db, move)
        assert (row["domain"], row["is_leaving"], row["from_shard"], row["to_shard"]) == (
            DOMAIN, False, "two", "one",
        )  # fmt: skip
        assert await db.value("select commandbus.queue_exists('payments.done')")
        with pytest.raises(REFUSED, match="not on this shard"):
            await db.value("select pgmq.send('payments__commands', '{}')")
    # Later it has rows, and goes on all the same; another move does not begin.
    await db.rows("insert into commandbus.command_bus_batch values (gen_random_uuid(), 'payments')")
    await db.value(ARRIVE, move, DOMAIN, queues)
    with pytest.raises(REFUSED, match="from an earlier stay: 1 command_bus_batch"):
        await db.value(ARRIVE, uuid4(), DOMAIN, queues)


#: Phases that may follow each, of a move that leaves and of one that arrives.
AFTER_LEAVING = {
    "copying": {"copying", "closing", "switched", "finished", "canceled"},
    "closing": {"copying", "closing", "switched", "finished", "canceled"},
    "verified": {"copying", "closing", "verified", "switched", "finished", "canceled"},
    "switched": {"switched", "finished"},
    "finished": {"switched", "finished"},
    "canceled": {"canceled"},
}
AFTER_ARRIVING = {
    **AFTER_LEAVING,
    "copying": AFTER_LEAVING["verified"],
    "closing": AFTER_LEAVING["verified"],
}


@pytest.mark.parametrize("is_leaving", [True, False])
async def test_a_phase_follows_only_those_that_it_may(db: Session, is_leaving: bool) -> None:
    move = await leaving(db) if is_leaving else await arriving(db)
    after = AFTER_LEAVING if is_leaving else AFTER_ARRIVING
    for before, allowed in after.items():
        for phase in after:
            await as_it_is(db, move, before, is_frozen=True)
            if phase not in allowed:
                with pytest.raises(REFUSED, match="the move cannot become"):
                    await db.value(NOTE, move, phase)
                assert (await record(db, move))["phase"] == before, (before, phase)
            else:
                await db.value(NOTE, move, phase)
                row = await record(db, move)
                if before in {phase, "finished"}:
                    continue
                assert row["phase"] == phase
                assert (row["finished_at"] is not None) == (phase in {"finished", "canceled"})
                thaws = {"finished", "canceled", "copying" if is_leaving else "switched"}
                assert row["is_frozen"] == (phase not in thaws), (before, phase)
    with pytest.raises(REFUSED, match="the move cannot become"):
        await db.value(NOTE, uuid4(), "copying")


async def test_a_move_that_the_map_has_let_go_does_not_go_back(db: Session) -> None:
    move = await leaving(db, "verified", is_frozen=True)
    await db.rows('update commandbus.command_bus_shard set domains = \'{"payments": "two"}\'')
    for phase in ("copying", "closing", "canceled"):
        with pytest.raises(REFUSED, match="the move cannot become"):
            await db.value(NOTE, move, phase)
    await db.value("select commandbus.note_move(%s, 'switched', '{\"x\": 2}')", move)
    assert (await record(db, move))["counts"] == {"x": 2}
    await db.value(NOTE, move, "finished")
    assert (await record(db, move))["counts"] == {"x": 2}


async def test_what_was_compared_is_verified_only_if_nobody_has_opened_it_since(
    db: Session,
) -> None:
    move = await leaving(db)
    with pytest.raises(REFUSED, match="opened again or ended"):
        await db.value(MARK, move)
    await db.value(NOTE, move, "closing")
    first = await db.value(MARK, move)
    assert await db.value(MARK, move) == first
    await db.value(NOTE, move, "copying")  # another process gives up
    with pytest.raises(REFUSED, match="was opened again"):
        await db.value(VERIFIED, move, first)
    await db.value(NOTE, move, "closing")
    with pytest.raises(REFUSED, match="was opened again"):
        await db.value(VERIFIED, move, first)
    second = await db.value(MARK, move)
    with pytest.raises(REFUSED, match="was opened again"):
        await db.value(VERIFIED, move, first)
    with pytest.raises(REFUSED, match="opened or given up"):
        await db.value(ADOPT, move, 2, Jsonb({"payments": "two"}))
    await db.value(VERIFIED, move, second)
    await db.value(VERIFIED, move, second)  # both have compared it
    row = await record(db, move)
    assert (row["phase"], row["is_frozen"], row["counts"]) == ("verified", True, {"a": 1})
    assert await db.value(MARK, move) == row["changed_at"]
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    assert await db.value(ADOPT, move, 2, Jsonb({"payments": "two"}))
    await db.value(NOTE, move, "switched")
    assert not await db.value(ADOPT, move, 2, Jsonb({"payments": "two"}))
    await db.value(VERIFIED, move, second)
    with pytest.raises(REFUSED, match="opened again or ended"):
        await db.value(MARK, move)
    await db.value(NOTE, move, "finished")
    assert not await db.value(ADOPT, move, 2, Jsonb({"payments": "two"}))
    await as_it_is(db, move, "verified", is_frozen=False)
    with pytest.raises(REFUSED, match="opened or given up"):
        await db.value(ADOPT, move, 3, Jsonb({}))
    with pytest.raises(REFUSED, match="was opened again"):
        await db.value(VERIFIED, move, second)


async def test_copies_are_frozen_from_the_beginning(db: Session) -> None:
    move = await arriving(db)
    assert await db.value(MARK, move)
    assert (await record(db, move))["is_frozen"]
    await as_it_is(db, move, "finished", is_frozen=False)
    with pytest.raises(REFUSED, match="ended by somebody else"):
        await db.value(MARK, move)


FROZEN = {
    "": "insert into commandbus.command_bus_flow (domain) values (%s)",
    "batch": (
        "insert into commandbus.command_bus_creation_metric values"
        " ((select batch_id from commandbus.command_bus_batch where domain = %s),"
        " 'two_phase', 1, 1, 1, 1, 1, false)"
    ),
    "operation": (
        "insert into commandbus.command_bus_bulk_item"
        " (operation_id, item_no, command_id, parked_at)"
        " select operation_id, 1, gen_random_uuid(), now()"
        " from commandbus.command_bus_bulk_operation where domain = %s"
    ),
}
RELATIONS = {
    "": "commandbus.command_bus_flow",
    "batch": "commandbus.command_bus_creation_metric",
    "operation": "commandbus.command_bus_bulk_item",
}


@pytest.mark.parametrize("parent", FROZEN)
async def test_rows_of_a_frozen_domain_are_changed_by_the_move_alone(
    db: Session, parent: str
) -> None:
    for domain in (DOMAIN, OTHER):
        await db.rows(
            "insert into commandbus.command_bus_batch values (gen_random_uuid(), %s)", domain
        )
        await db.rows(
            "insert into commandbus.command_bus_bulk_operation"
            " (operation_id, domain, verb, filter, arguments, digest, status, total)"
            " values (gen_random_uuid(), %s, 'retry', '{}', '{}', '', 'running', 1)",
            domain,
        )
    move, relation = await leaving(db, "closing", is_frozen=True), RELATIONS[parent]
    for _ in range(2):
        await db.value(FREEZE, DOMAIN, relation, parent)
    assert [row["t"] for row in await db.rows(ICE, DOMAIN)] == [relation.partition(".")[2]]
    assert await db.rows(ICE, OTHER) == []
    with pytest.raises(REFUSED, match="'payments' is being moved"):
        await db.rows(FROZEN[parent], DOMAIN)
    await db.rows(FROZEN[parent], OTHER)
    await db.value("select set_config('commandbus_move.domain', %s, false)", DOMAIN)
    await db.rows(FROZEN[parent], DOMAIN)
    for setting in (OTHER, ""):
        await db.value("select set_config('commandbus_move.domain', %s, false)", setting)
        with pytest.raises(REFUSED, match="'payments' is being moved"):
            await db.rows(f"delete from {relation}")
    # Not frozen any more, though another is: it refuses nothing, and is taken away.
    await as_it_is(db, move, "copying", is_frozen=False)
    await leaving(Session(db.conn, OTHER), "closing", is_frozen=True)
    await db.rows(f"delete from {relation}")
    await db.value(THAW, DOMAIN, relation)
    assert await db.rows(ICE, DOMAIN) == []


async def test_only_leases_that_have_not_lapsed_are_waited_for(db: Session) -> None:
    await db.send(*[uuid4() for _ in range(4)])
    running = "select commandbus.running_in_domain(%s)"
    assert await db.value(running, DOMAIN) == 0
    first, second = await db.receive(2)
    assert await db.value(running, DOMAIN) == 2
    await db.lapse(first)
    assert await db.value(running, DOMAIN) == 1
    await db.settle("retry", second.item(delay=60, error_type="TRANSIENT", error_msg="x"))
    assert await db.value(running, DOMAIN) == 0


LEASES = {
    "update pgmq.q_payments__commands set vt = 'infinity'",
    "update commandbus.command_bus_command set msg_id = msg_id + 1000",
    "update commandbus.command_bus_command set leased_by = null",
    "update commandbus.command_bus_command set domain = 'refunds'",
}


@pytest.mark.parametrize("change", sorted(LEASES))
async def test_what_only_looks_like_a_lease_is_not_waited_for(db: Session, change: str) -> None:
    await db.send()
    await db.receive()
    await db.rows(change)
    assert await db.value("select commandbus.running_in_domain(%s)", DOMAIN) == 0


async def test_history_of_a_domain_that_moves_is_not_removed(db: Session) -> None:
    for prune in ("prune_commands", "prune_batches"):
        text = f"select commandbus.{prune}(%s, now(), 10)"
        await db.rows("delete from commandbus.command_bus_move")
        await leaving(Session(db.conn, OTHER))
        await db.rows(text, DOMAIN)
        with pytest.raises(REFUSED, match="nothing is removed meanwhile"):
            await db.rows(text, OTHER)


async def test_who_changes_a_copy_and_who_ends_the_move_wait_for_each_other(
    db: Session, session: Open
) -> None:
    for text in (
        "select * from commandbus.put_moved_rows("
        "%s, 'command_bus_sender', false, null, null, '{}')",
        "select commandbus.forget_moved_rows(%s, 'command_bus_sender', 5)",
    ):
        await db.rows("delete from commandbus.command_bus_move")
        move = await arriving(db)
        copier, ender = await session(), await session()
        await copier.rows(text, move)
        noting = asyncio.create_task(ender.value(NOTE, move, "verified"))
        await db.until_blocked(ender)
        await copier.conn.commit()
        await noting
        await ender.conn.commit()


async def test_a_closed_domain_lets_nothing_in_and_nothing_be_leased(db: Session) -> None:
    await db.send(uuid4(), uuid4())
    (held,) = await db.receive(1)
    for _ in range(2):
        await db.value("select commandbus.close_leases(%s)", DOMAIN)
    assert await db.receive() == []
    with pytest.raises(REFUSED, match="is being moved"):
        await db.send()
    await db.settle("complete", held.item(data=None))  # what runs may end
    for _ in range(2):
        await db.value("select commandbus.open_leases(%s)", DOMAIN)
    assert len(await db.receive()) == 1
    await db.send()


@pytest.mark.parametrize("called", [DOMAIN, OTHER])
async def test_what_ends_while_its_domain_is_closed_may_end_its_batch(
    db: Session, called: str
) -> None:
    await db.value("select commandbus.ensure_domain(%s)", called)
    batch = await db.batch()
    await db.rows(
        "update commandbus.command_bus_batch set on_complete = %s",
        Jsonb({"domain": called, "type": "Close", "data": {}}),
    )
    await db.send(batch_id=batch)
    (held,) = await db.receive(1)
    await db.value("select commandbus.close_domains(%s)", [DOMAIN, called])
    await db.settle("complete", held.item(data=None))
    assert (await db.batch_row(batch))["status"] == "COMPLETED"
    assert await db.value(f"select count(*) from pgmq.q_{called}__commands") == 1
    with pytest.raises(REFUSED, match="is being moved"):
        await db.send()


async def test_a_batch_does_not_call_another_shard_at_its_end(db: Session) -> None:
    await adopt(db, 1, refunds="two")
    elsewhere = {"domain": OTHER, "type": "Close", "data": {}}
    with pytest.raises(REFUSED, match="'refunds', which is on another shard"):
        await db.value("select commandbus.check_on_complete(%s)", Jsonb(elsewhere))
    await db.value("select commandbus.check_on_complete(%s)", Jsonb(elsewhere | {"domain": DOMAIN}))
    # Of a domain that is elsewhere itself it is said, so that the batch is sent there.
    for create in (
        "create_batch(%s, %s, '[]', p_on_complete => %s)",
        "create_stored_batch(%s, %s, '[]', null, null, null, %s, false, 'two_phase')",
        "begin_load(%s, %s, 'x', '{}', 'sealed', p_on_complete => %s)",
    ):
        text = f"select commandbus.{create}"
        with pytest.raises(REFUSED, match="'refunds' is not on this shard"):
            await db.value(text, OTHER, uuid4(), Jsonb(elsewhere))
    # One that was there before: it ends, and its last event says what was not sent.
    batch = await db.batch()
    await db.rows("update commandbus.command_bus_batch set on_complete = %s", Jsonb(elsewhere))
    await db.send(batch_id=batch)
    (held,) = await db.receive(1)
    await db.settle("complete", held.item(data=None))
    details = await db.details(batch, "BATCH_COMPLETED")
    assert details["closing_command"] == "its domain is on another shard"


async def test_a_domain_does_not_leave_those_that_its_open_batches_call(db: Session) -> None:
    await adopt(db)
    for domain in (DOMAIN, OTHER):
        await db.value("select commandbus.ensure_domain(%s)", domain)
    batch = await db.batch()
    across = "select commandbus.callbacks_across(%s, %s)"
    put = (
        "update commandbus.command_bus_batch set on_complete = %s, status = %s where batch_id = %s"
    )
    for called, status, found in (
        (DOMAIN, "PENDING", None), (OTHER, "COMPLETED", None), ("third", "PENDING", "'third'"),
        (OTHER, "IN_PROGRESS", "'refunds'"), (OTHER, "PENDING", "'refunds'"),
    ):  # fmt: skip
        await db.rows(put, Jsonb({"domain": called, "type": "Close"}), status, batch)
        said = await db.value(across, DOMAIN, "two")
        assert (said is None) == (found is None), (called, status)
        assert found is None or said == f"1 of domain 'payments' that call domain {found}"
    assert await db.value(across, DOMAIN, "one") is None
    assert (
        await db.value(across, OTHER, "two") == "1 of domain 'payments' that call domain 'refunds'"
    )
    assert await db.value(across, "third", "two") is None
    for domain in (DOMAIN, OTHER):
        with pytest.raises(REFUSED, match="open batches call another shard at their end: 1 of"):
            await adopt(db, 2, **{domain: "two"})


async def test_new_numbers_come_after_those_of_the_other_shard(db: Session) -> None:
    await db.send(uuid4(), uuid4())
    await db.value("select commandbus.ensure_queue('payments.done')")
    await db.value("select commandbus.ensure_domain(%s)", OTHER)
    rows = await db.rows("select * from commandbus.numbers_of(%s)", DOMAIN)
    found = {row["sequence"]: row["last"] for row in rows}
    assert found["payments.commands"] == 2
    assert set(found) == {"payments.commands", "payments.replies", "payments.done", ""}
    go = "select commandbus.go_past_numbers(%s, %s)"
    await db.value(go, ["payments.commands", ""], [500, found[""] + 50])
    assert await db.value("select pgmq.send('payments__commands', '{}')") == 502
    seq = "select nextval('commandbus.command_bus_key_number')"
    assert await db.value(seq) == found[""] + 50 + 1000 + 1
    await db.value(go, ["payments.commands", "payments.done", ""], [7, 1, 1])
    assert await db.value("select pgmq.send('payments__commands', '{}')") == 503
    assert await db.value("select pgmq.send('payments__done', '{}')") == 3
