"""Sending: in the caller's transaction, on every driver, alone and many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import sqlmodel
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from sqlmodel.ext.asyncio.session import AsyncSession as SqlModelAsyncSession

from commandbus import (
    NO_REPLY,
    BatchCommand,
    BatchNotFoundError,
    Command,
    CommandBus,
    CommandStatus,
    DuplicateCommandError,
    HandlerContext,
    InvalidInputError,
    InvalidPayloadError,
    InvalidSettingError,
    Settings,
)
from commandbus.database import chunks
from tests.waiting import until_status, working

DOMAIN = "payments"


# -- connections of every kind, each with an open transaction


@dataclass
class Joined:
    """A connection of the caller, and how its transaction ends."""

    conn: Any
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


def url(dsn: str, driver: str) -> URL:
    # The embedded server listens on a socket: its folder is an option, not a part of the address.
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return URL.create(
        f"postgresql+{driver}", parts["user"], parts["password"], database=parts["dbname"],
        query={"host": parts["host"], "port": parts["port"]},
    )  # fmt: skip


def in_thread(function: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    return lambda: asyncio.to_thread(function)


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[Joined]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
        yield Joined(conn, conn.commit, conn.rollback)


@asynccontextmanager
async def psycopg_sync(dsn: str) -> AsyncIterator[Joined]:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        yield Joined(conn, in_thread(conn.commit), in_thread(conn.rollback))


def sqlalchemy_session(kind: type[Session]) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Joined]:
        engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
        with sessionmaker(engine, class_=kind)() as session:
            yield Joined(session, in_thread(session.commit), in_thread(session.rollback))

    return opened


@asynccontextmanager
async def scoped(dsn: str) -> AsyncIterator[Joined]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    sessions = scoped_session(sessionmaker(engine))
    own = sessions()  # of this thread
    yield Joined(sessions, in_thread(own.commit), in_thread(own.rollback))
    sessions.remove()


@asynccontextmanager
async def scoped_async(dsn: str) -> AsyncIterator[Joined]:
    engine = create_async_engine(url(dsn, "asyncpg"), poolclass=NullPool)
    sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    yield Joined(sessions, sessions.commit, sessions.rollback)
    await sessions.remove()
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_connection(dsn: str) -> AsyncIterator[Joined]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    with engine.connect() as conn:
        yield Joined(conn, in_thread(conn.commit), in_thread(conn.rollback))


def sqlalchemy_async(driver: str, kind: type[AsyncSession] | None = None) -> Callable[[str], Any]:
    """A session of this kind; none: a connection."""

    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Joined]:
        engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
        async with engine.connect() if kind is None else kind(engine) as conn:
            yield Joined(conn, conn.commit, conn.rollback)
        await engine.dispose()

    return opened


def asyncpg_options(dsn: str) -> dict[str, Any]:
    parts = conninfo_to_dict(dsn)
    return {
        "user": parts["user"], "password": parts["password"], "database": parts["dbname"],
        "host": parts["host"], "port": int(str(parts["port"])),
    }  # fmt: skip


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[Joined]:
    conn = await asyncpg.connect(**asyncpg_options(dsn))
    transaction = conn.transaction()
    await transaction.start()
    yield Joined(conn, transaction.commit, transaction.rollback)
    await conn.close()


@asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[Joined]:
    async with (
        asyncpg.create_pool(**asyncpg_options(dsn), min_size=1, max_size=1) as pool,
        pool.acquire() as conn,
    ):
        transaction = conn.transaction()
        await transaction.start()
        yield Joined(conn, transaction.commit, transaction.rollback)


KINDS: dict[str, Callable[[str], Any]] = {
    "psycopg AsyncConnection": psycopg_async,
    "psycopg Connection": psycopg_sync,
    "SQLAlchemy Session": sqlalchemy_session(Session),
    "SQLModel Session": sqlalchemy_session(sqlmodel.Session),
    "SQLAlchemy Connection": sqlalchemy_connection,
    "SQLAlchemy AsyncSession on psycopg": sqlalchemy_async("psycopg_async", AsyncSession),
    "SQLAlchemy AsyncConnection on psycopg": sqlalchemy_async("psycopg_async"),
    "SQLAlchemy AsyncSession on asyncpg": sqlalchemy_async("asyncpg", AsyncSession),
    "SQLAlchemy AsyncConnection on asyncpg": sqlalchemy_async("asyncpg"),
    "SQLAlchemy scoped_session": scoped,
    "SQLAlchemy async_scoped_session": scoped_async,
    "SQLModel AsyncSession on psycopg": sqlalchemy_async("psycopg_async", SqlModelAsyncSession),
    "SQLModel AsyncSession on asyncpg": sqlalchemy_async("asyncpg", SqlModelAsyncSession),
    "asyncpg Connection": asyncpg_connection,
    "asyncpg connection of a pool": asyncpg_pool,
}


async def is_sent(bus: CommandBus, command_id: UUID) -> bool:
    return await bus.get_command(DOMAIN, command_id) is not None


def commands(count: int) -> list[BatchCommand]:
    return [BatchCommand("Debit", uuid4(), {"n": n}) for n in range(count)]


async def row_count(conn: AsyncConnection) -> int:
    cursor = await conn.execute("select count(*) from commandbus.command_bus_command")
    row = await cursor.fetchone()
    assert row is not None
    return int(str(row[0]))


async def message_count(conn: AsyncConnection) -> int:
    cursor = await conn.execute(f"select count(*) from pgmq.q_{DOMAIN}__commands".encode())
    row = await cursor.fetchone()
    assert row is not None
    return int(str(row[0]))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_send_on_the_callers_connection_shares_its_fate(
    bus: CommandBus, dsn: str, kind: str
) -> None:
    kept, undone = uuid4(), uuid4()
    async with KINDS[kind](dsn) as joined:
        await bus.send(DOMAIN, "Debit", kept, {"a": "ü"}, conn=joined.conn)
        assert not await is_sent(bus, kept)  # nobody sees it before the commit
        await joined.commit()
    async with KINDS[kind](dsn) as joined:
        await bus.send(DOMAIN, "Debit", undone, {}, conn=joined.conn)
        await joined.rollback()
    assert await is_sent(bus, kept)
    assert not await is_sent(bus, undone)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caught_duplicate_leaves_the_callers_transaction_usable(
    bus: CommandBus, dsn: str, kind: str
) -> None:
    known, before, after = uuid4(), uuid4(), uuid4()
    await bus.send(DOMAIN, "Debit", known, {})
    async with KINDS[kind](dsn) as joined:
        await bus.send(DOMAIN, "Debit", before, {}, conn=joined.conn)
        with pytest.raises(DuplicateCommandError) as info:
            await bus.send(DOMAIN, "Debit", known, {}, conn=joined.conn)
        assert info.value.command_ids == (known,)
        await bus.send(DOMAIN, "Debit", after, {}, conn=joined.conn)
        await joined.commit()
    assert await is_sent(bus, before)
    assert await is_sent(bus, after)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_database_is_translated_on_every_connection(
    bus: CommandBus, dsn: str, kind: str
) -> None:
    missing = uuid4()
    async with KINDS[kind](dsn) as joined:
        with pytest.raises(BatchNotFoundError) as info:
            await bus.send(DOMAIN, "Debit", uuid4(), {}, batch_id=missing, conn=joined.conn)
        assert (info.value.domain, info.value.batch_id) == (DOMAIN, missing)
        await joined.rollback()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_on_the_callers_connection_shares_its_fate(
    bus: CommandBus, dsn: str, kind: str
) -> None:
    kept, undone = uuid4(), uuid4()
    await bus.send(DOMAIN, "Debit", kept, {})
    await bus.send(DOMAIN, "Debit", undone, {})
    async with KINDS[kind](dsn) as joined:
        await bus.cancel(DOMAIN, undone, "wrong", conn=joined.conn)
        await joined.rollback()
    async with KINDS[kind](dsn) as joined:
        await bus.cancel(DOMAIN, kept, "wrong", operator="eve", conn=joined.conn)
        await joined.commit()
    assert (await until_status(bus, DOMAIN, kept, "CANCELED")).status is CommandStatus.CANCELED
    assert (await until_status(bus, DOMAIN, undone, "PENDING")).status is CommandStatus.PENDING


@pytest.mark.parametrize("kind", ["psycopg AsyncConnection", "SQLAlchemy AsyncSession on asyncpg"])
async def test_many_on_the_callers_connection_are_all_or_none_also_in_chunks(
    dsn: str, conn: AsyncConnection, kind: str
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=2)) as bus:
        known = uuid4()
        await bus.send(DOMAIN, "Debit", known, {})
        async with KINDS[kind](dsn) as joined:
            group = [*commands(5), BatchCommand("Debit", known, {})]
            with pytest.raises(DuplicateCommandError) as info:
                await bus.send_many(DOMAIN, group, conn=joined.conn)
            assert info.value.command_ids == (known,)
            await joined.commit()
        assert (await row_count(conn), await message_count(conn)) == (1, 1)
        async with KINDS[kind](dsn) as joined:
            await bus.send_many(DOMAIN, commands(5), conn=joined.conn)
            await joined.commit()
        assert (await row_count(conn), await message_count(conn)) == (6, 6)


@pytest.mark.parametrize(
    "conn",
    [object(), "postgresql://app:canary@db/x", 42, AsyncConnectionPool],
    ids=["object", "dsn", "number", "class"],
)
async def test_a_send_is_refused_on_something_that_is_no_connection(
    bus: CommandBus, conn: Any
) -> None:
    command_id = uuid4()
    with pytest.raises(InvalidInputError, match="use a psycopg, SQLAlchemy or asyncpg") as info:
        await bus.send(DOMAIN, "Debit", command_id, {}, conn=conn)
    assert "canary" not in str(info.value)
    assert not await is_sent(bus, command_id)


async def test_a_send_is_refused_on_pools_engines_cursors_and_factories(
    bus: CommandBus, dsn: str, pool: AsyncConnectionPool
) -> None:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    async_engine = create_async_engine(url(dsn, "asyncpg"), poolclass=NullPool)
    with psycopg.connect(dsn) as sync:
        async with asyncpg.create_pool(**asyncpg_options(dsn), min_size=1, max_size=1) as other:
            for wrong in (
                pool,
                other,
                engine,
                async_engine,
                sessionmaker(engine),
                sync.cursor(),
                Session,
            ):
                command_id = uuid4()
                with pytest.raises(InvalidInputError, match="use a psycopg, SQLAlchemy or asyncpg"):
                    await bus.send(DOMAIN, "Debit", command_id, {}, conn=wrong)
                assert not await is_sent(bus, command_id)


# -- one id, many senders


async def test_of_many_sends_of_one_id_one_wins(bus: CommandBus, conn: AsyncConnection) -> None:
    command_id = uuid4()
    results = await asyncio.gather(
        *(bus.send(DOMAIN, "Debit", command_id, {"n": n}) for n in range(50)),
        return_exceptions=True,
    )
    assert results.count(command_id) == 1
    assert sum(isinstance(result, DuplicateCommandError) for result in results) == 49
    assert (await row_count(conn), await message_count(conn)) == (1, 1)
    assert [event.event_type for event in await bus.get_audit_trail(command_id)] == ["SENT"]


async def test_a_duplicate_keeps_the_payload_of_the_first_send(bus: CommandBus) -> None:
    command_id = uuid4()
    await bus.send(DOMAIN, "Debit", command_id, {"n": 1})
    with pytest.raises(DuplicateCommandError, match="treat it as done"):
        await bus.send(DOMAIN, "Credit", command_id, {"n": 2})
    seen: list[Any] = []

    @bus.handler(DOMAIN, "Debit")
    async def debit(command: Command, ctx: HandlerContext) -> None:
        seen.append(command.data)

    async with working(bus, DOMAIN):
        await until_status(bus, DOMAIN, command_id, "COMPLETED")
    assert seen == [{"n": 1}]


# -- many at once


@pytest.fixture(params=[2, 500], ids=["packed", "in a document"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large chunks are packed; here small ones are too, or none is."""
    monkeypatch.setattr(chunks, "PACKED_FROM", request.param)


pytest_way = pytest.mark.usefixtures("way")


#: What a send writes, without what differs from one send to the next.
WRITTEN = (
    "select to_jsonb(c) - '{msg_id,batch_id,created_at,updated_at,queued_at}'::text[]"
    " || jsonb_build_object('batched', c.batch_id is not null, 'at', c.created_at = c.queued_at)"
    " from commandbus.command_bus_command c"
    " where c.domain = %(domain)s and c.command_id = any(%(ids)s) order by c.msg_id",
    "select q.message - 'created_at' || jsonb_build_object('fits', c.msg_id = q.msg_id,"
    " 'at', (q.message ->> 'created_at')::timestamptz = c.created_at)"
    " from (table pgmq.q_packed__commands union all table pgmq.q_plain__commands) q"
    " join commandbus.command_bus_command c on c.domain = q.message ->> 'domain'"
    " and c.command_id::text = q.message ->> 'command_id'"
    " where c.domain = %(domain)s and c.command_id = any(%(ids)s) order by q.msg_id",
    "select to_jsonb(a) - '{audit_id,ts,batch_id}'::text[] from commandbus.command_bus_audit a"
    " where a.domain = %(domain)s and a.command_id = any(%(ids)s) order by a.audit_id",
)


async def test_both_ways_of_sending_write_the_same(
    dsn: str, conn: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard: dict[str, Any] = {"text": 'é\n"x",\\', "n": [1.5, None, {}]}
    group = [
        BatchCommand("Debit", uuid4(), hard, None, uuid4()),
        BatchCommand("Pay:2.0", uuid4(), {}, "", uuid4()),
        BatchCommand("Pay-3", uuid4(), {"deep": {"a": [True]}}, "shared.replies", uuid4()),
    ]
    ids = [command.command_id for command in group]
    ways = {"packed": 2, "plain": 500}
    async with CommandBus.connect(dsn) as bus:
        for domain, packed_from in ways.items():
            monkeypatch.setattr(chunks, "PACKED_FROM", packed_from)
            batch_id = await bus.create_batch(domain, [BatchCommand("First", uuid4(), {})])
            await bus.send_many(domain, group, batch_id=batch_id, max_attempts=7)
            found = await bus.get_batch(domain, batch_id)
            assert found is not None
            assert found.total_count == 4
    for text in WRITTEN:
        written = []
        for domain in ways:
            cursor = await conn.execute(text, {"domain": domain, "ids": ids})
            rows = [json.dumps(row[0], sort_keys=True) for row in await cursor.fetchall()]
            written.append([row.replace(domain, "<domain>") for row in rows])
        assert len(written[0]) == len(group)
        assert written[0] == written[1]


@pytest_way
@pytest.mark.parametrize("chunk", [3, 1_000])
async def test_many_are_all_sent_or_none(dsn: str, conn: AsyncConnection, chunk: int) -> None:
    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=chunk)) as bus:
        group = commands(10)
        assert await bus.send_many(DOMAIN, group) == [c.command_id for c in group]
        assert (await row_count(conn), await message_count(conn)) == (10, 10)
        again = [*commands(9), group[4]]
        with pytest.raises(DuplicateCommandError) as info:
            await bus.send_many(DOMAIN, again)
        assert info.value.command_ids == (group[4].command_id,)
        assert (await row_count(conn), await message_count(conn)) == (10, 10)


@pytest_way
async def test_a_bad_command_in_a_later_chunk_leaves_nothing_of_earlier_ones(
    dsn: str,
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=4)) as bus:
        bad = BatchCommand("Work", uuid4(), {"n": float("nan")})
        for place in (3, 4, 9):
            group = commands(10)
            group.insert(place, bad)
            with pytest.raises(InvalidPayloadError):
                await bus.send_many(DOMAIN, group)
        assert (await bus.search.commands(domain=DOMAIN)).items == []
        assert len(await bus.send_many(DOMAIN, commands(9))) == 9, "the connection is good"


@pytest_way
async def test_a_generator_that_fails_on_the_way_leaves_nothing(dsn: str) -> None:
    def failing() -> Iterator[BatchCommand]:
        yield from commands(9)
        raise LookupError("no more rows")

    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=2)) as bus:
        with pytest.raises(LookupError, match="no more rows"):
            await bus.send_many(DOMAIN, failing())
        assert (await bus.search.commands(domain=DOMAIN)).items == []
        assert len(await bus.send_many(DOMAIN, iter(commands(9)))) == 9, "the connection is good"


@pytest_way
@pytest.mark.parametrize("chunk", [3, 1_000])
async def test_many_are_refused_when_one_id_stands_in_them_twice(
    dsn: str, conn: AsyncConnection, chunk: int
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=chunk)) as bus:
        await bus.send(DOMAIN, "Debit", uuid4(), {})
        group = commands(10)
        with pytest.raises(DuplicateCommandError) as info:
            await bus.send_many(DOMAIN, [*group, group[0]])
        assert info.value.command_ids == (group[0].command_id,)
        assert (await row_count(conn), await message_count(conn)) == (1, 1)


@pytest_way
@pytest.mark.parametrize("place", [0, 1, 30, 44])
async def test_one_of_many_that_says_when_it_may_start_changes_nothing_for_the_others(
    bus: CommandBus, conn: AsyncConnection, place: int
) -> None:
    group = commands(45)
    late = group[place] = BatchCommand("Debit", uuid4(), {}, priority=1)
    assert await bus.send_many(DOMAIN, iter(group)) == [c.command_id for c in group]
    cursor = await conn.execute(
        "select command_id, priority from commandbus.command_bus_command order by msg_id"
    )
    assert await cursor.fetchall() == [
        (each.command_id, 1 if each is late else None) for each in group
    ]


async def test_the_server_begins_before_most_of_many_are_prepared(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[BatchCommand] = []
    at_statement: list[int] = []
    call = chunks.ChunkSender._call

    async def noted(self: chunks.ChunkSender, *args: Any) -> None:
        at_statement.append(len(drawn))
        await call(self, *args)

    def drawing() -> Iterator[BatchCommand]:
        for each in commands(3_000):
            drawn.append(each)
            yield each

    monkeypatch.setattr(chunks.ChunkSender, "_call", noted)
    assert len(await bus.send_many(DOMAIN, drawing())) == 3_000
    assert at_statement[0] <= chunks.FIRST + chunks.SLICE
    assert at_statement[1] < 3_000


@pytest_way
async def test_many_are_handled_in_the_order_of_sending(dsn: str) -> None:
    async with CommandBus.connect(dsn, settings=Settings(send_chunk_size=4)) as bus:
        seen: list[int] = []

        @bus.handler(DOMAIN, "Debit")
        async def debit(command: Command, ctx: HandlerContext) -> None:
            seen.append(command.data["n"])

        ids = await bus.send_many(DOMAIN, commands(15))
        async with working(bus, DOMAIN, concurrency=1):
            await until_status(bus, DOMAIN, ids[-1], "COMPLETED")
        assert seen == list(range(15))


@pytest_way
async def test_a_send_into_an_unknown_batch_is_refused_and_sends_nothing(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    missing = uuid4()
    with pytest.raises(BatchNotFoundError, match="create it before"):
        await bus.send(DOMAIN, "Debit", uuid4(), {}, batch_id=missing)
    with pytest.raises(BatchNotFoundError):
        await bus.send_many(DOMAIN, commands(3), batch_id=missing)
    assert (await row_count(conn), await message_count(conn)) == (0, 0)


# -- ids unique over all domains


async def test_an_id_is_unique_over_all_domains_also_against_earlier_rows(
    dsn: str, conn: AsyncConnection
) -> None:
    early = uuid4()
    async with CommandBus.connect(dsn) as bus:
        await bus.send("orders", "Ship", early, {})
    await conn.execute("select commandbus.change_setting('command_id_scope', 'global')")
    async with CommandBus.connect(dsn, settings=Settings(command_id_scope="global")) as bus:
        with pytest.raises(DuplicateCommandError):
            await bus.send(DOMAIN, "Debit", early, {})
        late = uuid4()
        results = await asyncio.gather(
            *(bus.send(domain, "Ship", late, {}) for domain in [DOMAIN, "orders", "bills"] * 5),
            return_exceptions=True,
        )
        assert results.count(late) == 1
        assert sum(isinstance(result, DuplicateCommandError) for result in results) == 14


async def test_ids_made_global_are_not_sent_unseen_by_a_process_that_runs_on(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    known = uuid4()
    await bus.send("orders", "Ship", known, {})
    await conn.execute("select commandbus.change_setting('command_id_scope', 'global')")
    with pytest.raises(DuplicateCommandError):
        await bus.send(DOMAIN, "Debit", known, {})
    many = [*commands(chunks.PACKED_FROM), BatchCommand("Debit", known, {})]
    with pytest.raises(InvalidSettingError, match="start this process again"):
        await bus.send_many(DOMAIN, many)
    assert (await row_count(conn), await message_count(conn)) == (1, 0)
    await bus.send(DOMAIN, "Debit", uuid4(), {}, reply_to="", max_attempts=7)
    assert (await row_count(conn), await message_count(conn)) == (2, 1)


# -- replies


async def test_replies_go_to_a_shared_queue_when_the_settings_say_so(dsn: str) -> None:
    async with CommandBus.connect(dsn, settings=Settings(replies="shared.replies")) as bus:
        ids = {domain: uuid4() for domain in (DOMAIN, "orders")}
        for domain, command_id in ids.items():
            await bus.send(domain, "Ping", command_id, {})
            await bus.cancel(domain, command_id, "never mind")
        found = [reply async for reply in bus.replies(queue="shared.replies", wait=False)]
        assert {reply.command_id for reply in found} == set(ids.values())
        assert [reply async for reply in bus.replies(DOMAIN, wait=False)] == []


@pytest.mark.parametrize(
    ("settings", "reply_to"), [(Settings(replies="none"), None), (Settings(), NO_REPLY)]
)
async def test_no_reply_is_published_when_nobody_wants_one(
    dsn: str, settings: Settings, reply_to: str | None
) -> None:
    async with CommandBus.connect(dsn, settings=settings) as bus:
        command_id = uuid4()
        await bus.send(DOMAIN, "Ping", command_id, {}, reply_to)
        await bus.cancel(DOMAIN, command_id, "never mind")
        assert [reply async for reply in bus.replies(DOMAIN, wait=False)] == []


# -- other ways to hold a bus


async def test_a_bus_works_on_a_pool_that_the_application_has_set_up_its_own_way(
    dsn: str, conn: AsyncConnection
) -> None:
    options = {"row_factory": dict_row, "autocommit": False}
    async with AsyncConnectionPool(dsn, kwargs=options, min_size=1, max_size=4, open=False) as pool:
        bus = CommandBus(pool)

        @bus.handler(DOMAIN, "Double")
        async def double(command: Command, ctx: HandlerContext) -> int:
            return int(command.data["n"]) * 2

        first = uuid4()
        await bus.send(DOMAIN, "Double", first, {"n": 1})
        assert await row_count(conn) == 1  # committed
        with pytest.raises(DuplicateCommandError):
            await bus.send(DOMAIN, "Double", first, {"n": 1})
        async with working(bus, DOMAIN):
            assert (await bus.call(DOMAIN, "Double", {"n": 21})).data == 42
            await until_status(bus, DOMAIN, first, "COMPLETED")
        assert len((await bus.search.commands(domain=DOMAIN)).items) == 2
        async with pool.connection() as own:
            joined = uuid4()
            await bus.send(DOMAIN, "Double", joined, {"n": 3}, conn=own)
            await own.rollback()
        assert await bus.get_command(DOMAIN, joined) is None
        await bus.close()


# -- what comes back is what was sent


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"text": "ü€😀 \\ \" ' \t\n", "": "empty key"},
        {"numbers": [0, -1, 2**53 - 1, -(2**53) + 1, 1.5, -0.25, 1e-7, 1e300]},
        {"mixed": [None, True, False, [], {}, [[["deep"]]]]},
        {"sql": "'; drop table x; -- %s $1 :p1 {schema}"},
        {"large": "x" * 200_000},
    ],
)
async def test_a_payload_comes_back_as_it_was_sent(bus: CommandBus, data: dict[str, Any]) -> None:
    @bus.handler(DOMAIN, "Echo")
    async def echo(command: Command, ctx: HandlerContext) -> Any:
        return command.data

    async with working(bus, DOMAIN):
        assert (await bus.call(DOMAIN, "Echo", data)).data == data
