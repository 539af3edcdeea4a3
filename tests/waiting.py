"""Wait for conditions; never sleep and hope."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from commandbus import CommandBus, CommandMetadata

PATIENCE = 30.0


async def until(
    condition: Callable[[], Any],
    what: str = "the condition",
    patience: float = PATIENCE,
) -> Any:
    """Return the first truthy value of `condition`; fail after a long time."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {patience:g} s")
        await asyncio.sleep(0.01)


def until_sync(condition: Callable[[], object], *, timeout: float = 30.0) -> None:
    """The same for tests without an event loop."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


async def until_status(
    bus: CommandBus, domain: str, command_id: UUID, *statuses: str
) -> CommandMetadata:
    """Wait until a command is in one of these states."""

    async def reached() -> CommandMetadata | None:
        found = await bus.get_command(domain, command_id)
        return found if found is not None and found.status in statuses else None

    found: CommandMetadata | None = await until(reached, f"{command_id} in {' or '.join(statuses)}")
    assert found is not None
    return found


@asynccontextmanager
async def working(bus: CommandBus, domain: str, **options: object) -> AsyncIterator[None]:
    """Run a worker for the length of a block, and stop it gracefully."""
    task = asyncio.create_task(bus.run_worker(domain, **options))  # type: ignore[arg-type]
    try:
        yield
    finally:
        await asyncio.sleep(0)
        await bus.stop()
        await asyncio.wait_for(task, PATIENCE)
