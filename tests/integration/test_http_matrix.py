"""Who may do what: every route and every scope, from the OpenAPI document. Owners and other domains
are in tests/security/test_matrix.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI
from psycopg import AsyncConnection

from commandbus import CommandBus
from commandbus.access.model import Scope
from tests.http_world import app_of, caller, client_of
from tests.integration.http_farm import is_governed
from tests.integration.http_shop import Shop, fill, group_of, schedule_name

REASON = {"reason": "because"}
NUMBERS = count()


def body_of(path: str, domain: str, shop: Shop) -> dict[str, Any] | None:
    """A body that each route with one accepts; a new route must be added here."""
    bodies: dict[str, Any] = {
        "/commands": {"domain": domain, "command_type": "Work", "data": {}},
        "/commands/{domain}/{command_id}/cancel": REASON,
        "/commands/{domain}/{command_id}/reschedule": {"now": True},
        "/commands/{domain}/{command_id}/priority": {"priority": 2},
        "/domains/{domain}/pause": REASON,
        "/domains/{domain}/resume": {},
        "/domains/{domain}/level-worth": {"level_seconds": 60},
        "/command-batches/{domain}": {"commands": [{"command_type": "Work", "data": {}}]},
        "/command-batches/{domain}/{batch_id}/cancel": REASON,
        "/command-batches/{domain}/{batch_id}/retry": None,
        "/command-batches/{domain}/{batch_id}/resume": {"rows": [{}]},
        "/command-batches/{domain}/{batch_id}/seal": None,
        "/troubleshooting/{domain}/{command_id}/retry": REASON,
        "/troubleshooting/{domain}/{command_id}/cancel": REASON,
        "/troubleshooting/{domain}/{command_id}/complete": REASON,
        "/troubleshooting/{domain}/{command_id}/notes": {"text": "hm"},
        "/failure-groups/{domain}/{fingerprint}/note": {"text": "hm"},
        "/failure-groups/{domain}/{fingerprint}/assignee": {"assignee": "ann"},
        "/schedules/{domain}/{name}": {"command_type": "Work", "data": {}, "every_seconds": 60},
        "/keys/{domain}": {"on_park": "skip", **REASON},
        "/keys/{domain}/{ordering_key}/skip": REASON,
        "/limits/{domain}": {"max_running": 1_000},
        "/limits/{domain}/{command_type}": {"max_running": 1_000},
        "/schedules/{domain}/{name}/pause": REASON,
        "/schedules/{domain}/{name}/resume": None,
        "/schedules/{domain}/{name}/trigger": None,
        "/bulk-operations/preview": {"domain": domain},
        "/bulk-operations/preview-edit": {
            "filter": {"domain": domain},
            "edit": {"merge_patch": {"a": 1}},
        },
        "/bulk-operations": {
            "verb": "retry",
            "filter": {"domain": domain, "command_ids": [str(shop.parked[-1])]},
        },
        "/bulk-operations/{operation_id}/stop": None,
        "/bulk-operations/{operation_id}/resume": {},
        "/doctor/runs": {"domain": domain},
        "/doctor/fixes": {"run_id": 1, "domain": domain, **REASON},
        "/replies/{domain}/lease": {"limit": 1, "vt_seconds": 1},
        "/replies/{domain}/ack": {"replies": [{"msg_id": 1, "receipt": 99}]},
    }
    found: dict[str, Any] | None = bodies[path.removeprefix("/api/v1")]
    return found


BY_QUERY = {
    "/api/v1/commands", "/api/v1/audit", "/api/v1/failure-groups", "/api/v1/bulk-operations",
    "/api/v1/exports/commands", "/api/v1/schedules", "/api/v1/exports/audit",
    "/api/v1/troubleshooting",
}  # fmt: skip


async def ask(
    client: httpx2.AsyncClient, method: str, path: str, shop: Shop, operation: dict[str, Any]
) -> httpx2.Response:
    ids = shop.parked[0] if "troubleshooting" in path else shop.pending
    url = path.format(
        domain=shop.domain,
        command_id=ids,
        batch_id=shop.batch,
        operation_id=shop.bulk,
        name=schedule_name(method, path, next(NUMBERS)),
        ordering_key="account:42",
        command_type="Seldom",
        fingerprint=group_of(shop.domain),
        some_id=shop.pending,
    )
    if method == "get":
        params = {"domain": shop.domain} if path in BY_QUERY else {}
        if path.endswith("/preview") and "schedules" in path:
            params = {"cron": "0 6 * * *"}
        return await client.get(url, params=params)
    body = body_of(path, shop.domain, shop)
    return await client.request(method, url, json=body) if body is not None else (
        await client.request(method, url)
    )  # fmt: skip


def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    """All but those of governed batches, which test_http_governed_matrix asks, and those of tokens,
    which every scope may ask.
    """
    return [
        (method, path, operation)
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
        if not is_governed(operation) and "tokens" not in operation.get("tags", ())
    ]


async def snapshot(conn: AsyncConnection) -> list[Any]:
    """Everything that a forbidden request could change."""
    queries = (
        "select command_id, status, attempts, msg_id, lease_epoch, priority, deliver_at from"
        " commandbus.command_bus_command order by 1",
        "select count(*), max(audit_id) from commandbus.command_bus_audit",
        "select operation_id, status, done from commandbus.command_bus_bulk_operation order by 1",
        "select count(*) from commandbus.command_bus_batch",
        "select msg_id, read_ct from pgmq.q_shop__replies order by 1",
        "select * from commandbus.command_bus_schedule order by 1",
        "select domain, command_type, max_running from commandbus.command_bus_flow_rule",
        "select domain, on_park, level_seconds, paused_at from"
        " commandbus.command_bus_flow order by 1",
    )
    return [await (await conn.execute(query.encode())).fetchall() for query in queries]


async def test_every_route_lets_in_its_own_scope_and_admin_and_nobody_else(
    bus: CommandBus, conn: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever is refused so often gets the answers late, which is no part of this.
    monkeypatch.setattr("commandbus.http.budgets._lateness", lambda: 0.0)
    shop = await fill(bus)
    callers: dict[str, Any] = {scope.name.lower(): caller(scope) for scope in Scope}
    app = app_of(bus, **callers)
    before = await snapshot(conn)
    checked = 0

    for method, path, operation in operations(app):
        needed = operation.get("x-scope")
        for scope in Scope:
            if scope in {needed, Scope.ADMIN} or needed is None:
                continue
            async with client_of(app, scope.name.lower()) as client:
                answer = await ask(client, method, path, shop, operation)
            assert answer.status_code == 403, f"{scope} {method} {path}"
            assert answer.json()["code"] == "PERMISSION_DENIED"
            assert answer.json()["scope"] == needed
            checked += 1
        async with client_of(app, None) as client:
            answer = await ask(client, method, path, shop, operation)
        assert answer.status_code == (401 if needed else 200), f"nobody {method} {path}"
        checked += 1

    assert checked > 150
    assert await snapshot(conn) == before


async def test_every_route_works_for_its_scope_and_its_domain(bus: CommandBus) -> None:
    shop = await fill(bus)
    callers: dict[str, Any] = {
        scope.name.lower(): caller(scope, domains=("shop", "other")) for scope in Scope
    }
    app = app_of(bus, **callers)

    for method, path, operation in operations(app):
        needed = operation.get("x-scope")
        for who in {Scope(needed), Scope.ADMIN} if needed else set():
            async with client_of(app, who.name.lower()) as client:
                answer = await ask(client, method, path, shop, operation)
            # 409: the one before has done it.
            expected = {403} if path == "/metrics" else {200, 202, 204, 409}
            assert answer.status_code in expected, f"{method} {path} {answer.text}"


async def test_whoever_is_bound_to_one_domain_sees_only_that_without_asking(
    bus: CommandBus,
) -> None:
    await fill(bus)
    await bus.send("other", "Work", uuid4(), {})
    app = app_of(
        bus, one=caller("read", domains=("other",)), two=caller("read", domains=("other", "shop"))
    )

    async with client_of(app, "one") as one, client_of(app, "two") as two:
        for path in sorted(BY_QUERY):
            found = await one.get(path)
            lines = [json.loads(line) for line in found.text.splitlines() if "exports" in path]
            listed = lines if "exports" in path else found.json()["items"]
            assert {item["domain"] for item in listed} <= {"other"}
            unclear = await two.get(path)
            assert unclear.status_code == 400
            assert "one of other, shop" in unclear.json()["detail"]
        assert [d["domain"] for d in (await one.get("/api/v1/domains")).json()["items"]] == [
            "other"
        ]
