# ruff: noqa: D102  (each verb is documented once, in store/base.py)
"""InMemoryStore: the verbs of commandbus.database.store.Store without PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import InvalidOperationError
from commandbus.models import (
    AuditEvent,
    Command,
    CommandMetadata,
    Edit,
    Lease,
    NewCommand,
    Outcome,
    QueuedReply,
    TroubleshootingItem,
)
from commandbus.names import commands_queue
from commandbus.testing.memory import groups, operator, reads
from commandbus.testing.memory.commands import (
    confirm_start,
    extend_leases,
    receive_commands,
)
from commandbus.testing.memory.listening import MemoryListener, Wake
from commandbus.testing.memory.search import MemorySearch
from commandbus.testing.memory.sending import ensure_domain, send_commands
from commandbus.testing.memory.settle import settle
from commandbus.testing.memory.store_batches import MemoryBatches
from commandbus.testing.memory.tables import State
from commandbus.testing.memory.transaction import MemoryTransaction
from commandbus.troubleshooting.model import FailureGroup

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway


class InMemoryStore(MemoryBatches, MemorySearch):
    """Implements commandbus.database.store.Store.

    `conn` of send, create_batch and cancel may be the connection of `transaction()`. Any other is
    taken at its word: the command is there at once, whatever becomes of that connection.
    """

    @property
    def gateway(self) -> Gateway:
        raise InvalidOperationError(
            "this needs PostgreSQL, and this bus keeps everything in memory; test it on the "
            "embedded server: CommandBus.connect()"
        )

    # -- for tests

    def sent(self, domain: str, command_type: str | None = None) -> list[Command]:
        """What was sent, in the order of sending, whatever has become of it."""
        return self._read(reads.sent_commands, domain, command_type)

    def is_busy(self, domain: str) -> bool:
        """Whether a command is due now, or held by a worker that lives."""
        due_at = self.next_due(domain)
        if due_at is not None and due_at <= self.clock.now():
            return True
        return self._read(
            lambda state: any(
                row.leased_by in self._workers
                for row in state.commands.values()
                if row.domain == domain
            )
        )

    def next_due(self, domain: str) -> datetime | None:
        """When the next command shows up by itself: a retry, or a lease that nobody holds on to."""
        return self._read(lambda state: state.queues.next_visible(commands_queue(domain)))

    def watched_by(self, watcher: Wake) -> AbstractContextManager[None]:
        """Call `watcher` after every change, for the length of a block."""
        return self._switchboard.watched_by(watcher)

    # -- sending

    async def ensure_domain(self, domain: str) -> None:
        await self._run(ensure_domain, domain)

    async def send(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: UUID | None = None,
        conn: Any = None,
    ) -> None:
        all_of_them = tuple(commands)
        await self.ensure_domain(domain)
        await self._run_on(conn, send_commands, domain, all_of_them, batch_id)

    # -- receiving and the ways a lease ends

    async def receive(
        self,
        domain: str,
        *,
        vt_seconds: int,
        quantity: int,
        worker: str,
        limits: Mapping[str, int],
        mark_in_progress: bool = True,
        from_head: bool = False,
    ) -> list[Lease]:
        return await self._run(
            receive_commands,
            domain,
            vt_seconds=vt_seconds,
            quantity=quantity,
            worker=worker,
            limits=limits,
            mark_in_progress=mark_in_progress,
            from_head=from_head,
        )

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        return await self._run(settle, domain, outcomes)

    async def confirm_start(self, lease: Lease) -> bool:
        return await self._run(confirm_start, lease)

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        return await self._run(extend_leases, domain, leases, seconds)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        transaction = MemoryTransaction(lambda: self._read(State.copy))
        try:
            yield transaction
            self._commit(transaction.conn.replay)
        finally:
            transaction.conn.is_closed = True

    # -- operators

    async def operator_retry(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        actor: str | None,
        reset_attempts: bool,
        edits: Mapping[UUID, Edit] | None = None,
    ) -> None:
        await self._run(
            operator.operator_retry,
            domain,
            command_ids,
            actor=actor,
            reset_attempts=reset_attempts,
            edits=edits,
        )

    async def operator_cancel(
        self, domain: str, command_ids: Sequence[UUID], *, reason: str, actor: str | None
    ) -> None:
        await self._run(operator.operator_cancel, domain, command_ids, reason=reason, actor=actor)

    async def operator_complete(
        self, domain: str, command_ids: Sequence[UUID], *, result: bytes, actor: str | None
    ) -> None:
        await self._run(operator.operator_complete, domain, command_ids, result=result, actor=actor)

    async def cancel(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        reason: str,
        actor: str | None,
        conn: Any = None,
    ) -> None:
        await self._run_on(
            conn, operator.cancel_commands, domain, command_ids, reason=reason, actor=actor
        )

    # -- reading

    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        row = self._state.commands.get((domain, command_id))
        return None if row is None else row.metadata()

    async def list_troubleshooting(
        self,
        domain: str,
        *,
        command_type: str | None,
        limit: int,
        offset: int,
        group: str | None = None,
    ) -> list[TroubleshootingItem]:
        return self._read(
            reads.list_troubleshooting,
            domain,
            command_type=command_type,
            limit=limit,
            offset=offset,
            group=group,
        )

    async def list_failure_groups(
        self,
        domain: str | None,
        *,
        command_type: str | None,
        include_empty: bool,
        limit: int,
        prefix: str = "",
    ) -> list[FailureGroup]:
        return self._read(
            groups.list_failure_groups,
            domain,
            command_type=command_type,
            include_empty=include_empty,
            limit=limit,
            prefix=prefix,
        )

    async def get_payload(self, domain: str, command_id: UUID) -> str | None:
        return self._read(reads.get_payload, domain, command_id)

    async def get_audit_trail(
        self, command_id: UUID, *, domain: str | None, limit: int
    ) -> list[AuditEvent]:
        return self._read(reads.get_audit_trail, command_id, domain=domain, limit=limit)

    # -- replies

    async def read_replies(
        self, queue: str, *, vt_seconds: int, quantity: int
    ) -> list[QueuedReply]:
        return await self._run(reads.read_replies, queue, vt_seconds=vt_seconds, quantity=quantity)

    async def delete_replies(self, queue: str, msg_ids: Collection[int]) -> None:
        await self._run(lambda state: state.queues.delete(queue, msg_ids))

    async def take_inbox_reply(self, domain: str, command_id: UUID) -> str | None:
        return await self._run(reads.take_inbox_reply, domain, command_id)

    # -- workers

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[Store]:  # noqa: ARG002
        yield self

    async def open_extender(self) -> MemoryExtender:
        return MemoryExtender(self)

    def listener(self) -> MemoryListener:
        return MemoryListener(self._switchboard)

    async def heartbeat(
        self,
        worker: str,
        domain: str,  # noqa: ARG002
        *,
        is_idle: bool,  # noqa: ARG002
        concurrency: int,  # noqa: ARG002
        in_flight: int,  # noqa: ARG002
    ) -> None:
        self._workers.add(worker)

    async def worker_gone(self, worker: str) -> None:
        self._workers.discard(worker)

    async def check(self) -> None:
        """Nothing can be wrong with a dictionary."""


class MemoryExtender:
    """Implements commandbus.database.store.LeaseExtender."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def extend(self, domain: str, leases: Sequence[Lease], seconds: int) -> set[UUID]:
        # Wakes nobody: events of the event loop must not be set from this thread.
        return self._store._read(lambda state: extend_leases(state, domain, leases, seconds))

    def close(self) -> None:
        """There is no connection to give back."""
