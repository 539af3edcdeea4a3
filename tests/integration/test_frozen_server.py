"""A server that stands still (SIGSTOP, hung storage) is left within the deadline."""

from __future__ import annotations

import asyncio
import gc
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg_pool import AsyncConnectionPool

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    HandlerContext,
    RetryPolicy,
    Settings,
)
from commandbus.database.deadlines import (
    TICK_SECONDS,
    DeadlineError,
    Limit,
    Peer,
    answers_within,
)
from commandbus.database.own_connections import OurBlockingConnection
from commandbus.wiring import migrate_database
from faults.servers import Server, free_port
from tests.waiting import until, until_status, working

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("frozen")]

DOMAIN = "shop"
DEADLINE = 1.0
#: A frozen server is left by then: the deadline, and two seconds. And what a busy machine takes.
LEFT_SECONDS = DEADLINE + 2.0 + 3.0
SETTINGS = Settings(deadline_seconds=DEADLINE, connect_timeout_seconds=0.5, maintenance=False)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = base / f"commandbus-frozen-{secrets.token_hex(4)}"
    # A connection that was given up before it signed in keeps its database from being dropped.
    settings = {"fsync": "off", "authentication_timeout": "2s"}
    server = Server(folder, settings=settings, tcp_port=free_port())
    server.start()
    yield server
    server.thaw()
    server.remove()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def own_dsn(own_server: Server) -> AsyncIterator[str]:
    name = own_server.create_database()
    address = own_server.dsn(name)
    await migrate_database(address, SETTINGS)
    yield address
    own_server.thaw()
    gc.collect()  # the driver keeps connections that it gave up until they are collected
    own_server.drop_database(name)


@asynccontextmanager
async def frozen(server: Server) -> AsyncIterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


async def left(work: Any) -> DatabaseUnavailableError:
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError) as caught:
        await work
    assert time.monotonic() - began < LEFT_SECONDS
    return caught.value


@pytest.mark.long
@pytest.mark.parametrize("is_foreign", [False, True], ids=["our pool", "a pool of the application"])
async def test_a_send_leaves_a_frozen_server_and_may_be_repeated(
    own_server: Server, own_dsn: str, is_foreign: bool
) -> None:
    pool = AsyncConnectionPool(own_dsn, min_size=2, max_size=2, timeout=DEADLINE, open=False)
    async with pool, CommandBus.connect(own_dsn, settings=SETTINGS) as ours:
        bus = CommandBus(pool, settings=SETTINGS) if is_foreign else ours
        await bus.send(DOMAIN, "Debit", uuid4(), {})
        command_id = uuid4()
        # More than the socket holds: neither end may wait for the other.
        data = {"text": "x" * 200_000}
        many = [BatchCommand("Debit", uuid4(), data) for _ in range(20)]
        async with frozen(own_server):
            alone, together = await asyncio.gather(
                left(bus.send(DOMAIN, "Debit", command_id, {})), left(bus.send_many(DOMAIN, many))
            )
        for error in (alone, together):
            assert error.may_repeat
            assert error.is_temporary
            # The second, if the one before it has taken the last connection with it.
            assert re.search("did not answer|cannot reach", str(error))
            assert "enlarge the pool" not in str(error)
        assert f"the same id ({command_id})" in str(alone)
        # The frozen server may have had them in its sockets, and have stored them since.
        with suppress(DuplicateCommandError):
            assert await ours.send(DOMAIN, "Debit", command_id, {}, retry_for=30) == command_id
        with suppress(DuplicateCommandError):
            assert (await ours.send_many(DOMAIN, many, retry_for=30)).sent
        for sent in (command_id, *(each.command_id for each in many)):
            assert await ours.get_command(DOMAIN, sent) is not None


def has_warned(caplog: pytest.LogCaptureFixture, part: str) -> bool:
    name = f"commandbus.{part}"
    return any(each.name == name and each.levelname == "WARNING" for each in caplog.records)


@pytest.mark.long
async def test_a_worker_leaves_a_frozen_server_and_goes_on_when_it_is_back(
    own_server: Server, own_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with CommandBus.connect(own_dsn, settings=SETTINGS) as bus:
        gate = asyncio.Event()

        @bus.handler(DOMAIN, "Debit")
        async def debit(command: Command, ctx: HandlerContext) -> None:
            await gate.wait()

        held = await bus.send(DOMAIN, "Debit", uuid4(), {})
        async with working(bus, DOMAIN, vt_seconds=6):
            await until_status(bus, DOMAIN, held, CommandStatus.IN_PROGRESS)
            async with frozen(own_server):
                gate.set()
                for part in ("receiver", "completer", "listener", "lease"):
                    await until(partial(has_warned, caplog, part), f"the {part} has left it")
            await until_status(bus, DOMAIN, held, CommandStatus.COMPLETED)
            await bus.call(DOMAIN, "Debit", {})


async def test_a_long_statement_of_a_handler_outlives_the_deadline_on_a_server_that_lives(
    own_dsn: str,
) -> None:
    async with CommandBus.connect(own_dsn, settings=SETTINGS) as bus:

        @bus.handler(DOMAIN, "Async", transactional=True)
        async def slow(command: Command, ctx: HandlerContext) -> None:
            await ctx.conn.execute("select pg_sleep(%s)", (DEADLINE * 2.5,))

        @bus.handler(DOMAIN, "Thread", transactional=True)
        def slow_in_thread(command: Command, ctx: HandlerContext) -> None:
            ctx.conn.execute("select pg_sleep(%s)", (DEADLINE * 2.5,))

        async with working(bus, DOMAIN):
            await asyncio.gather(bus.call(DOMAIN, "Async", {}), bus.call(DOMAIN, "Thread", {}))


@pytest.mark.parametrize("kind", ["Async", "Thread"])
async def test_a_frozen_server_costs_a_transactional_handler_no_attempt(
    own_server: Server, own_dsn: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with CommandBus.connect(
        own_dsn, settings=SETTINGS, retry_policy=RetryPolicy(max_attempts=1)
    ) as bus:
        runs = []

        @bus.handler(DOMAIN, "Async", transactional=True)
        async def write(command: Command, ctx: HandlerContext) -> None:
            runs.append(ctx.attempt)
            await ctx.conn.execute("select pg_sleep(%s)", (0.5 if len(runs) == 1 else 0,))

        @bus.handler(DOMAIN, "Thread", transactional=True)
        def write_in_thread(command: Command, ctx: HandlerContext) -> None:
            runs.append(ctx.attempt)
            ctx.conn.execute("select pg_sleep(%s)", (0.5 if len(runs) == 1 else 0,))

        sent = await bus.send(DOMAIN, kind, uuid4(), {})
        async with working(bus, DOMAIN, vt_seconds=60):
            await until(lambda: runs, "the handler runs")
            own_server.freeze()
            # It is thawed once its connection was given up: what it does then is refused.
            await until(
                lambda: (
                    "connections to it are closed" in caplog.text
                    or "connection of a thread is closed" in caplog.text
                ),
                "it was left",
            )
            own_server.thaw()
            found = await until_status(
                bus, DOMAIN, sent, CommandStatus.COMPLETED, CommandStatus.IN_TROUBLESHOOTING_QUEUE
            )
        assert found.status == CommandStatus.COMPLETED
        assert runs == [1, 1]


def test_a_statement_of_a_thread_is_ended_by_the_deadline(own_server: Server, own_dsn: str) -> None:
    with OurBlockingConnection.connect(own_dsn, autocommit=True) as conn:
        conn.limit = Limit(DEADLINE)
        began = time.monotonic()
        with pytest.raises(DeadlineError, match="no answer in 1 s"):
            conn.execute("select pg_sleep(30)")
        assert time.monotonic() - began < LEFT_SECONDS
        assert conn.broken


async def test_a_slow_statement_is_ended_and_the_neighbours_are_left_alone(own_dsn: str) -> None:
    async with CommandBus.connect(own_dsn, settings=SETTINGS) as bus:
        gateway = bus._store.gateway
        other = gateway.pool
        async with other.connection() as neighbour:
            error = await left(gateway.rows("select pg_sleep(30)"))
            assert "did not answer" in str(error)
            await neighbour.execute("select 1")
        # What may take long goes on, as long as the server gives signs of life.
        await gateway.patient.rows("select pg_sleep(%s)", (DEADLINE * 2,))


def test_a_sign_of_life_is_one_letter(own_server: Server) -> None:
    address = ("127.0.0.1", own_server.tcp_port)
    assert answers_within(Peer(socket.AF_INET, address), 5)
    own_server.freeze()
    try:
        assert not answers_within(Peer(socket.AF_INET, address), TICK_SECONDS)
    finally:
        own_server.thaw()
