"""The HTTP service with a login in the role `api` alone: every route answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import psycopg
import pytest

from tests.conftest import Server
from tests.http_world import app_of, client_of
from tests.integration.http_farm import APPROVALS, VMS, create, ended, farm_on, on_machines
from tests.integration.http_shop import fill
from tests.integration.test_http_governed_matrix import LOOSE
from tests.integration.test_http_matrix import ask, operations
from tests.security.roled import RoledDatabase, roled_database
from tests.waiting import until, working

pytestmark = pytest.mark.postgres


#: What the application gives its own logins: the demo looks whether its tables are there.
OWN_TABLES = (
    "do $$ begin"
    " execute format('grant create on database %I to {role}', current_database()); end $$",
    "grant all on schema commandbus_demo to {role}",
    "grant all on all tables in schema commandbus_demo to {role}",
)


@pytest.fixture
def database(server: Server, template: str) -> Iterator[RoledDatabase]:
    with roled_database(server, template) as made:
        yield made


async def test_every_route_works_in_the_role_of_the_service(database: RoledDatabase) -> None:
    async with database.bus("migrator") as owner, database.bus("api") as bus:
        shop = await fill(owner)
        service = app_of(bus)
        async with client_of(service, "root") as client:
            for method, path, operation in operations(service):
                answer = await ask(client, method, path, shop, operation)
                # 409: what was asked before has done it.
                assert answer.status_code in {200, 202, 204, 409}, f"{method} {path} {answer.text}"


async def test_the_doctor_examines_and_repairs_in_the_role_of_the_service(
    database: RoledDatabase,
) -> None:
    async with database.bus("migrator") as owner, database.bus("api") as bus:
        shop = await fill(owner)
        async with owner._store.transaction() as transaction:
            await transaction.conn.execute(
                "delete from commandbus.command_bus_troubleshooting where command_id = %s",
                (shop.parked[0],),
            )
        async with client_of(app_of(bus), "root") as client:

            async def end_of(begun: httpx2.Response) -> dict[str, Any]:
                assert begun.status_code == 202, begun.text

                async def ended() -> dict[str, Any] | None:
                    found = (await client.get("/api/v1/doctor")).json()
                    return None if found["is_running"] else found

                found = await until(ended, "the end of the run")
                assert found["newer"] is None, found["newer"]["error"]
                assert found["last"]["run_id"] == begun.json()["run_id"]
                last: dict[str, Any] = found["last"]
                return last

            seen = await end_of(await client.post("/api/v1/doctor/runs"))
            form = {"run_id": seen["run_id"], "reason": "because"}
            done = await end_of(await client.post("/api/v1/doctor/fixes", json=form))
            assert str(shop.parked[0]) in str(done["repairs"])


async def test_governed_batches_are_submitted_decided_and_done_by_their_roles(
    database: RoledDatabase,
) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(farm_on(database.owner, **LOOSE))  # makes the tables
        async with await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as owner:
            for text in OWN_TABLES:
                for role in ("api", "worker"):
                    await owner.execute(text.format(role=database.login(role)).encode())
        service = await stack.enter_async_context(farm_on(database.dsn("api"), **LOOSE))
        workers = await stack.enter_async_context(farm_on(database.dsn("worker"), **LOOSE))
        for domain in workers.bus.domains:
            await stack.enter_async_context(working(workers.bus, domain))
        ada = await stack.enter_async_context(service.client("ada"))
        petra = await stack.enter_async_context(service.client("petra"))
        root = await stack.enter_async_context(service.client("root"))

        made = (await ada.post(VMS, json=create("a"))).json()
        assert (await ended(ada, made["status_url"]))["status"] == "COMPLETED"
        asked = (await ada.post(VMS, json=on_machines("delete", "a"))).json()
        decision = {"ticket_id": asked["batch_id"], "decision": "approve", "reason": "yes"}
        decided = (await petra.post(APPROVALS, json={"items": [decision]})).json()
        assert (await ended(petra, decided["status_url"]))["status"] == "COMPLETED"
        assert (await ended(ada, asked["status_url"]))["status"] == "COMPLETED"
        for path in ("/readyz", "/metrics", "/api/v1/admin/rate-limits"):
            answer = await root.get(path)
            assert answer.status_code in {200, 404}, f"{path} {answer.text}"
