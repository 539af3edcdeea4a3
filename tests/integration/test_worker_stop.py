"""Stopping: what runs may finish, what has not started goes back, and nothing stays leased."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    HandlerContext,
)
from commandbus.database.postgres import PostgresStore
from commandbus.worker import executor as executor_module
from commandbus.worker import shared as shared_module
from commandbus.worker import worker as worker_module
from commandbus.worker.executor import Executor
from tests.integration.looking import (
    Conn,
    another_bus,
    events,
    look,
    replies,
    rows,
    send,
    send_some,
    until_count,
    value,
)
from tests.waiting import until, until_status, working


@pytest.fixture
def leasing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the handlers had been fast so far: ten commands are leased ahead."""
    monkeypatch.setattr(Executor, "_prefetch", lambda _: 10)


class Gated:
    """Handlers that wait for a gate; knows which have started."""

    def __init__(self, bus: CommandBus) -> None:
        self.gate = asyncio.Event()
        self.started: list[UUID] = []
        self.cancelled: list[UUID] = []
        bus.register_handler("shop", "Work", self.handle)

    async def handle(self, command: Command, ctx: HandlerContext) -> str:
        self.started.append(command.command_id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(command.command_id)
            raise
        return "finished"


async def assert_given_back(bus: CommandBus, *command_ids: UUID) -> None:
    """As if never taken."""
    for command_id in command_ids:
        row = await look(bus, command_id)
        assert (row.status, row.leased_by, row.attempts) == (CommandStatus.PENDING, None, 0)


async def test_a_graceful_stop_finishes_what_runs_and_gives_back_what_waits(
    bus: CommandBus, conn: Conn, leasing_ahead: None
) -> None:
    gated = Gated(bus)
    ids = await send_some(bus, 6)
    worker = asyncio.create_task(bus.run_worker("shop", concurrency=2))
    await until_count(conn, "IN_PROGRESS", 6)
    # The commit may be seen here before the worker is told of it.
    await until(lambda: len(gated.started) == 2, "two handlers that run")
    stopping = asyncio.create_task(bus.stop())
    # Given back at once, while the running ones still run: another worker may have them.
    await until_count(conn, "PENDING", 4)
    assert not stopping.done()
    gated.gate.set()
    await stopping
    await worker

    assert gated.started == ids[:2]
    assert {reply.command_id for reply in await replies(bus)} == {*ids[:2]}
    await assert_given_back(bus, *ids[2:])
    # On a slow machine it may have been given back before, because it waited for long.
    trail = await events(bus, ids[-1])
    assert (trail[0], set(trail[1::2]), set(trail[2::2])) == ("SENT", {"RECEIVED"}, {"RELEASED"})
    visible = "select count(*) from pgmq.q_shop__commands where vt <= clock_timestamp()"
    assert await value(conn, visible) == 4


async def test_handlers_that_outlast_the_grace_are_cancelled_and_given_back(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with another_bus(dsn, shutdown_grace_seconds=0.05) as bus:
        gated = Gated(bus)
        sent = await send(bus)
        worker = asyncio.create_task(bus.run_worker("shop"))
        await until(lambda: gated.started)
        await bus.stop()
        await worker
        assert gated.cancelled == [sent]
        await assert_given_back(bus, sent)
        assert "handlers still running after 0.05 s are cancelled" in caplog.text

        gated.gate.set()
        async with working(bus, "shop"):
            row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
        assert row.attempts == 1


async def test_a_cancelled_worker_gives_its_leases_back(
    bus: CommandBus, conn: Conn, leasing_ahead: None
) -> None:
    gated = Gated(bus)
    ids = await send_some(bus, 6)
    worker = asyncio.create_task(bus.run_worker("shop", concurrency=2))
    await until_count(conn, "IN_PROGRESS", 6)
    await until(lambda: len(gated.started) == 2)
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert {*gated.cancelled} == {*ids[:2]}
    await assert_given_back(bus, *ids)
    assert await value(conn, "select count(*) from commandbus.command_bus_worker") == 0
    await bus.stop()


async def test_a_worker_that_is_cancelled_before_it_has_work_ends(bus: CommandBus) -> None:
    worker = asyncio.create_task(bus.run_worker("shop"))
    await until(lambda: any(w.started.is_set() for w in bus._workers.running))
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker


async def test_stop_without_a_worker_returns(bus: CommandBus) -> None:
    await asyncio.wait_for(bus.stop(), 5)
    await asyncio.wait_for(bus.stop(), 5)


async def test_a_stop_ends_the_workers_of_all_domains_and_they_can_start_again(
    bus: CommandBus,
) -> None:
    for domain in ("shop", "bank"):

        @bus.handler(domain, "Ping")
        async def ping(command: Command, ctx: HandlerContext) -> str:
            return "pong"

    for _ in range(2):
        workers = [asyncio.create_task(bus.run_worker(domain)) for domain in ("shop", "bank")]
        for domain in ("shop", "bank"):
            assert (await bus.call(domain, "Ping", {})).data == "pong"
        await bus.stop()
        await asyncio.gather(*workers)


async def test_a_worker_is_listed_while_it_runs(bus: CommandBus, conn: Conn) -> None:
    query = "select domain, concurrency from commandbus.command_bus_worker"

    async def listed() -> list[tuple[Any, ...]]:
        return await rows(conn, query)

    async with working(bus, "shop", concurrency=7):
        assert await until(listed) == [("shop", 7)]
    assert await listed() == []


async def test_a_worker_whose_domain_is_new_makes_its_queues(bus: CommandBus, conn: Conn) -> None:
    async with working(bus, "brand_new"):
        await until(lambda: any(w.started.is_set() for w in bus._workers.running))
    found = await rows(conn, "select queue_name from pgmq.meta order by 1")
    assert found == [("brand_new__commands",), ("brand_new__replies",)]


async def test_buffered_commands_are_given_back_when_the_handlers_have_become_slow(
    bus: CommandBus,
    conn: Conn,
    dsn: str,
    leasing_ahead: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_module, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(executor_module, "MAX_BUFFERED_SECONDS", 0.0)
    gated = Gated(bus)
    ids = await send_some(bus, 6)
    async with another_bus(dsn) as other, working(bus, "shop", concurrency=1):
        await until(lambda: gated.started)

        @other.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> str:
            return "elsewhere"

        async with working(other, "shop"):
            await until_count(conn, "COMPLETED", 5)
        assert gated.started == ids[:1]
        gated.gate.set()
        await until_count(conn, "COMPLETED", 6)
    done = {reply.command_id: reply.data for reply in await replies(bus)}
    assert list(done.values()).count("elsewhere") == 5
    assert done[ids[0]] == "finished"
    row = await look(bus, ids[-1])
    assert row.attempts == 1


async def test_a_stop_waits_for_results_that_the_database_does_not_take_yet(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be lost, and their handlers would run a second time."""
    monkeypatch.setattr(worker_module, "ABORT_GRACE_SECONDS", 0.01)
    is_away, refused = True, 0
    settle = PostgresStore.settle

    async def settle_unless_away(self: PostgresStore, *arguments: Any) -> Any:
        nonlocal refused
        if is_away:
            refused += 1
            raise DatabaseUnavailableError("away for a moment")
        return await settle(self, *arguments)

    monkeypatch.setattr(PostgresStore, "settle", settle_unless_away)
    gated = Gated(bus)
    gated.gate.set()
    sent = await send(bus)
    worker = asyncio.create_task(bus.run_worker("shop"))
    await until(lambda: refused)
    stopping = asyncio.create_task(bus.stop())
    seen = refused
    await until(lambda: refused > seen, "another try during the stop")
    is_away = False
    await stopping
    await worker
    assert (await look(bus, sent)).status is CommandStatus.COMPLETED
    assert gated.started == [sent]


HUNG = """
import asyncio, threading, sys
from commandbus import CommandBus, Settings

async def main():
    async with CommandBus.connect(settings=Settings(shutdown_grace_seconds=0.1)) as bus:
        started = threading.Event()

        @bus.handler("shop", "Work")
        def hang(command, ctx):
            started.set()
            threading.Event().wait()

        worker = asyncio.create_task(bus.run_worker("shop"))
        while not started.is_set():
            await asyncio.sleep(0.01)
        await bus.stop()
        await worker
    print("stopped", flush=True)

asyncio.run(main())
"""


async def test_a_sync_handler_that_hangs_does_not_keep_the_process_alive(
    bus: CommandBus, dsn: str
) -> None:
    sent = await send(bus)
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", HUNG],
        env={**os.environ, "COMMANDBUS_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
    await assert_given_back(bus, sent)
