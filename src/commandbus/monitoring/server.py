"""MonitorServer: `/metrics`, `/livez`, `/readyz` and `/startupz` of a process, over HTTP.

It has a thread and an event loop of its own, so that it answers while the loop of the workers is
blocked. A client can do little harm: GET only, one request for each connection, small, within a few
seconds; if there are too many connections, the oldest makes room for the newest.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from commandbus.errors import InvalidSettingError
from commandbus.monitoring.exposition import CONTENT_TYPE

#: Seconds in which a request must be there, and in which its answer must be taken.
DEADLINE_SECONDS = 5.0
#: Bytes of a request. What Prometheus and probes send is much smaller.
MAX_REQUEST = 8 * 1024
#: Connections at once.
MAX_CONNECTIONS = 32
#: Seconds that the end waits for the thread.
STOP_SECONDS = 2.0

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]:|([^\s:\[\]]*):)?(\d{1,5})\Z")
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT`, `[::1]:PORT` or `PORT`; without a host this machine only."""
        found = _ADDRESS.match(text.strip())
        if found is None or int(found[3]) > 65_535:
            raise InvalidSettingError(
                f"--http is {text!r}; write HOST:PORT, for example 127.0.0.1:8081"
            )
        return cls(found[1] or found[2] or "127.0.0.1", int(found[3]))

    def bind(self) -> socket.socket:
        """Take the address, so that a mistake is reported before anything is started."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(128)
        except OSError as error:
            sock.close()
            raise InvalidSettingError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror or error}; choose "
                "another address with --http"
            ) from None
        sock.setblocking(False)
        return sock


@dataclass(frozen=True, slots=True)
class Pages:
    """What is served: the metrics, and the reasons against each kind of health."""

    metrics: Callable[[], bytes]
    #: By path; an empty list is 200, anything else 503.
    checks: Mapping[str, Callable[[], list[str]]]

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        plain = "text/plain; charset=utf-8"
        if path != "/metrics" and path not in self.checks:
            return 404, plain, b"there are /metrics, /livez, /readyz and /startupz\n"
        if method != "GET":
            return 405, plain, b"use GET\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE, self.metrics()
        reasons = self.checks[path]()
        return (503 if reasons else 200), plain, ("\n".join(reasons or ["ok"]) + "\n").encode()


class MonitorServer:
    """Serves the pages from a thread, between `start` and `stop`."""

    def __init__(self, sock: socket.socket, pages: Pages) -> None:
        self._sock = sock
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-monitor", daemon=True)
        #: The oldest first.
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._sock, limit=MAX_REQUEST)
        async with server:
            await self._stop.wait()
        await self._turn_loop()  # what was accepted just before the end becomes a client
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await self._turn_loop()  # aborted transports close their sockets in later turns

    async def _turn_loop(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._client(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(self._left)
        if len(self._clients) > MAX_CONNECTIONS:
            # A probe that sends its request at once is answered at once: it is never the oldest.
            next(iter(self._clients)).cancel()

    def _left(self, task: asyncio.Task[None]) -> None:
        # Here and not in the task: one that is canceled before it begins runs no `finally`.
        self._clients.pop(task).transport.abort()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if len(line) != 3 or not line[2].startswith("HTTP/1."):
                return
            status, kind, body = self._pages.answer(line[0], line[1].partition("?")[0])
            allow = "Allow: GET\r\n" if status == 405 else ""
            writer.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n{allow}"
                "Connection: close\r\n\r\n".encode("latin-1")
                + body
            )
            async with asyncio.timeout(DEADLINE_SECONDS):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # nobody to tell it to
