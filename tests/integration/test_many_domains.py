"""Many domains in one process: connections, heartbeats, chores and polls are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import BatchCommand, CommandBus, CommandStatus, Settings
from commandbus.errors import DatabaseUnavailableError
from commandbus.worker import shared as shared_module
from tests.integration.test_opening import sessions_of
from tests.waiting import until, until_status

#: Callers may take two here, and workers six; beside them one listens and one extends leases.
SETTINGS = Settings(pool_size=2, worker_pool_size=6, handler_pool_size=3, shutdown_grace_seconds=5)
MOST = 2 + 6 + 3 + 1 + 1


@asynccontextmanager
async def serving(bus: CommandBus, domains: Sequence[str]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(bus.run_worker(domain, concurrency=2)) for domain in domains]
    try:
        await until(lambda: len(bus._workers.running) == len(domains))
        await asyncio.gather(*(worker.started.wait() for worker in bus._workers.running))
        yield
    finally:
        await bus.stop()
        await asyncio.gather(*tasks)


async def test_the_number_of_connections_does_not_grow_with_the_domains(dsn: str) -> None:
    domains = [f"d{number}" for number in range(30)]
    most = 0
    async with CommandBus.connect(dsn, settings=SETTINGS) as bus:
        for domain in domains:

            @bus.handler(domain, "Work", transactional=domain < "d2")
            async def work(command: Any, ctx: Any) -> None:
                nonlocal most
                most = max(most, await sessions_of(dsn))

        async with serving(bus, domains):
            sent = {each: await bus.send(each, "Work", uuid4(), {}) for each in domains}
            for domain, command_id in sent.items():
                await until_status(bus, domain, command_id, CommandStatus.COMPLETED)
            most = max(most, await sessions_of(dsn))
        assert 0 < most <= MOST + 4  # and the other ones that count, four at a time

    async def are_gone() -> bool:  # the server takes a moment to see that a connection is closed
        return await sessions_of(dsn) == 0

    await until(are_gone, "connections that are closed")


async def test_all_workers_are_on_the_list_by_one_statement(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "HEARTBEAT_SECONDS", 0.02)
    domains = [f"d{number}" for number in range(10)]
    async with (
        CommandBus.connect(dsn, settings=SETTINGS) as bus,
        serving(bus, domains),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):

        async def listed() -> bool:
            cursor = await conn.execute(
                "select count(distinct domain), count(distinct heartbeat_at),"
                " min(heartbeat_at) > now() - interval '1 second'"
                " from commandbus.command_bus_worker"
            )
            return await cursor.fetchone() == (10, 10, True)

        await until(listed, "heartbeats of all")


async def test_a_command_that_becomes_due_without_a_wake_up_is_found(dsn: str) -> None:
    settings = Settings(poll_max_seconds=0.05)
    domains = ["one", "two", "three"]
    async with CommandBus.connect(dsn, settings=settings) as bus:
        for domain in domains:
            bus.register_handler(domain, "Work", _work)
        async with serving(bus, domains):
            await until(lambda: _are_idle(bus))
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                # Stored by a program that does not wake anybody.
                await conn.execute("update commandbus.command_bus_worker set is_idle = false")
                await conn.commit()
                sent = await bus.send("two", "Work", uuid4(), {}, conn=conn)
            await until_status(bus, "two", sent, CommandStatus.COMPLETED)


async def test_a_queue_that_is_gone_does_not_blind_the_others(bus: CommandBus) -> None:
    for domain in ("one", "two"):
        await bus.send(domain, "Work", uuid4(), {})
    await bus._store.ensure_domain("three")
    due = await bus._store.due_in(["gone", "one", "three", "two"])
    assert due == {"gone": 0.0, "one": 0.0, "two": 0.0}


async def test_a_domain_whose_commits_hang_does_not_stop_the_others(dsn: str) -> None:
    async with CommandBus.connect(dsn, settings=SETTINGS) as bus:
        for domain in ("held", "free"):
            bus.register_handler(domain, "Work", _work)
        held = [await bus.send("held", "Work", uuid4(), {}) for _ in range(4)]
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await conn.execute(
                "select from commandbus.command_bus_command where domain = 'held' for update"
            )
            async with serving(bus, ["held", "free"]):
                for _ in range(5):
                    sent = await bus.send("free", "Work", uuid4(), {})
                    await until_status(bus, "free", sent, CommandStatus.COMPLETED)
                await conn.rollback()
                await until_status(bus, "held", held[0], CommandStatus.COMPLETED)


async def test_workers_that_come_and_go_leave_the_rest_working(dsn: str) -> None:
    async with CommandBus.connect(dsn, settings=SETTINGS) as bus:
        for domain in ("one", "two"):
            bus.register_handler(domain, "Work", _work)
        for _ in range(2):
            async with serving(bus, ["one", "two"]):
                first = next(w for w in bus._workers.running if w.options.domain == "one")
                first.stop()
                await first.finished.wait()
                sent = await bus.send("two", "Work", uuid4(), {})
                await until_status(bus, "two", sent, CommandStatus.COMPLETED)


async def test_an_empty_pool_says_that_it_is_the_pool(dsn: str) -> None:
    settings = Settings(pool_size=1, connect_timeout_seconds=0.2)
    async with (
        CommandBus.connect(dsn, settings=settings) as bus,
        bus._store.gateway.transaction(),
    ):
        with pytest.raises(DatabaseUnavailableError, match=r"all 1 connections .*enlarge"):
            await bus.get_command("one", uuid4())


async def test_a_full_server_says_that_it_is_the_server(dsn: str) -> None:
    settings = Settings(pool_size=3, connect_timeout_seconds=0.2)
    name = psycopg.sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]))
    async with (
        CommandBus.connect(dsn, settings=settings) as bus,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin,
        AsyncExitStack() as stack,
    ):
        await admin.execute(psycopg.sql.SQL("alter database {} connection limit 1").format(name))
        with pytest.raises(DatabaseUnavailableError, match="no connection left"):
            await _take_three(bus, stack)


async def _take_three(bus: CommandBus, stack: AsyncExitStack) -> None:
    for _ in range(3):  # the pool may have one or two already
        await stack.enter_async_context(bus._store.gateway.transaction())


async def _work(command: Any, ctx: Any) -> None:
    return None


def _are_idle(bus: CommandBus) -> bool:
    members: Any = bus._workers.shared._members
    return all(member.receiver.is_idle for member in members)


async def test_a_flood_in_one_domain_leaves_the_others_of_the_process_their_share(
    dsn: str,
) -> None:
    # Domains share the event loop and the connections of a process, not places or turns: each asks
    # for commands, runs and commits by itself.
    flood, done = 5_000, 0
    settings = Settings(worker_pool_size=6)
    async with CommandBus.connect(dsn, settings=settings) as bus:

        @bus.handler("busy", "Work")
        async def work(command: Any, ctx: Any) -> None:
            nonlocal done
            done += 1

        bus.register_handler("quiet", "Work", _work)
        await bus.send_many("busy", [BatchCommand("Work", uuid4(), {}) for _ in range(flood)])
        tasks = [asyncio.create_task(bus.run_worker("busy", concurrency=100))]
        tasks.append(asyncio.create_task(bus.run_worker("quiet", concurrency=1)))
        served = 0
        while done < flood:
            command_id = uuid4()
            await bus.send("quiet", "Work", command_id, {})
            await until_status(bus, "quiet", command_id, CommandStatus.COMPLETED)
            served += done < flood
        # Behind the flood there would be one at most.
        assert served >= 3
        await bus.stop()
        await asyncio.gather(*tasks)
