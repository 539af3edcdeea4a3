"""The service on a socket: slow clients, graceful ends, what it sends over the wire."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Self

import httpx2
import pytest

from commandbus.http import HttpSettings, create_app
from commandbus.http.serving import HttpServer, bind
from commandbus.testing import fake_bus

PATIENCE = 20.0


class Serving:
    """A server on a free port, on the store in memory, in this loop."""

    def __init__(self, **settings: Any) -> None:
        self.settings = HttpSettings(port=0, **settings)
        self.app = create_app(fake_bus(), settings=self.settings)
        self.server = HttpServer(self.app, self.settings, bind("127.0.0.1", 0))
        self._started = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.server.run(self._started.set))
        await asyncio.wait_for(self._started.wait(), PATIENCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        await asyncio.wait_for(self._task, PATIENCE)

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    async def raw(self, *parts: bytes) -> bytes:
        """Send these bytes, and return all that comes until the line is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()


HEAD = b"POST /api/v1/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("start", [b"", b"GET /livez HTT", b"GET /livez HTTP/1.1\r\nHost: a\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(start: bytes) -> None:
    async with Serving(receive_timeout_seconds=0.1) as serving:
        answer = await serving.raw(start)

    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_second_request_that_does_not_come_is_not_waited_for_either() -> None:
    async with Serving(receive_timeout_seconds=0.1, keep_alive_seconds=30) as serving:
        answer = await serving.raw(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /li")

    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


async def test_a_slow_body_is_given_up_and_the_line_is_closed() -> None:
    async with Serving(receive_timeout_seconds=0.1) as serving:
        answer = await serving.raw(HEAD + b"Content-Length: 100\r\n\r\n{")

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"REQUEST_TIMEOUT" in answer


async def test_a_body_that_is_too_large_closes_the_line_whatever_is_still_to_come() -> None:
    async with Serving(max_body_bytes=1_024) as serving:
        announced = await serving.raw(HEAD + b"Content-Length: 5000\r\n\r\n" + b"x" * 10)
        chunk = b"400\r\n" + b"x" * 1_024 + b"\r\n"
        counted = await serving.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk)

    for answer in (announced, counted):
        assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"nonsense\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(request_bytes: bytes) -> None:
    async with Serving() as serving:
        answer = await serving.raw(request_bytes)

    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))


async def test_an_answer_does_not_wait_for_the_clients_acknowledgement() -> None:
    async with Serving() as serving, httpx2.AsyncClient(base_url=serving.server.url) as client:
        await client.get("/livez")
        (connection,) = serving.server._server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        option = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert option == 1  # without it each answer takes 40 ms


async def test_a_stop_lets_what_runs_finish_and_takes_nothing_new() -> None:
    serving = Serving()
    entered, go_on = asyncio.Event(), asyncio.Event()

    @serving.app.get("/slow")
    async def slow() -> str:
        entered.set()
        await go_on.wait()
        return "done"

    async with serving, httpx2.AsyncClient(base_url=serving.server.url) as client:
        running = asyncio.create_task(client.get("/slow"))
        await entered.wait()
        serving.server.stop()
        await _until_refused(serving.port)
        go_on.set()
        assert (await running).json() == "done"


async def _until_refused(port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue  # it was in the backlog when the socket was closed
            writer.close()
            await asyncio.sleep(0.01)


async def test_a_cancelled_server_ends_at_once() -> None:
    serving = Serving(shutdown_grace_seconds=600)
    never = asyncio.Event()
    entered = asyncio.Event()

    @serving.app.get("/stuck")
    async def stuck() -> None:
        entered.set()
        await never.wait()

    await serving.__aenter__()
    async with httpx2.AsyncClient(base_url=serving.server.url) as client:
        running = asyncio.create_task(client.get("/stuck"))
        await entered.wait()
        serving._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving._task, PATIENCE)
        never.set()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_listens_on_ipv6_too() -> None:
    try:
        sock = bind("::1", 0)
    except Exception:  # noqa: BLE001  (a machine without IPv6)
        pytest.skip("no IPv6 here")
    settings = HttpSettings(host="::1", port=0)
    server = HttpServer(create_app(fake_bus(), settings=settings), settings, sock)
    started = asyncio.Event()
    task = asyncio.create_task(server.run(started.set))
    await started.wait()
    async with httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/livez")).status_code == 200
    server.stop()
    await task


def test_a_socket_is_not_inherited_by_children() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert not sock.get_inheritable()
        assert sock.proto == socket.IPPROTO_TCP
