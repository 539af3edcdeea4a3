"""Shared: what the workers of one bus have together, so that a thousand domains fit in one process.

Connections (receiving and committing, transactional handlers, one that listens, one that extends
leases), heartbeats, chores, and the looks into queues that are idle. The first worker opens it, the
last one closes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from commandbus.commands.marks import Marks
from commandbus.database.store import Listener, Store
from commandbus.errors import CommandBusError, SchemaVersionError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.loops import Loop
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings
from commandbus.worker.lease import LeaseThread
from commandbus.worker.maintenance import maintenance_of
from commandbus.worker.metered import pool_samples

if TYPE_CHECKING:
    from commandbus.monitoring.catalogue import Family
    from commandbus.monitoring.health import Health
    from commandbus.monitoring.monitor import Monitor
    from commandbus.monitoring.samples import Labels, Value
    from commandbus.worker.counts import Counts

#: Seconds between two heartbeats.
HEARTBEAT_SECONDS = 5.0
#: Workers that set up their domain at once; the others wait here, not for a connection.
STARTS_AT_ONCE = 2
#: Seconds between two looks whether a domain was paused of which something is not started.
PAUSE_SECONDS = 1.0
#: Seconds between two looks whether the database is still one that this version works with.
SCHEMA_SECONDS = 10.0
#: The first second of a worker belongs to commands. Chores that begin one after the other share a
#: connection; if all began at once, each would open one, and the server would warm up all of them.
CHORES_AFTER_SECONDS = 1.0
CHORE_GAP_SECONDS = 0.05
#: Seconds in which looks into idle queues gather, to be one statement.
GATHER_SECONDS = 0.05

_log = logging.getLogger("commandbus.worker")


class Member(Protocol):
    """One of the workers, seen from here."""

    @property
    def domain(self) -> str:
        """The domain that it serves."""

    def figures(self) -> Mapping[str, Any]:
        """Its heartbeat, as Store.heartbeat takes it."""

    def unheard(self, figures: Mapping[str, Any]) -> None:
        """The heartbeat with these figures did not arrive."""

    def give_back_aged(self) -> None:
        """Let go of leases that wait too long for a slot."""

    @property
    def has_begun(self) -> bool:
        """Whether it has asked for commands."""

    @property
    def is_stuck(self) -> bool:
        """Whether handlers that do not end have taken all its places of some kind."""

    @property
    def has_unstarted(self) -> bool:
        """Whether it has leases of commands that it has not started."""

    def give_back_unstarted(self, types: Collection[str] | None = None) -> int:
        """Let go of them, of these types or of all; returns how many there were."""


class Shared:
    """What the workers of one bus share, while there are any."""

    def __init__(self, store: Store, settings: Settings, registry: HandlerRegistry) -> None:
        self._store = store
        self._registry = registry
        self._settings = settings
        self._users = 0
        self._lock = asyncio.Lock()
        self._beginning = asyncio.Semaphore(STARTS_AT_ONCE)
        self._stack = AsyncExitStack()
        self._members: set[Member] = set()
        self._asked: defaultdict[str, list[asyncio.Future[float | None]]] = defaultdict(list)
        self._looking: asyncio.Task[None] | None = None
        self._handlers: Store | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None]
        self._chores: list[Loop] = []
        #: Of types that handlers have sent; those of other senders are told as they send.
        self.marks = Marks()
        #: What measures the workers; None: nothing does.
        self.monitor: Monitor | None = None
        self._counts: Counts | None = None
        self._pauses: _Pauses
        self.control: Store
        self.listener: Listener
        self.leases: LeaseThread

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Open while any worker is in such a block."""
        async with self._lock:
            if not self._users:
                await self._open()
            self._users += 1
        try:
            yield
        finally:
            async with self._lock:
                self._users -= 1
                if not self._users:
                    await self._close()

    async def _open(self) -> None:
        try:
            # One each for receive, commit, heartbeat, confirm, extend and chores is enough for one
            # worker; many workers take turns.
            size = self._settings.worker_pool_size
            self.control = await self._stack.enter_async_context(
                self._store.dedicated("control", size)
            )
            self.leases = LeaseThread(await self.control.open_extender())
        except BaseException:
            await self._stack.aclose()
            raise
        self.listener = self.control.listener()
        self._chores = maintenance_of(self.control, self._registry, self.domains, self._settings)
        self._failure = asyncio.get_running_loop().create_future()
        self._pauses = _Pauses(self)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if any(task.get_name() == name for task in self._tasks):
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    @property
    def is_broken(self) -> bool:
        """Whether a shared part has ended with an error."""
        return self._failure.done()

    async def broken(self) -> None:
        """Never returns; raises if a shared part breaks: better no worker than half of one."""
        await asyncio.shield(self._failure)

    async def _close(self) -> None:
        tasks, self._tasks, self._handlers = self._tasks, [], None
        if self._looking is not None:
            tasks.append(self._looking)
            self._looking = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            if not self._failure.done():
                await self._tell_marks()
        finally:
            await stack.aclose()

    async def set_up(self, domain: str, secret_keys: Mapping[str, Collection[str]]) -> None:
        """Create what a domain needs, if it is missing; say so if it is paused."""
        async with self._beginning:
            await self.control.ensure_domain(domain)
            if secret_keys:
                await self.control.declare_secrets(domain, secret_keys)
            for pause in await self.control.pauses([domain]):
                what = domain if pause.type is None else f"{pause.type} of {domain}"
                _log.warning("%s is %s", what, pause)

    async def handlers(self, concurrency: int, own: AsyncExitStack) -> Store:
        """Connections for transactional handlers: the shared ones, unless one worker needs more."""
        size = self._settings.handler_pool_size
        if concurrency > size:
            return await own.enter_async_context(self._store.dedicated("handlers", concurrency))
        async with self._lock:
            if self._handlers is None:
                self._handlers = await self._stack.enter_async_context(
                    self._store.dedicated("handlers", size)
                )
        return self._handlers

    def domains(self) -> list[str]:
        """The domains that are served."""
        return sorted({member.domain for member in self._members})

    def add(self, member: Member, hints: Mapping[str, Callable[[], None]]) -> None:
        """This worker begins: what to call when a channel is notified."""
        self._members.add(member)
        for part in (_Heartbeats(self), self._pauses):
            self._run(part.name, part.run())
        for place, chore in enumerate(self._chores):
            self._run(chore.name, chore.run(CHORES_AFTER_SECONDS + place * CHORE_GAP_SECONDS))
        if self.monitor is not None:
            self._measure(self.monitor)
        for channel, wake in hints.items():
            self.listener.subscribe(channel, wake)
            self._run("listener", self.listener.run())

    def remove(self, member: Member, hints: Mapping[str, Callable[[], None]]) -> None:
        """This worker has ended."""
        self._members.discard(member)
        for channel, wake in hints.items():
            self.listener.unsubscribe(channel, wake)

    async def beat(self) -> None:
        """Say of all workers at once that they live."""
        for member in tuple(self._members):
            member.give_back_aged()
        if self._members:
            told = [(member, member.figures()) for member in self._members]
            try:
                await self.control.heartbeats([figures for _, figures in told])
            except BaseException:
                for member, figures in told:
                    member.unheard(figures)
                raise
            if self.monitor is not None:
                self.monitor.health.beat()
                await self.tell_counts()
            await self._tell_marks()

    async def _tell_marks(self) -> None:
        # A handler only says what is to be sent, and its worker commits that with many others.
        if self.marks.untold:
            await self.marks.tell_if_possible(self.control)

    async def tell_counts(self) -> None:
        """Add what was counted here to the database, if somebody wants that."""
        if self.monitor is not None and self.monitor.tells_counts:
            if self._counts is None:
                from commandbus.worker.counts import Counts  # noqa: PLC0415  (seldom)

                self._counts = Counts(self.monitor.metrics)
            await self._counts.tell(self.control)

    # -- what a monitor is told

    def _measure(self, monitor: Monitor) -> None:
        monitor.health.watched = self
        # Once, however many workers there are.
        monitor.metrics.uncollect(self._pools)
        monitor.metrics.collect(self._pools)
        self._run("loop watch", monitor.watch_loop())
        self._run("schema watch", _SchemaWatch(self.control, monitor.health).run())

    def _pools(self) -> Iterable[tuple[Family, Labels, Value]]:
        stores = {"caller": self._store, "control": self.control, "handlers": self._handlers}
        return pool_samples(stores) if self._users else ()

    def dead_parts(self) -> list[str]:
        """Threads that should live and do not."""
        return ["the thread that extends leases"] if self._users and self.leases.has_died else []

    def stuck_domains(self) -> list[str]:
        """Domains in which handlers that hang have taken all places."""
        return sorted({member.domain for member in self._members if member.is_stuck})

    def has_begun(self) -> bool:
        """Whether each worker has asked for commands."""
        return bool(self._members) and all(member.has_begun for member in self._members)

    def look_for_pauses(self) -> None:
        """Somebody may have paused a domain of which something is leased and not started."""
        self._pauses.wake()

    async def give_back_paused(self) -> None:
        """Have workers whose domain is paused let go of what they have not started."""
        waiting = [member for member in self._members if member.has_unstarted]
        if not waiting:
            return
        pauses = await self.control.pauses([member.domain for member in waiting])
        for member in waiting:
            mine = [pause.type for pause in pauses if pause.domain == member.domain]
            types = None if None in mine else {each for each in mine if each is not None}
            if mine and member.give_back_unstarted(types):
                _log.info("%s is paused: what was not started is given back", member.domain)

    async def due_in(self, domain: str) -> float | None:
        """In how many seconds an idle domain has a command that is due, 0 if it has one.

        None: it will have none by itself. Asked for many domains at once.
        """
        if len(self._members) == 1:
            return (await self.control.due_in([domain])).get(domain)
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self._asked[domain].append(answer)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        return await answer

    async def _look(self) -> None:
        while self._asked:
            await asyncio.sleep(GATHER_SECONDS)
            asked, self._asked = self._asked, defaultdict(list)
            due: dict[str, float] = {}
            try:
                due = await self.control.due_in(sorted(asked))
            except CommandBusError as error:
                _log.warning("cannot look into idle queues: %s", redact_text(str(error)))
            finally:
                for domain, answers in asked.items():
                    for answer in answers:
                        if not answer.done():
                            answer.set_result(due.get(domain))


class _Heartbeats(Loop):
    """Says every few seconds that the workers live, and has them give back what waits too long."""

    name = "heartbeat"

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    async def step(self) -> float | None:
        await self._shared.beat()
        return HEARTBEAT_SECONDS


class _Pauses(Loop):
    """Looks for pauses while workers have leases of commands that they have not started.

    A receive leases nothing of a paused domain, so that nothing else needs to know of a pause.
    """

    name = "pauses"

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    async def step(self) -> float | None:
        await self._shared.give_back_paused()
        return PAUSE_SECONDS


class _SchemaWatch(Loop):
    """Looks whether somebody has migrated the database to what this version cannot work with."""

    name = "schema"

    def __init__(self, store: Store, health: Health) -> None:
        super().__init__()
        self._store = store
        self._health = health

    async def step(self) -> float | None:
        try:
            await self._store.check()
        except SchemaVersionError as error:
            self._health.schema_error = redact_text(str(error))
        else:
            self._health.schema_error = None
        return SCHEMA_SECONDS
