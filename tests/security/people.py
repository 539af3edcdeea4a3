"""One service with something of everything, and the people who call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import FastAPI

from commandbus import CommandBus, Settings
from commandbus.access.model import Caller, Scope
from commandbus.database.model import Failure, Outcome, OutcomeKind
from commandbus.governance.approvals import BATCH_APPROVE
from commandbus.governance.types import BatchType
from commandbus.http import HttpSettings
from commandbus.models import ParkReason
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.http_world import app_of
from tests.integration.http_shop import Shop, fill

DOMAIN = "shop"
REACH = frozenset({DOMAIN, "approvals"})
ORDERS_PATH = "/api/v1/orders/batch"
#: A test asks more often than a person would.
ROOMY = HttpSettings(
    max_auth_failures=100_000, max_user_requests=1_000_000, max_address_requests=1_000_000,
    max_user_body_bytes=10**9, max_user_commands=1_000_000,
)  # fmt: skip
#: In the failures of governed commands, and in reasons: nobody else may ever read it.
CANARY = "CANARYWORD"

ORDERS = BatchType(
    name="ORDERS", domain=DOMAIN, command_type="PlaceOrder", max_size=50, path=ORDERS_PATH
)
GUARDED = BatchType(
    name="GUARDED", domain=DOMAIN, command_type="DropOrder", max_size=50, requires_approval=True
)


def scopes(*names: str) -> frozenset[Scope]:
    """Those of these that there are."""
    return frozenset(each for each in Scope if each.value in names)


USER = scopes("read", "send", "submit")
PEOPLE = {
    "owner": Caller("ada", USER, REACH),
    "stranger": Caller("bob", USER, REACH),
    "other": Caller("far", frozenset(Scope), frozenset({"other"})),
    "operator": Caller("olga", scopes("read", "operate"), REACH),
    "approver": Caller("petra", scopes("read", "read-payload", "approve"), REACH),
    "admin": Caller("root", scopes("admin")),
}


@dataclass(frozen=True)
class World:
    """The ids of what there is; what is of ada's governed batches is in `hidden`."""

    bus: CommandBus
    app: FastAPI
    shop: Shop
    batch: UUID
    child: UUID
    other_child: UUID
    waiting: UUID
    approval: UUID
    bulk: UUID
    token: str
    fingerprint: str
    hidden: frozenset[str]


async def _submit(bus: CommandBus, who: str, kind: str, items: list[dict[str, Any]]) -> UUID:
    made = await bus.governance.submit(PEOPLE[who], kind, items, reason=f"{CANARY} of {who}")
    return made.ticket.ticket_id


async def _park_all(bus: CommandBus, domain: str) -> None:
    leases = await bus._store.receive(domain, vt_seconds=600, quantity=100, worker="t", limits={})
    failure = Failure("PERMANENT", CANARY, f"{CANARY} in the message")
    await bus._store.settle(
        domain,
        [
            Outcome(lease, OutcomeKind.PARK, reason=ParkReason.PERMANENT, failure=failure)
            for lease in leases
        ],
    )


@asynccontextmanager
async def world_on(dsn: str, **settings: Any) -> AsyncIterator[World]:
    """Raw commands of a shop, and batches that ada submitted: one failed, one waits."""
    values: dict[str, Any] = {
        "user_cooldown_seconds": 0, "max_user_pending_batches": 500,
        "max_user_pending_children": 5_000, "max_global_api_requests": 1_000_000,
    }  # fmt: skip
    async with CommandBus.connect(dsn, settings=Settings(**values | settings)) as bus:
        bus.governance.declare(ORDERS)
        bus.governance.declare(GUARDED)
        shop = await fill(bus)
        await bus._store.receive(DOMAIN, vt_seconds=900, quantity=9, worker="t", limits={})
        batch = await _submit(bus, "owner", "ORDERS", [{"n": 1}, {"n": 2}])
        await _park_all(bus, DOMAIN)
        page = await bus.governance.page_children(PEOPLE["owner"], batch)
        child, other_child = (each.ticket_id for each in page.items)
        waiting = await _submit(bus, "owner", "GUARDED", [{"n": 3}])
        decided = await _submit(bus, "owner", "GUARDED", [{"n": 4}])
        approval = await _submit(
            bus, "approver", BATCH_APPROVE, [{"ticket_id": str(decided), "decision": "approve"}]
        )
        bulk = await bus.bulk.start(
            BulkVerb.RETRY, BulkFilter(DOMAIN, command_ids=(child,)), operator="olga"
        )
        await bus.bulk.stop(bulk.operation_id)
        token = (await bus.tokens.create("ada", ["read"], domains=[DOMAIN], label=CANARY)).token
        groups = await bus.troubleshooting.groups(DOMAIN)
        fingerprint = next(each.fingerprint for each in groups if each.error_code == CANARY)
        ids = {batch, child, other_child, waiting, decided, bulk.operation_id}
        callers: dict[str, Any] = {**PEOPLE}
        yield World(
            bus, app_of(bus, ROOMY, **callers), shop, batch, child, other_child, waiting, approval,
            bulk.operation_id, token.token_id, fingerprint,
            frozenset({CANARY, fingerprint, token.token_id, *map(str, ids)}),
        )  # fmt: skip
