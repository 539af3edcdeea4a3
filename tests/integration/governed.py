"""What the tests of governance share: callers, a bus without a cooldown, and batch types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy, Settings
from commandbus.access.model import Caller, Scope
from commandbus.errors import PermanentCommandError
from commandbus.governance.model import Item
from commandbus.governance.types import BatchType

DOMAIN = "shop"


@dataclass(frozen=True, slots=True)
class Order:
    """What an item of ORDERS and GUARDED must look like."""

    n: int
    note: str = ""


ORDERS = BatchType(
    name="ORDERS", domain=DOMAIN, command_type="PlaceOrder", max_size=50, payload_type=Order
)
GUARDED = BatchType(
    name="GUARDED",
    domain=DOMAIN,
    command_type="PlaceOrder",
    max_size=50,
    payload_type=Order,
    requires_approval=True,
)


def caller(name: str, *scopes: Scope, domains: set[str] | None = None) -> Caller:
    """Somebody; without scopes: who may read and submit."""
    return Caller(
        name,
        frozenset(scopes or (Scope.READ, Scope.SUBMIT)),
        None if domains is None else frozenset(domains),
    )


ADA = caller("ada")
BOB = caller("bob")
OPERATOR = caller("olga", Scope.READ, Scope.OPERATE)
APPROVER = caller("petra", Scope.READ, Scope.APPROVE)
ADMIN = caller("root", Scope.ADMIN)


def orders(count: int, start: int = 1) -> list[Item]:
    """So many good items."""
    return [{"n": n} for n in range(start, start + count)]


@asynccontextmanager
async def governed_bus(dsn: str, **settings: Any) -> AsyncIterator[CommandBus]:
    """A bus with both batch types, and no cooldown unless it is asked for."""
    values = {"user_cooldown_seconds": 0, "poll_max_seconds": 0.05} | settings
    async with CommandBus.connect(dsn, settings=Settings(**values)) as bus:
        bus.governance.declare(ORDERS)
        bus.governance.declare(GUARDED)
        yield bus


def place_orders(bus: CommandBus, failing: set[int], *, ends: str = "troubleshoot") -> None:
    """Handle orders; those whose `n` is in `failing` (which may change) are refused for good."""

    async def place(command: Command, ctx: HandlerContext) -> dict[str, Any]:
        if command.data["n"] in failing:
            raise PermanentCommandError("SOLD_OUT", "nothing left, password=hunter22")
        return {}

    policy = RetryPolicy(max_attempts=1, when_exhausted=ends)  # type: ignore[arg-type]
    bus.register_handler(DOMAIN, "PlaceOrder", place, retry_policy=policy)
