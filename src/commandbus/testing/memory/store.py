# ruff: noqa: D102  (each verb is documented once, in database/store.py)
"""InMemoryStore: the verbs of commandbus.database.store.Store without PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID, uuid4

from commandbus.database.store import Store
from commandbus.errors import InvalidOperationError
from commandbus.models import Command, Lease, NewBatch, NewCommand
from commandbus.names import commands_queue
from commandbus.payload import encode_json
from commandbus.testing.clock import FakeClock
from commandbus.testing.memory import operator, reads
from commandbus.testing.memory.engine import (
    MemoryConnection,
    MemoryEngine,
    MemoryListener,
    MemoryTransaction,
    changes,
)
from commandbus.testing.memory.engine import reads as asks
from commandbus.testing.memory.outcomes import settle
from commandbus.testing.memory.receiving import confirm_start, extend_leases, receive_commands
from commandbus.testing.memory.sending import create_batch, ensure_domain, send_commands
from commandbus.testing.memory.tables import IdScope, State

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway


class InMemoryStore(MemoryEngine):
    """Implements commandbus.database.store.Store.

    `conn` of send, create_batch and cancel may be the connection of `transaction()`. Any other is
    taken at its word: the command is there at once, whatever becomes of that connection.
    """

    has_gateway = False

    def __init__(
        self, clock: FakeClock | None = None, *, command_id_scope: IdScope = "domain"
    ) -> None:
        super().__init__(clock, command_id_scope=command_id_scope)
        self._workers: set[str] = set()
        self._open: dict[str, MemoryConnection] = {}  # transactions that a batch depends on

    @property
    def gateway(self) -> Gateway:
        _refuse()

    # -- for tests

    def sent(self, domain: str, command_type: str | None = None) -> list[Command]:
        """What was sent, in the order of sending, whatever has become of it."""
        return self.read(lambda state: reads.sent_commands(state, domain, command_type))

    def is_busy(self, domain: str) -> bool:
        """Whether a command is due now, or leased by a worker that lives."""
        due_at = self.next_due(domain)
        if due_at is not None and due_at <= self.clock.now():
            return True
        return self.read(
            lambda state: any(
                row.leased_by in self._workers
                for row in state.commands.values()
                if row.domain == domain
            )
        )

    def next_due(self, domain: str) -> datetime | None:
        """When the next command shows up by itself: a retry, or a lease that lapses."""
        return self.read(lambda state: state.queues.next_visible(commands_queue(domain)))

    def add_batch(
        self,
        domain: str,
        batch_id: UUID | None = None,
        *,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
    ) -> UUID:
        """Create an empty batch; commands join it with `send(…, batch_id=…)`."""
        data = None if custom_data is None else encode_json(custom_data, what="custom_data")
        new = NewBatch(batch_id or uuid4(), domain, name, data, None, None, False)
        self.commit(lambda state: create_batch(state, new, ()))
        return new.batch_id

    # -- sending and batches

    ensure_domain = changes(ensure_domain)

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
        await self.run(conn, lambda state: send_commands(state, domain, all_of_them, batch_id))

    async def create_batch(
        self, batch: NewBatch, commands: Sequence[NewCommand], *, conn: Any = None
    ) -> str | None:
        await self.ensure_domain(batch.domain)
        await self.run(conn, lambda state: create_batch(state, batch, commands))
        if not (batch.notifies and isinstance(conn, MemoryConnection)):
            return None
        self._open[conn.name] = conn
        return conn.name

    async def settled_batches(self, transactions: Mapping[UUID, str]) -> dict[UUID, bool]:
        ended = {name for name in transactions.values() if self._open[name].is_closed}
        for name in ended:
            del self._open[name]
        return {
            batch_id: batch_id in self._state.batches
            for batch_id, name in transactions.items()
            if name in ended
        }

    get_batch = asks(reads.get_batch)
    list_batches = asks(reads.list_batches)
    list_batch_commands = asks(reads.list_batch_commands)
    closed_batches = asks(reads.closed_batches)
    cancel_batch = changes(operator.cancel_batch)
    retry_batch = changes(operator.retry_batch)

    # -- receiving and the ways a lease ends

    receive = changes(receive_commands)
    settle = changes(settle)
    confirm_start = changes(confirm_start)
    extend = changes(extend_leases)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        transaction = MemoryTransaction(lambda: self.read(State.copy))
        try:
            yield transaction
            self.commit(transaction.conn.replay)
        finally:
            transaction.conn.is_closed = True

    # -- operators

    operator_retry = changes(operator.operator_retry)
    operator_cancel = changes(operator.operator_cancel)
    operator_complete = changes(operator.operator_complete)
    add_note = changes(operator.add_note)

    async def cancel(
        self,
        domain: str,
        command_ids: Sequence[UUID],
        *,
        reason: str,
        actor: str | None,
        conn: Any = None,
    ) -> None:
        await self.run(
            conn,
            lambda state: operator.cancel_commands(
                state, domain, command_ids, reason=reason, actor=actor
            ),
        )

    # -- reading and replies

    get_command = asks(reads.get_command)
    get_payload = asks(reads.get_payload)
    get_audit_trail = asks(reads.get_audit_trail)
    list_troubleshooting = asks(reads.list_troubleshooting)
    secret_keys = asks(reads.secret_keys)
    declare_secrets = changes(reads.declare_secrets)
    read_replies = changes(reads.read_replies)
    delete_replies = changes(reads.delete_replies)
    take_inbox_reply = changes(reads.take_inbox_reply)

    # -- workers

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[Store]:  # noqa: ARG002
        yield self

    async def open_extender(self) -> MemoryExtender:
        return MemoryExtender(self)

    def listener(self) -> MemoryListener:
        return MemoryListener(self._listeners)

    async def heartbeat(self, worker: str, domain: str, **figures: Any) -> None:  # noqa: ARG002
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
        return self._store.read(lambda state: extend_leases(state, domain, leases, seconds))

    def close(self) -> None:
        """There is no connection to give back."""


def _refuse() -> NoReturn:
    raise InvalidOperationError(
        "this needs PostgreSQL, and this bus keeps everything in memory; test it on the embedded "
        "server: CommandBus.connect()"
    )
