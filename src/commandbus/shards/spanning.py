"""One bus over several shards, for the command line and the HTTP service.

It has the verbs and parts of a bus. A verb with a domain goes to its shard; what becomes of each of
the others is in `verbs`. It has no database of its own: what was forgotten there is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from commandbus.bus import CommandBus
from commandbus.errors import CommandBusError, DatabaseUnavailableError, DomainMovedError
from commandbus.governance.types import BatchType
from commandbus.handlers.router import Handlers
from commandbus.models import Reply
from commandbus.opening import Opening
from commandbus.settings import Settings
from commandbus.shards.bus import ShardedBus
from commandbus.shards.call import Call, arguments_of, ask_all, find, named
from commandbus.shards.following import wait_reply
from commandbus.shards.map import ShardMap
from commandbus.shards.merging import Looking, Tailing, every
from commandbus.shards.model import Everywhere
from commandbus.shards.nowhere import ShardedStore, refuse
from commandbus.shards.verbs import BLOCKS, LOCAL, OWN, PARTS, RULES, SPECIAL, STREAMS, TOLD

if TYPE_CHECKING:
    from commandbus.database.store import Store
    from commandbus.monitoring.monitor import Monitor
    from commandbus.transport import Transport

#: Between two attempts to reach the shard of a worker, in seconds.
AGAIN_SECONDS = 2.0
#: Between two looks whether a newer map is there, in seconds.
FOLLOW_SECONDS = 2.0

#: Opens the bus of an address.
Connect = Callable[[str], AbstractAsyncContextManager[CommandBus]]

_log = logging.getLogger("commandbus.shards")


class SpanningBus(CommandBus):
    """A `CommandBus` over all shards of a map; `sharded` is what it is built on."""

    def __init__(self, shards: ShardMap, settings: Settings, connect: Connect) -> None:
        self.sharded = ShardedBus(shards, self._opened, follows=True)
        store = cast("Store", ShardedStore(self.sharded))
        super().__init__(store=store, settings=settings)
        #: Knows the handlers and batch types, and has no database.
        self._blank = CommandBus(store=store, settings=settings)
        self._connect_one = connect
        #: What the bus of each shard is told once it is open.
        self._told: list[Callable[[CommandBus, str | None], object]] = []
        #: Of these, what only the shard of a domain is told.
        self._placed: list[Callable[[CommandBus, str | None], object]] = []
        self.sharded.on_newer_map = self._place_again
        #: Domains whose workers wait for their shard.
        self._awaited: set[str] = set()
        self._is_stopping = asyncio.Event()
        self._shared_monitor: Monitor | None = None
        # In place of the verbs and parts of the class, which would look for a database.
        verbs = {name for name, _ in inspect.getmembers(CommandBus, inspect.isfunction)}
        for name in verbs | {path for path in PARTS if "." not in path}:
            if not name.startswith("_") and name not in OWN | LOCAL:
                vars(self)[name] = self._made(name)

    @classmethod
    def over(
        cls,
        shards: ShardMap,
        *,
        settings: Settings | None = None,
        handlers: Handlers | None = None,
        connect: Connect | None = None,
    ) -> AbstractAsyncContextManager[SpanningBus]:
        """Open it. Shards are opened by `connect` when they are first needed."""
        found = settings or Settings.from_env()

        async def begin(stack: AsyncExitStack) -> SpanningBus:
            bus = cls(shards, found, connect or partial(CommandBus.connect, settings=found))
            stack.push_async_callback(bus.close)
            stack.push_async_callback(_ended, asyncio.create_task(bus._watch_maps()))
            if handlers is not None:
                bus.include(handlers)
            return bus

        return Opening(begin)

    def _opened(self, address: str) -> Opening[CommandBus]:
        name = next(name for name, each in self.sharded.map.shards.items() if each == address)

        async def begin(stack: AsyncExitStack) -> CommandBus:
            bus = await stack.enter_async_context(self._connect_one(address))
            for tell in self._told:
                tell(bus, name)
            return bus

        return Opening(begin)

    # -- verbs

    def _made(self, path: str) -> Any:
        """The verb, or the part, of this name."""
        if path in PARTS:
            return _Part(self, path)
        if path in LOCAL:
            return find(self._blank, path)
        if path in OWN:
            return getattr(self, "_" + path.replace(".", "_"))
        if path in TOLD:
            return partial(self._tell_all, path)
        if path in STREAMS:
            return partial(self._stream, path)
        if path in BLOCKS:
            return partial(self._block, path)
        verb = find(self._blank, path)
        if not inspect.iscoroutinefunction(verb):
            refuse(path)
        signature = inspect.signature(verb)

        async def routed(*args: Any, **kwargs: Any) -> Any:
            return await self._route(self._call(path, signature, args, kwargs))

        return routed

    def _call(
        self, path: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        given = arguments_of(signature, args, kwargs)
        return Call(self.sharded, self._blank, path, args, kwargs, given)

    async def _route(self, call: Call) -> Any:
        special = SPECIAL.get(call.path)
        if special is not None:
            return await special(call)
        domain = call.given.get("domain")
        if domain is not None:
            return await call.in_domain(domain)
        rule = RULES.get(call.path)
        return call.refuse() if rule is None else await rule(call)

    async def _stream(self, path: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        call = self._call(path, inspect.signature(find(self._blank, path)), args, kwargs)
        domain = call.given.get("domain")
        if domain is not None:
            stream: AsyncGenerator[Any] = self._stream_of(domain, path, args, kwargs)
        elif path in {"search.every_command", "search.every_event"}:
            pages = self.sharded.pages
            read = pages.commands if path.endswith("command") else pages.audit
            stream = cast("AsyncGenerator[Any]", every(partial(read, **kwargs)))
        else:
            refuse(path, "name a domain")
        async with aclosing(stream):
            async for item in stream:
                yield item

    async def _stream_of(
        self, domain: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any]:
        name = self.sharded.shard_of(domain)
        shard = await self.sharded.trying(name)
        with named(self.sharded, name):
            async with aclosing(find(shard, path)(*args, **kwargs)) as stream:
                async for item in stream:
                    yield item

    @asynccontextmanager
    async def _block(self, path: str, domain: str, **kwargs: Any) -> AsyncIterator[Any]:
        shard = await self.sharded.on(domain)
        async with find(shard, path)(domain, **kwargs) as entered:
            yield entered

    def _tell_all(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Tell it to the bus of each shard; of a batch type that of its domain alone."""

        def tell(bus: CommandBus, name: str | None) -> None:
            what = args[0] if args else None
            if name is not None and isinstance(what, BatchType):
                is_new = bus.governance.types.get(what.name) is None
                if not is_new or self.sharded.find(what.domain) != name:
                    return
            find(bus, path)(*args, **kwargs)

        self._tell(tell)
        if args and isinstance(args[0], BatchType):
            self._placed.append(tell)

    def _place_again(self) -> None:
        """Domains have moved: let the shards that they are on know their batch types."""
        for tell in self._placed:
            for name, bus in self.sharded.open.items():
                tell(bus, name)

    def _tell(self, tell: Callable[[CommandBus, str | None], object]) -> None:
        tell(self._blank, None)
        for name, bus in self.sharded.open.items():
            tell(bus, name)
        self._told.append(tell)

    # -- what looks again and again

    def _upkeep_figures_watch(self, domain: str | None = None) -> Looking:
        return Looking(lambda bus: bus.upkeep.figures.watch(domain), self._reading(domain))

    def _search_tail(self, *, limit: int = 50, **criteria: Any) -> Tailing:
        read = self._reading(criteria.get("domain"))
        return Tailing(lambda bus: bus.search.tail(limit=limit, **criteria), read, limit)

    def _reading(self, domain: str | None) -> Callable[..., Any]:
        """How all shards are asked, or the one of a domain."""

        async def ask(read: Callable[[CommandBus], Any]) -> Any:
            if domain is None:
                return await ask_all(self.sharded, read)
            name = self.sharded.shard_of(domain)
            with named(self.sharded, name):
                return Everywhere({name: await read(await self.sharded.trying(name))}, {})

        return ask

    def _upkeep_figures_pool(self) -> Mapping[str, int]:
        sums = dict.fromkeys(("max", "size", "available", "waiting"), 0)
        for bus in self.sharded.open.values():
            for name, number in bus.upkeep.figures.pool().items():
                sums[name] += number
        return sums

    @property
    def _upkeep_standing_settings(self) -> Settings:
        return self._settings

    @asynccontextmanager
    async def _schedules_firing(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._fire(name)) for name in self.sharded.map.shards]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fire(self, name: str) -> None:
        while True:
            with suppress(CommandBusError):  # it is down; who needs it says so
                async with (await self.sharded.shard(name)).schedules.firing():
                    await asyncio.Event().wait()
            await asyncio.sleep(AGAIN_SECONDS)

    async def wait_reply(self, domain: str, command_id: UUID, *, timeout: float = 30.0) -> Reply:
        """Wait for a reply; if its domain moves meanwhile it is awaited where that is then."""
        return await wait_reply(self, domain, command_id, timeout)

    # -- workers

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers."""
        return self._blank.domains

    @property
    def started_domains(self) -> list[str]:
        """Domains whose worker takes commands, or will once their shard is there: that it is down
        is no reason to take this process for one that has not started.
        """
        found = {each for bus in self.sharded.open.values() for each in bus.started_domains}
        return sorted(found | self._awaited)

    @property
    def stuck_domains(self) -> list[str]:
        """Domains whose worker in this process has lost its threads to handlers that hang."""
        return sorted(each for bus in self.sharded.open.values() for each in bus.stuck_domains)

    async def run_worker(self, domain: str, **options: Any) -> None:
        """Process the commands of a domain where it is; wait for its shard while that is down."""
        waits = not options.get("until_empty")
        await self._serve(domain, lambda bus: bus.run_worker(domain, **options), waits=waits)

    async def handover(self, domain: str, *args: Any, **options: Any) -> None:
        """Let another system do the commands of a domain, wherever that is."""
        await self._serve(domain, lambda bus: bus.handover(domain, *args, **options))

    async def _batches_relay(self, domain: str, queue: Transport, *, drain: bool = False) -> int:
        if drain:
            name = self.sharded.shard_of(domain)
            with named(self.sharded, name):
                shard = await self.sharded.shard(name)
                return await shard.batches.relay(domain, queue, drain=True)
        await self._serve(domain, lambda bus: bus.batches.relay(domain, queue))
        return 0

    async def _serve(
        self,
        domain: str,
        work: Callable[[CommandBus], Coroutine[Any, Any, object]],
        *,
        waits: bool = True,
    ) -> None:
        while not self._is_stopping.is_set():
            try:
                name = self.sharded.shard_of(domain)
                bus = await self.sharded.shard(name)
                has_ended = await self._work(work(bus), domain, name)
            except DatabaseUnavailableError as error:
                if not waits or not (error.is_temporary or await self._any_answers()):
                    raise
                await self._wait_for(domain, error)
            except DomainMovedError as error:
                # The shard that it leaves is told of the map before the other one.
                await self._wait_for(domain, error)
            else:
                if has_ended:
                    return

    async def _any_answers(self) -> bool:
        """Whether there is a shard to work on: then one that refuses us ends nothing."""
        return bool((await self.sharded.everywhere(lambda bus: bus.check())).found)

    async def _work(self, work: Coroutine[Any, Any, object], domain: str, name: str) -> bool:
        """Work on one shard; False if the domain has left it."""
        if domain in self._awaited:
            _log.info("the worker of %s has its shard now", domain)
        self._awaited.discard(domain)
        working = asyncio.create_task(work)
        moving = asyncio.create_task(self._moved(domain, name))
        try:
            await asyncio.wait([working, moving], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            _log.info("domain %s has moved from shard %s; its worker follows", domain, name)
            return False
        finally:
            await _ended(moving)
            await _ended(working)

    async def _wait_for(self, domain: str, error: CommandBusError) -> None:
        if domain not in self._awaited:
            _log.warning("the worker of %s waits: %s", domain, error)
        self._awaited.add(domain)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), AGAIN_SECONDS)

    async def _moved(self, domain: str, name: str) -> None:
        """Return when a domain is on another shard than this one."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            with suppress(CommandBusError):  # a map that we cannot follow is left alone
                if self.sharded.shard_of(domain) != name:
                    return

    async def _watch_maps(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            await self.sharded.look_at_maps()

    def monitor(self, *, counts: bool = False) -> Monitor:
        """Measure what is sent, and the workers, of all shards together."""
        from commandbus.monitoring.monitor import Monitor  # noqa: PLC0415  (few processes measure)

        if self._shared_monitor is None:
            monitor = self._shared_monitor = Monitor()
            self._tell(lambda bus, _: bus._measure(monitor))
        self._shared_monitor.tells_counts |= counts
        return self._shared_monitor

    async def stop(self) -> None:
        """Stop the workers on all shards gracefully."""
        self._is_stopping.set()
        await self.sharded.stop()

    async def close(self) -> None:
        """Stop the workers, and let go of all shards."""
        await self.stop()
        await self.sharded.close()
        await self._blank.close()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Part:
    """A part of the bus: `bus.search`."""

    def __init__(self, bus: SpanningBus, path: str) -> None:
        self._bus = bus
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        made = self._bus._made(f"{self._path}.{name}")
        vars(self)[name] = made
        return made
