"""The demo's virtual machines behind the HTTP service, and the people who use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI

from commandbus import CommandBus, Settings
from commandbus.access.model import Caller
from commandbus.demo import vms
from commandbus.http import HttpSettings
from tests.http_world import app_of, caller, client_of
from tests.waiting import working

VMS = "/api/v1/vms/batch"
POWER = "/api/v1/vms/batch/power"
APPROVALS = "/api/v1/approvals/batch"
BATCHES = "/api/v1/batches"
LIMITS = "/api/v1/admin/rate-limits"

CALLERS = {
    "ada": caller("read", "submit", user="ada"),
    "bob": caller("read", "submit", user="bob"),
    "olga": caller("read", "operate", user="olga"),
    "petra": caller("read", "approve", user="petra"),
    "far": caller("read", "send", "submit", "operate", "approve", user="far", domains=("other",)),
}


@dataclass(frozen=True)
class Farm:
    bus: CommandBus
    app: FastAPI

    def client(self, who: str) -> httpx2.AsyncClient:
        return client_of(self.app, who)

    @asynccontextmanager
    async def workers(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for domain in self.bus.domains:
                await stack.enter_async_context(working(self.bus, domain))
            yield


@asynccontextmanager
async def farm_on(
    dsn: str,
    http: HttpSettings | None = None,
    more: dict[str, Caller] | None = None,
    **settings: Any,
) -> AsyncIterator[Farm]:
    """The service on a database. Without a cooldown, unless it is asked for."""
    values = {"user_cooldown_seconds": 0, "poll_max_seconds": 0.05} | settings
    async with CommandBus.connect(dsn, settings=Settings(**values)) as bus:
        await vms.setup(bus)
        callers: dict[str, Any] = {**CALLERS, **(more or {})}
        yield Farm(bus, app_of(bus, http, **callers))


def is_governed(operation: dict[str, Any]) -> bool:
    """Whether an operation of the OpenAPI document is one of governed batches or their limits."""
    return bool({"governed batches", "limits"} & set(operation.get("tags", ())))


def create(*names: str, **more: Any) -> dict[str, Any]:
    """The body of a request for machines."""
    return {"operation": "create", "items": [{"name": name} for name in names], **more}


def on_machines(operation: str, *names: str) -> dict[str, Any]:
    return {"operation": operation, "items": [{"name": name} for name in names]}


async def ended(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    """Wait for the end of a batch by a long poll."""
    answer = await client.get(url, headers={"Prefer": "wait=20"})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert body["status"] not in {"IN_PROGRESS", "PENDING_APPROVAL"}
    return body
