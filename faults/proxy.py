"""A TCP proxy in front of the server that breaks connections in every way a network can.

It understands just enough of PostgreSQL's protocol to know which statement a client has run, so
that a line can be cut after the server has committed and before the client hears of it.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

#: Statements whose answer is worth losing.
WRITES = re.compile(
    rb"\b(offer|complete|settle|receive|extend|create|send)_(commands|leases|batch)\b|^commit",
    re.IGNORECASE,
)
SYNC, QUERY, PARSE, BIND = b"S", b"Q", b"P", b"B"
READY = b"Z"
CHUNK = 65536


@dataclass(slots=True)
class Weather:
    """What the network does to bytes right now; for all connections at once."""

    #: Ways on which nothing arrives: "up" (client to server), "down" (server to client).
    silent: frozenset[str] = frozenset()
    #: Seconds that each piece is late, from and to.
    latency: tuple[float, float] = (0.0, 0.0)
    #: Bytes per second; 0: as fast as it goes.
    drip: int = 0
    #: Chance that a connection is cut after a write was committed and before its answer.
    cut_commits: float = 0.0


class Messages:
    """Splits the stream of one side into messages; the first of a client has no type."""

    def __init__(self, *, has_startup: bool) -> None:
        self._buffer = b""
        self._is_first = has_startup

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete now: (type, body)."""
        self._buffer += chunk
        found: list[tuple[bytes, bytes]] = []
        while True:
            head = 0 if self._is_first else 1
            if len(self._buffer) < head + 4:
                return found
            (length,) = struct.unpack_from("!I", self._buffer, head)
            if len(self._buffer) < head + length:
                return found
            kind = self._buffer[:head]
            found.append((kind, self._buffer[head + 4 : head + length]))
            self._buffer = self._buffer[head + length :]
            self._is_first = False


@dataclass(slots=True, eq=False)
class Line:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    statements: dict[bytes, bytes] = field(default_factory=dict)
    #: Whether what the client has asked for since the last answer is a write.
    is_write: bool = False
    #: The answer of the server is not passed on; the line is cut when it is complete.
    is_doomed: bool = False
    is_open: bool = True

    def note(self, kind: bytes, body: bytes) -> None:
        """Follow what the client asks for."""
        if kind == PARSE:
            name, text = body.split(b"\0", 2)[:2]
            self.statements[name] = text
            self.is_write = self.is_write or bool(WRITES.search(text))
        elif kind == BIND:
            name = body.split(b"\0", 2)[1]
            self.is_write = self.is_write or bool(WRITES.search(self.statements.get(name, b"")))
        elif kind == QUERY:
            self.is_write = self.is_write or bool(WRITES.search(body))

    def cut(self) -> None:
        """Reset both sides: no farewell, as when a machine in between dies."""
        self.is_open = False
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if sock is not None and writer is self.client:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def turn_loop() -> None:
    """Let the event loop accept what came, and close what was aborted: both take some turns."""
    for _ in range(5):
        await asyncio.sleep(0)


class Proxy:
    """Listens on a port of its own and forwards to a socket or an address."""

    def __init__(
        self,
        upstream: Callable[[], Path | tuple[str, int]],
        chance: random.Random,
        *,
        port: int = 0,
    ) -> None:
        self._upstream = upstream
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._lines: set[Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.weather = Weather()
        self.port = port
        self.cuts = 0
        self.resets = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        await turn_loop()  # what was accepted just before becomes a task
        for line in list(self._lines):
            line.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await turn_loop()

    def reset_all(self, share: float = 1.0) -> int:
        """RST a share of the connections; returns how many."""
        victims = [line for line in self._lines if self._chance.random() < share]
        for line in victims:
            line.cut()
        self.resets += len(victims)
        return len(victims)

    def half_close_all(self) -> int:
        """Say goodbye to the server on behalf of the clients, who are not told."""
        victims = list(self._lines)
        for line in victims:
            with suppress(OSError, RuntimeError):
                line.server.write_eof()
        return len(victims)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is canceled before it begins would leave its connection open.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._upstream()
        if isinstance(target, Path):
            from_server, to_server = await asyncio.open_unix_connection(str(target))
        else:
            from_server, to_server = await asyncio.open_connection(*target)
        line = Line(writer, to_server)
        self._lines.add(line)
        try:
            up = asyncio.create_task(self._pump_up(line, reader))
            down = asyncio.create_task(self._pump_down(line, from_server))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            self._lines.discard(line)
            to_server.transport.abort()

    async def _pump_up(self, line: Line, reader: asyncio.StreamReader) -> None:
        messages = Messages(has_startup=True)
        while line.is_open and (chunk := await reader.read(CHUNK)):
            is_asked = False
            for kind, body in messages.feed(chunk):
                line.note(kind, body)
                is_asked = is_asked or kind in {SYNC, QUERY}
            if is_asked and line.is_write:
                line.is_doomed = self._chance.random() < self.weather.cut_commits
                line.is_write = False
            await self._pass_on(line.server, chunk, "up")

    async def _pump_down(self, line: Line, reader: asyncio.StreamReader) -> None:
        messages = Messages(has_startup=False)
        while line.is_open and (chunk := await reader.read(CHUNK)):
            kinds = [kind for kind, _ in messages.feed(chunk)]
            if line.is_doomed:
                # The answer is complete, so it is committed. The client will never know.
                if READY in kinds:
                    self.cuts += 1
                    line.cut()
                    return
                continue
            await self._pass_on(line.client, chunk, "down")

    async def _pass_on(self, writer: asyncio.StreamWriter, chunk: bytes, way: str) -> None:
        low, high = self.weather.latency
        if high:
            await asyncio.sleep(self._chance.uniform(low, high))
        # Held, not thrown away: TCP would send it again once the way is free.
        while way in self.weather.silent:
            await asyncio.sleep(0.02)
        if not self.weather.drip:
            writer.write(chunk)
            await writer.drain()
            return
        step = max(1, self.weather.drip // 10)
        for start in range(0, len(chunk), step):
            writer.write(chunk[start : start + step])
            await writer.drain()
            await asyncio.sleep(0.1)
