"""Pages over all shards: one order, nothing left out or doubled, and who is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from commandbus.errors import InvalidSettingError
from commandbus.models import BatchCommand
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardedBus, ShardMap
from commandbus.shards.pages import MergedPage

pytestmark = pytest.mark.postgres

DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"
QUICK = Settings(connect_timeout_seconds=2)


async def all_of(read: Callable[..., Awaitable[MergedPage[Any]]], limit: int) -> list[Any]:
    found, cursor = [], None
    while True:
        page = await read(limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += [each.item for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_pages_of_all_shards_are_in_one_order_and_whole(dsn: str, empty_dsn: str) -> None:
    shards = ShardMap({"one": dsn, "two": empty_dsn}, {"mail": "two"}, "one")
    async with ShardedBus.connect(shards) as bus:
        sent = []
        for number in range(14):
            domain = "mail" if number % 3 == 0 else "payments"
            sent.append(await (await bus.on(domain)).send(domain, "Do", new_id(), {}))
            if number % 2:
                shard = await bus.on("mail")
                await shard.create_batch("mail", [BatchCommand("Do", new_id(), {})])
        each_shard = await bus.everywhere(lambda shard: shard.search.audit())
        written = sum(len(page.items) for page in each_shard.found.values())
        for limit in (1, 2, 5, 100):
            commands = await all_of(bus.pages.commands, limit)
            assert [each.created_at for each in commands] == sorted(
                (each.created_at for each in commands), reverse=True
            )
            assert len({each.command_id for each in commands}) == len(commands) == 21
            assert set(sent) < {each.command_id for each in commands}
            events = await all_of(bus.pages.audit, limit)
            assert len({(each.domain, each.audit_id) for each in events}) == len(events) == written
            assert [each.ts for each in events] == sorted((e.ts for e in events), reverse=True)
        first = await bus.pages.commands(limit=5)
        # What is sent meanwhile is newer than the cursor, and shifts nothing.
        await (await bus.on("mail")).send("mail", "Do", new_id(), {})
        rest = await bus.pages.commands(limit=100, cursor=first.next_cursor)
        assert len(first.items) + len(rest.items) == 21

        async def batches(**page: Any) -> MergedPage[Any]:
            return await bus.pages.batches("mail", **page)

        assert len(await all_of(batches, 3)) == 7
        assert (await bus.pages.parked()).items == []
        with pytest.raises(InvalidSettingError, match="another search"):
            await bus.pages.audit(cursor=first.next_cursor)


async def test_pages_name_a_shard_that_is_down_and_keep_its_place(dsn: str, empty_dsn: str) -> None:
    domains = {"mail": "two"}
    with_down = ShardMap({"one": dsn, "two": DOWN}, domains, "one")
    async with ShardedBus.connect(ShardMap({"one": dsn, "two": empty_dsn}, domains, "one")) as bus:
        for _ in range(2):
            await (await bus.on("payments")).send("payments", "Do", new_id(), {})
            await (await bus.on("mail")).send("mail", "Do", new_id(), {})
    async with ShardedBus.connect(with_down, settings=QUICK) as bus:
        first = await bus.pages.commands(limit=1)
        assert [each.shard for each in first.items] == ["one"]
        assert "shard 'two'" in first.missing["two"]
    async with ShardedBus.connect(ShardMap({"one": dsn, "two": empty_dsn}, domains, "one")) as bus:
        rest = await bus.pages.commands(limit=100, cursor=first.next_cursor)
        assert sorted(each.shard for each in rest.items) == ["one", "two", "two"]
        assert (rest.missing, rest.next_cursor) == ({}, None)
