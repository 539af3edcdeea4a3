"""The run of the demo: what happens, in order. It tells what it does; a face shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from commandbus.bus import CommandBus
from commandbus.database.store import Store
from commandbus.demo.app import DEBIT_ACCOUNT, DOMAIN
from commandbus.demo.events import (
    Committed,
    Killed,
    OperatorRetried,
    Result,
    RolledBack,
    Sent,
    ServerReady,
    Told,
    WorkersReady,
)
from commandbus.demo.tables import ACCOUNTS, CLOSED_ACCOUNT, Books, pay
from commandbus.demo.workers import WorkerProcess, stop_all
from commandbus.errors import CommandBusError
from commandbus.models import BatchCommand, CommandStatus
from commandbus.names import NO_REPLY
from commandbus.settings import Settings
from commandbus.wiring import database, database_status, migrate_database, open_store

APP = "commandbus.demo.app:setup"
WORKERS = 3
CONCURRENCY = 10
#: Short leases, so that those of the killed worker lapse soon.
VT_SECONDS = 2
#: One in this many commands meets a busy bank, and is tried again.
BUSY_EVERY = 10
FAILING_FOR_GOOD = 12
POLL_SECONDS = 0.15
#: Seconds without any change after which the run ends, and what is missing counts as lost.
STALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What may be varied. Without a DSN the embedded server is used."""

    commands: int = 5_000
    kill: bool = True
    dsn: str | None = None
    data_dir: Path | None = None


async def run_demo(options: Options, tell: Callable[[Told], None]) -> Result:
    """Run the demo; however it ends, no worker is left behind."""
    settings = Settings.from_env()
    began = time.monotonic()
    async with database(options.dsn, options.data_dir) as address:
        await migrate_database(address, settings)
        async with open_store(address, settings) as (_, store):
            stage = _Stage(address, settings, store, tell)
            await stage.books.prepare()
            version = (await database_status(address, settings)).server_version
            tell(ServerReady(version, time.monotonic() - began))
            try:
                return await stage.play(options)
            finally:
                await stage.clear()


class _Stage:
    """One run: its bus, its tables, its workers."""

    def __init__(
        self, address: str, settings: Settings, store: Store, tell: Callable[[Told], None]
    ) -> None:
        self._address = address
        self._store = store
        self._bus = CommandBus(store=store, settings=settings)
        self._tell = tell
        self._run_id = uuid4()
        self._workers: list[WorkerProcess] = []
        self._killed: Killed | None = None
        self.books = Books(store.gateway, DOMAIN, self._run_id)

    async def play(self, options: Options) -> Result:
        """The steps."""
        await self._start_workers()
        await self._commit_one()
        traces = await self._roll_back_one()
        await self._send_many(options.commands)
        await self._watch(options.commands, kill=options.kill)
        counts = await self.books.counts()
        example = await self.books.example()
        retried = await self._retry_one()
        return Result(
            counts=counts,
            killed_workers=0 if self._killed is None else 1,
            leases_of_killed=0 if self._killed is None else self._killed.leases,
            rolled_back_traces=traces,
            example=example,
            operator_retried=retried,
        )

    async def _start_workers(self) -> None:
        began = time.monotonic()
        self._workers = [self._new_worker() for _ in range(WORKERS)]
        pids = tuple(worker.pid for worker in self._workers)
        while not await self.books.are_ready(pids):
            await self._pause()
        self._tell(WorkersReady(pids, time.monotonic() - began))

    def _new_worker(self) -> WorkerProcess:
        return WorkerProcess(APP, self._address, concurrency=CONCURRENCY, vt_seconds=VT_SECONDS)

    async def _commit_one(self) -> None:
        payment = _payment(1, 4_200, self._run_id)
        began = time.monotonic()
        async with self._store.gateway.transaction() as session:
            await self._pay_and_send(session.conn, [payment])
        await self._until_completed(payment.command_id)
        self._tell(Committed(time.monotonic() - began))

    async def _roll_back_one(self) -> int:
        payment = _payment(2, 4_200, self._run_id)
        with suppress(_ChangedMindError):
            async with self._store.gateway.transaction() as session:
                await self._pay_and_send(session.conn, [payment])
                raise _ChangedMindError
        traces = await self.books.count_traces(payment.command_id)
        self._tell(RolledBack(traces))
        return traces

    async def _send_many(self, commands: int) -> None:
        # The one of _commit_one belongs to the run too.
        payments = [
            _nth_payment(number, commands - 1, self._run_id) for number in range(commands - 1)
        ]
        began = time.monotonic()
        async with self._store.gateway.transaction() as session:
            await self._pay_and_send(session.conn, payments)
        self._tell(Sent(len(payments), time.monotonic() - began))

    async def _pay_and_send(self, conn: Any, commands: list[BatchCommand]) -> None:
        """The business row and the command, in the caller's transaction."""
        await pay(conn, self._run_id, commands)
        await self._bus.send_many(DOMAIN, commands, conn=conn)

    async def _watch(self, sent: int, *, kill: bool) -> None:
        seen, seen_at = None, time.monotonic()
        while True:
            progress = await self.books.progress(sent)
            self._tell(progress)
            if progress.is_finished or time.monotonic() - seen_at > STALL_SECONDS:
                return
            if progress != seen:
                seen, seen_at = progress, time.monotonic()
            if kill and self._killed is None and progress.completed >= sent // 2:
                await self._kill_one()
            await self._pause()

    async def _kill_one(self) -> None:
        victim = self._workers.pop()
        await asyncio.to_thread(victim.kill)
        self._workers.append(self._new_worker())
        leases = await self.books.leases_of(victim.pid)
        self._killed = Killed(victim.pid, leases, self._workers[-1].pid)
        self._tell(self._killed)

    async def _retry_one(self) -> UUID | None:
        parked = await self._bus.list_troubleshooting(DOMAIN, limit=10_000)
        ours = [item.command_id for item in parked if item.correlation_id == self._run_id]
        if not ours:
            return None
        await self.books.open_account(CLOSED_ACCOUNT)
        await self._bus.operator_retry(DOMAIN, ours[0], operator="demo")
        await self._until_completed(ours[0])
        self._tell(OperatorRetried(len(ours) - 1))
        return ours[0]

    async def _until_completed(self, command_id: UUID) -> None:
        while True:
            found = await self._bus.get_command(DOMAIN, command_id)
            if found is not None and found.status is CommandStatus.COMPLETED:
                return
            await self._pause(0.005)

    async def _pause(self, seconds: float = POLL_SECONDS) -> None:
        for worker in self._workers:
            worker.check()
        await asyncio.sleep(seconds)

    async def clear(self) -> None:
        """Stop the workers; what an interrupted run leaves in the queue is canceled."""
        # Not in a thread: a second Ctrl-C must not leave this half done.
        stop_all(self._workers)
        with suppress(CommandBusError):
            pending = await self.books.pending()
            if pending:
                reason = "the demo was interrupted"
                await self._store.cancel(DOMAIN, pending, reason=reason, actor="demo")
        await self._bus.close()


class _ChangedMindError(Exception):
    """Rolls a transaction back."""


def _payment(account_id: int, amount_cents: int, run_id: UUID, **more: bool) -> BatchCommand:
    """The command of a payment, whose id is also that of the payment."""
    data = {"account_id": account_id, "amount_cents": amount_cents, **more}
    return BatchCommand(DEBIT_ACCOUNT, uuid4(), data, NO_REPLY, run_id)


def _nth_payment(number: int, count: int, run_id: UUID) -> BatchCommand:
    # Those that fail are spread over the run, so that the kill has work on both sides.
    every = max(count // FAILING_FOR_GOOD, 1)
    fails = number % every == every // 2 and number // every < FAILING_FOR_GOOD
    open_account = number % (ACCOUNTS - CLOSED_ACCOUNT) + CLOSED_ACCOUNT + 1
    busy = {"bank_is_busy": True} if (number + 1) % BUSY_EVERY == 0 else {}
    account_id = CLOSED_ACCOUNT if fails else open_account
    return _payment(account_id, 100 + number % 900, run_id, **busy)
