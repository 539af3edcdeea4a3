"""What operators ask about limits and schedules over HTTP, and the same on the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

import httpx2
import pytest
from psycopg import AsyncConnection
from typer.testing import CliRunner, Result

from commandbus import CommandBus
from commandbus.cli.main import app
from tests.http_world import app_of, client_of, problem

Run = Callable[..., Result]


@pytest.fixture
async def client(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app_of(bus)) as opened:
        yield opened


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--dsn", dsn])


async def test_the_preview_of_a_stored_interval_goes_on_from_where_it_began(
    client: httpx2.AsyncClient, bus: CommandBus, conn: AsyncConnection
) -> None:
    await bus.schedules.put("shop", "often", "Work", {}, every=timedelta(minutes=10))
    # It began some minutes ago, so that a preview of the same interval from now on is another.
    await conn.execute(
        "update commandbus.command_bus_schedule set counted_from = counted_from - interval '7 min',"
        " next_tick_at = next_tick_at - interval '7 min'"
    )
    found = await client.get("/api/v1/schedules/shop/often/preview", params={"count": 3})
    assert found.status_code == 200, found.text
    ticks = [datetime.fromisoformat(tick) for tick in found.json()["ticks"]]
    made = await bus.schedules.require("shop", "often")
    assert made.next_tick_at is not None
    assert ticks == [made.next_tick_at + n * timedelta(minutes=10) for n in range(3)]
    tried = await client.get("/api/v1/schedules/preview", params={"every_seconds": 600, "count": 3})
    assert tried.json()["ticks"] != found.json()["ticks"]


async def test_a_preview_of_a_schedule_that_is_not_there_is_404(client: httpx2.AsyncClient) -> None:
    missing = await client.get("/api/v1/schedules/shop/nothing/preview")
    problem(missing, 404, "NOT_FOUND")
    too_many = await client.get("/api/v1/schedules/shop/nothing/preview", params={"count": 101})
    problem(too_many, 400, "INVALID_REQUEST")


@pytest.mark.parametrize("path", ["limits/shop", "limits/shop/Work"])
async def test_a_limit_is_removed_with_a_reason_that_is_in_the_audit(
    client: httpx2.AsyncClient, bus: CommandBus, path: str
) -> None:
    url = f"/api/v1/{path}"
    assert (await client.put(url, json={"max_running": 3})).status_code == 200
    for bad in ("", " ", "x" * 1_001):
        assert (await client.delete(url, params={"reason": bad})).status_code == 400
    assert len(await bus.limits.list("shop")) == 1
    gone = await client.delete(url, params={"reason": "the bank is faster"})
    assert gone.status_code == 204, gone.text
    assert await bus.limits.list("shop") == []
    (event,) = [
        each
        for each in (await bus.search.audit(domain="shop")).items
        if each.event_type == "EXECUTION_LIMIT_CLEARED"
    ]
    assert event.details is not None
    assert event.details["reason"] == "the bank is faster"


async def test_a_limit_by_key_that_names_no_type_leaves_the_limit_of_the_domain(
    client: httpx2.AsyncClient, bus: CommandBus
) -> None:
    await bus.limits.set("shop", max_running=3)
    refused = await client.delete("/api/v1/limits/shop", params={"per_key": True})
    problem(refused, 400, "INVALID_REQUEST")
    assert len(await bus.limits.list("shop")) == 1


def test_the_command_line_sends_what_travels_beside_the_data(run: Run) -> None:
    put = run("schedule", "put", "shop", "often", "Work", "--every", "1h",
              "--meta", "tenant=north", "--meta", "trace=a=b", "--json")  # fmt: skip
    assert put.exit_code == 0, put.output
    assert json.loads(put.stdout)["meta"] == {"tenant": "north", "trace": "a=b"}
    command_id = run("send", "shop", "Work", "--meta", "tenant=south").stdout.strip()
    shown = json.loads(run("show", command_id, "--json").stdout)
    assert shown["meta"] == {"tenant": "south"}
    for bad in (["--meta", "tenant"], ["--meta", "a=1", "--meta", "a=2"], ["--meta", "password=x"]):
        refused = run("send", "shop", "Work", *bad)
        assert refused.exit_code == 2, refused.output
