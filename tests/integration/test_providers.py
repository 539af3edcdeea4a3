"""SQLAlchemy, SQLModel and asyncpg as the transactions of handlers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest
import sqlmodel
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlmodel.ext.asyncio.session import AsyncSession as SqlModelAsyncSession

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, RetryPolicy
from commandbus.errors import InvalidSettingError
from commandbus.transactions import Asyncpg, SqlAlchemy
from tests.integration.looking import Conn, rows, send
from tests.waiting import until_status, working

SOON = RetryPolicy(max_attempts=2, backoff_schedule=(0,))
ONCE = RetryPolicy(max_attempts=1)
COMPLETED = CommandStatus.COMPLETED
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


class Base(DeclarativeBase): ...


class Written(Base):
    __tablename__ = "written"
    command_id: Mapped[UUID] = mapped_column(primary_key=True)
    epoch: Mapped[int]


@pytest.fixture(autouse=True)
async def table(conn: Conn) -> None:
    await conn.execute("create table written (command_id uuid primary key, epoch bigint)")


def url_of(dsn: str, driver: str) -> URL:
    parts = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}", username=str(parts.get("user") or ""),
        password=str(parts["password"]) if parts.get("password") else None,
        database=str(parts["dbname"]),
        query={"host": str(parts.get("host") or ""), "port": str(parts.get("port") or 5432)},
    )  # fmt: skip


def engine_of(dsn: str, **options: Any) -> Engine:
    return create_engine(url_of(dsn, "psycopg"), **options)


def async_engine_of(dsn: str, driver: str) -> AsyncEngine:
    return create_async_engine(url_of(dsn, driver))


async def written(conn: Conn) -> list[tuple[Any, ...]]:
    return await rows(conn, "select command_id, epoch from written")


@pytest.mark.parametrize("model", ["sqlalchemy", "sqlmodel"])
async def test_orm_rows_of_a_def_handler_and_its_completion_are_one_commit(
    bus: CommandBus, conn: Conn, dsn: str, model: str
) -> None:
    engine = engine_of(dsn)
    kind: type[Session] = sqlmodel.Session if model == "sqlmodel" else Session
    provider = SqlAlchemy(sessionmaker(engine, class_=kind))

    @bus.handler("shop", "Work", transactional=provider, retry_policy=SOON)
    def work(command: Command, ctx: HandlerContext) -> None:
        assert isinstance(ctx.conn, kind)
        ctx.conn.add(Written(command_id=command.command_id, epoch=ctx.lease_epoch))
        if ctx.attempt == 1:
            ctx.conn.flush()
            raise ValueError("not yet")

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, COMPLETED)
    assert await written(conn) == [(sent, 2)]
    engine.dispose()


@pytest.mark.parametrize("kind", [AsyncSession, SqlModelAsyncSession], ids=["own", "sqlmodel"])
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_orm_rows_of_an_async_handler_and_its_completion_are_one_commit(
    bus: CommandBus, conn: Conn, dsn: str, driver: str, kind: type[AsyncSession]
) -> None:
    engine = async_engine_of(dsn, driver)
    provider = SqlAlchemy(async_sessionmaker(engine, class_=kind))

    @bus.handler("shop", "Work", transactional=provider, retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        assert isinstance(ctx.conn, kind)
        ctx.conn.add(Written(command_id=command.command_id, epoch=ctx.lease_epoch))
        if ctx.attempt == 1:
            await ctx.conn.flush()
            raise ValueError("not yet")

    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, COMPLETED)
    assert await written(conn) == [(sent, 2)]
    await engine.dispose()


async def test_what_the_database_refuses_at_the_flush_is_the_failure_of_the_handler(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    engine = engine_of(dsn)

    @bus.handler("shop", "Work", transactional=SqlAlchemy(sessionmaker(engine)), retry_policy=ONCE)
    def work(command: Command, ctx: HandlerContext) -> None:
        ctx.conn.add(Written(command_id=command.command_id, epoch=None))  # allowed
        ctx.conn.execute(text("alter table written alter epoch set not null"))

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.last_error_code == "IntegrityError"
    assert await written(conn) == []
    engine.dispose()


@pytest.mark.parametrize("kind", ["sync", "psycopg", "asyncpg", "pool"])
async def test_a_connection_of_a_provider_that_is_cut_costs_no_attempt(
    bus: CommandBus, conn: Conn, dsn: str, kind: str
) -> None:
    runs: list[int] = []
    cut = "select pg_terminate_backend(pg_backend_pid())"
    engine, async_engine = (
        engine_of(dsn),
        async_engine_of(dsn, "asyncpg" if kind == "asyncpg" else "psycopg"),
    )
    pool = await asyncpg.create_pool(
        url_of(dsn, "asyncpg").set(drivername="postgresql").render_as_string(hide_password=False)
    )

    def is_first(ctx: HandlerContext) -> bool:
        runs.append(ctx.attempt)
        return len(runs) == 1

    if kind == "sync":

        @bus.handler(
            "shop", "Work", transactional=SqlAlchemy(sessionmaker(engine)), retry_policy=ONCE
        )
        def work(command: Command, ctx: HandlerContext) -> None:
            if is_first(ctx):
                ctx.conn.execute(text(cut))
            ctx.conn.add(Written(command_id=command.command_id, epoch=ctx.lease_epoch))
    elif kind == "pool":

        @bus.handler("shop", "Work", transactional=Asyncpg(pool), retry_policy=ONCE)
        async def work_pool(command: Command, ctx: HandlerContext) -> None:
            if is_first(ctx):
                await ctx.conn.execute(cut)
            await ctx.conn.execute("insert into written values ($1, $2)", command.command_id, 1)
    else:

        @bus.handler(
            "shop",
            "Work",
            transactional=SqlAlchemy(async_sessionmaker(async_engine)),
            retry_policy=ONCE,
        )
        async def work_async(command: Command, ctx: HandlerContext) -> None:
            if is_first(ctx):
                await ctx.conn.execute(text(cut))
            ctx.conn.add(Written(command_id=command.command_id, epoch=ctx.lease_epoch))

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, COMPLETED)
    assert runs == [1, 1]
    assert row.attempts == 1
    assert len(await written(conn)) == 1
    engine.dispose()
    await async_engine.dispose()
    await pool.close()


async def test_sessions_that_commit_each_statement_are_refused_when_the_worker_starts(
    bus: CommandBus, dsn: str
) -> None:
    engine = engine_of(dsn, isolation_level="AUTOCOMMIT")

    @bus.handler("shop", "Work", transactional=SqlAlchemy(sessionmaker(engine)))
    def work(command: Command, ctx: HandlerContext) -> None: ...

    with pytest.raises(InvalidSettingError, match="commits each statement"):
        await bus.run_worker("shop")
    engine.dispose()


def test_a_session_and_a_connection_are_no_factory(dsn: str) -> None:
    engine = engine_of(dsn)
    with Session(engine) as session, pytest.raises(InvalidSettingError, match="sessionmaker"):
        SqlAlchemy(session)
    with pytest.raises(InvalidSettingError, match="a pool of asyncpg"):
        Asyncpg(engine)
    assert repr(SqlAlchemy(engine)) == "SqlAlchemy(Engine)"
    engine.dispose()
