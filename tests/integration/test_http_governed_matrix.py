"""Who may do what with governed batches: routes and scopes, from the OpenAPI document. The other
routes are in test_http_matrix; other domains and owners in tests/security/test_matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus.access.model import Scope
from commandbus.http import HttpSettings
from tests.http_world import app_of, caller, client_of
from tests.integration.http_farm import (
    APPROVALS,
    BATCHES,
    LIMITS,
    POWER,
    VMS,
    Farm,
    create,
    ended,
    farm_on,
    is_governed,
    on_machines,
)

REASON = {"reason": "because"}
LOOSE: dict[str, Any] = {"max_user_pending_batches": 500, "max_user_pending_children": 5_000}


@dataclass(frozen=True)
class World:
    """What there is: batches of ann, who asks, and of another user, who waits for approvals."""

    farm: Farm
    batch: str
    approval: str
    waiting: list[str]
    numbers: Iterator[int]

    def body_of(self, method: str, path: str) -> dict[str, Any] | None:
        """A body that each route with one accepts; a new route must be added here."""
        if (method, path) == ("post", APPROVALS):
            decision = {"ticket_id": self.waiting.pop(), "decision": "approve"}
            return {"items": [decision]}
        name = f"vm{next(self.numbers)}"
        bodies: dict[tuple[str, str], dict[str, Any] | None] = {
            ("post", VMS): create(name),
            ("post", POWER): on_machines("start", "a"),
            ("post", BATCHES): {"batch_type": "BATCH_CREATE", "items": [{"name": name}]},
            ("post", f"{BATCHES}/{{batch_id}}/decision"): {"decision": "approve"},
            ("post", f"{BATCHES}/{{batch_id}}/children/{{sequence_no}}/decision"): {
                "decision": "reject",
                **REASON,
            },
            ("post", f"{LIMITS}/exemptions"): {"user_id": "ann", **REASON},
            ("delete", f"{LIMITS}/exemptions/{{user_id}}"): None,
            ("put", f"{LIMITS}/users/{{user_id}}"): {"cooldown_seconds": 0},
        }
        for base in (VMS, APPROVALS, BATCHES):
            bodies["post", f"{base}/{{batch_id}}/retry"] = None
            bodies["post", f"{base}/{{batch_id}}/cancel"] = REASON
        return bodies[method, path]

    async def ask(self, client: httpx2.AsyncClient, method: str, path: str) -> httpx2.Response:
        batch_id = self.approval if path.startswith(APPROVALS) else self.batch
        if path.endswith("/decision"):
            batch_id = self.waiting[0]
        url = path.format(batch_id=batch_id, user_id="ann", sequence_no=1)
        if method == "get":
            return await client.get(url)
        body = self.body_of(method, path)
        if body is None:
            return await client.request(method, url)
        return await client.request(method, url, json=body)

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [
            (method, path, operation)
            for path, methods in self.farm.app.openapi()["paths"].items()
            for method, operation in methods.items()
            if is_governed(operation)
        ]


@pytest.fixture
async def world(dsn: str) -> Any:
    async with farm_on(dsn, **LOOSE) as farm:
        ann_may = caller("read", "submit", "approve")
        app = app_of(farm.bus, ann=ann_may, eve=caller("submit", user="eve"))
        async with farm.workers(), client_of(app, "ann") as ann, client_of(app, "eve") as eve:
            batch = (await ann.post(VMS, json=create("a"))).json()
            await ended(ann, batch["status_url"])
            waiting = [
                (await eve.post(VMS, json=on_machines("delete", "a"))).json()["batch_id"]
                for _ in range(12)
            ]
            decision = {"ticket_id": waiting.pop(), "decision": "reject", "reason": "no"}
            approval = (await ann.post(APPROVALS, json={"items": [decision]})).json()
            await ended(ann, approval["status_url"])
        yield World(farm, batch["batch_id"], approval["batch_id"], waiting, count())


async def snapshot(conn: AsyncConnection) -> list[Any]:
    """Everything that a forbidden request could change."""
    queries = (
        "select batch_id, updated_at, decision from commandbus.command_bus_batch order by 1",
        "select count(*), max(audit_id) from commandbus.command_bus_audit",
        "select * from commandbus.rate_limit_exemption",
        "select * from commandbus.rate_limit_override",
        "select window_start from commandbus.rate_limit_counter where scope = 'user' order by 1",
    )
    return [await (await conn.execute(query.encode())).fetchall() for query in queries]


def allowed(operation: dict[str, Any]) -> set[Scope]:
    others = operation.get("x-scope-alternatives", [])
    return {Scope(each) for each in (operation["x-scope"], *others, "admin")}


async def test_every_governed_route_lets_in_its_own_scopes_and_nobody_else(
    world: World, conn: AsyncConnection
) -> None:
    callers: dict[str, Any] = {scope.name: caller(scope) for scope in Scope}
    # Refusals are late for strangers who do not stop asking: not here.
    app = app_of(world.farm.bus, HttpSettings(max_auth_failures=1_000), **callers)
    before = await snapshot(conn)
    checked = 0
    for method, path, operation in world.operations():
        for scope in set(Scope) - allowed(operation):
            async with client_of(app, scope.name) as client:
                answer = await world.ask(client, method, path)
            assert answer.status_code == 403, f"{scope} {method} {path}"
            assert answer.json()["scope"] == operation["x-scope"]
            checked += 1
        async with client_of(app, None) as client:
            assert (await world.ask(client, method, path)).status_code == 401
        checked += 1

    assert checked > 90
    assert await snapshot(conn) == before


async def test_every_governed_route_works_for_each_of_its_scopes(world: World) -> None:
    reach = ("vms", "approvals")
    callers: dict[str, Any] = {scope.name: caller(scope, domains=reach) for scope in Scope}
    app = app_of(world.farm.bus, **callers)
    for method, path, operation in world.operations():
        for scope in allowed(operation):
            async with client_of(app, scope.name) as client:
                answer = await world.ask(client, method, path)
            # Which of them it is, the type decides; limits touch every domain.
            is_denied = path.startswith(LIMITS) or (
                (method, path) == ("post", BATCHES) and scope is Scope.APPROVE
            )
            needs_operate = path.endswith(("/retry", "/cancel")) and scope is Scope.APPROVE
            is_decided = path.endswith("/review") and scope is Scope.APPROVE
            if is_denied or is_decided or (needs_operate and not path.startswith(APPROVALS)):
                expected = {403}
            else:
                expected = {200, 202, 409}
            assert answer.status_code in expected, f"{scope} {method} {path} {answer.text}"


async def test_an_administrator_of_all_domains_changes_limits(world: World) -> None:
    app = app_of(world.farm.bus)
    async with client_of(app) as root:
        found = [
            (await world.ask(root, method, path)).status_code
            for method, path, _ in world.operations()
            if path.startswith(LIMITS)
        ]
    assert found == [201, 204, 200, 200]
