"""Reads: what the reading half of the store on PostgreSQL answers."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import InvalidPayloadError
from commandbus.models import (
    AuditEvent,
    BatchMetadata,
    Command,
    CommandMetadata,
    CommandStatus,
    QueuedReply,
    TroubleshootingItem,
)
from commandbus.names import check_domain, commands_queue
from commandbus.payload import decode_payload
from commandbus.testing.fakes import StoredMessage
from commandbus.testing.memory.tables import CommandRow, State


def get_command(state: State, domain: str, command_id: UUID) -> CommandMetadata | None:
    """One command, or None."""
    row = state.commands.get((domain, command_id))
    return None if row is None else row.metadata()


def list_troubleshooting(
    state: State, domain: str, *, command_type: str | None, limit: int, offset: int
) -> list[TroubleshootingItem]:
    """What waits for an operator, longest first."""
    check_domain(domain)
    waiting = sorted(
        (key for key in state.parked if key[0] == domain),
        key=lambda key: (state.parked[key].parked_at, key[1]),
    )
    rows = [state.commands[key] for key in waiting]
    wanted = [row for row in rows if command_type in {None, row.command_type}]
    return [_item(state, row) for row in wanted[offset : offset + limit]]


def _item(state: State, row: CommandRow) -> TroubleshootingItem:
    archived = state.queues.get(row.queue_name).archive.get(row.msg_id)
    known = {
        f.name: getattr(row, f.name) for f in fields(TroubleshootingItem) if hasattr(row, f.name)
    }
    data = None if archived is None else _decoded(_payload(archived))
    return TroubleshootingItem(**{**known, **asdict(state.parked[row.key]), "data": data})


def _decoded(text: str | None) -> dict[str, Any] | None:
    try:
        return decode_payload(text)
    except InvalidPayloadError:
        return None  # it may be the very reason why the command is here


def sent_commands(state: State, domain: str, command_type: str | None) -> list[Command]:
    """What was sent, as a handler would be given it."""
    return [
        Command(
            domain=row.domain,
            command_type=row.command_type,
            command_id=row.command_id,
            data=decode_payload(row.data.decode()),
            correlation_id=row.correlation_id,
            reply_to=row.reply_queue or None,
            created_at=row.created_at,
            batch_id=row.batch_id,
        )
        for row in state.commands.values()
        if row.domain == domain and command_type in {None, row.command_type}
    ]


def get_payload(state: State, domain: str, command_id: UUID) -> str | None:
    """The payload, from the queue or the archive."""
    row = state.commands.get((domain, command_id))
    if row is None:
        return None
    queue = state.queues.get(commands_queue(domain))
    message = queue.messages.get(row.msg_id) or queue.archive.get(row.msg_id)
    return None if message is None else _payload(message)


def _payload(message: StoredMessage) -> str:
    return orjson.dumps(message.message["data"]).decode()


def get_audit_trail(
    state: State, command_id: UUID, *, domain: str | None, limit: int
) -> list[AuditEvent]:
    """The events of a command, oldest first."""
    events = [
        event
        for event in state.audit
        if event.command_id == command_id and domain in {None, event.domain}
    ]
    return [replace(event, details=copy.deepcopy(event.details)) for event in events[:limit]]


# -- batches


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
    rows = rows_of_batch(state, domain, batch_id)
    found = [row for row in rows if status in {None, row.status}]
    return [row.metadata() for row in found[offset : offset + limit]]


def closed_batches(state: State, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
    """Of these, the batches that have ended, whatever their domain."""
    found = [state.batches[batch_id] for batch_id in set(batch_ids) & state.batches.keys()]
    return [batch.metadata() for batch in found if batch.completed_at is not None]


def rows_of_batch(state: State, domain: str, batch_id: UUID) -> list[CommandRow]:
    """In the order of creation; what joined the batch later comes after that."""
    rows = [
        row for row in state.commands.values() if row.batch_id == batch_id and row.domain == domain
    ]
    return sorted(rows, key=lambda row: (*row.place, row.created_at, row.command_id))


# -- replies, secret keys


def read_replies(state: State, queue: str, *, vt_seconds: int, quantity: int) -> list[QueuedReply]:
    """Lease replies. A queue that does not exist yet is empty, not an error."""
    if not state.queues.exists(queue):
        return []
    found = state.queues.read(queue, vt_seconds, quantity)
    return [QueuedReply(queue, message.msg_id, message.body.decode()) for message in found]


def delete_replies(state: State, queue: str, msg_ids: Collection[int]) -> None:
    """Acknowledge replies."""
    state.queues.delete(queue, msg_ids)


def take_inbox_reply(state: State, domain: str, command_id: UUID) -> str | None:
    """Take the reply that `call` waits for."""
    body: Any = state.inbox.pop((domain, command_id), None)
    return None if body is None else body.decode()


def declare_secrets(state: State, domain: str, keys: Mapping[str, Collection[str]]) -> None:
    """Remember which keys of payloads must not be shown."""
    for kind, names in keys.items():
        known = state.secret_keys.get((domain, kind), frozenset())
        state.secret_keys[domain, kind] = known | frozenset(names)


def secret_keys(state: State, domain: str, command_type: str) -> frozenset[str]:
    """The keys that were declared for a command type."""
    return state.secret_keys.get((domain, command_type), frozenset())
