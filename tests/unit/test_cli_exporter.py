"""`commandbus exporter`: the gauges of a database, asked for seldom, and what a dead one leaves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from commandbus.cli import exporter as module
from commandbus.cli.exporter import DatabaseText
from commandbus.errors import DatabaseUnavailableError
from commandbus.upkeep.figures import DomainFigures, Figures, LimitFigures, WorkerCount


class Database:
    """Stands for the figures of a database."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def domains(self) -> list[DomainFigures]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [DomainFigures("shop", 3, 2, 1.5, 4, 1, 10, 2, 0.5, 9, replies=7)]

    async def limits(self) -> list[LimitFigures]:
        return [LimitFigures("shop", "Pack", 1, 2)]

    async def worker_counts(self) -> list[WorkerCount]:
        return [WorkerCount("shop", "Pack", "completed", 5, 0.0)]

    async def shards(self) -> dict[str, bool]:
        return {"one": True, "two": False}

    def pool(self) -> dict[str, int]:
        return {"max": 10, "size": 1, "available": 1, "waiting": 0}


async def text_of(source: DatabaseText) -> list[str]:
    return (await asyncio.to_thread(source.text)).decode().splitlines()


async def test_the_figures_of_the_database_are_gauges_and_kept_for_a_while() -> None:
    database = Database()
    source = DatabaseText(cast("Figures", cast("Any", database)))
    lines = await text_of(source)

    assert "commandbus_database_up 1" in lines
    assert 'commandbus_shard_up{shard="one"} 1' in lines
    assert 'commandbus_shard_up{shard="two"} 0' in lines
    assert 'commandbus_queue_depth{domain="shop",state="ready"} 3' in lines
    assert 'commandbus_replies_depth{domain="shop"} 7' in lines
    assert 'commandbus_limit_waiting{domain="shop",limit="Pack"} 2' in lines
    assert 'commandbus_db_pool_max{pool="caller"} 10' in lines
    assert await text_of(source) == lines
    assert database.asked == 1


async def test_a_dead_database_is_said_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    database = Database()
    database.error = DatabaseUnavailableError("gone")
    source = DatabaseText(cast("Figures", cast("Any", database)))

    assert (await text_of(source))[-1] == "commandbus_database_up 0"
    database.error = None
    assert "commandbus_database_up 1" in await text_of(source)


async def test_a_database_that_hangs_does_not_hang_the_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SCRAPE_SECONDS", 0.05)
    database = Database()
    database.gate = asyncio.Event()
    source = DatabaseText(cast("Figures", cast("Any", database)))

    assert (await text_of(source))[-1] == "commandbus_database_up 0"
