"""What people who operate the bus look at, by the library, by HTTP and on the command line."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import BatchCommand, CommandBus
from commandbus.loads import LoadStatus
from commandbus.models import Viewer
from tests.http_world import app_of, caller, client_of, problem
from tests.waiting import until

DOMAIN = "payments"


async def get(client: Any, path: str) -> Any:
    response = await client.get(f"/api/v1{path}")
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_overview_shows_domains_with_rates_to_who_reaches_them(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    for domain in (DOMAIN, "orders"):
        await bus.send(domain, "Debit", uuid4(), {})
    await conn.execute("select commandbus.sample_domains()")
    await conn.execute("update commandbus.command_bus_tally set since = now() - interval '1 hour'")
    await conn.execute(
        "update commandbus.command_bus_chore set started_at = started_at - interval '9 s'"
    )
    await bus.send(DOMAIN, "Debit", uuid4(), {})
    await conn.execute("select commandbus.sample_domains()")
    figures = bus.upkeep.figures
    assert [(each.domain, each.ready, each.about) for each in await figures.overview()] == [
        ("orders", 1, []), (DOMAIN, 2, []),
    ]  # fmt: skip
    rates = (await figures.rates([DOMAIN]))[DOMAIN]
    assert rates.in_rate == pytest.approx(1 / 60)
    assert len(rates.in_hour) == len(rates.out_hour) == len(rates.lost_hour) == 60
    assert rates.seconds_to_drain(2) is None  # nothing goes out
    assert rates.seconds_to_drain(0) == 0

    app = app_of(bus, few=caller("read", domains=("orders",)))
    async with client_of(app) as root, client_of(app, "few") as few:
        items = (await get(root, "/overview"))["items"]
        assert [(each["domain"], each["ready"], each["later"]) for each in items] == [
            ("orders", 1, 0), (DOMAIN, 2, 0),
        ]  # fmt: skip
        assert items[1]["rates"]["in_rate"] == pytest.approx(1 / 60)
        assert [each["domain"] for each in (await get(few, "/overview"))["items"]] == ["orders"]
        problem(await few.get(f"/api/v1/overview?domain={DOMAIN}"), 404, "NOT_FOUND")


async def test_workers_tell_their_version_and_what_they_ended(bus: CommandBus) -> None:
    async def ok(command: Any, context: Any) -> None:
        return None

    bus.register_handler(DOMAIN, "Debit", ok)
    async with bus.worker(DOMAIN, concurrency=3):
        await bus.send_many(DOMAIN, [BatchCommand("Debit", uuid4(), {}) for _ in range(5)])

        async def all_told() -> Any:
            found = await bus.upkeep.figures.workers([DOMAIN])
            return found if found and found[0].completed == 5 else None

        # With its first heartbeat after them; it says so itself once it is idle.
        (worker,) = await until(all_told)
    assert worker.concurrency == 3
    assert worker.version
    assert worker.process in worker.worker_id
    assert not worker.is_silent
    assert await bus.upkeep.figures.workers() == []


async def test_loads_are_listed_with_how_to_go_on(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    rows = [{"command_type": "Debit", "data": {}} for _ in range(4)]
    done = await bus.loads.load(DOMAIN, rows, checkpoint_size=1)
    bad = await bus.loads.load("orders", [*rows, {"command_type": "?"}], checkpoint_size=2)
    assert bad.status == "partial_success"
    await conn.execute(
        "update commandbus.command_bus_load set source = 'my file.csv' where domain = 'orders'"
    )
    page = await bus.loads.page()
    assert [each.batch_id for each in page.items] == [bad.batch_id, done.batch_id]
    failed, sealed = page.items
    assert sealed.rate is not None
    assert sealed.rate > 0
    assert (sealed.is_open, sealed.resume_command, sealed.rows_dispatched) == (False, None, 4)
    assert failed.status is LoadStatus.FAILED
    assert failed.is_interrupted
    assert failed.error is not None
    assert failed.resume_command == f"commandbus batch resume orders {bad.batch_id} 'my file.csv'"
    assert [each.batch_id for each in (await bus.loads.page(is_open=True)).items] == [bad.batch_id]

    first = await bus.loads.page(limit=1)
    then = await bus.loads.page(limit=1, cursor=first.next_cursor)
    assert [each.batch_id for each in (*first.items, *then.items)] == [bad.batch_id, done.batch_id]
    assert then.next_cursor is None
    # A governed batch is for its owner.
    await conn.execute(
        "update commandbus.command_bus_batch set batch_type = 'T', created_by = 'eve'"
        " where domain = 'orders'"
    )
    seen = await bus.loads.page(viewer=Viewer(owner="ann", sees_access=False))
    assert [each.domain for each in seen.items] == [DOMAIN]
    app = app_of(bus, few=caller("read", domains=(DOMAIN,)))
    async with client_of(app) as root, client_of(app, "few") as few:
        items = (await get(root, "/loads?is_open=true"))["items"]
        assert [UUID(each["batch_id"]) for each in items] == [bad.batch_id]
        assert items[0]["resume_command"] == failed.resume_command
        assert [each["domain"] for each in (await get(few, "/loads"))["items"]] == [DOMAIN]
        assert (await get(few, "/workers"))["items"] == []
        assert (await get(few, f"/domains/{DOMAIN}/failure-trends"))["items"] == []
