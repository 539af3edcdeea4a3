"""What is measured: one small adapter per system, all with the same verbs.

`raw-pgmq` is the floor: the same queue, in the same groups, keeping nothing of what commandbus
keeps (no status row, no audit, no reply).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import uuid4

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    Settings,
)
from commandbus.pgmq.install import install_pgmq

PAYLOAD = {"account": "4711", "amount": 1250, "currency": "EUR", "note": "x" * 120}


class System(Protocol):
    """The verbs that are timed."""

    name: str

    def opened(self, dsn: str) -> Any:
        """An async context manager around everything that is not timed."""

    async def bulk_send(self, count: int) -> None:
        """Queue so many in one transaction."""

    async def single_send(self) -> None:
        """Queue one."""

    async def drain(self, count: int, concurrency: int) -> None:
        """Process what is queued until nothing is left."""

    async def one_round(self) -> tuple[float, float]:
        """Seconds from send to handler start, and to recorded completion, with an idle worker."""


class CommandBusSystem:
    """This project, as a user would call it."""

    name = "commandbus"

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    @property
    def bus(self) -> CommandBus:
        """For what the verbs below do not offer."""
        return self._bus

    @asynccontextmanager
    async def opened(self, dsn: str) -> AsyncIterator[CommandBusSystem]:
        async with CommandBus.connect(dsn, settings=self._settings) as self._bus:
            self._handled = self._awaited = 0
            self._all_handled = asyncio.Event()
            self._started: dict[Any, float] = {}
            self._worker: asyncio.Task[None] | None = None

            @self._bus.handler("bench", "Work")
            async def work(_: Command, __: HandlerContext) -> None:
                self._handled += 1
                if self._handled == self._awaited:
                    self._all_handled.set()

            @self._bus.handler("bench", "Stamp")
            async def stamp(command: Command, _: HandlerContext) -> None:
                self._started[command.command_id] = time.perf_counter()

            try:
                yield self
            finally:
                await self._bus.stop()

    async def bulk_send(self, count: int) -> None:
        commands = [BatchCommand("Work", uuid4(), PAYLOAD) for _ in range(count)]
        await self._bus.send_many("bench", commands)

    async def single_send(self) -> None:
        await self._bus.send("bench", "Work", uuid4(), PAYLOAD)

    async def drain(self, count: int, concurrency: int) -> None:
        self._handled, self._awaited = 0, count
        worker = asyncio.create_task(self._bus.run_worker("bench", concurrency=concurrency))
        await self._all_handled.wait()
        # stop() returns when every outcome is committed.
        await self._bus.stop()
        await worker

    async def one_round(self) -> tuple[float, float]:
        if self._worker is None:
            self._worker = asyncio.create_task(self._bus.run_worker("bench"))
            await asyncio.sleep(0.5)
        command_id = uuid4()
        began = time.perf_counter()
        await self._bus.send("bench", "Stamp", command_id, PAYLOAD)
        while True:
            row = await self._bus.get_command("bench", command_id)
            if row is not None and row.status is CommandStatus.COMPLETED:
                return self._started[command_id] - began, time.perf_counter() - began
            await asyncio.sleep(0.0005)


class RawPgmqSystem:
    """PGMQ alone, in groups: read, delete."""

    name = "raw-pgmq"
    GROUP = 100

    @asynccontextmanager
    async def opened(self, dsn: str) -> AsyncIterator[RawPgmqSystem]:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await install_pgmq(conn)
            await conn.execute("select pgmq.create('bench')")
        async with AsyncConnectionPool(
            dsn, min_size=4, max_size=4, kwargs={"autocommit": True}, open=False
        ) as self._pool:
            yield self

    async def bulk_send(self, count: int) -> None:
        async with self._pool.connection() as conn, conn.transaction():
            for start in range(0, count, 1_000):
                chunk = [PAYLOAD] * min(1_000, count - start)
                await conn.execute(
                    "select pgmq.send_batch('bench',"
                    " array(select jsonb_array_elements(%s::jsonb)))",
                    (orjson.dumps(chunk).decode(),),
                )

    async def single_send(self) -> None:
        async with self._pool.connection() as conn:
            await conn.execute(
                "select pgmq.send('bench', %s::jsonb)", (orjson.dumps(PAYLOAD).decode(),)
            )

    async def drain(self, count: int, concurrency: int) -> None:
        # Two groups in flight, as commandbus has.
        async def loop() -> None:
            while True:
                async with self._pool.connection() as conn:
                    cursor = await conn.execute(
                        "select msg_id, message from pgmq.read('bench', 30, %s)", (self.GROUP,)
                    )
                    ids = [row[0] for row in await cursor.fetchall()]
                    if not ids:
                        return
                    await conn.execute("select pgmq.delete('bench', %s::bigint[])", (ids,))

        await asyncio.gather(loop(), loop())

    async def one_round(self) -> tuple[float, float]:
        began = time.perf_counter()
        await self.single_send()
        async with self._pool.connection() as conn:
            while True:
                cursor = await conn.execute("select msg_id from pgmq.read('bench', 30, 1)")
                row = await cursor.fetchone()
                if row is not None:
                    started = time.perf_counter()
                    await conn.execute("select pgmq.delete('bench', %s::bigint)", (row[0],))
                    return started - began, time.perf_counter() - began
                await asyncio.sleep(0.0005)


SYSTEMS: tuple[type[System], ...] = (CommandBusSystem, RawPgmqSystem)
