"""Standing between a bus and its database: a test sees, delays or refuses calls of one function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from commandbus import CommandBus, DatabaseUnavailableError

Rows = list[tuple[Any, ...]]
Ask = Callable[[], Awaitable[Rows]]
#: Is given the parameters and the call itself; returns its rows.
Act = Callable[[tuple[Any, ...], Ask], Awaitable[Rows]]


def intercept(patch: pytest.MonkeyPatch, bus: CommandBus, function: str, act: Act) -> None:
    """Let `act` make each call of this SQL function that goes through the gateway of the bus."""
    gateway: Any = bus._store.gateway
    real = gateway._run

    async def run(text: str, params: tuple[Any, ...], domain: str, conn: Any) -> Rows:
        if f".{function}(" not in text:
            return list(await real(text, params, domain, conn))
        return await act(params, lambda: real(text, params, domain, conn))

    patch.setattr(gateway, "_run", run)


def refuse(
    patch: pytest.MonkeyPatch, bus: CommandBus, function: str, *, calls: set[int] | None = None
) -> list[tuple[Any, ...]]:
    """Let a function fail at these calls (from 1), or at every one; returns all parameters."""
    seen: list[tuple[Any, ...]] = []

    async def act(params: tuple[Any, ...], ask: Ask) -> Rows:
        seen.append(params)
        if calls is None or len(seen) in calls:
            raise DatabaseUnavailableError("the queue is down")
        return await ask()

    intercept(patch, bus, function, act)
    return seen
