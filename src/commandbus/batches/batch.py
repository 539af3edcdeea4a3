"""Batches: `bus.batches`. Create, dispatch, look, cancel, retry, wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, LiteralString, Unpack
from uuid import UUID

from commandbus.batches.actions import BatchActions
from commandbus.batches.batch_reads import BatchReads
from commandbus.batches.callbacks import Completions
from commandbus.batches.cancels import cancel_all
from commandbus.batches.dispatch import Dispatch, check_mode, log_creation
from commandbus.batches.listing import page_batch_commands, page_batches
from commandbus.batches.model import (
    BatchCancel,
    BatchOptions,
    CreationMetric,
    DispatchMode,
    DispatchResult,
    RecoveryReport,
)
from commandbus.batches.preparing import new_batch
from commandbus.batches.recovery import recover_dispatch
from commandbus.batches.relay import Relay
from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer
from commandbus.commands.repeating import check_retry, create_again
from commandbus.commands.sending import repeats_named
from commandbus.database import encoding
from commandbus.database.model import NewBatch, OnBehalf
from commandbus.database.rows import BATCHES_WHERE, raise_if_known
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError
from commandbus.middleware.base import Drafts
from commandbus.models import (
    EVERYTHING,
    BatchCommand,
    BatchMetadata,
    BatchStatus,
    CommandMetadata,
    CommandStatus,
    NewCommand,
    Running,
    Viewer,
)
from commandbus.names import (
    check_domain,
    check_operator,
    check_reach,
    check_uuid,
)
from commandbus.paging import MAX_LIMIT, Page, check_page
from commandbus.settings import Settings
from commandbus.transport import Transport
from commandbus.typed.commands import TypedCommand

if TYPE_CHECKING:
    from commandbus.loads.model import LoadMetadata

#: Commands that are checked and encoded without a pause: some milliseconds of work.
PREPARED_AT_ONCE = 500

_CREATE_FOR: LiteralString = (
    "select {schema}.create_batch_for(%s, %s, cast(%s as jsonb), cast(%s as bytea[]),"
    " cast(%s as text), cast(%s as jsonb), cast(%s as jsonb))"
)
_OPEN: LiteralString = (
    BATCHES_WHERE + "b.status in ('PENDING', 'IN_PROGRESS')"
    " and (cast(%s as text[]) is null or b.domain = any(cast(%s as text[])))"
    " order by b.created_at desc, b.batch_id desc limit %s"
)


def _count(commands: Sequence[BatchCommand | TypedCommand]) -> int:
    return len(commands) if commands else 0


class Batches(BatchReads):
    """The verbs of a batch. Pages, dispatch, relay and recovery need PostgreSQL."""

    def __init__(
        self, store: Store, preparer: Preparer, settings: Settings, completions: Completions
    ) -> None:
        super().__init__(store)
        self._preparer = preparer
        self._settings = settings
        self._completions = completions
        self._dispatch = Dispatch(store, settings, completions)

    async def create(
        self,
        domain: str,
        commands: Sequence[BatchCommand | TypedCommand],
        *,
        conn: Any = None,
        on_behalf: OnBehalf | None = None,
        retry_for: float | None = None,
        **options: Unpack[BatchOptions],
    ) -> UUID:
        """Create a batch with all its commands, or nothing; without a database, try `retry_for` s.

        `on_behalf` (`bus.governance.on_behalf_of`): for a caller, who creates it and to whom
        governed command types are refused.
        """
        with self._preparer.drafting.around(domain, _count(commands), is_many=True) as drafts:
            return await self._create(domain, commands, conn, on_behalf, retry_for, options, drafts)

    async def _create(
        self,
        domain: str,
        commands: Sequence[BatchCommand | TypedCommand],
        conn: Any,
        on_behalf: OnBehalf | None,
        retry_for: float | None,
        options: BatchOptions,
        drafts: Drafts | None,
    ) -> UUID:
        check_retry(retry_for, conn)
        batch, prepared = await self._prepare(domain, commands, options, drafts)
        began = time.perf_counter()
        ids = (command.command_id for command in prepared)
        if on_behalf is not None:
            if conn or retry_for is not None or batch.on_complete is not None or batch.notifies:
                raise InvalidInputError(
                    "a batch on behalf of a caller has no conn, retry_for or on_complete"
                )
            with repeats_named(ids):
                await self._create_for(
                    on_behalf, replace(batch, created_by=on_behalf.user_id), prepared
                )
            return batch.batch_id
        with repeats_named(ids), self._completions.announced(batch, options.get("on_complete")):
            transaction = await create_again(
                self._store, batch, prepared, conn=conn, retry_for=retry_for
            )
            if transaction is not None:
                self._completions.depends_on(domain, batch.batch_id, transaction)
        spent_ms = round((time.perf_counter() - began) * 1000, 3)
        log_creation(
            batch.batch_id,
            CreationMetric(DispatchMode.INLINE, len(prepared), spent_ms, 0, 0, spent_ms, False),
        )
        return batch.batch_id

    async def _create_for(
        self, on_behalf: OnBehalf, batch: NewBatch, prepared: Sequence[NewCommand]
    ) -> None:
        if not self._store.has_gateway:
            on_behalf.refuse_governed({command.command_type for command in prepared})
            await self._store.create_batch(batch, prepared)
            return
        gateway, domain = self._store.gateway.patient, batch.domain
        await gateway.ensure_domain(domain)
        params = (
            domain, batch.batch_id, encoding.sends(prepared),
            [self._preparer.digest(domain, command) for command in prepared],
            batch.name, encoding.text(batch.custom_data), encoding.on_behalf(on_behalf),
        )  # fmt: skip
        raise_if_known(domain, await gateway.value(_CREATE_FOR, params, domain=domain))

    async def _prepare(
        self,
        domain: str,
        commands: Sequence[BatchCommand | TypedCommand],
        options: BatchOptions,
        drafts: Drafts | None,
    ) -> tuple[NewBatch, list[NewCommand]]:
        check_domain(domain)
        if not commands:
            raise InvalidInputError("a batch needs at least one command")
        count, limit = len(commands), self._settings.max_batch_size
        if count > limit:
            raise InvalidInputError(
                f"{count:,} commands are more than one transaction should hold ({limit:,}); "
                "use `bus.loads.load`, which commits in checkpoints and can be resumed"
            )
        max_attempts = options.get("max_attempts")
        prepared: list[NewCommand] = []
        for start in range(0, count, PREPARED_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # others on this event loop first
            prepared += [
                drafted(domain, self._preparer.batch_command(domain, command, max_attempts), drafts)
                for command in commands[start : start + PREPARED_AT_ONCE]
            ]
        batch = new_batch(self._preparer, domain, options)
        if self._preparer.marks.untold:
            await self._preparer.marks.tell_if_possible(self._store)
        return batch, prepared

    async def dispatch(
        self,
        domain: str,
        commands: Sequence[BatchCommand | TypedCommand],
        *,
        mode: DispatchMode = DispatchMode.TWO_PHASE,
        dispatch_rate: float | None = None,
        queue: Transport | None = None,
        **options: Unpack[BatchOptions],
    ) -> DispatchResult:
        """Create a batch whose rows and messages are committed apart, and say how it went.

        `mode`: inline (one transaction, as `create`), two_phase (rows first, then messages, in
        groups) or optimistic (the same, marked queued beforehand). `dispatch_rate`: commands per
        second, queued by this call, which takes that long; if its process ends, recovery goes on
        at that rate. `queue`: a RemoteQueue in another database, whose messages `relay` brings
        back.

        Raises only if nothing was stored. What is stored and not queued is queued by recovery,
        which workers run by themselves.
        """
        how = check_mode(mode, dispatch_rate, queue)
        with self._preparer.drafting.around(domain, _count(commands), is_many=True) as drafts:
            batch, prepared = await self._prepare(domain, commands, options, drafts)
            with repeats_named(command.command_id for command in prepared):
                return await self._dispatch.dispatch(
                    batch,
                    prepared,
                    mode=how,
                    rate=dispatch_rate,
                    queue=queue,
                    on_complete=options.get("on_complete"),
                )

    async def relay(self, domain: str, queue: Transport, *, drain: bool = False) -> int:
        """Queue here, exactly once, what arrives in a queue in another database.

        Runs until cancelled; with `drain` until that queue is empty. Returns how many commands it
        queued. Any number may run at the same time.
        """
        relay = Relay(self._store, queue, check_domain(domain))
        if drain:
            return await relay.drain()
        await relay.run()
        return 0

    async def recover_dispatch(
        self,
        domain: str,
        *,
        grace_seconds: float | None = None,
        unconfirmed_after: float | None = None,
    ) -> RecoveryReport:
        """Queue what was stored and not queued, now; workers do it by themselves every few minutes.

        `grace_seconds`: how long a dispatching process must have been silent to be taken for gone.
        `unconfirmed_after`: how many seconds a queue in another database may keep a command before
        it is taken for lost there, and queued here.
        """
        known = self._settings
        grace = known.dispatch_grace_seconds if grace_seconds is None else grace_seconds
        after = known.unconfirmed_after_seconds if unconfirmed_after is None else unconfirmed_after
        return await recover_dispatch(self._store, check_domain(domain), grace, after)

    async def actions(
        self, domain: str, batch_id: UUID, load: LoadMetadata | None = None
    ) -> BatchActions:
        """What can be done with a batch now; raises BatchNotFoundError if there is none.

        `load`: what `bus.loads.get` says of it.
        """
        batch = await self.require(domain, batch_id)
        leased = await self._store.list_batch_commands(
            domain, batch.batch_id, status=CommandStatus.IN_PROGRESS, limit=MAX_LIMIT, offset=0
        )
        return BatchActions(batch, len(leased), load)

    async def page(
        self,
        domain: str,
        *,
        status: BatchStatus | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BatchMetadata]:
        """Batches, newest first."""
        return await page_batches(
            self._store.gateway, check_domain(domain), status, viewer, limit=limit, cursor=cursor
        )

    async def list_open(
        self,
        domain: str | None = None,
        *,
        domains: Collection[str] | None = None,
        limit: int = 100,
    ) -> list[BatchMetadata]:
        """Batches that have not ended, of one domain, of these or of all, newest first."""
        check_page(limit)
        where = check_reach(domain, domains)
        return await self._store.gateway.rows(_OPEN, (where, where, limit), into=BatchMetadata)

    async def page_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: CommandStatus | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands of a batch, in the order in which they were given.

        With a status a page may have few commands or none, and still a cursor: the search stopped
        early, as it does in a batch of a million.
        """
        wanted = check_uuid(batch_id, "batch_id")
        return await page_batch_commands(
            self._store.gateway,
            check_domain(domain),
            wanted,
            status,
            lambda: self.require(domain, wanted, viewer=viewer),
            limit=limit,
            cursor=cursor,
        )

    async def cancel(
        self,
        domain: str,
        batch_id: UUID,
        reason: str,
        *,
        running: Running = "refuse",
        operator: str | None = None,
    ) -> int:
        """Cancel the commands of a batch that no worker has; returns how many.

        With `running="request"` workers are asked to end those that they have, which count too.
        If the batch is still being loaded, its load is canceled too: nothing more can be added.
        """
        done = await self.cancel_counted(
            domain, batch_id, reason, running=running, operator=operator
        )
        return done.canceled + done.requested

    async def cancel_counted(
        self,
        domain: str,
        batch_id: UUID,
        reason: str,
        *,
        running: Running = "refuse",
        operator: str | None = None,
    ) -> BatchCancel:
        """The same; returns how many were canceled, and of how many that was requested."""
        return await cancel_all(self._store, domain, batch_id, reason, operator, running=running)

    async def retry(
        self,
        domain: str,
        batch_id: UUID,
        *,
        reason: str | None = None,
        operator: str | None = None,
    ) -> int:
        """Send the failed and the parked commands of a batch again; returns how many.

        All in one transaction. A batch that had ended is open again, and ends, and calls back,
        once more. A repeat finds nothing to do. The `reason` is in the audit of the batch.
        """
        check_domain(domain)
        batch, actor = check_uuid(batch_id, "batch_id"), check_operator(operator)
        if reason is None:
            retried = await self._store.retry_batch(domain, batch, actor=actor)
        else:
            retried = await self._retry_because(domain, batch, reason, actor)
        if retried:
            self._completions.rearm(domain, batch)
        return retried

    async def wait(
        self, domain: str, batch_id: UUID, *, timeout: float | None = None
    ) -> BatchMetadata:
        """Wait until a batch has ended, in whichever process it is worked on."""
        batch = await self.require(domain, batch_id)
        return await self._completions.wait(domain, batch.batch_id, timeout)
