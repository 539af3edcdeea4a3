"""Two installations in one database: nothing of one reaches the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    InvalidNameError,
    PermanentCommandError,
    Settings,
)
from commandbus.database import migrations
from commandbus.database.migrations import migrate, schema_status
from commandbus.names import RESERVED_WORDS, schema_mark, wakeup_channel
from tests.integration.looking import Conn, rows, value
from tests.waiting import until, working

OTHER = "other"
MARK = schema_mark(OTHER)


def serve(bus: CommandBus, name: str) -> None:
    @bus.handler("shop", "Echo")
    async def echo(command: Command, ctx: HandlerContext) -> str:
        return f"{name} did {command.data['n']}"

    @bus.handler("shop", "Refuse")
    async def refuse(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO", "never")


@asynccontextmanager
async def neighbours(dsn: str, *schemas: str) -> AsyncIterator[list[CommandBus]]:
    """A bus on each schema of one database, with handlers of the same types."""
    async with AsyncExitStack() as stack:
        found = []
        for schema in schemas:
            settings = Settings(schema=schema)
            bus = await stack.enter_async_context(CommandBus.connect(dsn, settings=settings))
            serve(bus, schema)
            found.append(bus)
        yield found


async def send(bus: CommandBus, number: int, reply_to: str | None = None) -> list[UUID]:
    return await bus.send_many(
        "shop", [BatchCommand("Echo", uuid4(), {"n": n}, reply_to) for n in range(number)]
    )


async def replies(bus: CommandBus, queue: str) -> set[UUID]:
    return {reply.command_id async for reply in bus.replies(queue=queue, wait=False)}


async def until_done(bus: CommandBus, number: int) -> None:
    async def done() -> bool:
        statuses = await bus.upkeep.figures.statuses("shop")
        return statuses.get(("shop", CommandStatus.COMPLETED)) == number

    await until(done, f"{number} commands of the shop")


async def queues(conn: Conn) -> list[str]:
    return [name for (name,) in await rows(conn, "select queue_name from pgmq.meta order by 1")]


async def codes(bus: CommandBus) -> set[str]:
    found = await bus.upkeep.doctor()
    return {each.code for each in found.findings if each.severity != "notice"} - {
        "DURABILITY_OFF",
        "AUTOVACUUM_OFF",
    }


@pytest.mark.parametrize("reply_to", [None, "shared.replies", "shared"])
async def test_a_worker_takes_no_command_and_a_reader_no_reply_of_another_schema(
    dsn: str, reply_to: str | None
) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (first, second):
        ours, theirs = await send(first, 5, reply_to), await send(second, 7, reply_to)
        async with working(second, "shop"):
            await until_done(second, 7)
        async with working(first, "shop"):
            await until_done(first, 5)
        queue = reply_to or "shop.replies"
        assert await replies(first, queue) == set(ours)
        assert await replies(second, queue) == set(theirs)
        assert await codes(first) == await codes(second) == set()


async def test_the_default_schema_keeps_the_printed_names_and_others_have_a_mark(
    dsn: str, conn: Conn
) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (first, second):
        await send(first, 1)
        await send(second, 1)
    assert await queues(conn) == [
        f"{MARK}shop__commands", f"{MARK}shop__replies", "shop__commands", "shop__replies",
    ]  # fmt: skip
    assert await value(conn, "select other.queue_mark()") == MARK


async def test_names_are_listed_and_found_without_the_mark(dsn: str, conn: Conn) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (first, second):
        await send(first, 1)
        (theirs,) = await send(second, 1)
        assert [each.domain for each in await second.upkeep.figures.domains()] == ["shop"]
        assert [each.domain for each in await first.upkeep.figures.domains()] == ["shop"]
        found = "select {}.find_domains(%s)"
        assert await rows(conn, found.format(OTHER), theirs) == [("shop",)]
        assert await rows(conn, found.format("commandbus"), theirs) == []


async def test_a_longer_domain_than_a_marked_queue_has_room_for_is_refused(dsn: str) -> None:
    longest = "d" * (37 - len(MARK))
    async with neighbours(dsn, OTHER) as (bus,):
        await bus.send(longest, "Echo", uuid4(), {})
        with pytest.raises(InvalidNameError, match="at most 31 characters"):
            await bus.send(longest + "d", "Echo", uuid4(), {})


async def test_a_hint_goes_to_the_channel_of_its_own_schema_only(dsn: str, conn: Conn) -> None:
    async with (
        neighbours(dsn, "commandbus", OTHER) as (first, second),
        working(first, "shop"),
        working(second, "shop"),
    ):
        await until_idle(conn, "commandbus")
        await until_idle(conn, OTHER)
        for schema in ("commandbus", OTHER):
            await conn.execute(f'listen "{channel_of(schema)}"'.encode())
        await send(second, 1)
        heard = [each.channel async for each in conn.notifies(timeout=10, stop_after=1)]
    assert heard == [channel_of(OTHER)]


def channel_of(schema: str) -> str:
    return wakeup_channel(schema_mark(schema) + "shop")


async def until_idle(conn: Conn, schema: str) -> None:
    query = sql.SQL("select count(*) from {}.command_bus_worker where is_idle").format(
        sql.Identifier(schema)
    )

    async def idle() -> bool:
        row = await (await conn.execute(query)).fetchone()
        return bool(row and row[0])

    await until(idle, "an idle worker")


async def test_a_call_in_a_marked_schema_is_answered_by_a_hint(dsn: str, conn: Conn) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (_, second):
        await conn.execute(f'listen "commandbus.{MARK}shop.inbox"'.encode())
        async with working(second, "shop"):
            assert (await second.call("shop", "Echo", {"n": 1})).data == "other did 1"
        assert [n.channel async for n in conn.notifies(timeout=5, stop_after=1)]


async def test_locks_of_one_schema_keep_nobody_waiting_in_the_other(dsn: str, conn: Conn) -> None:
    async with neighbours(dsn, "commandbus", OTHER), conn.transaction():
        assert await value(conn, "select commandbus.claim_chore('prune', '1 hour')")
        async with await psycopg.AsyncConnection.connect(dsn) as theirs:
            assert await value(theirs, "select other.claim_chore('prune', '1 hour')")
            assert not await value(theirs, "select commandbus.claim_chore('prune', '0 s')")


async def test_retention_and_repair_leave_the_other_schema_alone(dsn: str, conn: Conn) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as (first, second):
        theirs = await send(second, 3)
        async with working(second, "shop"):
            await until_done(second, 3)
        await send(second, 2)
        await send(first, 1)
        await conn.execute("drop table pgmq.q_shop__commands")
        await conn.execute("delete from pgmq.meta where queue_name = 'shop__commands'")
        await conn.execute(
            f"update pgmq.\"q_{MARK}shop__replies\" set enqueued_at = '2000-01-01'".encode()
        )
        await first.upkeep.doctor(fix=True)
        await first.upkeep.prune(kinds=["replies"])
        assert await codes(second) == {"REPLIES_UNREAD"}
        assert await replies(second, "shop.replies") == set(theirs)


# -- installations of an earlier version


async def install_former(conn: Conn, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 0.1.0 did: queues without a mark, because the fifth migration is not there yet.

    The later ones are, because the functions are those of today.
    """
    everything = migrations.migrations()
    # What sending needs: most of the others are about tables and columns of later versions.
    needed = (
        *("basics", "settings", "queues", "audit", "batches", "replies", "sending", "workers"),
        *("shards", "queue_verbs"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "FUNCTION_FILES", needed)
        text = migrations.function_text().partition("\ncreate or replace view")[0]
    await conn.execute("set check_function_bodies = off")
    plain = "create or replace function commandbus.queue_mark() returns text"
    plain += " language sql immutable as 'select ''''::text';\n"
    # Later migrations ask for the mark: it must be there before the functions are loaded.
    mark = f"create schema if not exists commandbus; {plain}"
    await conn.execute(migrations._in_schema(mark, schema).encode())
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: everything[:4] + everything[5:])
        patch.setattr(migrations, "function_text", lambda: plain + text)
        await migrate(conn, Settings(schema=schema))
    await conn.execute(
        sql.SQL("alter function {}.queue_mark() rename to former_mark").format(
            sql.Identifier(schema)
        )
    )
    body = "select replace(p_queue, '.', '__')"
    await conn.execute(
        sql.SQL(
            "create or replace function {}.physical_queue(p_queue text) returns text"
            " language sql immutable as {}"
        ).format(sql.Identifier(schema), sql.Literal(body))
    )
    # In the former version these did not ask for a mark.
    for name in ("check_domain", "ensure_queue"):
        source = await value(
            conn,
            "select pg_get_functiondef(p.oid) from pg_proc p"
            " where p.proname = %s and p.pronamespace = %s::regnamespace",
            name, schema,
        )  # fmt: skip
        await conn.execute(source.replace(".queue_mark()", ".former_mark()").encode())


async def former_send(conn: Conn, schema: str, number: int, reply_to: str | None = None) -> None:
    for _ in range(number):
        await conn.execute(
            sql.SQL("select {}.ensure_domain('shop')").format(sql.Identifier(schema))
        )
        await conn.execute(
            sql.SQL(
                "select {}.send_command('shop', 'Echo', gen_random_uuid(), '{{\"n\": 1}}', %s)"
            ).format(sql.Identifier(schema)),
            (reply_to,),
        )


async def mark_of(conn: Conn, schema: str) -> Any:
    row = await (
        await conn.execute(sql.SQL("select {}.queue_mark()").format(sql.Identifier(schema)))
    ).fetchone()
    return row and row[0]


@pytest.fixture
async def empty(empty_dsn: str) -> AsyncIterator[Conn]:
    async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as connection:
        yield connection


async def test_an_installation_in_use_that_is_alone_keeps_its_queues(
    empty_dsn: str, empty: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install_former(empty, OTHER, monkeypatch)
    await former_send(empty, OTHER, 3)
    await migrate(empty, Settings(schema=OTHER))
    assert await mark_of(empty, OTHER) == ""
    async with neighbours(empty_dsn, OTHER) as (bus,), working(bus, "shop"):
        await until_done(bus, 3)
    assert await queues(empty) == ["shop__commands", "shop__replies"]


async def test_the_default_schema_has_a_mark_where_another_one_has_the_plain_names(
    empty_dsn: str, empty: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install_former(empty, OTHER, monkeypatch)
    await former_send(empty, OTHER, 3)
    async with neighbours(empty_dsn, "commandbus") as (first,):
        ours = await send(first, 2)
        async with working(first, "shop"):
            await until_done(first, 2)
        assert await replies(first, "shop.replies") == set(ours)
    assert await value(empty, "select count(*) from pgmq.q_shop__commands") == 3
    assert await mark_of(empty, "commandbus") != ""


async def test_an_installation_that_shares_its_queues_leaves_them_with_what_is_its_own(
    empty_dsn: str, empty: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in ("commandbus", OTHER):
        await install_former(empty, schema, monkeypatch)
    await former_send(empty, "commandbus", 4, "shared.replies")
    await former_send(empty, OTHER, 6, "shared.replies")
    # The worker of the default schema took one of theirs, and archived it.
    stolen = await value(
        empty,
        "select pgmq.archive('shop__commands', max(msg_id)) from other.command_bus_command",
    )
    assert stolen
    for schema in (OTHER, "commandbus"):
        await migrate(empty, Settings(schema=schema))
    assert (await mark_of(empty, "commandbus"), await mark_of(empty, OTHER)) == ("", MARK)
    async with neighbours(empty_dsn, "commandbus", OTHER) as (first, second):
        assert await codes(first) == set()
        assert await codes(second) == {"MESSAGE_LOST"}
        await second.upkeep.doctor(fix=True)
        await send(second, 1, "shared.replies")
        for bus, number in ((first, 4), (second, 7)):
            async with working(bus, "shop"):
                await until_done(bus, number)
            assert len(await replies(bus, "shared.replies")) == number
            assert await codes(bus) == set()


async def test_a_migration_after_the_mark_was_given_changes_no_name(dsn: str, conn: Conn) -> None:
    async with neighbours(dsn, "commandbus", OTHER) as buses:
        for bus in buses:
            await send(bus, 1)
    before = await queues(conn)
    for schema in (OTHER, "commandbus"):
        assert await migrate(conn, Settings(schema=schema)) == []
        assert (await schema_status(conn, Settings(schema=schema))).functions_current
        assert await mark_of(conn, schema) == schema_mark(schema)
    assert await queues(conn) == before


async def test_a_schema_whose_mark_another_one_has_is_refused(dsn: str, conn: Conn) -> None:
    await conn.execute("create schema twin")
    await conn.execute(
        "create function twin.queue_mark() returns text language sql as {}".format(
            f"'select ''{MARK}''::text'"
        ).encode()
    )
    with pytest.raises(psycopg.Error, match="names of those of another schema"):
        await migrate(conn, Settings(schema=OTHER))


# -- names of schemas


async def test_every_word_that_the_server_reserves_is_refused_as_a_schema(conn: Conn) -> None:
    words = await rows(conn, "select word from pg_get_keywords() where catcode <> 'U'")
    assert {word for (word,) in words} <= RESERVED_WORDS


async def test_the_functions_of_a_queue_are_in_the_schema_of_its_installation(
    empty_dsn: str, empty: Conn
) -> None:
    async with neighbours(empty_dsn, OTHER) as (bus,), working(bus, "shop"):
        await send(bus, 2)
        await until_done(bus, 2)
    where = "select string_agg(distinct p.pronamespace::regnamespace::text, ' ') from pg_proc p"
    assert await value(empty, where + " where p.proname ~ '^queue_(put|fill|take|drop)_'") == OTHER
