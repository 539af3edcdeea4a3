"""A bus over two databases, and one that is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from commandbus.bus import CommandBus
from commandbus.errors import DatabaseUnavailableError, InvalidInputError, InvalidOperationError
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.models import Command, ReplyOutcome
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardedBus, ShardMap, doors

pytestmark = pytest.mark.postgres

#: Nobody listens there.
DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"


@asynccontextmanager
async def sharded(one: str, two: str) -> AsyncIterator[ShardedBus]:
    handlers = Handlers()
    for domain in ("payments", "mail", "lost"):
        routes = Handlers(domain)

        @routes.handle("Ask")
        async def answer(command: Command, context: HandlerContext) -> dict[str, str]:
            return {"from": command.domain}

        handlers.include(routes)
    shards = ShardMap({"one": one, "two": two, "down": DOWN},
                      {"payments": "one", "mail": "two", "lost": "down"})  # fmt: skip
    settings = Settings(connect_timeout_seconds=2)
    async with ShardedBus.connect(shards, handlers=handlers, settings=settings) as bus:
        yield bus


async def test_sharded_bus_runs_each_domain_on_its_shard_while_another_is_down(
    dsn: str, empty_dsn: str
) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        for domain, other in (("payments", "two"), ("mail", "one")):
            shard = await bus.on(domain)
            async with shard.worker(domain):
                reply = await shard.call(domain, "Ask", {})
            assert (reply.outcome, reply.data) == (ReplyOutcome.SUCCESS, {"from": domain})
            sent = (await shard.search.commands(domain=domain)).items
            assert len(sent) == 1
            elsewhere = await bus.shard(other)
            assert await elsewhere.get_command(domain, sent[0].command_id) is None
        with pytest.raises(DatabaseUnavailableError, match="shard 'down'"):
            await bus.on("lost")


async def test_reads_over_all_shards_name_the_one_that_is_down(dsn: str, empty_dsn: str) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        wanted = new_id()
        await (await bus.on("mail")).send("mail", "Ask", wanted, {})
        found = await bus.everywhere(lambda shard: shard.search.domains(wanted))
        assert found.found == {"one": [], "two": ["mail"]}
        assert set(found.missing) == {"down"}
        assert "shard 'down'" in found.missing["down"]
        with pytest.raises(InvalidInputError):
            await bus.everywhere(lambda shard: shard.search.commands(limit=0))


async def test_reads_over_all_shards_do_not_wait_for_a_silent_one(dsn: str, empty_dsn: str) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        silent, quick = await bus.shard("two"), await bus.shard("one")

        async def read(shard: CommandBus) -> bool:
            if shard is silent:
                await asyncio.Event().wait()
            return shard is quick

        found = await bus.everywhere(read, deadline=0.5)
        assert found.found == {"one": True}
        assert "no answer within 0.5 s" in found.missing["two"]


async def test_sharded_bus_refuses_unknown_shards_and_use_after_its_end(
    dsn: str, empty_dsn: str
) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        with pytest.raises(InvalidOperationError, match="there are: down, one, two"):
            await bus.shard("three")
    with pytest.raises(InvalidOperationError, match="closed"):
        await bus.on("mail")


async def test_all_who_need_a_silent_shard_wait_for_the_same_attempt(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        attempts = 0
        gone = asyncio.Event()

        async def begin(name: str, stack: object) -> CommandBus:
            nonlocal attempts
            attempts += 1
            await gone.wait()
            raise DatabaseUnavailableError(f"shard {name!r}: silent")

        monkeypatch.setattr(bus, "_begin", begin)
        calls = [asyncio.create_task(bus.on("lost")) for _ in range(50)]
        while not attempts:
            await asyncio.sleep(0)
        # Who gives up leaves it to the others.
        calls[0].cancel()
        seen = await bus.everywhere(lambda shard: shard.troubleshooting.counts(), deadline=0.05)
        assert set(seen.missing) == {"one", "two", "down"}
        gone.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(each, DatabaseUnavailableError) for each in results[1:])
        # For a moment it is not even tried; then it is.
        with pytest.raises(DatabaseUnavailableError, match="silent"):
            await bus.on("lost")
        assert attempts == 3  # each shard once
        monkeypatch.setattr(doors, "SHUT_SECONDS", 0.0)
        bus._doors._shut.clear()
        for number in (4, 5):
            with pytest.raises(DatabaseUnavailableError, match="silent"):
                await bus.on("lost")
            assert attempts == number


async def test_a_bus_that_is_closed_leaves_no_attempt_behind(dsn: str, empty_dsn: str) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        call = asyncio.create_task(bus.on("mail"))
        while not bus._doors._tasks:
            await asyncio.sleep(0)
    assert not bus._doors._tasks
    assert not bus._doors.open
    with pytest.raises(InvalidOperationError, match="was closed"):
        await call
    with pytest.raises(InvalidOperationError, match="closed"):
        await bus.everywhere(lambda shard: shard.troubleshooting.counts())


@pytest.mark.parametrize("what", ["map", "schema", "grant"])
async def test_a_shard_that_refuses_is_missing_and_the_others_answer(
    dsn: str, empty_dsn: str, what: str
) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        await (await bus.on("payments")).send("payments", "Ask", new_id(), {})
        await (await bus.on("mail")).send("mail", "Ask", new_id(), {})
        async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as conn:
            if what == "map":
                await conn.execute("update commandbus.command_bus_shard set shard = 'other'")
            elif what == "schema":
                await conn.execute("update commandbus.command_bus_migration set version = 9999"
                                   " where version = 1")  # fmt: skip

        async def read(shard: CommandBus) -> int:
            if what == "grant" and bus.name_of(shard) == "two":
                async with shard._store.gateway.transaction() as session:
                    await session.rows("set local role pg_monitor")
                    await session.rows("select * from {schema}.command_bus_command")
            return len((await shard.search.commands()).items)

        async with sharded(dsn, empty_dsn) as again:
            seen = await (bus if what == "grant" else again).everywhere(read)
    assert seen.found == {"one": 1}
    said = {"map": "exchanged", "schema": "version", "grant": "permission denied"}[what]
    assert said in seen.missing["two"]
