"""An address with several servers, of which one accepts writes: silence, standbys, outages."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from commandbus import (
    BatchCommand,
    BlockingBus,
    Command,
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    HandlerContext,
    InvalidInputError,
    InvalidSettingError,
    Settings,
)
from commandbus.cli.main import app
from commandbus.cli.output import ExitCode
from commandbus.database import hosts
from commandbus.wiring import migrate_database
from faults.proxy import Proxy
from faults.servers import Pair, free_port
from tests.waiting import until, until_status, working

DOMAIN = "shop"
QUICK = Settings(deadline_seconds=1.0, connect_timeout_seconds=1.0, maintenance=False)


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests found out about hosts is not known here."""
    for name in ("_silent_until", "_good", "_asked_at"):
        monkeypatch.setattr(hosts, name, {})


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers, like a frozen server."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield listening.getsockname()[1]


def beside(dsn: str, port: int, **more: Any) -> str:
    """An address whose first host is at that port, and the second is the real one."""
    parts = conninfo_to_dict(dsn)
    here = str(parts.pop("host"))
    real = str(parts.pop("port"))
    parts.pop("hostaddr", None)
    return make_conninfo("", **parts, host=f"127.0.0.1,{here}", port=f"{port},{real}", **more)


async def test_a_silent_first_host_does_not_stop_the_start(dsn: str, silent_port: int) -> None:
    address = beside(dsn, silent_port)
    async with CommandBus.connect(address, settings=QUICK) as bus:

        @bus.handler(DOMAIN, "Debit")
        async def debit(command: Command, ctx: HandlerContext) -> None: ...

        sent = await bus.send(DOMAIN, "Debit", uuid4(), {})
        async with working(bus, DOMAIN):
            began = time.monotonic()
            await until_status(bus, DOMAIN, sent, CommandStatus.COMPLETED)
        # It is tried last from now on: its time was lost once, not for each connection.
        assert time.monotonic() - began < 3 * hosts.EACH_HOST_SECONDS


def test_an_error_names_each_host_and_why_it_was_not_taken() -> None:
    address = f"host=127.0.0.1,127.0.0.1 port={free_port()},{free_port()} dbname=x"
    bus = BlockingBus.connect(address, settings=QUICK)
    with pytest.raises(DatabaseUnavailableError) as caught:
        bus.send(DOMAIN, "Debit", uuid4(), {})
    text = str(caught.value)
    assert "none of 2 servers" in text
    assert text.count("127.0.0.1:") == 2
    assert "refused" in text


@asynccontextmanager
async def door_to(dsn: str, port: int = 0) -> AsyncIterator[tuple[str, Proxy]]:
    """An address over TCP that can be closed."""
    parts = conninfo_to_dict(dsn)
    path = Path(str(parts["host"])) / f".s.PGSQL.{parts['port']}"
    proxy = Proxy(lambda: path, random.Random(1), port=port)
    await proxy.start()
    try:
        yield make_conninfo(dsn, host="127.0.0.1", port=proxy.port, sslmode="disable"), proxy
    finally:
        await proxy.stop()


async def test_an_outage_is_not_called_a_small_pool(dsn: str) -> None:
    async with door_to(dsn) as (address, door), CommandBus.connect(address, settings=QUICK) as bus:
        await bus.send(DOMAIN, "Debit", uuid4(), {})
        await door.stop()
        texts = []
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError) as caught:
                await bus.send(DOMAIN, "Debit", uuid4(), {})
            texts.append(str(caught.value))
            assert caught.value.may_repeat
        assert "enlarge" not in "".join(texts)
        assert "cannot reach PostgreSQL" in texts[-1]


async def test_a_server_made_read_only_is_unavailable_until_it_writes_again(dsn: str) -> None:
    name = str(conninfo_to_dict(dsn)["dbname"])
    async with CommandBus.connect(dsn, settings=replace(QUICK, pool_size=1)) as bus:
        await bus.send(DOMAIN, "Debit", uuid4(), {})
        pool = bus._store.gateway.pool
        async with pool.connection() as conn:
            await conn.execute("set default_transaction_read_only = on")
            before = conn.info.backend_pid
        with pytest.raises(DatabaseUnavailableError, match="25006") as caught:
            await bus.send(DOMAIN, "Debit", uuid4(), {})
        assert "no server accepts writes" in str(caught.value)
        # That connection is gone, and the next one is to a server that writes.
        await bus.send(DOMAIN, "Debit", uuid4(), {}, retry_for=30)
        async with pool.connection() as conn:
            assert conn.info.backend_pid != before
    with psycopg.connect(dsn, autocommit=True) as admin:
        query = f'alter database "{name}" set default_transaction_read_only = on'
        admin.execute(query.encode())
    with pytest.raises(DatabaseUnavailableError, match="no server accepts writes"):
        await CommandBus.connect(dsn, settings=QUICK).__aenter__()
    allowed = make_conninfo(dsn, target_session_attrs="any")
    async with CommandBus.connect(allowed, settings=QUICK) as bus:
        await bus.send(DOMAIN, "Debit", uuid4(), {})


async def test_a_start_waits_for_a_server(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    address = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
    opening = CommandBus.connect(address, settings=QUICK, wait_seconds=60)
    task = asyncio.create_task(opening.__aenter__())
    await until(lambda: "for a server" in caplog.text, "it says that it waits")
    async with door_to(dsn, port):
        bus = await asyncio.wait_for(task, 30)
        await bus.send(DOMAIN, "Debit", uuid4(), {})
        await opening.__aexit__(None, None, None)


async def test_a_start_does_not_wait_for_what_no_waiting_changes(dsn: str) -> None:
    missing = make_conninfo(dsn, dbname="nowhere_to_be_found")
    with pytest.raises(DatabaseUnavailableError, match="does not exist") as caught:
        await CommandBus.connect(missing, wait_seconds=600).__aenter__()
    assert not caught.value.is_temporary
    with pytest.raises(InvalidSettingError, match="wait_seconds"):
        await CommandBus.connect(dsn, wait_seconds=-1).__aenter__()


def test_a_process_on_the_command_line_gives_up_after_the_wait() -> None:
    address = f"host=127.0.0.1 port={free_port()} dbname=x"
    began = time.monotonic()
    ended = CliRunner().invoke(app, ["scheduler", "--dsn", address, "--wait", "0.5"])
    assert ended.exit_code == ExitCode.UNAVAILABLE
    assert "cannot reach PostgreSQL" in ended.output
    assert 0.5 < time.monotonic() - began < 30  # half a minute is what holds without --wait


async def test_a_send_of_the_command_line_goes_on_until_a_server_is_there(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    address = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
    words = ["send", DOMAIN, "Debit", "--dsn", address, "--retry-for", "60"]
    sending = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, app, words))
    await until(lambda: "for a server" in caplog.text or sending.done(), "it says that it waits")
    async with door_to(dsn, port):
        ended = await asyncio.wait_for(sending, 60)
    assert ended.exit_code == ExitCode.OK, ended.output
    async with CommandBus.connect(dsn, settings=QUICK) as bus:
        assert await bus.get_command(DOMAIN, UUID(ended.stdout.strip())) is not None


async def test_a_send_that_is_repeated_is_there_once(dsn: str, monkeypatch: Any) -> None:
    async with CommandBus.connect(dsn, settings=QUICK) as bus:
        store, lost = bus._store, []

        def losing(verb: Any) -> Any:
            """The first answer is lost, after the commit."""

            async def call(*args: Any, **kwargs: Any) -> Any:
                answer = await verb(*args, **kwargs)
                if verb not in lost:
                    lost.append(verb)
                    raise DatabaseUnavailableError("cut")
                return answer

            return call

        for verb in ("send", "create_batch"):
            monkeypatch.setattr(store, verb, losing(getattr(store, verb)))
        sent = await bus.send(DOMAIN, "Debit", uuid4(), {}, retry_for=30)
        assert await bus.get_command(DOMAIN, sent) is not None
        # One that was sent before, by somebody else, is refused as ever.
        with pytest.raises(DuplicateCommandError):
            await bus.send(DOMAIN, "Debit", sent, {}, retry_for=30)
        lost.clear()
        many = [BatchCommand("Debit", uuid4(), {}) for _ in range(3)]
        report = await bus.send_many(DOMAIN, (each for each in many), retry_for=30)
        assert report.sent == [each.command_id for each in many]
        batch = await bus.create_batch(
            DOMAIN, [BatchCommand("Debit", uuid4(), {})], name="once", retry_for=30
        )
        assert [each.batch_id for each in await bus.list_batches(DOMAIN)] == [batch]
        with pytest.raises(InvalidInputError, match="retry_for and conn"):
            await bus.send(DOMAIN, "Debit", uuid4(), {}, conn=object(), retry_for=1)


@pytest.mark.long
@pytest.mark.xdist_group("frozen")
async def test_a_worker_moves_to_the_new_primary_when_the_old_one_freezes() -> None:
    folder = _new_folder()
    pair = Pair(folder, is_synchronous=True)
    try:
        await asyncio.to_thread(pair.start)
        old, new = pair.primary, pair.standby
        assert new is not None
        name = old.create_database()
        await migrate_database(old.dsn(name), QUICK)
        await _examine_the_standby(new.dsn(name))
        async with CommandBus.connect(pair.dsn(name), settings=QUICK) as bus:

            @bus.handler(DOMAIN, "Debit")
            async def debit(command: Command, ctx: HandlerContext) -> None: ...

            before = await bus.send(DOMAIN, "Debit", uuid4(), {})
            async with working(bus, DOMAIN, vt_seconds=5):
                await until_status(bus, DOMAIN, before, CommandStatus.COMPLETED)
                old.freeze()
                with psycopg.connect(new.superuser_dsn(), autocommit=True) as admin:
                    admin.execute("select pg_promote(true, 60)")
                    admin.execute("alter system reset synchronous_standby_names")
                    admin.execute("select pg_reload_conf()")
                sent = await bus.send(DOMAIN, "Debit", uuid4(), {}, retry_for=30)
                await until_status(bus, DOMAIN, sent, CommandStatus.COMPLETED)
                assert (await bus.get_command(DOMAIN, before)) is not None  # none was lost
    finally:
        pair.primary.thaw()
        await asyncio.to_thread(pair.remove)
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> Path:
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="commandbus-failover-", dir=base))
    folder.chmod(0o755)  # as root the server is another account
    return folder


async def _examine_the_standby(address: str) -> None:
    with pytest.raises(DatabaseUnavailableError, match="standby"):
        await CommandBus.connect(address, settings=QUICK).__aenter__()
    command = ["doctor", "--json", "--dsn", address]
    ended = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert ended.exit_code == 1
    assert "SERVER_ONLY_READS" in ended.output
