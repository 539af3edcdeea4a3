# ruff: noqa: D102  (the verbs are documented once, in database/store.py)
"""InMemoryStore: the verbs of commandbus.database.store.Store without PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from commandbus.database.model import Lease, MarkedPayload, NewBatch, Said, Sent
from commandbus.database.store import SendPlace, Store
from commandbus.errors import InvalidOperationError
from commandbus.models import NewCommand
from commandbus.testing.memory import keys, leasing, operator, pausing, reads, rescheduling, unique
from commandbus.testing.memory.engine import (
    NEEDS_POSTGRES,
    MemoryEngine,
    MemoryListener,
    MemoryTransaction,
    verb,
)
from commandbus.testing.memory.sending import create_batch, ensure_domain, send_commands
from commandbus.testing.memory.tables import State
from commandbus.testing.memory.transactions import MemoryTransactions

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway


class InMemoryStore(MemoryEngine):
    """Implements commandbus.database.store.Store.

    `conn` of send, create_batch and cancel may be the connection of `transaction()`. With any other
    the command is there at once, whether that connection commits or not.
    """

    has_gateway = False

    @property
    def gateway(self) -> Gateway:
        raise InvalidOperationError(NEEDS_POSTGRES)

    # -- the verbs; database/store.py documents them

    ensure_domain = verb(ensure_domain)

    async def send(
        self, domain: str, commands: Iterable[NewCommand], *, batch_id: UUID | None = None, **o: Any
    ) -> None:
        given, conn, actor = tuple(commands), o.get("conn"), o.get("actor")
        await self.ensure_domain(domain)
        await self.run(
            conn, lambda state: send_commands(state, domain, given, batch_id, actor=actor)
        )

    async def send_new(
        self, domain: str, commands: Iterable[NewCommand], **options: Unpack[SendPlace]
    ) -> list[int]:
        given, batch_id, actor = tuple(commands), options.get("batch_id"), options.get("actor")
        await self.ensure_domain(domain)
        return await self.run(
            options.get("conn"),
            lambda state: unique.send_new(state, domain, given, batch_id, actor=actor),
        )

    async def send_unique(
        self,
        domain: str,
        commands: Sequence[NewCommand],
        *,
        skips_known: bool = False,
        **options: Unpack[SendPlace],
    ) -> list[Sent]:
        batch_id, actor = options.get("batch_id"), options.get("actor")
        await self.ensure_domain(domain)
        return await self.run(
            options.get("conn"),
            lambda state: unique.send_unique(
                state, domain, commands, batch_id, actor=actor, skips_known=skips_known
            ),
        )

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> None:
        await self.ensure_domain(batch.domain)
        await self.run(conn, lambda state: create_batch(state, batch, commands))

    receive = verb(leasing.receive_commands)
    settle = verb(leasing.settle)
    settle_and_receive = verb(leasing.settle_and_receive)
    confirm_start = verb(leasing.confirm_start)
    extend = verb(leasing.extend_leases)
    cancel_requests = verb(leasing.cancel_requests)
    record_progress = verb(leasing.record_progress)

    def own_transactions(self) -> MemoryTransactions:
        return MemoryTransactions(self)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        transaction = MemoryTransaction(lambda: self.read(State.copy))
        try:
            yield transaction
            self.commit(transaction.replay)
        finally:
            transaction.is_closed = True

    cancel = verb(operator.cancel_commands)
    request_cancel = verb(operator.request_cancel)
    cancel_batch = verb(operator.cancel_batch)
    request_batch_cancel = verb(operator.request_batch_cancel)
    retry_batch = verb(operator.retry_batch)
    operator_retry = verb(operator.operator_retry)
    operator_cancel = verb(operator.operator_cancel)
    operator_complete = verb(operator.operator_complete)
    add_note = verb(operator.add_note)
    reschedule = verb(rescheduling.reschedule)
    set_priority = verb(rescheduling.set_priority)
    set_level_seconds = verb(rescheduling.set_level_seconds)
    key_policy = verb(keys.key_policy)
    set_key_policy = verb(keys.set_key_policy)
    pause = verb(pausing.pause)
    resume = verb(pausing.resume)
    pauses = verb(pausing.pauses)
    due_in = verb(pausing.due_in)

    get_command = verb(reads.get_command)
    progress = verb(reads.progress)
    get_payload = verb(reads.get_payload)
    get_meta = verb(reads.get_meta)
    get_audit_trail = verb(reads.get_audit_trail)
    list_troubleshooting = verb(reads.list_troubleshooting)
    get_batch = verb(reads.get_batch)
    list_batches = verb(reads.list_batches)
    list_batch_commands = verb(reads.list_batch_commands)
    closed_batches = verb(reads.closed_batches)
    read_replies = verb(reads.read_replies)
    delete_replies = verb(reads.delete_replies)
    archive_replies = verb(reads.archive_replies)
    take_inbox_reply = verb(reads.take_inbox_reply)
    what_is_left = verb(reads.what_is_left)

    # -- workers

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[Store]:  # noqa: ARG002
        yield self

    async def open_extender(self) -> MemoryExtender:
        return MemoryExtender(self)

    def listener(self) -> MemoryListener:
        return MemoryListener(self._listeners)

    async def heartbeat(self, worker: str, domain: str, **figures: Any) -> None:  # noqa: ARG002
        self.workers.add(worker)

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> None:
        for beat in beats:
            await self.heartbeat(**beat)

    async def worker_gone(self, worker: str) -> None:
        self.workers.discard(worker)

    async def declare_secrets(self, domain: str, keys: Mapping[str, Collection[str]]) -> None:
        for kind, names in keys.items():
            known = await self.secret_keys(domain, kind)
            self._secret_keys[domain, kind] = known.union(names)

    async def marked_payload(self, domain: str, command_id: UUID) -> MarkedPayload | None:
        command = await self.get_command(domain, command_id)
        if command is None:
            return None
        return MarkedPayload(
            command.command_type,
            await self.get_payload(domain, command_id),
            await self.secret_keys(domain, command.command_type),
        )

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        return self._secret_keys.get((domain, command_type), frozenset())

    async def check(self) -> None:
        """There is no database that could be wrong."""


@dataclass(frozen=True, slots=True)
class MemoryExtender:
    """Implements commandbus.database.store.LeaseExtender."""

    _store: InMemoryStore

    def extend(
        self, domain: str, leases: Sequence[Lease], seconds: int
    ) -> tuple[set[UUID], set[UUID]]:
        # Wakes no listener: events of the event loop must not be set from this thread.
        return self._store.read(
            lambda state: (
                leasing.extend_leases(state, domain, leases, seconds),
                leasing.cancel_requests(state, domain, leases),
            )
        )

    def record_progress(self, domain: str, said: Sequence[Said]) -> None:
        self._store.read(lambda state: leasing.record_progress(state, domain, said))

    def close(self) -> None:
        """There is no connection to give back."""
