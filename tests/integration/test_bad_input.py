"""Bad input: its own error, advice, nothing changed, and no secret told."""

from __future__ import annotations

import json
import logging
import math
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandBusError,
    CommandNotFoundError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    HandlerAlreadyRegisteredError,
    HandlerContext,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
    PermanentCommandError,
    RetryPolicy,
    Settings,
)
from commandbus.errors import (
    InvalidCommandIdError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from tests.integration.test_send import url
from tests.waiting import until_status, working

DOMAIN = "payments"
#: In every payload and every password here, and nowhere else.
CANARY = "cAnArY-4711"


async def contents(conn: AsyncConnection) -> dict[str, list[Any]]:
    """Every row of every table of ours and of PGMQ."""
    cursor = await conn.execute(
        "select n.nspname || '.' || quote_ident(c.relname) from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where c.relkind in ('r', 'p') and n.nspname in ('commandbus', 'pgmq') order by 1"
    )
    names = [str(row[0]) for row in await cursor.fetchall()]
    found = {}
    for name in names:
        rows = await conn.execute(f"select t::text from {name} t order by 1".encode())
        found[name] = await rows.fetchall()
    return found


def assert_silent(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the error, nor what a log prints of it, nor the logs so far hold the canary."""
    assert CANARY not in str(error)
    assert CANARY not in repr(error)
    told = "".join(traceback.format_exception(None, error, None))
    assert CANARY not in told
    assert CANARY not in caplog.text


@dataclass
class Ready:
    """A bus with one command of each kind, and the verbs that look at the database."""

    bus: CommandBus
    conn: AsyncConnection
    caplog: pytest.LogCaptureFixture
    pending: UUID
    parked: UUID
    completed: UUID

    @asynccontextmanager
    async def refused(
        self, kind: type[CommandBusError], advice: str
    ) -> AsyncIterator[pytest.ExceptionInfo[CommandBusError]]:
        before = await contents(self.conn)
        with pytest.raises(CommandBusError, match=advice) as info:
            yield cast("pytest.ExceptionInfo[CommandBusError]", None)
        assert type(info.value) is kind
        assert_silent(info.value, self.caplog)
        assert await contents(self.conn) == before


@pytest.fixture
async def ready(bus: CommandBus, conn: AsyncConnection, caplog: pytest.LogCaptureFixture) -> Ready:
    caplog.set_level(logging.DEBUG)

    @bus.handler(DOMAIN, "Refuse")
    async def refuse(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO", "never")

    @bus.handler(DOMAIN, "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    pending, parked, completed = uuid4(), uuid4(), uuid4()
    await bus.send(DOMAIN, "Refuse", parked, {"pin": CANARY})
    await bus.send(DOMAIN, "Work", completed, {"pin": CANARY})
    async with working(bus, DOMAIN):
        await until_status(bus, DOMAIN, parked, "IN_TROUBLESHOOTING_QUEUE")
        await until_status(bus, DOMAIN, completed, "COMPLETED")
    await bus.send(DOMAIN, "Work", pending, {"pin": CANARY})
    return Ready(bus, conn, caplog, pending, parked, completed)


# -- names


@pytest.mark.parametrize(
    "domain", ["pay-ments", "Payments", "a" * 38, "pay.ments", "", None, "pay__ments", "ünïcode", 5]
)
async def test_a_badly_formed_domain_is_refused_by_every_verb(ready: Ready, domain: Any) -> None:
    bus, some = ready.bus, uuid4()
    verbs: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.send(domain, "Debit", some, {"pin": CANARY}),
        lambda: bus.send_many(domain, [BatchCommand("Debit", some, {"pin": CANARY})]),
        lambda: bus.call(domain, "Debit", {"pin": CANARY}),
        lambda: bus.cancel(domain, some, "why"),
        lambda: bus.run_worker(domain),
        lambda: bus.list_troubleshooting(domain),
        lambda: bus.operator_retry(domain, some),
        lambda: bus.operator_cancel(domain, some, "why"),
        lambda: bus.operator_complete(domain, some, {"pin": CANARY}),
        lambda: bus.get_command(domain, some),
        lambda: bus.get_batch(domain, some),
    ]
    for verb in verbs:
        async with ready.refused(InvalidNameError, r"use a-z, 0-9|at most 37"):
            await verb()


@pytest.mark.parametrize("domain", ["unheard_of"])
async def test_an_unknown_domain_is_empty_for_readers_and_not_found_for_operators(
    ready: Ready, domain: str
) -> None:
    bus = ready.bus
    before = await contents(ready.conn)
    assert await bus.list_troubleshooting(domain) == []
    assert (await bus.search.commands(domain=domain)).items == []
    assert await bus.get_command(domain, ready.parked) is None
    assert await bus.get_batch(domain, uuid4()) is None
    assert [reply async for reply in bus.replies(domain, wait=False)] == []
    assert await contents(ready.conn) == before
    for verb in (
        lambda: bus.operator_retry(domain, ready.parked),
        lambda: bus.operator_cancel(domain, ready.parked, "why"),
        lambda: bus.operator_complete(domain, ready.parked),
        lambda: bus.cancel(domain, ready.pending, "why"),
    ):
        async with ready.refused(CommandNotFoundError, "check the id and the domain"):
            await verb()


@pytest.mark.parametrize("command_type", ["", None, "1st", "a b", "T" * 201, "<script>"])
async def test_a_badly_formed_command_type_is_refused(ready: Ready, command_type: Any) -> None:
    async with ready.refused(InvalidNameError, "use letters, digits and"):
        await ready.bus.send(DOMAIN, command_type, uuid4(), {"pin": CANARY})


@pytest.mark.parametrize("reply_to", ["payments.commands", "Bad", "a.b.c", "x" * 48, 5, ["a"]])
async def test_a_badly_formed_reply_queue_is_refused(ready: Ready, reply_to: Any) -> None:
    async with ready.refused(InvalidNameError, "use <domain>.replies"):
        await ready.bus.send(DOMAIN, "Debit", uuid4(), {"pin": CANARY}, reply_to)


# -- ids


@pytest.mark.parametrize("command_id", ["not-a-uuid", "", None, 5, b"0" * 16])
async def test_an_id_that_is_no_uuid_is_refused_by_every_verb(
    ready: Ready, command_id: Any
) -> None:
    bus = ready.bus
    verbs: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.send(DOMAIN, "Debit", command_id, {"pin": CANARY}),
        lambda: bus.cancel(DOMAIN, command_id, "why"),
        lambda: bus.operator_retry(DOMAIN, command_id),
        lambda: bus.operator_cancel(DOMAIN, command_id, "why"),
        lambda: bus.operator_complete(DOMAIN, command_id),
        lambda: bus.get_command(DOMAIN, command_id),
        lambda: bus.get_audit_trail(command_id),
    ]
    for verb in verbs:
        async with ready.refused(
            InvalidCommandIdError, r"is not a UUID; make one with commandbus\.new_id"
        ):
            await verb()


async def test_a_duplicate_id_is_refused_and_the_first_stays(ready: Ready) -> None:
    for known in (ready.pending, ready.parked, ready.completed):
        async with ready.refused(DuplicateCommandError, "treat it as done"):
            await ready.bus.send(DOMAIN, "Work", known, {"pin": CANARY, "n": 2})


# -- payloads


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"pin": CANARY}
    for _ in range(depth):
        value = {"d": value}
    return value


PAYLOADS: dict[str, tuple[Any, str]] = {
    "NaN": ({"pin": CANARY, "a": math.nan}, "use null"),
    "infinity": ({"pin": CANARY, "a": math.inf}, "use null"),
    "NUL": ({"pin": CANARY + "\x00"}, "NUL character, which PostgreSQL refuses"),
    "lone surrogate": ({"pin": CANARY + "\ud800"}, "not valid text"),
    "too deep": (nested(40), "flatten it"),
    "too large": ({"pin": CANARY * 30_000}, "send a reference"),
    "key that is no text": ({"pin": CANARY, 5: 1}, r"use str\(key\)"),
    "key with a secret that is no text": ({(CANARY,): 1}, r"use str\(key\)"),
    "huge integer": ({"pin": CANARY, "a": 2**53}, "send it as text"),
    "set": ({"pin": {CANARY}}, "convert it first"),
    "datetime": ({"pin": CANARY, "a": datetime.now(UTC)}, "convert it first"),
    "bytes": ({"pin": CANARY.encode()}, "convert it first"),
    "list": ([CANARY], "wrap the value"),
    "text": (CANARY, "wrap the value"),
    "None": (None, "wrap the value"),
}


@pytest.mark.parametrize("kind", PAYLOADS)
async def test_a_payload_that_is_not_json_safe_is_refused(ready: Ready, kind: str) -> None:
    data, advice = PAYLOADS[kind]
    bus = ready.bus
    async with ready.refused(InvalidPayloadError, advice):
        await bus.send(DOMAIN, "Debit", uuid4(), data)
    async with ready.refused(InvalidPayloadError, advice):
        await bus.call(DOMAIN, "Debit", data)
    good = BatchCommand("Debit", uuid4(), {"pin": CANARY})
    async with ready.refused(InvalidPayloadError, advice):
        await bus.send_many(DOMAIN, [good, BatchCommand("Debit", uuid4(), data)])


async def test_a_result_that_is_not_json_safe_is_refused(ready: Ready) -> None:
    async with ready.refused(InvalidPayloadError, "convert it first"):
        await ready.bus.operator_complete(DOMAIN, ready.parked, {"pin": {CANARY}})


# -- handlers


async def test_a_handler_registered_twice_is_refused(ready: Ready) -> None:
    async def again(command: Command, ctx: HandlerContext) -> None:
        pass

    async with ready.refused(HandlerAlreadyRegisteredError, "a command type has exactly one"):
        ready.bus.register_handler(DOMAIN, "Work", again)


async def test_a_command_without_a_handler_ends_in_troubleshooting_and_can_be_retried(
    ready: Ready,
) -> None:
    bus, command_id = ready.bus, uuid4()
    await bus.send(DOMAIN, "Unheard", command_id, {"pin": CANARY})
    async with working(bus, DOMAIN):
        row = await until_status(bus, DOMAIN, command_id, "IN_TROUBLESHOOTING_QUEUE")
        assert row.last_error_code == "HANDLER_NOT_FOUND"
        assert "register one and retry" in (row.last_error_msg or "")
        assert CANARY not in (row.last_error_msg or "")

    @bus.handler(DOMAIN, "Unheard")
    async def heard(command: Command, ctx: HandlerContext) -> None:
        pass

    await bus.operator_retry(DOMAIN, command_id)
    async with working(bus, DOMAIN):
        await until_status(bus, DOMAIN, command_id, "COMPLETED")
    assert CANARY not in ready.caplog.text


async def test_no_payload_is_told_by_the_audit_the_rows_or_the_logs(ready: Ready) -> None:
    found = await contents(ready.conn)
    told = {
        name: json.dumps(rows) for name, rows in found.items() if name.startswith("commandbus.")
    }
    assert "commandbus.command_bus_audit" in told
    for name, text in told.items():
        assert CANARY not in text, name
    # The queue and the archive do hold it: a retry needs it.
    assert CANARY in json.dumps(found["pgmq.a_payments__commands"])
    assert CANARY not in ready.caplog.text


# -- settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(pool_size=-1),
        lambda: Settings(poll_max_seconds=0),
        lambda: Settings(max_payload_bytes=10**12),
        lambda: Settings(schema="Robert'); drop table students; --"),
        lambda: Settings(replies="no queue"),
        lambda: Settings.from_env({"COMMANDBUS_POOL_SIZE": "many"}),
        lambda: RetryPolicy(max_attempts=0),
        lambda: RetryPolicy(backoff_schedule=[-1]),
        lambda: RetryPolicy(backoff_schedule=[10**12]),
    ],
)
def test_negative_or_absurd_settings_are_refused_with_what_is_allowed(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(InvalidSettingError, match="; use "):
        make()


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": -1}, {"concurrency": 10**6}, {"vt_seconds": 0},
     {"vt_seconds": -30}, {"vt_seconds": 10**6}],
)  # fmt: skip
async def test_a_worker_with_absurd_settings_is_refused(
    ready: Ready, options: dict[str, Any]
) -> None:
    async with ready.refused(InvalidSettingError, "; use .* from 1 to"):
        await ready.bus.run_worker(DOMAIN, **options)


@pytest.mark.parametrize("attempts", [0, -1, 10**6, 1.5, "3"])
async def test_a_send_with_absurd_attempts_is_refused(ready: Ready, attempts: Any) -> None:
    async with ready.refused(InvalidSettingError, "whole number from 1 to 1000"):
        await ready.bus.send(DOMAIN, "Debit", uuid4(), {"pin": CANARY}, max_attempts=attempts)


# -- the database


async def refused_connection(dsn: str, caplog: pytest.LogCaptureFixture) -> CommandBusError:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(CommandBusError) as info:
        async with CommandBus.connect(dsn, settings=Settings(connect_timeout_seconds=5)):
            pass
    assert_silent(info.value, caplog)
    return info.value


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens: bound, so that nobody else gets it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    "form",
    [
        "host=127.0.0.1 port={port} user=app password={canary} dbname=x",
        "postgresql://app:{canary}@127.0.0.1:{port}/x",
    ],
)
async def test_no_database_is_told_with_the_advice_to_check_the_address(
    closed_port: int, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    error = await refused_connection(form.format(port=closed_port, canary=CANARY), caplog)
    assert type(error) is DatabaseUnavailableError
    assert "refused" in str(error)
    assert "check that the server runs, and the address (COMMANDBUS_DSN or --dsn)" in str(error)


async def test_a_wrong_password_is_told_with_the_advice_to_check_it(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refused_connection(make_conninfo(dsn, password=CANARY), caplog)
    assert type(error) is DatabaseUnavailableError
    assert "check the user and the password" in str(error)


async def test_a_missing_database_is_told(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    error = await refused_connection(make_conninfo(dsn, dbname="no_such_database"), caplog)
    assert type(error) is DatabaseUnavailableError
    assert "no_such_database" in str(error)
    assert "COMMANDBUS_DSN" in str(error)


@pytest.mark.parametrize(
    "dsn",
    [
        f"password=two {CANARY}",
        CANARY,
        f"postgresql://app:pass/{CANARY}@127.0.0.1/x",
        f"postgresql://app:pass@{CANARY}@h.invalid/x",
        f"postgresql://app:{CANARY}%zz@127.0.0.1/x",
        f"postgresql://app:{CANARY}@127.0.0.1:notaport/x",
        f"postgresql://app:{CANARY}@127.0.0.1/x?nosuch=option",
    ],
)
async def test_an_address_that_cannot_be_read_is_told_without_repeating_it(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refused_connection(dsn, caplog)
    assert type(error) is DatabaseUnavailableError
    assert "COMMANDBUS_DSN" in str(error)


async def test_an_older_or_newer_or_missing_schema_is_told_by_its_own_error(
    dsn: str, empty_dsn: str, conn: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    await conn.execute("update commandbus.command_bus_migration set version = version - 1000")
    assert type(await refused_connection(dsn, caplog)) is SchemaTooOldError
    await conn.execute("update commandbus.command_bus_migration set version = version + 1000")
    await conn.execute(
        "insert into commandbus.command_bus_migration values (9000, 'future', 'x', true)"
    )
    assert type(await refused_connection(dsn, caplog)) is SchemaTooNewError
    async with AsyncConnectionPool(empty_dsn, min_size=1, open=False) as pool:
        with pytest.raises(SchemaMissingError, match="commandbus db init") as info:
            await CommandBus(pool).send(DOMAIN, "Debit", uuid4(), {"pin": CANARY})
    assert_silent(info.value, caplog)


async def test_a_server_that_goes_away_is_told_and_nothing_is_sent(
    dsn: str, conn: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with await psycopg.AsyncConnection.connect(dsn) as own, CommandBus.connect(dsn) as bus:
        await bus.send(DOMAIN, "Debit", uuid4(), {"pin": CANARY})
        before = await contents(conn)
        await own.execute("select 1")
        await conn.execute("select pg_terminate_backend(%s)", (own.info.backend_pid,))
        with pytest.raises(DatabaseUnavailableError, match="check that the server runs") as info:
            await bus.send(DOMAIN, "Debit", uuid4(), {"pin": CANARY}, conn=own)
        assert_silent(info.value, caplog)
        assert await contents(conn) == before


@pytest.mark.parametrize("driver", ["psycopg_async", "asyncpg"])
async def test_an_error_of_sqlalchemy_is_told_without_its_parameters(
    dsn: str, ready: Ready, driver: str
) -> None:
    engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
    async with engine.connect() as conn:
        await conn.exec_driver_sql("set transaction read only")
        async with ready.refused(DatabaseUnavailableError, "25006"):
            await ready.bus.send(DOMAIN, "Work", uuid4(), {"pin": CANARY}, conn=conn)
    await engine.dispose()


# -- operators


@pytest.mark.parametrize("reason", ["", "  ", None, 5, "a\x00b", "\ud800", "x" * 2_001])
async def test_a_cancel_without_a_reason_is_refused(ready: Ready, reason: Any) -> None:
    bus = ready.bus
    async with ready.refused(InvalidInputError, "reason must be"):
        await bus.operator_cancel(DOMAIN, ready.parked, reason)
    async with ready.refused(InvalidInputError, "reason must be"):
        await bus.cancel(DOMAIN, ready.pending, reason)


async def test_an_unknown_id_is_refused_by_every_verb_of_an_operator(ready: Ready) -> None:
    bus, missing = ready.bus, uuid4()
    verbs: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.operator_retry(DOMAIN, missing),
        lambda: bus.operator_cancel(DOMAIN, missing, "why"),
        lambda: bus.operator_complete(DOMAIN, missing, {"pin": CANARY}),
        lambda: bus.cancel(DOMAIN, missing, "why"),
    ]
    for verb in verbs:
        async with ready.refused(CommandNotFoundError, "check the id and the domain"):
            await verb()


async def test_a_wrong_state_is_refused_by_every_verb_of_an_operator(ready: Ready) -> None:
    bus = ready.bus
    for wrong, state in ((ready.pending, "PENDING"), (ready.completed, "COMPLETED")):
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda wrong=wrong: bus.operator_retry(DOMAIN, wrong),  # type: ignore[misc]
            lambda wrong=wrong: bus.operator_cancel(DOMAIN, wrong, "why"),  # type: ignore[misc]
            lambda wrong=wrong: bus.operator_complete(DOMAIN, wrong, CANARY),  # type: ignore[misc]
        ]
        for verb in verbs:
            refusal = f"it is {state}, and only a command in troubleshooting can be"
            async with ready.refused(InvalidOperationError, refusal):
                await verb()
    for wrong in (ready.parked, ready.completed):
        async with ready.refused(InvalidOperationError, "only a command that is PENDING can be"):
            await bus.cancel(DOMAIN, wrong, "why")
