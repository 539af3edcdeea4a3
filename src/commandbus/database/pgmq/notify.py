"""LISTEN: turns notifications into wake-ups, and outlives every kind of dead connection.

A hint only. After each reconnect all subscribers are woken and poll once: what was notified while
there was no connection is found by that poll, or by the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg import sql

from commandbus.database.connections import fetch
from commandbus.database.deadlines import DEADLINE_SECONDS, Limit
from commandbus.database.own_connections import OurConnection
from commandbus.loops import Backoff
from commandbus.privacy.redaction import redact_text

#: Seconds of silence after which the session is asked whether it still listens.
PROBE_SECONDS = 10.0
#: Seconds that the answer may take, at most.
PROBE_TIMEOUT_SECONDS = 5.0

_log = logging.getLogger("commandbus.listener")

Connect = Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]
Wake = Callable[[], None]


class PostgresListener:
    """One connection that only listens; never in a transaction, never used for anything else."""

    def __init__(
        self, connect: Connect, *, mark: str = "", probe_seconds: float = PROBE_SECONDS
    ) -> None:
        """`mark` stands in front of the domain, so that no other schema's hints wake us."""
        self._connect = connect
        self._mark = mark
        self._probe_seconds = probe_seconds
        self._wakes: dict[str, list[Wake]] = {}
        self._changed = asyncio.Event()
        #: Set while the session is known to listen; for tests and health checks.
        self.listening = asyncio.Event()

    def subscribe(self, channel: str, wake: Wake) -> None:
        """Call `wake` whenever the channel is notified, and after every reconnect."""
        name = self._physical(channel)
        if name not in self._wakes:
            self._changed.set()
        self._wakes.setdefault(name, []).append(wake)

    def unsubscribe(self, channel: str, wake: Wake) -> None:
        """Undo subscribe. The session goes on listening, and wakes no subscriber."""
        self._wakes[self._physical(channel)].remove(wake)

    def _physical(self, channel: str) -> str:
        return channel.replace(".", f".{self._mark}", 1)

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                async with await self._connect() as conn:
                    await self._listen(conn, backoff)
            except (psycopg.Error, OSError, TimeoutError) as error:
                pause = backoff.next()
                _log.warning(
                    "listener lost, next try in %.2f s: %s", pause, redact_text(str(error))
                )
                await asyncio.sleep(pause)
            finally:
                self.listening.clear()

    async def _listen(self, conn: psycopg.AsyncConnection[Any], backoff: Backoff) -> None:
        known: set[str] = set()
        while True:
            self._changed.clear()
            for channel in [name for name in self._wakes if name not in known]:
                await conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                known.add(channel)
                self._notify(channel)
            self.listening.set()
            backoff.reset()
            await self._wait(conn)
            if not self._changed.is_set():
                await self._probe(conn, known)

    async def _wait(self, conn: psycopg.AsyncConnection[Any]) -> None:
        # psycopg's generator cannot be woken from outside: a new channel waits for at most this.
        stream = conn.notifies(timeout=self._probe_seconds)
        task = asyncio.ensure_future(self._drain(stream))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            task.cancel()
            # Not `await task`: it could not tell our own cancellation from that of the read.
            await asyncio.wait({task})
        # The cancelled read leaves the connection usable; anything else is a lost connection.
        if not task.cancelled():
            task.result()

    async def _drain(self, stream: Any) -> None:
        async for notify in stream:
            self._notify(notify.channel)

    def _notify(self, channel: str) -> None:
        for wake in tuple(self._wakes.get(channel, ())):
            wake()

    async def _probe(self, conn: psycopg.AsyncConnection[Any], known: set[str]) -> None:
        # On the same session: a half-open connection answers nothing, and a pooler in transaction
        # mode answers that nobody listens.
        seconds: float | None = PROBE_TIMEOUT_SECONDS
        if isinstance(conn, OurConnection):
            # Not a time-out of asyncio: the driver would ask the same server to end the statement.
            most = DEADLINE_SECONDS if conn.limit is None else conn.limit.seconds
            conn.limit, seconds = Limit(min(PROBE_TIMEOUT_SECONDS, most)), None
        async with asyncio.timeout(seconds):
            heard = {row[0] for row in await fetch(conn, "select pg_listening_channels()")}
        if not known <= heard:
            raise psycopg.OperationalError("the session does not listen any more (a pooler?)")
