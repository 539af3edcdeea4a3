"""Chores tell what they did, and that they failed; by domain, without what the failure said."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import DatabaseUnavailableError
from commandbus.upkeep import Chore
from commandbus.worker.maintenance import Maintenance
from tests.waiting import until, working

Conn = psycopg.AsyncConnection[Any]


async def chore(bus: CommandBus, name: str) -> Chore | None:
    return next((each for each in await bus.upkeep.chores() if each.name == name), None)


async def test_a_worker_tells_what_its_chores_did_in_each_domain(
    bus: CommandBus, conn: Conn
) -> None:
    sent = await bus.send("shop", "Work", uuid4(), {})
    await bus.cancel("shop", sent, "not wanted")
    await bus.upkeep.set_retention("commands", timedelta(hours=1))
    await conn.execute(
        "update commandbus.command_bus_command set created_at = now() - interval '1 day',"
        " updated_at = now() - interval '1 day'"
    )

    async def is_told() -> bool:
        found = await chore(bus, "prune old rows")
        return found is not None and found.ended_at is not None

    async with working(bus, "shop"):
        await until(is_told)
    found = await chore(bus, "prune old rows")
    assert found is not None
    assert found.told == {"shop": "1 commands"}
    assert found.every_seconds == bus._store.gateway.settings.maintenance_interval_seconds
    assert found.next_at is not None
    assert (found.next_at - found.started_at).total_seconds() == found.every_seconds
    assert not found.has_failed
    assert not found.is_running
    swept = await chore(bus, "sweep progress")
    assert swept is not None
    assert (swept.told, swept.ended_at is not None) == ({}, True)


async def test_a_chore_that_fails_says_so_without_the_words_of_the_failure(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Maintenance) -> None:
        raise DatabaseUnavailableError("the vault of somebody did not answer")

    monkeypatch.setattr(Maintenance, "_prune_workers", fail)

    async def has_failed() -> bool:
        found = await chore(bus, "prune workers")
        return found is not None and found.has_failed

    async with working(bus, "shop"):
        await until(has_failed)
    found = await chore(bus, "prune workers")
    assert found is not None
    assert found.told == {"*": "DatabaseUnavailableError; the log of its process says more"}
