"""Facets: the parts of a bus, each the service of one idea.

A facet is imported and built when it is first used, so that `import commandbus` loads only what
every program needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from uuid import UUID

from commandbus.commands.drafted import plain_sending, sending_through
from commandbus.commands.drafting import Drafting
from commandbus.commands.preparing import Preparer
from commandbus.commands.sending import Sending
from commandbus.handlers.registry import HandlerRegistry
from commandbus.middleware.base import Middleware
from commandbus.middleware.chain import check_middleware
from commandbus.names import check_domain, domain_first
from commandbus.paging import check_page
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings, check_number, check_worker_settings

if TYPE_CHECKING:
    from commandbus.access.peppers import Peppers
    from commandbus.access.tokens import Tokens
    from commandbus.batches.batch import Batches
    from commandbus.batches.callbacks import Completions
    from commandbus.commands.ordering import OrderingKeys
    from commandbus.commands.replies import LeasedReply, Replies
    from commandbus.commands.search import Search
    from commandbus.database.gateway import Session
    from commandbus.database.store import Store
    from commandbus.gates.service import ExecutionLimits
    from commandbus.governance.service import Governance
    from commandbus.loads.load import Loads
    from commandbus.models import AuditEvent, Reply
    from commandbus.monitoring.monitor import Monitor
    from commandbus.schedules.service import Schedules
    from commandbus.transport import Transport
    from commandbus.troubleshooting.bulk import BulkOperations
    from commandbus.troubleshooting.queue import Troubleshooting
    from commandbus.upkeep.findings import Finding
    from commandbus.upkeep.service import Upkeep
    from commandbus.worker.consumer import Consumer
    from commandbus.worker.worker import Worker, Workers


class RunningPart(Protocol):
    """A part that keeps a task or a connection."""

    async def close(self) -> None:
        """Let go of it."""


Part = TypeVar("Part", bound=RunningPart)


class Facets:
    """The parts of a bus."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        policy: RetryPolicy,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        around = check_middleware(middleware, "the bus")
        self._store = store
        self._settings = settings
        self._policy = policy
        self._registry = HandlerRegistry(settings.lease_deadline_seconds, around)
        self._preparer = Preparer(settings, policy, self._registry.codecs, around)
        self._sending = sending_through(
            Sending(store, self._preparer, max_send_many=settings.max_send_many)
        )
        self._monitor: Monitor | None = None
        #: In the order in which they were built; closed in the reverse order.
        self._running: list[RunningPart] = []

    def _on_store(self, store: Store) -> Self:
        """The same bus, with its handlers, whose sends and cancels go through another store."""
        other = copy(self)
        other._store = store
        sending = Sending(store, self._preparer, max_send_many=self._settings.max_send_many)
        other._sending = sending_through(sending)
        return other

    def _send_inside(self, middleware: Sequence[Middleware]) -> None:
        """More middleware around sends, inside what is there."""
        before = self._preparer.drafting.middleware
        self._preparer.drafting = Drafting((*before, *middleware))
        self._sending = sending_through(plain_sending(self._sending))

    async def close(self) -> None:
        """Stop the workers and let go of what the bus opened itself."""
        await self.stop()
        while self._running:
            await self._running.pop().close()

    async def stop(self) -> None:
        """Stop all workers gracefully: nothing new is leased, running handlers may finish."""
        # The task of a worker may have been created and not begun: now it takes its first step.
        await asyncio.sleep(0)
        if "_workers" in vars(self):  # built with the first worker
            await self._workers.stop()

    def monitor(self, *, counts: bool = False) -> Monitor:
        """Begin to measure: what is sent, and the workers that are started from now on.

        Asked again it gives the same: `bus.monitor().metrics.text()` is what Prometheus reads.
        `counts`: workers add what they have counted to the database, for metrics of the service.
        """
        from commandbus.monitoring.monitor import Monitor

        if self._monitor is None:
            self._measure(monitor := Monitor())
        else:
            monitor = self._monitor
        monitor.tells_counts |= counts
        return monitor

    def _measure(self, monitor: Monitor) -> None:
        from commandbus.commands.metered import MeteredSending

        self._monitor = monitor
        self._sending = sending_through(
            MeteredSending(
                self._store, self._preparer, max_send_many=self._settings.max_send_many,
                metrics=monitor.metrics,
            )
        )  # fmt: skip
        self._workers.measure(monitor)

    @property
    def started_domains(self) -> list[str]:
        """Domains whose worker in this process takes commands."""
        return self._workers.started() if "_workers" in vars(self) else []

    @property
    def stuck_domains(self) -> list[str]:
        """Domains whose worker in this process has lost its threads to handlers that hang."""
        return self._workers.stuck() if "_workers" in vars(self) else []

    def worker(
        self, domain: str, *, concurrency: int = 10, vt_seconds: int = 30, use_notify: bool = True
    ) -> AbstractAsyncContextManager[Worker]:
        """Run a worker while a block runs, then stop it: `async with bus.worker("payments"):`."""
        from commandbus.worker.background import background
        from commandbus.worker.options import WorkerOptions

        check_worker_settings(concurrency, vt_seconds)
        options = WorkerOptions(check_domain(domain), concurrency, vt_seconds, use_notify)
        return background(self._workers, options)

    def consumer(
        self, domain: str, *, vt_seconds: int = 30, retry_policy: RetryPolicy | None = None
    ) -> AbstractAsyncContextManager[Consumer]:
        """Lease commands and settle them without handlers, while a block runs.

        Leases last `vt_seconds` unless they are extended. `retry_policy` says what a failure leads
        to; by default that of the bus. What is not settled at the end of the block goes back.
        """
        from commandbus.worker.consumer import Consumer, consuming

        check_worker_settings(1, vt_seconds)
        policy = retry_policy or self._policy
        parts = (self._store, self._registry, self._settings, policy)
        return consuming(Consumer(*parts, check_domain(domain), vt_seconds))

    async def handover(
        self,
        domain: str,
        queue: Transport,
        *,
        keys: bytes | Sequence[bytes],
        lease_seconds: int = 300,
        at_once: int = 100,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """Let workers in another system do the commands of a domain, through a broker.

        Runs until cancelled; any number may run. `keys`: 32 bytes or more, which both ends have;
        the first signs, each is believed. `lease_seconds`: how long the other system may take, or
        be silent. `at_once`: commands that this process has given away at most. `retry_policy` says
        what a failure leads to; by default that of the bus.
        """
        from commandbus.handover.service import hand_over
        from commandbus.worker.consumer import Consumer

        check_number(lease_seconds, "lease_seconds", 1, 43_200, is_whole=True)
        policy = retry_policy or self._policy
        parts = (self._store, self._registry, self._settings, policy)
        await hand_over(Consumer(*parts, check_domain(domain), lease_seconds), queue, keys, at_once)

    def replies(
        self,
        domain: str | None = None,
        *,
        queue: str | None = None,
        vt_seconds: int = 30,
        batch_size: int = 100,
        wait: bool = True,
    ) -> AsyncGenerator[Reply]:
        """Consume replies: `async for reply in bus.replies("payments")`.

        A reply is acknowledged once the next one is asked for; after a crash it comes again. With
        `wait=False` the stream ends when the queue is empty.
        """
        return self._replies.stream(domain, queue, vt_seconds, batch_size, wait=wait)

    async def wait_reply(self, domain: str, command_id: UUID, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a command that was sent with `reply_to=INBOX`.

        So a command can be sent in a transaction (`conn=`), and its reply awaited once that has
        committed. Only the first call gets the reply.
        """
        return await self._replies.wait(domain, command_id, timeout)

    async def lease_replies(
        self, domain: str, *, limit: int = 100, vt_seconds: int = 30
    ) -> list[LeasedReply]:
        """Replies, the caller's alone for `vt_seconds`; those not acknowledged come again."""
        return await self._replies.lease(domain, limit=limit, vt_seconds=vt_seconds)

    async def acknowledge_replies(self, domain: str, receipts: Mapping[int, int]) -> set[int]:
        """Done with these, by msg_id and receipt; returns those that were the caller's still.

        One whose lease lapsed and that another consumer has read since is left to that consumer.
        """
        return await self._replies.acknowledge(domain, receipts)

    async def get_audit_trail(
        self,
        *given: str | UUID | None,
        domain: str | None = None,
        command_id: UUID | None = None,
        limit: int = 1_000,
    ) -> list[AuditEvent]:
        """The life of a command, oldest event first: `get_audit_trail(domain, command_id)`.

        Without a domain, or with None, the events of that id in all domains.
        """
        place, wanted = domain_first(given, domain, command_id)
        check_page(limit)
        return await self._store.get_audit_trail(wanted, domain=place, limit=limit)

    @cached_property
    def batches(self) -> Batches:
        """Batches: create, look, wait, cancel, retry, dispatch."""
        from commandbus.batches.batch import Batches

        return Batches(self._store, self._preparer, self._settings, self._completions)

    @cached_property
    def loads(self) -> Loads:
        """Batches of any size, in checkpoints that resume."""
        from commandbus.loads.load import Loads

        return Loads(self._store, self._preparer, self._completions)

    @cached_property
    def troubleshooting(self) -> Troubleshooting:
        """What failed for good, by command and by cause."""
        from commandbus.troubleshooting.queue import Troubleshooting

        max_bytes = self._settings.max_payload_bytes
        item_type = self._item_type if self._store.has_gateway else None
        return Troubleshooting(
            self._store, self._registry, max_bytes=max_bytes, item_type=item_type
        )

    async def _item_type(self, batch_id: UUID) -> type[Any] | None:
        return await self.governance.item_type(batch_id)

    @cached_property
    def bulk(self) -> BulkOperations:
        """One decision for many parked commands."""
        from commandbus.troubleshooting.bulk import BulkOperations

        max_bytes = self._settings.max_payload_bytes
        return BulkOperations(self._store, registry=self._registry, max_result_bytes=max_bytes)

    @cached_property
    def search(self) -> Search:
        """Commands and the audit, found by what is known of them."""
        from commandbus.commands.search import Search

        return Search(self._store, self._registry.marked)

    @cached_property
    def keys(self) -> OrderingKeys:
        """Ordering keys: which are blocked, by what, and how to go on."""
        from commandbus.commands.ordering import OrderingKeys

        return OrderingKeys(self._store)

    @cached_property
    def governance(self) -> Governance:
        """Batches that users submit: batch types, tickets, approvals, limits."""
        from commandbus.governance.service import Governance

        governance = Governance(
            self._store, self._preparer, self._settings, self._registry, self._replies.listener
        )
        return self._keep(governance)

    @cached_property
    def limits(self) -> ExecutionLimits:
        """How many commands run at once, and how often they start, over all workers."""
        from commandbus.gates.service import ExecutionLimits

        return ExecutionLimits(self._store)

    @cached_property
    def schedules(self) -> Schedules:
        """Commands that are sent by the clock."""
        from commandbus.schedules.service import Schedules

        return Schedules(
            self._store, self._preparer, self._settings, self.troubleshooting.secret_keys
        )

    @cached_property
    def tokens(self) -> Tokens:
        """The API tokens of the HTTP service."""
        from commandbus.access.tokens import Tokens

        return Tokens(self._store, self._peppers)

    @cached_property
    def upkeep(self) -> Upkeep:
        """The doctor, retention, figures."""
        from commandbus.upkeep.service import Upkeep

        upkeep = Upkeep(self._store, self._token_findings)
        self._keep(upkeep.runs)
        return upkeep

    async def _token_findings(self, session: Session) -> list[Finding]:
        # Of what this process knows, and the database does not; late, because few ask for it.
        from commandbus.access.weaknesses import token_findings

        return await token_findings(session, self._peppers)

    @cached_property
    def _peppers(self) -> Peppers:
        from commandbus.access.peppers import Peppers

        return Peppers(self._settings)

    @cached_property
    def _replies(self) -> Replies:
        from commandbus.commands.replies import Replies

        return self._keep(Replies(self._store))

    @cached_property
    def _completions(self) -> Completions:
        from commandbus.batches.callbacks import Completions

        return self._keep(
            Completions(
                self._store, self._replies.listener, self._settings.on_complete_timeout_seconds
            )
        )

    @cached_property
    def _workers(self) -> Workers:
        from commandbus.worker.worker import Workers

        return Workers(
            self._store, self._registry, self._settings, self._policy, self._preparer,
            on_start=self._register_types,
        )  # fmt: skip

    async def _register_types(self) -> None:
        # What this program declared is governed for every service on the database.
        if "governance" in vars(self) and self.governance.is_available:
            await self.governance.register()

    def _keep(self, part: Part) -> Part:
        self._running.append(part)
        return part
