"""What hostile clients do, each on one socket of its own, again and again. A program of its own, so
that its work is not the service's: `python -m tests.hostile.attackers '{"port": …}'`.

Only loopback addresses; each kind comes from several of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Seconds between two bytes of a slow client, and before a socket that was closed is opened again.
DRIP, AGAIN = 1.0, 0.2


class Attack:
    """One attack: how long, on what, and what the service answered."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.port: int = plan["port"]
        self.token: str = plan["token"]
        self.batch: str = plan["batch"]
        self.until = time.monotonic() + plan["seconds"]
        self.answers: Counter[str] = Counter()
        self.opened = 0

    def head(self, line: str, *headers: str, is_known: bool = True) -> bytes:
        proof = [f"Authorization: Bearer {self.token}"] if is_known else []
        return "\r\n".join([f"{line} HTTP/1.1", "Host: 127.0.0.1", *proof, *headers]).encode()

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until

    async def run(self, kind: str, number: int) -> None:
        """One socket after another, until the time is over."""
        act = KINDS[kind]
        address = f"127.0.0.{1 + number % 4}"  # the other user's is one of them
        while self.is_on:
            try:
                async with asyncio.timeout(max(0.1, self.until - time.monotonic())):
                    streams = await asyncio.open_connection(
                        "127.0.0.1", self.port, local_addr=(address, 0)
                    )
            except (OSError, TimeoutError):
                await asyncio.sleep(AGAIN)
                continue
            self.opened += 1
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(max(0.1, self.until - time.monotonic())):
                    await act(self, streams, kind)
            streams[1].transport.abort()
            await asyncio.sleep(AGAIN)

    async def note(self, kind: str, reader: asyncio.StreamReader) -> bytes:
        """Count how the service answers; the line of the status."""
        line = await reader.readline()
        status = line[9:12].decode(errors="replace") if line else "closed"
        self.answers[f"{kind} {status}"] += 1
        return line

    async def drip(self, kind: str, streams: Streams, start: bytes, drop: bytes) -> None:
        reader, writer = streams
        writer.write(start)
        answer = asyncio.ensure_future(self.note(kind, reader))
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=DRIP)
                writer.write(drop)
                await writer.drain()
        finally:
            answer.cancel()


async def slow_head(attack: Attack, streams: Streams, kind: str) -> None:
    start = attack.head("GET /api/v1/whoami", "X-A: ")
    await attack.drip(kind, streams, start, b"a")


async def slow_body(attack: Attack, streams: Streams, kind: str) -> None:
    length = ("Content-Type: application/json", "Content-Length: 100000", "\r\n")
    start = attack.head("POST /api/v1/commands", *length)
    await attack.drip(kind, streams, start, b"{")


async def slow_body_of_nobody(attack: Attack, streams: Streams, kind: str) -> None:
    path = ("/api/v1/commands", "/nowhere", "/livez")[attack.opened % 3]
    length = ("Content-Type: application/json", "Transfer-Encoding: chunked", "\r\n")
    start = attack.head(f"POST {path}", *length, is_known=False)
    await attack.drip(kind, streams, start, b"1\r\n{\r\n")


async def abandoned_poll(attack: Attack, streams: Streams, kind: str) -> None:
    _, writer = streams
    poll = attack.head(f"GET {attack.batch}", "Prefer: wait=30", "\r\n")
    # With a second request behind it: the service must see the end all the same.
    writer.write(poll + attack.head("GET /livez", "\r\n"))
    await writer.drain()
    await asyncio.sleep(0.3)
    attack.answers[f"{kind} left"] += 1


async def abandoned_stream(attack: Attack, streams: Streams, kind: str) -> None:
    reader, writer = streams
    writer.write(attack.head("GET /api/v1/exports/commands", "\r\n"))
    await attack.note(kind, reader)
    await asyncio.sleep(5)  # and takes nothing of it


async def flood(attack: Attack, streams: Streams, kind: str) -> None:
    reader, writer = streams
    asking = attack.head("GET /api/v1/commands", "\r\n")
    while attack.is_on:
        writer.write(asking)
        line = await attack.note(kind, reader)
        if not line:
            return
        length = 0
        while (header := await reader.readline()) not in (b"\r\n", b""):
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        await reader.readexactly(length)


KINDS: dict[str, Callable[[Attack, Streams, str], Awaitable[None]]] = {
    each.__name__: each
    for each in (slow_head, slow_body, slow_body_of_nobody, abandoned_poll, abandoned_stream, flood)
}
#: Of a hundred sockets: slow ones alone, and all kinds.
SLOW = {"slow_head": 50, "slow_body": 20, "slow_body_of_nobody": 30}
ALL = {
    "slow_head": 25, "slow_body": 15, "slow_body_of_nobody": 15, "abandoned_poll": 15,
    "abandoned_stream": 10, "flood": 20,
}  # fmt: skip


async def main(plan: dict[str, Any]) -> None:
    attack = Attack(plan)
    shares = SLOW if plan["kinds"] == "slow" else ALL
    kinds = [kind for kind, share in shares.items() for _ in range(plan["sockets"] * share // 100)]
    await asyncio.gather(*(attack.run(kind, number) for number, kind in enumerate(kinds)))
    print(json.dumps({"opened": attack.opened, "answers": dict(sorted(attack.answers.items()))}))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
