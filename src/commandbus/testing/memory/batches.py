"""Batches: the verbs of sql/functions/batches.sql, and what can be read of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from commandbus.errors import DatabaseError
from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus, NewBatch, NewCommand
from commandbus.names import check_domain
from commandbus.testing.memory.operator import cancel_commands, requeue_commands
from commandbus.testing.memory.sending import find_batch, send_commands
from commandbus.testing.memory.tables import BatchRow, CommandRow, State

#: Commands that one call of cancel_batch ends.
CANCEL_LIMIT = 5_000


def create_batch(state: State, new: NewBatch, commands: Sequence[NewCommand]) -> None:
    """A batch with its commands, or the error about those that were sent before."""
    check_domain(new.domain)
    if new.batch_id in state.batches:
        raise DatabaseError(f"there is a batch {new.batch_id} already; give it an id of its own")
    state.batches[new.batch_id] = BatchRow(
        batch_id=new.batch_id,
        domain=new.domain,
        name=new.name,
        custom_data=new.custom_data,
        on_complete=new.on_complete,
        notifies=new.notifies,
        created_at=state.clock.now(),
        total_count=len(commands),
    )
    send_commands(state, new.domain, commands, new.batch_id, actor=new.created_by, is_creation=True)


def cancel_batch(
    state: State, domain: str, batch_id: UUID, *, reason: str, actor: str | None
) -> int:
    """End what nobody works on; what a worker holds goes on."""
    find_batch(state, domain, batch_id)
    waiting = [
        row.command_id
        for row in _rows_of(state, domain, batch_id)
        if row.status is CommandStatus.PENDING and row.leased_by is None
    ]
    canceled = cancel_commands(state, domain, waiting[:CANCEL_LIMIT], reason=reason, actor=actor)
    return len(canceled)


def retry_batch(state: State, domain: str, batch_id: UUID, *, actor: str | None) -> int:
    """Send again what failed: the parked and the FAILED ones."""
    find_batch(state, domain, batch_id)
    states = {CommandStatus.IN_TROUBLESHOOTING_QUEUE, CommandStatus.FAILED}
    rows = [row for row in _rows_of(state, domain, batch_id) if row.status in states]
    return len(requeue_commands(state, domain, rows, actor=actor, reset_attempts=True))


# -- reading


def get_batch(state: State, domain: str, batch_id: UUID) -> BatchMetadata | None:
    """One batch of this domain."""
    batch = state.batches.get(batch_id)
    return batch.metadata() if batch is not None and batch.domain == domain else None


def list_batches(
    state: State, domain: str, *, status: str | None, limit: int, offset: int
) -> list[BatchMetadata]:
    """Batches, newest first."""
    found = [
        batch
        for batch in state.batches.values()
        if batch.domain == domain and status in {None, batch.status}
    ]
    found.sort(key=lambda batch: batch.batch_id)
    found.sort(key=lambda batch: batch.created_at, reverse=True)  # and, among equals, as before
    return [batch.metadata() for batch in found[offset : offset + limit]]


def list_batch_commands(
    state: State,
    domain: str,
    batch_id: UUID,
    *,
    status: CommandStatus | None,
    limit: int,
    offset: int,
) -> list[CommandMetadata]:
    """Commands of a batch, in their order."""
    rows = _rows_of(state, domain, batch_id)
    found = [row for row in rows if status in {None, row.status}]
    return [row.metadata() for row in found[offset : offset + limit]]


def has_batch(state: State, batch_id: UUID) -> bool:
    """Whether there is such a batch, in whichever domain."""
    return batch_id in state.batches


def closed_batches(state: State, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
    """Of these, the batches that have ended, whatever their domain."""
    found = [state.batches[batch_id] for batch_id in set(batch_ids) & state.batches.keys()]
    return [batch.metadata() for batch in found if batch.completed_at is not None]


def _rows_of(state: State, domain: str, batch_id: UUID) -> list[CommandRow]:
    """In the order of creation; what joined the batch later comes after that."""
    rows = [
        row for row in state.commands.values() if row.batch_id == batch_id and row.domain == domain
    ]
    return sorted(rows, key=lambda row: (*row.place, row.created_at, row.command_id))
