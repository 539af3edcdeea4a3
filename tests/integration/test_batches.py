"""Batches of one transaction: created whole or not at all, counted exactly, ending once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import (
    BatchCommand,
    BatchMetadata,
    BatchNotFoundError,
    Command,
    CommandBus,
    DuplicateCommandError,
    HandlerContext,
    InvalidInputError,
    InvalidOperationError,
    PermanentCommandError,
    ReplyTimeoutError,
    RetryPolicy,
    Settings,
)
from commandbus.batches import progress_of
from commandbus.errors import RepeatedIdError
from tests.waiting import until, working

Connection = psycopg.AsyncConnection[Any]


def commands(count: int, command_type: str = "Work", **data: Any) -> list[BatchCommand]:
    return [BatchCommand(command_type, uuid4(), {"n": n, **data}) for n in range(count)]


def counts(batch: BatchMetadata | None) -> tuple[int, ...]:
    assert batch is not None
    return (
        batch.total_count, batch.completed_count, batch.failed_count, batch.canceled_count,
        batch.in_troubleshooting_count,
    )  # fmt: skip


async def recount(conn: Connection, batch_id: UUID) -> tuple[int, ...]:
    cursor = await conn.execute(
        "select count(*), count(*) filter (where status = 'COMPLETED'),"
        " count(*) filter (where status = 'FAILED'), count(*) filter (where status = 'CANCELED'),"
        " count(*) filter (where status = 'IN_TROUBLESHOOTING_QUEUE')"
        " from commandbus.command_bus_command where batch_id = %s",
        (batch_id,),
    )
    row = await cursor.fetchone()
    assert row is not None
    return tuple(row)


async def batch_events(bus: CommandBus, batch_id: UUID) -> list[str]:
    return [event.event_type for event in await bus.get_audit_trail(batch_id)]


async def size_of_everything(conn: Connection) -> list[Any]:
    cursor = await conn.execute(
        "select (select count(*) from commandbus.command_bus_batch),"
        " (select count(*) from commandbus.command_bus_command),"
        " (select count(*) from commandbus.command_bus_audit),"
        " (select count(*) from pgmq.q_shop__commands)"
    )
    return await cursor.fetchall()


def register_handlers(bus: CommandBus) -> dict[str, bool]:
    switch = {"broken": True}

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> int:
        return int(command.data["n"])

    @bus.handler("shop", "Break")
    async def break_(command: Command, ctx: HandlerContext) -> None:
        if switch["broken"]:
            raise PermanentCommandError("BROKEN", "not today")

    @bus.handler("shop", "GiveUp", retry_policy=RetryPolicy(when_exhausted="fail"))
    async def give_up(command: Command, ctx: HandlerContext) -> None:
        if switch["broken"]:
            raise PermanentCommandError("BROKEN", "not today")

    return switch


async def test_a_batch_is_created_pending_with_all_its_commands_in_order(bus: CommandBus) -> None:
    sent = commands(25)
    batch_id = await bus.create_batch("shop", sent, name="import", custom_data={"file": "a.csv"})
    batch = await bus.get_batch("shop", batch_id)
    assert batch is not None
    assert (batch.status, batch.name, batch.custom_data) == ("PENDING", "import", {"file": "a.csv"})
    assert counts(batch) == (25, 0, 0, 0, 0)
    listed = await bus.list_batch_commands("shop", batch_id)
    assert [row.command_id for row in listed] == [command.command_id for command in sent]
    page = await bus.list_batch_commands("shop", batch_id, limit=2, offset=3)
    assert [row.command_id for row in page] == [sent[3].command_id, sent[4].command_id]


async def test_a_batch_goes_through_its_states_and_ends_once(
    bus: CommandBus, conn: Connection
) -> None:
    register_handlers(bus)
    batch_id = await bus.create_batch("shop", commands(120))
    async with working(bus, "shop"):
        batch = await bus.batches.wait("shop", batch_id, timeout=30)
    assert (batch.status, counts(batch)) == ("COMPLETED", (120, 120, 0, 0, 0))
    assert batch.started_at is not None
    assert await batch_events(bus, batch_id) == ["BATCH_STARTED", "BATCH_COMPLETED"]
    assert await recount(conn, batch_id) == counts(batch)


async def test_a_batch_with_parked_commands_stays_open_until_operators_decide(
    bus: CommandBus, conn: Connection
) -> None:
    register_handlers(bus)
    parked = commands(3, "Break")
    batch_id = await bus.create_batch("shop", [*commands(5), *parked])
    async with working(bus, "shop"):

        async def is_settled() -> bool:
            return counts(await bus.get_batch("shop", batch_id)) == (8, 5, 0, 0, 3)

        await until(is_settled)
        batch = await bus.get_batch("shop", batch_id)
        assert batch is not None
        assert (batch.status, batch.completed_at) == ("IN_PROGRESS", None)
        await bus.operator_complete("shop", parked[0].command_id, {"by": "hand"})
        await bus.operator_cancel("shop", parked[1].command_id, "no")
        await bus.operator_cancel("shop", parked[2].command_id, "no")
    batch = await bus.batches.wait("shop", batch_id, timeout=30)
    assert (batch.status, counts(batch)) == ("COMPLETED_WITH_FAILURES", (8, 6, 0, 2, 0))
    assert (await batch_events(bus, batch_id)).count("BATCH_COMPLETED") == 1
    assert await recount(conn, batch_id) == counts(batch)


async def test_retry_opens_a_finished_batch_again_and_a_second_click_changes_nothing(
    bus: CommandBus, conn: Connection
) -> None:
    switch = register_handlers(bus)
    called: list[BatchMetadata] = []

    async def remember(batch: BatchMetadata) -> None:
        called.append(batch)

    batch_id = await bus.create_batch(
        "shop", [*commands(4), *commands(2, "GiveUp")], on_complete=remember,
        on_complete_command=BatchCommand("Work", uuid4(), {"n": 99}),
    )  # fmt: skip
    async with working(bus, "shop"):
        ended = await bus.batches.wait("shop", batch_id, timeout=30)
        assert (ended.status, counts(ended)) == ("COMPLETED_WITH_FAILURES", (6, 4, 2, 0, 0))
        await until(lambda: len(called) == 1, "the callback")
        switch["broken"] = False
        assert await bus.batches.retry("shop", batch_id, operator="ada") == 2
        assert await bus.batches.retry("shop", batch_id, operator="ada") == 0
        again = await bus.batches.wait("shop", batch_id, timeout=30)
        assert (again.status, counts(again)) == ("COMPLETED", (6, 6, 0, 0, 0))
        await until(lambda: len(called) == 2, "the callback once more")
    assert [batch.status for batch in called] == ["COMPLETED_WITH_FAILURES", "COMPLETED"]
    trail = await bus.get_audit_trail(batch_id)
    assert [(event.event_type, event.actor) for event in trail] == [
        ("BATCH_STARTED", None), ("BATCH_COMPLETED", None), ("BATCH_REOPENED", "ada"),
        ("BATCH_COMPLETED", None),
    ]  # fmt: skip
    cursor = await conn.execute(
        "select count(*) from commandbus.command_bus_command where correlation_id = %s", (batch_id,)
    )
    assert await cursor.fetchone() == (2,), "one closing command for each closing"
    assert await recount(conn, batch_id) == counts(again)


async def test_cancel_ends_what_nobody_works_on_with_a_reply_each(
    bus: CommandBus, conn: Connection
) -> None:
    batch_id = await bus.create_batch("shop", commands(30))
    cursor = await conn.execute("select * from commandbus.receive_commands('shop', 600, 2, 'w')")
    assert len(await cursor.fetchall()) == 2
    assert await bus.batches.cancel("shop", batch_id, "wrong file", operator="ada") == 28
    assert await bus.batches.cancel("shop", batch_id, "wrong file") == 0
    batch = await bus.get_batch("shop", batch_id)
    assert batch is not None
    assert (batch.status, counts(batch)) == ("IN_PROGRESS", (30, 0, 0, 28, 0))
    replies = [reply async for reply in bus.replies("shop", wait=False)]
    assert {reply.outcome for reply in replies} == {"CANCELED"}
    assert len(replies) == 28


async def test_a_batch_that_fails_at_its_last_command_leaves_nothing(
    bus: CommandBus, conn: Connection
) -> None:
    """No row, no message, no callback."""
    known = await bus.send("shop", "Work", uuid4(), {"n": 0})
    before = await size_of_everything(conn)

    async def never(batch: BatchMetadata) -> None:
        raise AssertionError(batch)

    with pytest.raises(DuplicateCommandError) as duplicate:
        await bus.create_batch(
            "shop", [*commands(50), BatchCommand("Work", known, {})], on_complete=never
        )
    assert duplicate.value.command_ids == (known,)
    assert await size_of_everything(conn) == before
    assert bus._completions._batch_callbacks == {}


async def test_a_duplicate_id_within_the_batch_is_refused(
    bus: CommandBus, conn: Connection
) -> None:
    await bus.send("shop", "Work", uuid4(), {"n": 0})
    before = await size_of_everything(conn)
    twice = commands(3)
    said = f"the id {twice[1].command_id} is twice in this list (positions 2 and 4); nothing"
    for create in (bus.create_batch, bus.send_many, bus.batches.dispatch):
        with pytest.raises(RepeatedIdError) as caught:
            await create("shop", [*twice, twice[1]])
        assert str(caught.value).startswith(said)
        assert await size_of_everything(conn) == before


async def test_an_id_that_is_twice_in_a_long_list_is_named_with_its_positions(
    bus: CommandBus, conn: Connection
) -> None:
    await bus.send("shop", "Work", uuid4(), {"n": 0})
    before = await size_of_everything(conn)
    many = commands(5_000)
    for sent in ([*many, many[7]], iter([*many, many[7]])):
        with pytest.raises(RepeatedIdError) as caught:
            await bus.send_many("shop", sent)
        assert caught.value.positions == {many[7].command_id: (8, 5_001)}
    assert await size_of_everything(conn) == before


async def test_a_batch_joins_the_callers_transaction(bus: CommandBus, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as mine:
        rolled_back = await bus.create_batch("shop", commands(3), conn=mine)
        assert await bus.get_batch("shop", rolled_back) is None
        await mine.rollback()
        kept = await bus.create_batch("shop", commands(3), conn=mine)
        await mine.commit()
    assert await bus.get_batch("shop", rolled_back) is None
    assert counts(await bus.get_batch("shop", kept)) == (3, 0, 0, 0, 0)


async def test_a_batch_that_its_caller_takes_back_takes_its_callback_with_it(
    bus: CommandBus, dsn: str
) -> None:
    """Registered before the commit, dropped after a rollback, fired after a commit."""
    register_handlers(bus)
    called: list[UUID] = []

    async def remember(batch: BatchMetadata) -> None:
        called.append(batch.batch_id)

    async with await psycopg.AsyncConnection.connect(dsn) as mine:
        await bus.create_batch("shop", commands(1), on_complete=remember, conn=mine)
        await mine.rollback()
        await mine.execute("savepoint before")
        await bus.create_batch("shop", commands(1), on_complete=remember, conn=mine)
        await mine.execute("rollback to savepoint before")
        kept = await bus.create_batch("shop", commands(1), on_complete=remember, conn=mine)
        callbacks = bus._completions._batch_callbacks
        await until(lambda: len(callbacks) == 2, "the first is known to be gone")
        await mine.commit()
    await until(lambda: list(callbacks) == [("shop", kept)], "the second is gone, the third stays")
    async with working(bus, "shop"):
        await until(lambda: called == [kept], "the callback")
    assert bus._completions._unsettled == {}


async def test_creation_is_measured_where_the_batch_is_created(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """R157: a structured line and a row, in the commit of the batch itself."""
    with caplog.at_level(logging.INFO, logger="commandbus.batches"):
        batch_id = await bus.create_batch("shop", commands(3))
    [line] = [r.__dict__ for r in caplog.records if r.name == "commandbus.batches"]
    assert (line["batch_id"], line["pattern"], line["batch_size"]) == (str(batch_id), "inline", 3)
    assert line["total_ms"] > 0
    cursor = await conn.execute(
        "select pattern, batch_size, db_insert_ms = total_ms, total_ms > 0, retry_needed"
        " from commandbus.command_bus_creation_metric where batch_id = %s",
        (batch_id,),
    )
    assert await cursor.fetchone() == ("inline", 3, True, True, False)


async def test_commands_sent_into_a_batch_are_counted(bus: CommandBus) -> None:
    batch_id = await bus.create_batch("shop", commands(2))
    await bus.send("shop", "Work", uuid4(), {"n": 1}, batch_id=batch_id)
    await bus.send_many("shop", commands(4), batch_id=batch_id)
    assert counts(await bus.get_batch("shop", batch_id)) == (7, 0, 0, 0, 0)


async def test_a_finished_batch_takes_no_more_commands(bus: CommandBus) -> None:
    register_handlers(bus)
    batch_id = await bus.create_batch("shop", commands(1))
    async with working(bus, "shop"):
        await bus.batches.wait("shop", batch_id, timeout=30)
    with pytest.raises(InvalidOperationError, match="finished"):
        await bus.send("shop", "Work", uuid4(), {"n": 1}, batch_id=batch_id)


async def test_a_batch_of_another_domain_is_not_found(bus: CommandBus) -> None:
    batch_id = await bus.create_batch("shop", commands(1))
    assert await bus.get_batch("bank", batch_id) is None
    for call in (
        bus.send("bank", "Work", uuid4(), {}, batch_id=batch_id),
        bus.batches.cancel("bank", batch_id, "no"),
        bus.batches.retry("bank", batch_id),
        bus.batches.wait("bank", batch_id),
    ):
        with pytest.raises(BatchNotFoundError):
            await call


async def test_a_batch_has_a_size(bus: CommandBus, dsn: str) -> None:
    with pytest.raises(ValueError, match="at least one"):
        await bus.create_batch("shop", [])
    async with CommandBus.connect(dsn, settings=Settings(max_batch_size=5)) as small:
        with pytest.raises(InvalidInputError, match=r"bus\.loads\.load"):
            await small.create_batch("shop", commands(6))


async def test_the_callback_fires_once_in_a_process_without_a_worker(
    dsn: str, bus: CommandBus
) -> None:
    """The creator has no worker; another process finishes the batch."""
    register_handlers(bus)
    called: list[BatchMetadata] = []

    async def remember(batch: BatchMetadata) -> None:
        called.append(batch)
        raise RuntimeError("a callback's error is its own")

    async with CommandBus.connect(dsn) as creator:
        batch_id = await creator.create_batch("shop", commands(40), on_complete=remember)
        async with working(bus, "shop", concurrency=4):
            await creator.batches.wait("shop", batch_id, timeout=30)
        await until(lambda: called, "the callback")
        later = await creator.create_batch("shop", commands(1), on_complete=remember)
        async with working(bus, "shop"):
            await creator.batches.wait("shop", later, timeout=30)
            await until(lambda: len(called) == 2, "the second callback")
    assert [batch.batch_id for batch in called] == [batch_id, later]


async def test_waiting_for_a_batch_can_time_out(bus: CommandBus) -> None:
    batch_id = await bus.create_batch("shop", commands(1))
    with pytest.raises(ReplyTimeoutError, match="goes on"):
        await bus.batches.wait("shop", batch_id, timeout=0.05)


async def test_batches_are_listed_newest_first_and_by_status(bus: CommandBus) -> None:
    register_handlers(bus)
    first = await bus.create_batch("shop", commands(1))
    async with working(bus, "shop"):
        await bus.batches.wait("shop", first, timeout=30)
    second = await bus.create_batch("shop", commands(1))
    assert [batch.batch_id for batch in await bus.list_batches("shop")] == [second, first]
    done = await bus.list_batches("shop", status="COMPLETED")
    assert [batch.batch_id for batch in done] == [first]
    with pytest.raises(InvalidInputError, match="PENDING"):
        await bus.list_batches("shop", status="DONE")


async def test_progress_knows_rate_and_time_left(bus: CommandBus) -> None:
    register_handlers(bus)
    batch_id = await bus.create_batch("shop", commands(10))
    waiting = await bus.get_batch("shop", batch_id)
    assert waiting is not None
    assert (progress_of(waiting).fraction, progress_of(waiting).seconds_left) == (0.0, None)
    async with working(bus, "shop"):
        ended = progress_of(await bus.batches.wait("shop", batch_id, timeout=30))
    assert (ended.fraction, ended.seconds_left) == (1.0, 0.0)
    assert ended.per_second is not None


@pytest.mark.parametrize("mark_in_progress", [True, False])
async def test_counters_do_not_depend_on_marking(
    dsn: str, conn: Connection, mark_in_progress: bool
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(mark_in_progress=mark_in_progress)) as bus:
        register_handlers(bus)
        batch_id = await bus.create_batch(
            "shop", [*commands(6), *commands(2, "Break"), *commands(2, "GiveUp")]
        )
        async with working(bus, "shop"):

            async def is_settled() -> bool:
                return counts(await bus.get_batch("shop", batch_id)) == (10, 6, 2, 0, 2)

            await until(is_settled)
        assert await recount(conn, batch_id) == (10, 6, 2, 0, 2)


async def test_two_groups_that_finish_the_last_commands_at_once_close_the_batch_once(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    """Two sessions complete the last two commands; the second waits for the first."""
    for _ in range(20):
        batch_id = await bus.create_batch("shop", commands(2))
        cursor = await conn.execute(
            "select jsonb_build_array(jsonb_build_object('command_id', command_id,"
            " 'msg_id', msg_id, 'lease_epoch', lease_epoch, 'data', null))"
            " from commandbus.receive_commands('shop', 600, 2, 'w')"
        )
        items = [row[0] for row in await cursor.fetchall()]

        async def complete(item: Any) -> None:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
                await own.execute(
                    "select commandbus.complete_commands('shop', %s)",
                    (Jsonb(item),),
                )

        await asyncio.gather(*(complete(item) for item in items))
        assert (await batch_events(bus, batch_id)).count("BATCH_COMPLETED") == 1
