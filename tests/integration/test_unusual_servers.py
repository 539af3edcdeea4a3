"""A server, a database, an address or an application with unusual settings changes nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from commandbus import BatchCommand, CommandBus, CommandStatus, Settings
from commandbus.database import sessions
from commandbus.errors import (
    CommandBusError,
    DatabaseError,
    DuplicateCommandError,
    InvalidInputError,
)
from tests.integration.test_send import asyncpg_options
from tests.waiting import until_status, working

DOMAIN = "payments"
PAYLOAD = {"name": "Zoë €", "emoji": "🙂", "path": "C:\\new"}

#: Each of them is the default of a database in the tests below.
UNUSUAL = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "<+03>-03",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "search_path": "nowhere",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "row_security": "off",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "10s",
    "plan_cache_mode": "force_custom_plan",
    "jit_above_cost": "0",
    "from_collapse_limit": "1",
    "join_collapse_limit": "1",
    **{
        f"enable_{plan}": "off"
        for plan in ("seqscan", "indexscan", "tidscan", "nestloop", "bitmapscan", "sort", "hashagg")
    },
}


@pytest.fixture
def unusual_dsn(dsn: str) -> str:
    """A database whose defaults are all unusual, and an address that says it again."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        for setting, value in UNUSUAL.items():
            literal = value if setting == "search_path" else sql.Literal(value)
            conn.execute(
                sql.SQL("alter database {} set {} = {}").format(
                    sql.Identifier(str(name)), sql.SQL(setting),
                    sql.Identifier(value) if literal is value else literal,
                )
            )  # fmt: skip
    # Without the last, a server that says so is taken for one that only reads.
    return make_conninfo(
        dsn,
        options="-c datestyle=German -c client_encoding=LATIN1",
        target_session_attrs="any",
    )


async def test_a_server_with_unusual_defaults_works_like_any_other(unusual_dsn: str) -> None:
    seen: list[Any] = []
    async with CommandBus.connect(unusual_dsn) as bus:

        @bus.handler(DOMAIN, "Debit")
        async def debit(command: Any, ctx: Any) -> dict[str, Any]:
            seen.append((command.data, command.created_at))
            return dict(command.data)

        @bus.handler(DOMAIN, "Book", transactional=True)
        async def book(command: Any, ctx: Any) -> None:
            cursor = await ctx.conn.execute("select current_setting('datestyle')")
            seen.append(await cursor.fetchone())

        ids = [uuid4() for _ in range(20)]
        await bus.send_many(DOMAIN, [BatchCommand("Debit", each, PAYLOAD) for each in ids])
        booked = await bus.send(DOMAIN, "Book", uuid4(), {})
        batch = await bus.create_batch(
            DOMAIN, [BatchCommand("Debit", uuid4(), PAYLOAD)], custom_data=PAYLOAD
        )
        async with working(bus, DOMAIN):
            reply = await bus.call(DOMAIN, "Debit", PAYLOAD)
            await until_status(bus, DOMAIN, ids[-1], CommandStatus.COMPLETED)
            await until_status(bus, DOMAIN, booked, CommandStatus.COMPLETED)
        assert reply.data == PAYLOAD
        # The connection of a handler is as the application has it.
        assert ("German, DMY",) in seen
        assert all(each == PAYLOAD for each, _ in [row for row in seen if len(row) == 2])
        found = await bus.get_batch(DOMAIN, batch)
        assert found is not None
        assert found.custom_data == PAYLOAD
        assert (await bus.list_batches(DOMAIN))[0].created_at.utcoffset() is not None
        events = [event.event_type for event in await bus.get_audit_trail(ids[0])]
        assert events == ["SENT", "RECEIVED", "COMPLETED"]
        assert await bus.upkeep.figures.domains() is not None


async def test_a_pool_with_dates_of_its_own_is_read_all_the_same(
    unusual_dsn: str, dsn: str
) -> None:
    usual = make_conninfo(unusual_dsn, options="-c datestyle=SQL,DMY -c search_path=nowhere"
        " -c default_transaction_read_only=off -c standard_conforming_strings=on"
        " -c client_encoding=UTF8")  # fmt: skip
    async with AsyncConnectionPool(usual, min_size=1, max_size=2, open=False) as pool:
        bus = CommandBus(pool)
        sent = await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD)
        found = await bus.get_command(DOMAIN, sent)
        assert found is not None
        assert isinstance(found.created_at, datetime)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("-c standard_conforming_strings=off", "standard_conforming_strings"),
        ("-c client_encoding=LATIN1", "client_encoding"),
    ],
)
async def test_a_pool_that_cannot_carry_our_texts_is_refused(
    dsn: str, options: str, named: str
) -> None:
    async with AsyncConnectionPool(
        make_conninfo(dsn, options=options), min_size=1, max_size=2, open=False
    ) as pool:
        with pytest.raises(InvalidInputError, match=named):
            await CommandBus(pool).send(DOMAIN, "Debit", uuid4(), {})


class BrokenLoader(Loader):
    def load(self, data: Any) -> Any:
        raise NotImplementedError("not this one")


async def test_loaders_of_the_application_are_not_used_for_what_is_ours(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in ("timestamptz", "uuid", "text", "int8", "jsonb", "bool"):
        adapters.register_loader(name, BrokenLoader)
    monkeypatch.setattr("psycopg.postgres.adapters", adapters)
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        cursor = await conn.execute("select 1::int8")
        with pytest.raises(NotImplementedError):
            await cursor.fetchone()
    async with CommandBus.connect(dsn) as bus, working(bus, "other"):
        sent = await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD)
        assert await bus.get_command(DOMAIN, sent) is not None


async def test_leases_that_cannot_be_read_are_given_back_and_not_counted(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD)
    receive = {"vt_seconds": 30, "quantity": 5, "worker": "w", "limits": {}}
    broken = psycopg.adapt.AdaptersMap(sessions.ADAPTERS)

    class Broken(BrokenLoader):
        format = psycopg.pq.Format.BINARY

    broken.register_loader("timestamptz", Broken)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(sessions, "ADAPTERS", broken)
        with pytest.raises(DatabaseError, match="could not be read"):
            await bus._store.receive(DOMAIN, **receive)  # type: ignore[arg-type]
    assert "1 were given back" in caplog.text
    (lease,) = await bus._store.receive(DOMAIN, **receive)  # type: ignore[arg-type]
    assert (lease.command_id, lease.attempt, lease.is_suspect) == (sent, 1, False)
    events = [event.event_type for event in await bus.get_audit_trail(sent)]
    assert "LEASE_EXPIRED" not in events


# -- conn=


def url(dsn: str, driver: str) -> sqlalchemy.URL:
    parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", username=parts["user"], password=parts.get("password"),
        host=None, database=parts["dbname"], query={"host": parts["host"], "port": parts["port"]},
    )  # fmt: skip


@asynccontextmanager
async def foreign(dsn: str, kind: str, *, autocommit: bool) -> AsyncIterator[Any]:
    """A connection of each kind, with unusual settings where it can have them."""
    parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    conn: Any
    engine: Any
    level: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    odd = make_conninfo(dsn, options="-c datestyle=German -c client_encoding=LATIN1")
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(
            odd, autocommit=autocommit, row_factory=dict_row
        ) as conn:
            yield conn
    elif kind == "psycopg_sync":
        with psycopg.connect(odd, autocommit=autocommit, row_factory=dict_row) as conn:
            yield conn
    elif kind == "asyncpg":
        conn = await asyncpg.connect(
            host=parts["host"], port=parts["port"], user=parts["user"], database=parts["dbname"],
            password=parts.get("password"),
        )  # fmt: skip
        await conn.set_type_codec(
            "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
        yield conn
        await conn.close()
    elif kind == "sqlalchemy_sync":
        engine = sqlalchemy.create_engine(url(dsn, "psycopg"), **level)
        with engine.connect() as conn:
            yield conn
            if not autocommit:
                conn.commit()
        engine.dispose()
    else:
        engine = create_async_engine(url(dsn, kind.partition("_")[2]), **level)
        async with engine.connect() as conn:
            yield conn
            if not autocommit:
                await conn.commit()
        await engine.dispose()


KINDS = [
    "psycopg",
    "psycopg_sync",
    "asyncpg",
    "sqlalchemy_sync",
    "sqlalchemy_psycopg",
    "sqlalchemy_asyncpg",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_commits_each_statement_is_refused(
    dsn: str, bus: CommandBus, kind: str
) -> None:
    async with foreign(dsn, kind, autocommit=True) as conn:
        with pytest.raises(InvalidInputError, match="open a transaction on it, or leave conn out"):
            await bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
    assert not (await bus.search.commands(domain=DOMAIN)).items


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_commits_each_statement_is_taken_if_the_settings_say_so(
    dsn: str, pool: AsyncConnectionPool[Any], kind: str
) -> None:
    bus = CommandBus(pool, settings=Settings(allow_autocommit_conn=True))
    async with foreign(dsn, kind, autocommit=True) as conn:
        sent = await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD, conn=conn)
        assert await bus.get_command(DOMAIN, sent) is not None


@pytest.mark.parametrize("kind", ["psycopg", "psycopg_sync", "asyncpg"])
async def test_in_a_transaction_such_a_connection_is_taken_whatever_its_settings(
    dsn: str, bus: CommandBus, kind: str
) -> None:
    sent = uuid4()
    async with foreign(dsn, kind, autocommit=True) as conn:
        if kind == "psycopg_sync":
            with conn.transaction():
                await bus.send(DOMAIN, "Debit", sent, PAYLOAD, conn=conn)
        else:
            async with conn.transaction():
                await bus.send(DOMAIN, "Debit", sent, PAYLOAD, conn=conn)
    assert json.loads(str(await bus._store.get_payload(DOMAIN, sent))) == PAYLOAD


async def test_in_a_pipeline_a_send_joins_the_transaction_and_hears_of_duplicates(
    dsn: str, bus: CommandBus
) -> None:
    known = await bus.send(DOMAIN, "Debit", uuid4(), {})
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
        conn.pipeline(),
    ):
        with pytest.raises(InvalidInputError, match="commits each statement"):
            await bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
        async with conn.transaction():
            sent = await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD, conn=conn)
            with pytest.raises(DuplicateCommandError):
                await bus.send(DOMAIN, "Debit", known, {}, conn=conn)
    assert await bus.get_command(DOMAIN, sent) is not None


async def test_a_text_that_the_encoding_of_conn_lacks_is_refused_clearly(
    dsn: str, bus: CommandBus
) -> None:
    async with foreign(dsn, "psycopg", autocommit=False) as conn:
        with pytest.raises(InvalidInputError, match="client_encoding UTF8"):
            await bus.create_batch(
                DOMAIN, [BatchCommand("Debit", uuid4(), PAYLOAD)], name="€ 5", conn=conn
            )


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_connection_that_is_closed_is_not_taken_for_one_that_commits_by_itself(
    dsn: str, bus: CommandBus, driver: str
) -> None:
    conn: Any = (
        await psycopg.AsyncConnection.connect(dsn)
        if driver == "psycopg"
        else await asyncpg.connect(**asyncpg_options(dsn))
    )
    await conn.close()
    with pytest.raises((CommandBusError, asyncpg.InterfaceError), match="closed"):
        await bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
