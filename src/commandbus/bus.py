"""CommandBus: what an application holds in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from commandbus.batches.batch import Batches
from commandbus.batches.callbacks import Completions
from commandbus.batches.dispatch import Coordination
from commandbus.batches.dispatch_verbs import DispatchVerbs
from commandbus.batches.verbs import BatchVerbs
from commandbus.commands.audit import Reading
from commandbus.commands.preparing import Preparer, check_batch_command
from commandbus.commands.replies import Replies, ReplyVerbs
from commandbus.commands.search import Searching
from commandbus.commands.sending import Sending
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.governance.types import BatchTypes
from commandbus.governance.verbs import GovernanceVerbs
from commandbus.handler import AsyncHandler, Handler, HandlerRegistry, SyncHandler
from commandbus.models import BatchCommand, NewCommand, Reply
from commandbus.names import (
    INBOX,
    check_domain,
    check_operator,
    check_reply_to,
    check_text,
    check_uuid,
    new_id,
    replies_queue,
)
from commandbus.ops.bulk_verbs import BulkVerbs
from commandbus.ops.service_verbs import ServiceVerbs
from commandbus.ops.upkeep_verbs import UpkeepVerbs
from commandbus.ops.verbs import OperatorVerbs
from commandbus.privacy.redaction import also_redact, redact_text
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings, check_number, check_worker_settings
from commandbus.troubleshooting.bulk import Bulk
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.queue import Troubleshooting
from commandbus.upkeep.doctor import Doctor
from commandbus.upkeep.retention import Retention
from commandbus.worker.maintenance import maintenance_of
from commandbus.worker.worker import Worker, WorkerOptions

AnyHandler = TypeVar("AnyHandler", AsyncHandler, SyncHandler)


class CommandBus(
    BatchVerbs,
    DispatchVerbs,
    OperatorVerbs,
    BulkVerbs,
    UpkeepVerbs,
    GovernanceVerbs,
    ServiceVerbs,
    ReplyVerbs,
):
    """Sends commands, runs workers, and gives operators their verbs.

    `CommandBus(pool)` works on a psycopg AsyncConnectionPool that the application owns;
    `CommandBus.connect()` builds everything itself.
    """

    def __init__(
        self,
        pool: Any = None,
        *,
        store: Store | None = None,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        if (pool is None) == (store is None):
            raise InvalidSettingError("give CommandBus a pool, or use `CommandBus.connect()`")
        self._settings = settings or Settings.from_env()
        if store is None:
            from commandbus.wiring import store_on  # noqa: PLC0415  (the composition root)

            store = store_on(pool, self._settings)
        self._store = store
        self._sending = Sending(store)
        self._policy = retry_policy or RetryPolicy()
        self._preparer = Preparer(self._settings, self._policy)
        self._registry = HandlerRegistry()
        self._workers: set[Worker] = set()
        self._replies = Replies(store)
        also_redact(self._settings.redact_keys.split(","))
        self._troubleshooting = Troubleshooting(
            store, self._registry, max_bytes=self._settings.max_payload_bytes
        )
        self._reading = Reading(store)
        self._searching = Searching(store)
        self._groups = Groups(store)
        self._bulk = Bulk(store, self._groups, max_result_bytes=self._settings.max_payload_bytes)
        self._doctor = Doctor(store)
        self._retention = Retention(store)
        self._completions = Completions(store, self._replies.listener)
        self._batches = Batches(store, self._preparer, self._settings, self._completions)
        self._coordination = Coordination(store, self._batches, self._settings)
        self._batch_types = BatchTypes()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        dsn: str | None = None,
        *,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
        data_dir: Path | None = None,
    ) -> AsyncIterator[CommandBus]:
        """Open a bus on `dsn`, COMMANDBUS_DSN, or an embedded PostgreSQL when there is neither.

        Creates what is missing: PGMQ, the schema, and later the queues of a domain on first use.
        """
        from commandbus.wiring import open_store  # noqa: PLC0415  (the composition root)

        settings = settings or Settings.from_env()
        async with open_store(dsn, settings, data_dir=data_dir) as (_, store):
            bus = cls(store=store, settings=settings, retry_policy=retry_policy)
            try:
                yield bus
            finally:
                await bus.close()

    # -- sending

    async def send(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        conn: Any = None,
    ) -> UUID:
        """Send a command; returns its id. A second send of the id raises DuplicateCommandError.

        With `conn` (psycopg, SQLAlchemy or asyncpg) it joins the caller's transaction: the command
        exists if and only if that commits.
        """
        command = self._preparer.command(
            domain, command_type, command_id, data, reply_to, correlation_id, max_attempts
        )
        batch = None if batch_id is None else check_uuid(batch_id, "batch_id")
        if batch is None and conn is None:
            await self._sending.send(domain, command)
        else:
            await self._store.send(domain, [command], batch_id=batch, conn=conn)
        return command.command_id

    async def send_many(
        self,
        domain: str,
        commands: Iterable[BatchCommand],
        *,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        conn: Any = None,
    ) -> list[UUID]:
        """Send many commands in one transaction: all of them, or, on any error, none.

        A generator is read while its commands are sent, so that they are never all in memory. Into
        a batch it is read first: the time it takes would hold up the workers of the batch.
        """
        check_domain(domain)
        batch = None if batch_id is None else check_uuid(batch_id, "batch_id")
        if batch is not None or isinstance(commands, Collection):
            commands = list(commands)
            if not commands:
                return []
            self._check_count(len(commands))
        ids: list[UUID] = []

        def prepared() -> Iterator[NewCommand]:
            # Encoded as they are sent: all payloads at once would be many times the list's size.
            for number, each in enumerate(commands, 1):
                self._check_count(number)
                c = check_batch_command(each)
                command = self._preparer.command(
                    domain, c.command_type, c.command_id, c.data, c.reply_to, c.correlation_id,
                    max_attempts,
                )  # fmt: skip
                ids.append(command.command_id)
                yield command

        await self._store.send(domain, prepared(), batch_id=batch, conn=conn)
        return ids

    def _check_count(self, commands: int) -> None:
        if commands > self._settings.max_send_many:
            raise InvalidInputError(
                f"{commands:,} commands are more than one transaction should hold; send at "
                f"most {self._settings.max_send_many:,} at a time"
            )

    async def call(
        self,
        domain: str,
        command_type: str,
        data: dict[str, Any],
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        timeout: float = 30.0,
    ) -> Reply:
        """Send a command and wait for its reply; ReplyTimeoutError if none comes in time.

        The reply comes to this call and to no queue. A command that ends in troubleshooting has no
        reply until an operator decides.
        """
        check_number(timeout, "timeout", 0.001, 86_400)
        sent = await self.send(
            domain, command_type, command_id or new_id(), data, INBOX, correlation_id
        )
        return await self.wait_reply(domain, sent, timeout=timeout)

    async def wait_reply(
        self,
        domain: str,
        command_id: UUID,
        *,
        timeout: float = 30.0,
    ) -> Reply:
        """Wait for the reply to a command that was sent with `reply_to=INBOX`.

        So a command can be sent in a transaction (`conn=`), and its reply awaited once that has
        committed. The reply is there for the first who asks.
        """
        check_domain(domain)
        check_number(timeout, "timeout", 0.001, 86_400)
        return await self._replies.wait(domain, check_uuid(command_id), timeout)

    async def cancel(
        self,
        domain: str,
        command_id: UUID,
        reason: str,
        *,
        operator: str | None = None,
        conn: Any = None,
    ) -> None:
        """Cancel a command that is still PENDING; one that a worker holds is refused."""
        await self._store.cancel(
            check_domain(domain),
            [check_uuid(command_id)],
            reason=redact_text(check_text(reason, "reason")),
            actor=check_operator(operator),
            conn=conn,
        )

    # -- handling

    def register_handler(
        self,
        domain: str,
        command_type: str,
        handler: Handler,
        *,
        retry_policy: RetryPolicy | None = None,
        transactional: bool = False,
        payload_type: type | None = None,
    ) -> None:
        """Register a handler for a command type.

        `async def` handlers run on the event loop, `def` handlers in threads. With
        `transactional=True` what the handler writes on `ctx.conn` and the completion of the command
        are one commit. `payload_type` (a dataclass, a TypedDict or a pydantic model) says which
        fields are secret, and what an operator's edited payload must look like.
        """
        self._registry.register(
            domain,
            command_type,
            handler,
            retry_policy=retry_policy,
            transactional=transactional,
            payload_type=payload_type,
        )

    def handler(
        self,
        domain: str,
        command_type: str,
        *,
        retry_policy: RetryPolicy | None = None,
        transactional: bool = False,
        payload_type: type | None = None,
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Register the decorated function."""

        def decorate(function: AnyHandler) -> AnyHandler:
            self.register_handler(
                domain,
                command_type,
                function,
                retry_policy=retry_policy,
                transactional=transactional,
                payload_type=payload_type,
            )
            return function

        return decorate

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers."""
        return self._registry.domains()

    async def run_worker(
        self,
        domain: str,
        *,
        concurrency: int = 10,
        vt_seconds: int = 30,
        use_notify: bool = True,
    ) -> None:
        """Process the commands of a domain until `stop` is called."""
        check_domain(domain)
        check_worker_settings(concurrency, vt_seconds)
        worker = Worker(
            self._store,
            self._registry,
            WorkerOptions(domain, concurrency, vt_seconds, use_notify),
            settings=self._settings,
            default_policy=self._policy,
            prepare=self._preparer.outgoing,
            companions=maintenance_of(domain, self._settings),
        )
        self._workers.add(worker)
        try:
            await worker.run()
        finally:
            self._workers.discard(worker)

    async def stop(self) -> None:
        """Stop all workers gracefully: nothing new is leased, running handlers may finish."""
        workers = list(self._workers)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*(worker.finished.wait() for worker in workers))

    async def close(self) -> None:
        """Stop the workers and let go of what the bus opened itself."""
        await self.stop()
        await self._close_governance()
        await self._completions.close()
        await self._replies.close()

    # -- replies

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
        if (domain is None) == (queue is None):
            raise InvalidSettingError("give either a domain or the name of a reply queue")
        check_number(vt_seconds, "vt_seconds", 1, 43_200, is_whole=True)
        check_number(batch_size, "batch_size", 1, 10_000, is_whole=True)
        name = check_reply_to(queue) if domain is None else replies_queue(check_domain(domain))
        return self._replies.stream(name, vt_seconds=vt_seconds, batch_size=batch_size, wait=wait)
