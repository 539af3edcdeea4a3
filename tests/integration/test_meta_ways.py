"""What travels with a command on the ways that need a database: loads, schedules, HTTP, SQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg import AsyncConnection, DatabaseError

from commandbus import CommandBus
from commandbus.loads import LoadStart
from commandbus.schedules.firing import Firing
from tests.http_world import app_of, client_of

DOMAIN = "shop"
META = {"tenant": "north"}


async def metas(bus: CommandBus, count: int) -> list[dict[str, str] | None]:
    """What all commands that are there carry, as workers get it; None: nothing."""
    page = await bus.search.commands(domain=DOMAIN)
    assert len(page.items) == count
    return [await bus.search.meta(DOMAIN, each.command_id) for each in reversed(page.items)]


@pytest.mark.parametrize("start", list(LoadStart))
async def test_rows_of_a_load_carry_their_own_meta_or_that_of_the_load(
    bus: CommandBus, start: LoadStart
) -> None:
    own = {"tenant": "south"}
    rows: list[dict[str, Any]] = [
        {"command_type": "Work", "data": {}}, {"command_type": "Work", "data": {}, "meta": own},
    ]  # fmt: skip
    done = await bus.loads.load(DOMAIN, rows, start=start, meta=META)
    assert done.status == "success", done.error
    found = await bus.list_batch_commands(DOMAIN, done.batch_id)
    assert [await bus.search.meta(DOMAIN, each.command_id) for each in found] == [META, own]


async def test_a_row_with_meta_that_is_refused_ends_its_load(bus: CommandBus) -> None:
    rows = [{"command_type": "Work", "data": {}, "meta": {"password": "x"}}]
    done = await bus.loads.load(DOMAIN, rows)
    assert done.status != "success"
    assert "has the name of a secret" in str(done.error)


async def test_each_command_of_a_schedule_carries_what_the_schedule_was_put_with(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await bus.schedules.put(DOMAIN, "hourly", "Work", {}, every=3_600, meta=META)
    assert made.meta == META
    await conn.execute(
        "update commandbus.command_bus_schedule set next_tick_at = clock_timestamp() - interval"
        " '1 second', look_at = clock_timestamp() - interval '1 second'"
    )
    await Firing(bus._store).step()
    assert await metas(bus, 1) == [META]


async def test_a_command_over_http_carries_meta_and_shows_it(bus: CommandBus) -> None:
    form = {"domain": DOMAIN, "command_type": "Work", "data": {}, "meta": META}
    async with client_of(app_of(bus)) as client:
        sent = await client.post("/api/v1/commands", json=form)
        shown = await client.get(sent.headers["location"])
        refused = await client.post("/api/v1/commands", json=form | {"meta": {"token": "x"}})
    assert shown.json()["meta"] == META
    assert refused.status_code in {400, 422}
    assert await metas(bus, 1) == [META]


async def test_send_command_in_sql_takes_meta_and_refuses_what_is_none(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    query = "select commandbus.send_command(%s, 'Work', %s, '{}', p_meta => %s::jsonb)"
    await bus.send(DOMAIN, "Work", uuid4(), {})  # the first use creates the queue
    await conn.execute(query, (DOMAIN, uuid4(), '{"tenant": "north"}'))
    await conn.execute(query, (DOMAIN, uuid4(), None))
    for wrong in ('["tenant"]', '{"tenant": 5}', '{"tenant": "%s"}' % ("x" * 2_100)):
        with pytest.raises(DatabaseError):
            await conn.execute(query, (DOMAIN, uuid4(), wrong))
    assert await metas(bus, 3) == [None, META, None]
