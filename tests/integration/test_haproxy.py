"""A failover behind HAProxy, as the guide on high availability configures it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, Settings
from commandbus.wiring import migrate_database
from faults.servers import Pair, free_port
from tests.waiting import until, working

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("frozen")]

PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
DOMAIN = "shop"
#: Commands before the failover, and while it goes on.
COUNT = 40


@pytest.fixture
def pair() -> Iterator[Pair]:
    if PROGRAM is None:
        pytest.skip("there is no HAProxy here")
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = base / f"commandbus-haproxy-{secrets.token_hex(4)}"
    made = Pair(folder, is_synchronous=True)
    made.start()
    yield made
    made.remove()
    shutil.rmtree(folder, ignore_errors=True)


def started(file: Path) -> subprocess.Popen[bytes]:
    assert PROGRAM is not None
    with file.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([PROGRAM, "-db", "-f", str(file)], stdout=log, stderr=log)


@asynccontextmanager
async def haproxy(pair: Pair, folder: Path) -> AsyncIterator[int]:
    """HAProxy in front of both servers, and what Patroni's REST API says of each."""
    ports = [int(str(conninfo_to_dict(pair.dsn("x"))["port"]).split(",")[n]) for n in (0, 1)]

    async def serve(port: int) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1_000)
            is_primary = pair.primary.tcp_port == port
            said = "200 OK" if is_primary else "503 Service Unavailable"
            writer.write(f"HTTP/1.0 {said}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            writer.close()

        return await asyncio.start_server(answer, "127.0.0.1", 0)

    apis = [await serve(port) for port in ports]
    checks = [api.sockets[0].getsockname()[1] for api in apis]
    front = free_port()
    file = folder / "haproxy.cfg"
    file.write_text(
        "defaults\n mode tcp\n timeout connect 2s\n timeout client 60s\n timeout server 60s\n"
        f"listen primary\n bind 127.0.0.1:{front}\n option httpchk OPTIONS /primary\n"
        " http-check expect status 200\n"
        " default-server inter 300ms fall 2 rise 1 on-marked-down shutdown-sessions\n"
        + "".join(
            f" server db{n} 127.0.0.1:{port} check port {check}\n"
            for n, (port, check) in enumerate(zip(ports, checks, strict=True))
        )
    )
    process = started(file)
    try:
        yield front
    finally:
        process.terminate()
        process.wait()
        for api in apis:
            api.close()


async def has_settled(address: str) -> bool:
    """It takes both for good until its first checks, and each in turn."""
    try:
        for _ in range(4):
            conn = await psycopg.AsyncConnection.connect(
                address, target_session_attrs="read-write", connect_timeout=2
            )
            await conn.close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_failover_behind_haproxy_loses_nothing_and_doubles_nothing(
    pair: Pair, tmp_path: Path
) -> None:
    direct = pair.primary.dsn(pair.primary.create_database())
    settings = Settings(deadline_seconds=3.0, connect_timeout_seconds=2.0)
    await migrate_database(direct, settings)
    with psycopg.connect(direct, autocommit=True) as conn:
        conn.execute("create table written (command_id uuid)")
    async with haproxy(pair, tmp_path) as port:
        address = make_conninfo(direct, host="127.0.0.1", hostaddr="127.0.0.1", port=port)
        await until(partial(has_settled, address), "HAProxy knows which of the two is primary")
        async with CommandBus.connect(address, settings=settings) as bus:

            @bus.handler(DOMAIN, "Debit", transactional=True)
            async def debit(command: Command, ctx: HandlerContext) -> None:
                await ctx.conn.execute("insert into written values (%s)", (command.command_id,))

            sent: list[UUID] = []

            async def send_some() -> None:
                for _ in range(COUNT):
                    sent.append(await bus.send(DOMAIN, "Debit", uuid4(), {}, retry_for=120))
                    await asyncio.sleep(0.05)

            async def are_done() -> bool:
                found = await bus.upkeep.figures.statuses(DOMAIN)
                return found == {(DOMAIN, CommandStatus.COMPLETED): 2 * COUNT}

            async with working(bus, DOMAIN, vt_seconds=10):
                await send_some()
                sending = asyncio.create_task(send_some())
                await asyncio.to_thread(pair.fail_over)
                await sending
                await until(are_done, "all are completed", patience=90)
    with psycopg.connect(make_conninfo(direct, port=pair.primary.tcp_port)) as conn:
        written = [row[0] for row in conn.execute("select command_id from written").fetchall()]
    assert sorted(written) == sorted(sent)
