"""Helpers for the tests of applications: a bus without PostgreSQL, run until nothing is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

from commandbus.blocking import BlockingBus
from commandbus.blocking.direct import DirectCalls
from commandbus.bus import CommandBus
from commandbus.errors import InvalidSettingError
from commandbus.handlers.router import Handlers
from commandbus.models import Command
from commandbus.payload import decode_payload
from commandbus.settings import Settings
from commandbus.testing.clock import FakeClock
from commandbus.testing.memory import InMemoryStore
from commandbus.testing.memory.pausing import due_at
from commandbus.testing.memory.tables import made

#: Real seconds that run_until_idle waits for handlers; a handler that hangs should fail its test.
PATIENCE_SECONDS = 10.0


def fake_bus(
    handlers: Handlers | None = None,
    *,
    clock: FakeClock | None = None,
    settings: Settings | None = None,
    **kwargs: Any,
) -> CommandBus:
    """A CommandBus on an InMemoryStore, with these handlers. Further arguments are those of
    CommandBus.
    """
    settings = settings or Settings()
    store = InMemoryStore(clock, command_id_scope=settings.command_id_scope)
    return CommandBus(store=store, settings=settings, handlers=handlers, **kwargs)


def fake_blocking_bus(
    handlers: Handlers | None = None,
    *,
    clock: FakeClock | None = None,
    settings: Settings | None = None,
    **kwargs: Any,
) -> BlockingBus:
    """The same for code that is not asynchronous. Close it, or use it in a `with` block."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[CommandBus]:
        bus = fake_bus(handlers, clock=clock, settings=settings, **kwargs)
        try:
            yield bus
        finally:
            await bus.close()

    return BlockingBus(connect, _NoDirectCalls(lambda _, __: fake_bus(), settings))


class _NoDirectCalls(DirectCalls):
    """In memory there is nothing that a connection of the caller could be used for."""

    def takes(self, conn: Any, opened: CommandBus | None) -> bool:
        """Never."""
        del conn, opened
        return False


def store_of(bus: CommandBus | BlockingBus) -> InMemoryStore:
    """The store under a fake bus: `store_of(bus).clock.advance(60)`."""
    store = (bus._bridge.open() if isinstance(bus, BlockingBus) else bus)._store
    if not isinstance(store, InMemoryStore):
        raise InvalidSettingError("this bus has no InMemoryStore; make one with fake_bus()")
    return store


def sent(
    bus_or_store: CommandBus | BlockingBus | InMemoryStore,
    domain: str,
    command_type: str | None = None,
) -> list[Command]:
    """What was sent, with its payload, in the order of sending, whatever has become of it."""
    store = bus_or_store if isinstance(bus_or_store, InMemoryStore) else store_of(bus_or_store)
    return store.read(
        lambda state: [
            made(
                Command,
                row,
                data=decode_payload(row.data.decode()),
                reply_to=row.reply_queue or None,
            )
            for row in state.commands.values()
            if row.domain == domain and command_type in {None, row.command_type}
        ]
    )


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
            while skip_waits and (later := due_times(store, names)):
                store.clock.advance_to(min(later))
                await _drain(bus, store, names, concurrency)
            await bus._completions.step()
    except TimeoutError:
        raise TimeoutError(
            f"{', '.join(names)} still busy after {timeout:g} s; does a handler hang?"
        ) from None


async def _drain(
    bus: CommandBus, store: InMemoryStore, domains: tuple[str, ...], concurrency: int
) -> None:
    if not _is_busy(store, domains):
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
        # Not bus.stop(): it would stop other workers of this bus too.
        for task in (watch, *workers):
            task.cancel()
        for task in (watch, *workers):
            with suppress(asyncio.CancelledError):
                await task


async def _until_quiet(store: InMemoryStore, domains: tuple[str, ...]) -> None:
    changed = asyncio.Event()
    with store.watched_by(changed.set):
        while _is_busy(store, domains):
            await changed.wait()
            changed.clear()


def _is_busy(store: InMemoryStore, domains: tuple[str, ...]) -> bool:
    """Whether a command is due now, or leased by a worker that lives."""
    now = store.clock.now()
    if any(moment <= now for moment in due_times(store, domains)):
        return True
    return store.read(
        lambda state: any(
            row.leased_by in store.workers
            for row in state.commands.values()
            if row.domain in domains
        )
    )


def due_times(store: InMemoryStore, domains: tuple[str, ...]) -> list[datetime]:
    """When the next command of each is due: a new one, a retry, or one whose lease lapses."""
    found = store.read(lambda state: [due_at(state, domain) for domain in domains])
    return [moment for moment in found if moment is not None]
