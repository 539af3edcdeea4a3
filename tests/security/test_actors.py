"""Every change that comes over HTTP has its actor in the audit, on every route of the document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus import BatchCommand, CommandBus
from tests.integration.http_farm import Farm, farm_on
from tests.security.asking import ANN, ASKING, QUIET, World


@pytest.fixture
async def farm(dsn: str) -> AsyncIterator[Farm]:
    loose: dict[str, Any] = {"max_user_pending_batches": 500, "max_user_pending_children": 5_000}
    async with farm_on(dsn, more={"ann": ANN}, **loose) as made:
        yield made


def changing(farm: Farm) -> dict[str, str]:
    """The method of each operation that is more than a look, by its operationId."""
    return {
        operation["operationId"]: method
        for methods in farm.app.openapi()["paths"].values()
        for method, operation in methods.items()
        if method not in {"get", "head", "options"}
    }


async def news(conn: AsyncConnection, after: int) -> list[Any]:
    cursor = await conn.execute(
        "select event_type, actor from commandbus.command_bus_audit where audit_id > %s", (after,)
    )
    return await cursor.fetchall()


async def last(conn: AsyncConnection) -> int:
    query = "select coalesce(max(audit_id), 0) from commandbus.command_bus_audit"
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def test_every_changing_route_leaves_its_caller_in_every_line_of_the_audit(
    farm: Farm, conn: AsyncConnection
) -> None:
    methods = changing(farm)
    assert set(methods) == set(ASKING)
    world = World(farm.bus)
    async with farm.client("ann") as ann:
        for name, ways in ASKING.items():
            for ask in ways:
                path, body = await ask(world)
                before = await last(conn)
                answer = await _ask(ann, methods[name], path, body)
                assert answer.is_success, f"{name}: {answer.text}"
                found = await news(conn, before)
                assert bool(found) is (name not in QUIET), f"{name}: {found}"
                assert {actor for _, actor in found} <= {"ann"}, f"{name}: {found}"
    await world.examined()
    repairs = [each for each in await news(conn, 0) if each[0] == "DOCTOR_REPAIR"]
    assert len(repairs) > 1  # who asked for them, and what was repaired
    assert {actor for _, actor in repairs} == {"ann"}


async def _ask(client: httpx2.AsyncClient, method: str, path: str, body: Any) -> httpx2.Response:
    if body is None:
        return await client.request(method, path)
    return await client.request(method, path, json=body)


# -- the library says who sends, if it is told


async def actors(bus: CommandBus, command_id: UUID) -> list[str | None]:
    return [event.actor for event in await bus.get_audit_trail("shop", command_id)]


async def test_the_library_says_who_sends_if_it_is_told(bus: CommandBus) -> None:
    one, many, silent = uuid4(), [uuid4() for _ in range(600)], uuid4()
    await bus.send("shop", "Work", one, {}, actor="cron")
    # Enough of them to be packed.
    await bus.send_many("shop", [BatchCommand("Work", i, {}) for i in many], actor="cron")
    await bus.send("shop", "Work", silent, {})
    child, own, stored = uuid4(), uuid4(), uuid4()
    await bus.create_batch("shop", [BatchCommand("Work", child, {})], created_by="a", actor="cron")
    await bus.create_batch("shop", [BatchCommand("Work", own, {})], created_by="ada")
    await bus.batches.dispatch("shop", [BatchCommand("Work", stored, {})], actor="cron")
    row = uuid4()
    rows = [{"command_type": "Work", "data": {}, "command_id": str(row)}]
    await bus.loads.load("shop", rows, created_by="ada", actor="cron")
    for command_id in (one, many[0], many[-1], child, stored, row):
        assert await actors(bus, command_id) == ["cron"]
    assert await actors(bus, silent) == [None]
    assert await actors(bus, own) == ["ada"]
