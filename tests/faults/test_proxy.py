"""The proxy: it follows the protocol, and breaks lines in the ways that it is told to."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from faults.proxy import Line, Messages, Proxy, Weather, turn_loop
from tests.waiting import until


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


STARTUP = message(b"", b"\0\3\0\0user\0me\0\0")
SEND = message(b"P", b"s1\0select commandbus.offer_commands($1)\0\0\0")
READ = message(b"P", b"s2\0select 1\0\0\0")
SYNC = message(b"S")
READY = message(b"Z", b"I")


def test_messages_are_found_however_the_stream_is_cut() -> None:
    stream = STARTUP + SEND + SYNC
    for size in (1, 3, len(stream)):
        messages = Messages(has_startup=True)
        found = []
        for start in range(0, len(stream), size):
            found += messages.feed(stream[start : start + size])
        assert [kind for kind, _ in found] == [b"", b"P", b"S"]


@pytest.mark.parametrize(
    ("asked", "is_write"),
    [
        ([(b"P", b"s1\0select x.settle_commands($1)\0")], True),
        ([(b"P", b"s1\0select 1\0")], False),
        ([(b"Q", b"commit\0")], True),
        ([(b"Q", b"begin\0")], False),
    ],
)
def test_a_write_is_known_by_its_statement(
    asked: list[tuple[bytes, bytes]], is_write: bool
) -> None:
    line = Line(None, None)  # type: ignore[arg-type]
    for kind, body in asked:
        line.note(kind, body)
    assert line.is_write is is_write


def test_a_prepared_statement_is_known_by_its_name() -> None:
    line = Line(None, None)  # type: ignore[arg-type]
    line.note(b"P", b"s1\0select x.receive_commands($1)\0")
    line.is_write = False
    line.note(b"B", b"\0s1\0\0\0")
    assert line.is_write


@asynccontextmanager
async def through_proxy() -> AsyncIterator[tuple[Proxy, Any, Any]]:
    """A server that answers each Sync, with the proxy before it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        messages = Messages(has_startup=True)
        try:
            while chunk := await reader.read(65536):
                for kind, _ in messages.feed(chunk):
                    if kind == b"S":
                        writer.write(READY)
        except ConnectionError:
            pass

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer))
        tasks.append(task)
        task.add_done_callback(lambda _: writer.transport.abort())

    tasks: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = Proxy(lambda: ("127.0.0.1", port), random.Random(1))
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(STARTUP)
    try:
        yield proxy, reader, writer
    finally:
        writer.transport.abort()
        await proxy.stop()
        server.close()
        await turn_loop()
        await asyncio.gather(*tasks)
        await turn_loop()


async def test_a_line_is_cut_after_the_answer_to_a_write_and_the_client_hears_nothing() -> None:
    async with through_proxy() as (proxy, reader, writer):
        proxy.weather = Weather(cut_commits=1.0)
        writer.write(READ + SYNC)
        assert await reader.readexactly(len(READY)) == READY, "a read is not worth a cut"
        writer.write(SEND + SYNC)
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert proxy.cuts == 1


@pytest.mark.parametrize(
    "weather", [Weather(latency=(0.01, 0.02)), Weather(drip=50), Weather(silent=frozenset({"up"}))]
)
async def test_what_is_late_arrives_after_all(weather: Weather) -> None:
    async with through_proxy() as (proxy, reader, writer):
        proxy.weather = weather
        writer.write(READ + SYNC)
        answer = asyncio.create_task(reader.readexactly(len(READY)))
        await asyncio.sleep(0)
        if weather.silent:
            proxy.weather = Weather()
        assert await asyncio.wait_for(answer, 10) == READY


async def test_lines_can_be_reset_and_half_closed() -> None:
    async with through_proxy() as (proxy, reader, writer):
        writer.write(READ + SYNC)
        await reader.readexactly(len(READY))
        assert proxy.half_close_all() == 1
        await until(lambda: not proxy._lines, "the server has hung up")
    async with through_proxy() as (proxy, reader, writer):
        writer.write(READ + SYNC)
        await reader.readexactly(len(READY))
        assert proxy.reset_all() == proxy.resets == 1
