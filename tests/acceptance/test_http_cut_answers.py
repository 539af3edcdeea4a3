"""The line is cut after a submission was forwarded and before its answer: a repeat with the same
request_id finds the batch, and never makes a second one.

CUT_ANSWERS says how many submissions lose their answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from commandbus import CommandBus
from tests.acceptance.programs import program
from tests.waiting import until

pytestmark = pytest.mark.long

CUTS = int(os.environ.get("CUT_ANSWERS", "10"))
SEED = 20261116


class CuttingProxy:
    """Forwards requests. While `cut` is set, no answer gets through: the line is cut when the
    answer comes ("answered": the service is done), or some milliseconds after the request.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._lines: set[asyncio.Task[None]] = set()
        self.cut: str | float | None = None
        self.cuts = 0

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._lines)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        is_forwarded = asyncio.Event()
        ways = [
            asyncio.create_task(_forward(reader, up_writer, is_forwarded)),
            asyncio.create_task(self._answer(up_reader, writer, is_forwarded)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for each in (writer, up_writer):
            each.transport.abort()

    async def _answer(
        self,
        up_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_forwarded: asyncio.Event,
    ) -> None:
        if isinstance(self.cut, float):
            await is_forwarded.wait()
            await asyncio.sleep(self.cut)
            self.cuts += 1
            return
        while chunk := await up_reader.read(65_536):
            if self.cut == "answered":
                self.cuts += 1
                return
            writer.write(chunk)
            await writer.drain()


async def _forward(
    reader: asyncio.StreamReader, up: asyncio.StreamWriter, is_forwarded: asyncio.Event
) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            up.write(chunk)
            await up.drain()
            if chunk.endswith(b"}"):  # the end of the JSON: the request is whole
                is_forwarded.set()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[CuttingProxy, str]]:
    proxy = CuttingProxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    async with server:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await proxy.close()


@pytest.mark.timeout(600)
async def test_a_repeat_after_a_lost_answer_never_makes_a_second_batch(
    dsn: str,
    conn: psycopg.AsyncConnection[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MAX_USER_PENDING_BATCHES", "MAX_USER_PENDING_CHILDREN"):
        monkeypatch.setenv(f"COMMANDBUS_{name}", "100000")
    for name in ("MAX_GLOBAL_PENDING_BATCHES", "MAX_GLOBAL_API_REQUESTS"):
        monkeypatch.setenv(f"COMMANDBUS_{name}", "100000")
    monkeypatch.setenv("COMMANDBUS_USER_COOLDOWN_SECONDS", "0")
    async with CommandBus.connect(dsn) as bus:
        token = (await bus.tokens.create("ada", ["read", "send", "submit"], actor="test")).text
    chance = random.Random(SEED)
    arguments = ("serve", "--app", "commandbus.demo.vms:setup", "--port", "0", "--dsn", dsn)

    async with program(tmp_path, *arguments) as service:
        await until(lambda: "Stop with Ctrl-C" in service.printed, "a service")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", service.printed)
        assert found is not None
        async with proxied(int(found[1])) as (proxy, url):
            replays = 0
            for number in range(CUTS):
                body = {
                    "operation": "create",
                    "items": [{"name": f"vm{number}-{n}"} for n in range(3)],
                    "request_id": str(uuid4()),
                }
                for _ in range(chance.choice((1, 1, 2))):
                    proxy.cut = chance.choice(("answered", chance.uniform(0.0, 0.02)))
                    with pytest.raises(httpx2.TransportError):
                        await submit(url, token, body)
                was_answered = proxy.cut == "answered"
                proxy.cut = None
                first = await submit(url, token, body)
                again = await submit(url, token, body)
                assert (first.status_code, again.status_code) == (202, 202)
                assert first.json()["batch_id"] == again.json()["batch_id"]
                is_replay = "idempotent-replayed" in first.headers
                assert is_replay or not was_answered
                replays += is_replay

    print(f"{CUTS} submissions, {proxy.cuts} cut answers, {replays} found their batch")
    cursor = await conn.execute(
        "select (select count(*) from commandbus.command_bus_batch where batch_type is not null),"
        " (select count(distinct request_id) from commandbus.command_bus_batch),"
        " (select count(*) from commandbus.command_bus_command),"
        " (select count(*) from commandbus.command_bus_audit where event_type = 'BATCH_SUBMITTED')"
    )
    assert await cursor.fetchone() == (CUTS, CUTS, 3 * CUTS, CUTS)
    assert proxy.cuts >= CUTS


async def submit(url: str, token: str, body: dict[str, Any]) -> httpx2.Response:
    """On a line of its own, as a client that starts anew."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as client:
        return await client.post(f"{url}/api/v1/vms/batch", json=body)
