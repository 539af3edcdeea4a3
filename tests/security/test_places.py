"""Places are given back: when the client goes, when its token ends, when it takes nothing; and a
connection that does nothing makes room. On a socket, because only there clients go.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from fastapi import Response

from commandbus.access.model import Caller, Scope
from commandbus.http import HttpSettings
from commandbus.http.connections import MAX_PIPELINED, Connections
from commandbus.http.platform import Here
from commandbus.http.serving import HttpServer, bind
from commandbus.http.waiting import Stream
from commandbus.testing import fake_bus
from tests.http_world import NamedCallers, app_of
from tests.integration.test_http_serving import Serving
from tests.waiting import until

PATIENCE = 20.0
ANN = Caller("ann", frozenset(Scope), token_id="t1")
HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer ann\r\n"
POLL = b"GET /api/v1/poll HTTP/1.1\r\n" + HEAD + b"\r\n"
STREAM = b"GET /api/v1/stream HTTP/1.1\r\n" + HEAD + b"\r\n"


class World(Serving):
    """A service with a request that waits for ever, and a stream without an end."""

    def __init__(self, **settings: Any) -> None:
        self.settings = HttpSettings(port=0, **settings)
        self.app = app_of(fake_bus(), self.settings, ann=ANN)
        self.auth: NamedCallers = self.app.state.commandbus.auth
        self.polls = self.app.state.commandbus.polls
        self.budgets = self.app.state.commandbus.budgets
        self.server = HttpServer(self.app, self.settings, bind("127.0.0.1", 0))
        self._started = asyncio.Event()

        @self.app.get("/api/v1/poll")
        async def poll(here: Here) -> str:
            return await here.wait(_for_ever, "the service ends")

        @self.app.get("/api/v1/stream")
        async def stream(here: Here) -> Stream:
            return Stream(_pieces(), here.polls)

        @self.app.get("/api/v1/torrent")
        async def torrent(here: Here) -> Stream:
            return Stream(_torrent(), here.polls)

        @self.app.get("/api/v1/large")
        async def large() -> Response:
            return Response(bytes(8_000_000))

    async def connect(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        await writer.drain()
        return reader, writer

    async def waiting(self, number: int) -> None:
        await until(lambda: self.polls.waiting == number, f"{number} that wait", PATIENCE)


async def _for_ever() -> str:
    await asyncio.Event().wait()
    return ""


async def _pieces() -> AsyncIterator[bytes]:
    yield b"the first piece"
    await asyncio.Event().wait()


async def _torrent() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 65_536


@pytest.mark.parametrize("request_bytes", [POLL, STREAM, POLL + POLL, STREAM + b"GET /livez HTTP"])
@pytest.mark.parametrize("is_abrupt", [True, False])
async def test_a_place_is_given_back_when_the_client_goes(
    request_bytes: bytes, is_abrupt: bool
) -> None:
    async with World(receive_timeout_seconds=60) as world:
        _, writer = await world.connect(request_bytes)
        await world.waiting(1)
        assert world.budgets.concurrency.taken == 1
        if is_abrupt:
            writer.transport.abort()
        else:
            writer.close()
        await world.waiting(0)
        await until(lambda: world.budgets.concurrency.taken == 0, "no place taken")


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("request_bytes", [POLL, STREAM])
async def test_a_place_is_given_back_when_the_token_is_revoked(
    request_bytes: bytes, is_told: bool
) -> None:
    cached = 5 if is_told else 0.2
    async with World(token_cache_seconds=cached, keep_alive_seconds=1) as world:
        reader, writer = await world.connect(request_bytes)
        await world.waiting(1)
        del world.auth.callers["ann"]
        if is_told:
            world.app.state.commandbus.revocations.tell("another")
            world.app.state.commandbus.revocations.tell("t1")
        answer = await asyncio.wait_for(reader.read(), PATIENCE if not is_told else 4)
        writer.close()
        assert world.polls.waiting == 0
        assert not world.polls._checks
    if request_bytes is POLL:
        assert answer.startswith(b"HTTP/1.1 401")
    else:
        assert b"the first piece" in answer
        assert not answer.endswith(b"0\r\n\r\n"), "a part is not taken for the whole"


async def test_what_waits_is_left_alone_while_its_token_is_good() -> None:
    checks = 0

    class Counting(NamedCallers):
        async def authenticate(self, headers: Any) -> Caller:
            nonlocal checks
            checks += 1
            return await super().authenticate(headers)

    async with World(token_cache_seconds=0.05) as world:
        world.auth.__class__ = Counting
        _, writer = await world.connect(POLL)
        await until(lambda: checks > 4, "some checks")
        assert world.polls.waiting == 1
        writer.transport.abort()
        await world.waiting(0)


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    async with World(send_timeout_seconds=0.2) as world:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.port))
        await loop.sock_sendall(sock, b"GET /api/v1/torrent HTTP/1.1\r\n" + HEAD + b"\r\n")
        await world.waiting(1)
        await world.waiting(0)
        await until(lambda: not world.server._server.server_state.connections, "no connection")
        sock.close()


async def test_who_asks_for_much_and_takes_nothing_loses_its_place_and_fills_no_memory() -> None:
    async with World(send_timeout_seconds=0.5) as world:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.port))
        began = loop.time()
        request = b"GET /api/v1/large HTTP/1.1\r\n" + HEAD + b"\r\n"
        await loop.sock_sendall(sock, request * 3)
        await until(lambda: world.budgets.concurrency.taken == 1, "a request that is served")
        (line,) = world.server._server.server_state.connections
        kept = 0
        while world.budgets.concurrency.taken:
            kept = max(kept, line.transport.get_write_buffer_size())
            await asyncio.sleep(0.01)
            assert loop.time() - began < PATIENCE, "the place is still taken"
        assert kept < 1_000_000
        await until(lambda: not world.server._server.server_state.connections, "no connection")
        sock.close()


async def test_a_large_response_arrives_whole() -> None:
    async with World() as world:
        answer = await world.raw(
            b"GET /api/v1/large HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
        )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 8000000" in head
    assert len(body) == 8_000_000


async def test_a_stop_ends_what_waits() -> None:
    world = World()
    async with world:
        reader, writer = await world.connect(POLL)
        await world.waiting(1)
        world.server.stop()
        assert b"the service ends" in await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()


async def test_one_caller_can_wait_only_so_often_and_others_find_a_place() -> None:
    async with World(max_long_polls=8, token_share=1) as world:
        lines = [await world.connect(POLL) for _ in range(2)]
        await world.waiting(2)
        refused = await world.raw(POLL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert refused.startswith(b"HTTP/1.1 429")
        assert b"waiting" in refused
        other = await world.connect(POLL.replace(b"Bearer ann", b"Bearer root"))
        await world.waiting(3)
        for _, writer in (*lines, other):
            writer.transport.abort()
        await world.waiting(0)


# -- connections


@pytest.mark.parametrize("path", [b"/api/v1/commands", b"/nowhere", b"/livez"])
async def test_a_refused_request_with_an_unread_body_ends_its_connection(path: bytes) -> None:
    async with World(receive_timeout_seconds=60, keep_alive_seconds=60) as world:
        answer = await world.raw(
            b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{"
        )
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert b"connection: close" in answer.lower()


async def test_a_new_client_finds_room_among_many_that_do_nothing() -> None:
    async with World(max_connections=20, receive_timeout_seconds=60) as world:
        idle = [await world.connect(b"GET /livez HTTP/1.1\r\n") for _ in range(60)]
        polling = await world.connect(POLL)
        await world.waiting(1)
        idle += [await world.connect(b"") for _ in range(60)]
        connections = world.server._server.server_state.connections
        await until(lambda: len(connections) <= 20, "few connections")
        answer = await world.raw(
            b"GET /api/v1/whoami HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200")
        assert world.polls.waiting == 1, "who was let in is not sent away"
        for _, writer in (*idle, polling):
            writer.transport.abort()
        await world.waiting(0)


async def test_who_sends_requests_without_end_before_an_answer_is_cut_off() -> None:
    async with World() as world:
        reader, writer = await world.connect(POLL + b"GET /livez HTTP/1.1\r\nX: ")
        await world.waiting(1)
        writer.write(b"x" * (MAX_PIPELINED + 1))
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        await world.waiting(0)
        writer.close()


class Line:
    """A connection as the register sees it."""

    def __init__(self, address: str, serves_caller: bool = False) -> None:
        self.client = (address, 1)
        self.serves_caller = serves_caller
        self.transport = self
        self.is_gone = False

    def abort(self) -> None:
        self.is_gone = True


def test_the_oldest_of_the_address_with_most_has_to_go() -> None:
    register: Any = Connections(4)
    lines = [Line("a"), Line("b", serves_caller=True), Line("b"), Line("b"), Line("c")]
    for line in lines:
        register.opened(line)
    assert [line.is_gone for line in lines] == [False, False, True, False, False]


def test_if_all_are_at_work_the_new_one_has_to_go() -> None:
    register: Any = Connections(2)
    lines = [Line("a", serves_caller=True) for _ in range(2)] + [Line("b")]
    for line in lines:
        register.opened(line)
    assert [line.is_gone for line in lines] == [False, False, True]
    register.closed(lines[0])
    last = Line("b")
    register.opened(last)
    assert not last.is_gone


@pytest.mark.parametrize("proxies", ["10.0.0.1", "10.0.0.0/8, ::1", "*"])
def test_a_trusted_proxy_may_have_as_many_as_it_likes(proxies: str) -> None:
    register: Any = Connections(2, proxies)
    lines = [Line("10.0.0.1") for _ in range(10)]
    for line in lines:
        register.opened(line)
    assert not any(line.is_gone for line in lines)


async def test_nobody_without_a_caller_waits() -> None:
    world = World()
    with pytest.raises(Exception, match="Bearer"):
        await world.polls.attended({"type": "http", "headers": []}, None, _for_ever)
    world.server._sock.close()
