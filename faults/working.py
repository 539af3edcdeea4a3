"""The worker process: an ordinary worker of the bus that writes down what it does.

Its handlers do what the payload says. The side table gets their effects in groups, so that a
worker of the harness costs the server little more than one of an application.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from commandbus import (
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    Settings,
    TransientCommandError,
)
from commandbus.database.own_connections import OurConnection
from commandbus.database.postgres import PostgresStore
from faults.logs import EventLog

#: Many attempts: a storm costs an innocent command several of them.
PATIENT = RetryPolicy(max_attempts=12, backoff_schedule=(0.05, 0.1, 0.2, 0.4))
ONCE = RetryPolicy(max_attempts=1)
STRICT = RetryPolicy(max_attempts=3, backoff_schedule=(0.05,))

RECORD = """
insert into faults.effect (domain, command_id, epoch, pid)
select %s, e.command_id, e.epoch, %s from unnest(%s::uuid[], %s::bigint[]) e(command_id, epoch)
"""
WRITE = "insert into faults.written (domain, command_id, epoch, pid) values (%s, %s, %s, %s)"


class Effects:
    """Rows in the side table: each handler waits for its own, and they are written in groups."""

    def __init__(self, pool: AsyncConnectionPool[Any], domain: str) -> None:
        self._pool = pool
        self._domain = domain
        self._waiting: list[tuple[Command, int, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def record(self, command: Command, epoch: int) -> None:
        """Return once the effect is committed; raise if nobody knows."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((command, epoch, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await written

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                async with self._pool.connection() as conn:
                    ids = [command.command_id for command, _, _ in group]
                    epochs = [epoch for _, epoch, _ in group]
                    await conn.execute(RECORD, (self._domain, os.getpid(), ids, epochs))
            except Exception as error:  # noqa: BLE001  (the handlers decide what it means)
                answer: Exception | None = error
            else:
                answer = None
            for _, _, written in group:
                if written.done():
                    continue
                if answer is None:
                    written.set_result(None)
                else:
                    written.set_exception(TransientCommandError("NO_EFFECT", "try again"))


def listen_in(log: EventLog) -> None:
    """Write down leases and results, of whichever store of this process."""
    receive, settle = PostgresStore.receive, PostgresStore.settle

    async def receive_and_tell(self: PostgresStore, domain: str, **options: Any) -> Any:
        began = time.monotonic()
        leases = await receive(self, domain, **options)
        if leases:
            log.write(
                "claim",
                leases=[[str(lease.command_id), lease.lease_epoch] for lease in leases],
                took=time.monotonic() - began,
            )
        return leases

    async def settle_and_tell(self: PostgresStore, domain: str, outcomes: Any) -> Any:
        stale = await settle(self, domain, outcomes)
        log.write(
            "finish",
            results=[
                [
                    str(outcome.lease.command_id),
                    outcome.lease.lease_epoch,
                    "stale" if outcome.lease.command_id in stale else "accepted",
                ]
                for outcome in outcomes
            ],
        )
        return stale

    # The class, because a worker makes stores of its own for each purpose.
    setattr(PostgresStore, "receive", receive_and_tell)  # noqa: B010  (a method of its own)
    setattr(PostgresStore, "settle", settle_and_tell)  # noqa: B010


def register(bus: CommandBus, domain: str, log: EventLog, effects: Effects, dsn: str) -> None:
    """All handlers of the harness."""

    def started(command: Command, ctx: HandlerContext) -> None:
        log.write("start", command_id=str(command.command_id), epoch=ctx.lease_epoch)

    def meet_fate(command: Command, ctx: HandlerContext) -> None:
        fate = command.data.get("fate", "fine")
        if fate == "transient" and ctx.attempt == 1:
            raise TransientCommandError("UNLUCKY", "once")
        if fate == "permanent":
            raise PermanentCommandError("CURSED", "for good")

    async def work(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        await effects.record(command, ctx.lease_epoch)
        await asyncio.sleep(command.data["ms"] / 1000)
        meet_fate(command, ctx)

    # The others are there to be limited, paused or rated beside it.
    for name in ("Work", "Limited", "Rated", "Keyed"):
        bus.register_handler(domain, name, work, retry_policy=PATIENT)

    @bus.handler(domain, "Report", retry_policy=PATIENT)
    async def report(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        await effects.record(command, ctx.lease_epoch)
        for step in range(10):
            ctx.progress(step / 10, f"epoch {ctx.lease_epoch}")
            await asyncio.sleep(command.data["ms"] / 10_000)

    @bus.handler(domain, "Write", retry_policy=PATIENT, transactional=True)
    async def write(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        values = (domain, command.command_id, ctx.lease_epoch, os.getpid())
        await ctx.conn.execute(WRITE, values)
        await asyncio.sleep(command.data["ms"] / 1000)
        meet_fate(command, ctx)

    @bus.handler(domain, "Block", retry_policy=PATIENT)
    async def block(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        await effects.record(command, ctx.lease_epoch)
        time.sleep(command.data["seconds"])  # noqa: ASYNC251  (the fault: the loop stands still)

    @bus.handler(domain, "Spin", retry_policy=PATIENT)
    def spin(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        deadline = time.monotonic() + command.data["seconds"]
        while time.monotonic() < deadline:
            sum(range(1000))
        with psycopg.connect(dsn, autocommit=True) as conn:
            epochs = [ctx.lease_epoch]
            conn.execute(RECORD, (domain, os.getpid(), [command.command_id], epochs))

    @bus.handler(domain, "Connect", retry_policy=PATIENT)
    async def connect(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            epochs = [ctx.lease_epoch]
            await conn.execute(RECORD, (domain, os.getpid(), [command.command_id], epochs))

    @bus.handler(domain, "Poison", retry_policy=STRICT)
    async def poison(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        await effects.record(command, ctx.lease_epoch)
        take_poison(command.data["how"], log)


def take_poison(how: str, log: EventLog) -> None:
    """Die, or fail in a way that only a broken handler does."""
    if how == "kill":
        log.write("death", kind="poison")
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "memory":
        bytearray(1 << 36)
    else:
        deepen(sys.getrecursionlimit() * 10)


def deepen(depth: int) -> int:
    """Recursion without an end in sight."""
    return 0 if depth == 0 else 1 + deepen(depth - 1)


def register_hung(bus: CommandBus, domain: str, log: EventLog) -> None:
    """Handlers that hang. Each keeps its slot for seven seconds: its time-out, and the grace."""

    def started(command: Command, ctx: HandlerContext) -> None:
        log.write("start", command_id=str(command.command_id), epoch=ctx.lease_epoch)

    @bus.handler(domain, "Hang", timeout_seconds=7, retry_policy=ONCE)
    async def hang(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        await asyncio.Event().wait()

    @bus.handler(domain, "HangOn", timeout_seconds=2, retry_policy=ONCE)
    async def hang_on(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        ends_at = time.monotonic() + 12
        while (left := ends_at - time.monotonic()) > 0:
            with suppress(asyncio.CancelledError):  # the fault: it cannot be cancelled
                await asyncio.sleep(left)

    @bus.handler(domain, "HangThread", timeout_seconds=2, retry_policy=ONCE)
    def hang_thread(command: Command, ctx: HandlerContext) -> None:
        started(command, ctx)
        time.sleep(12)


@asynccontextmanager
async def open_bus(config: dict[str, Any]) -> AsyncIterator[tuple[CommandBus, Any]]:
    """A bus as the run wants it, and a pool for the side table."""
    settings = Settings(**{"maintenance": False, **config.get("settings", {})})
    options: dict[str, Any] = {"autocommit": True}
    if not config.get("prepare", True):
        # Behind a pooler in transaction mode no statement can be prepared.
        options["prepare_threshold"] = None
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        config["dsn"], kwargs=options, min_size=1, max_size=settings.pool_size,
        timeout=settings.connect_timeout_seconds, open=False, reconnect_timeout=5.0,
        # With a deadline, so that all that waits for a frozen server are parts of the bus.
        connection_class=OurConnection if config.get("watched") else psycopg.AsyncConnection,
    )  # fmt: skip
    async with pool:
        bus = CommandBus(pool, settings=settings)
        try:
            yield bus, pool
        finally:
            await bus.close()


async def work(config: dict[str, Any]) -> None:
    """Serve a domain until SIGTERM."""
    log = EventLog(Path(config["log_folder"], f"worker-{os.getpid()}.jsonl"), config["clock"])
    if offset := config.get("clock_offset"):
        real = time.time
        setattr(time, "time", lambda: real() + offset)  # noqa: B010  (a wrong clock on purpose)
    if memory := config.get("memory_bytes"):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    listen_in(log)
    async with open_bus(config) as (bus, pool):
        register(bus, config["domain"], log, Effects(pool, config["domain"]), config["dsn"])
        register_hung(bus, config["domain"], log)
        loop = asyncio.get_running_loop()
        stops: set[asyncio.Future[None]] = set()

        def stop() -> None:
            log.write("stopping")
            stops.add(asyncio.ensure_future(bus.stop()))

        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_signal_handler(signal.SIGINT, stop)
        log.write("serving")
        idle = [
            asyncio.ensure_future(bus.run_worker(f"idle_{number}"))
            for number in range(config.get("idle_domains", 0))
        ]
        await bus.run_worker(
            config["domain"],
            concurrency=config["concurrency"],
            vt_seconds=config["vt_seconds"],
            use_notify=config.get("use_notify", True),
        )
        await asyncio.gather(*idle)
    log.write("stopped")
