"""Helpers for the tests of applications: a bus without PostgreSQL, run until nothing is due."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from commandbus.bus import CommandBus
from commandbus.errors import InvalidSettingError
from commandbus.models import Command
from commandbus.settings import Settings
from commandbus.testing.clock import FakeClock
from commandbus.testing.memory import InMemoryStore

#: Real seconds that run_until_idle waits for handlers; a handler that hangs should fail its test.
PATIENCE_SECONDS = 10.0


def fake_bus(
    *, clock: FakeClock | None = None, settings: Settings | None = None, **kwargs: Any
) -> CommandBus:
    """A CommandBus on an InMemoryStore. Further arguments are those of CommandBus."""
    settings = settings or Settings()
    store = InMemoryStore(clock, command_id_scope=settings.command_id_scope)
    return CommandBus(store=store, settings=settings, **kwargs)


def store_of(bus: CommandBus) -> InMemoryStore:
    """The store under a fake bus: `store_of(bus).clock.advance(60)`."""
    if not isinstance(bus._store, InMemoryStore):
        raise InvalidSettingError("this bus has no InMemoryStore; make one with fake_bus()")
    return bus._store


def sent(
    bus_or_store: CommandBus | InMemoryStore, domain: str, command_type: str | None = None
) -> list[Command]:
    """What was sent, with its payload, in the order of sending, whatever has become of it."""
    store = bus_or_store if isinstance(bus_or_store, InMemoryStore) else store_of(bus_or_store)
    return store.sent(domain, command_type)


async def run_until_idle(
    bus: CommandBus,
    *domains: str,
    skip_waits: bool = False,
    concurrency: int = 10,
    timeout: float = PATIENCE_SECONDS,
) -> None:
    """Run workers until no command is due (of these domains, or of all that have handlers).

    A retry that is due later waits for `store_of(bus).clock.advance(…)`. With `skip_waits=True`
    the clock is advanced from one to the next until every command has ended or is parked. The
    callbacks of batches that have ended are called before it returns.
    """
    store = store_of(bus)
    names = domains or tuple(bus.domains)
    try:
        async with asyncio.timeout(timeout):
            await _drain(bus, store, names, concurrency)
            while skip_waits and _skip_wait(store, names):
                await _drain(bus, store, names, concurrency)
            await bus._completions.step()
    except TimeoutError:
        raise TimeoutError(
            f"{', '.join(names)} still busy after {timeout:g} s; does a handler hang?"
        ) from None


def _skip_wait(store: InMemoryStore, domains: tuple[str, ...]) -> bool:
    """Advance the clock to the next command that will be due; False if there is none."""
    later = [moment for domain in domains if (moment := store.next_due(domain)) is not None]
    if later:
        store.clock.advance_to(min(later))
    return bool(later)


async def _drain(
    bus: CommandBus, store: InMemoryStore, domains: tuple[str, ...], concurrency: int
) -> None:
    if not any(store.is_busy(domain) for domain in domains):
        return
    workers = [
        asyncio.create_task(bus.run_worker(domain, concurrency=concurrency)) for domain in domains
    ]
    watch = asyncio.create_task(_until_quiet(store, domains))
    try:
        # A worker that cannot run at all ends first, with its error.
        await asyncio.wait({watch, *workers}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, *workers):
            if task.done():
                task.result()
    finally:
        # Not bus.stop(): other workers of this bus are none of our business.
        for task in (watch, *workers):
            task.cancel()
        for task in (watch, *workers):
            with suppress(asyncio.CancelledError):
                await task


async def _until_quiet(store: InMemoryStore, domains: tuple[str, ...]) -> None:
    changed = asyncio.Event()
    with store.watched_by(changed.set):
        while any(store.is_busy(domain) for domain in domains):
            await changed.wait()
            changed.clear()
