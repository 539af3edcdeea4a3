# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""What database/reads.py reads from PostgreSQL, here read from the state; and the replies."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from commandbus.database.model import QueuedReply
from commandbus.errors import InvalidPayloadError
from commandbus.models import (
    AuditEvent,
    AuditEventType,
    BatchMetadata,
    CommandMetadata,
    Progress,
    TroubleshootingItem,
)
from commandbus.names import check_domain, commands_queue
from commandbus.payload import decode_payload
from commandbus.testing.fakes import INFINITY, StoredMessage
from commandbus.testing.memory.keys import waiting_text
from commandbus.testing.memory.pausing import is_paused, paused_types
from commandbus.testing.memory.tables import BatchRow, CommandRow, State, made


def get_command(state: State, domain: str, command_id: UUID) -> CommandMetadata | None:
    row = state.commands.get((domain, command_id))
    return None if row is None else shown_command(state, row)


def shown_command(state: State, row: CommandRow) -> CommandMetadata:
    """The row, and what the queue says: when it is due, if that is later; what it waits for."""
    has_message = row.is_waiting and state.queues.exists(row.queue_name)
    messages = state.queues.get(row.queue_name).messages if has_message else {}
    message = messages.get(row.msg_id)
    if message is None or message.vt <= state.clock.now():
        return made(CommandMetadata, row)
    if message.vt == INFINITY:
        return made(CommandMetadata, row, waiting_for=waiting_text(state, row))
    return made(CommandMetadata, row, due_at=message.vt)


def progress(state: State, domain: str, ids: Sequence[UUID]) -> dict[UUID, Progress]:
    found = {}
    for command_id in ids:
        row = state.commands.get((domain, command_id))
        epoch, told = state.progress.get((domain, command_id), (0, None))
        if row is not None and told is not None and row.leased_by and row.lease_epoch == epoch:
            found[command_id] = told
    return found


def get_payload(state: State, domain: str, command_id: UUID) -> str | None:
    message = _message(state, domain, command_id)
    return None if message is None else _payload(message)


def get_meta(state: State, domain: str, command_id: UUID) -> str | None:
    message = _message(state, domain, command_id)
    found = None if message is None else message.message.get("meta")
    return None if found is None else orjson.dumps(found).decode()


def _message(state: State, domain: str, command_id: UUID) -> StoredMessage | None:
    row = state.commands.get((domain, command_id))
    if row is None:
        return None
    queue = state.queues.get(commands_queue(domain))
    return queue.messages.get(row.msg_id) or queue.archive.get(row.msg_id)


def _payload(message: StoredMessage) -> str:
    return orjson.dumps(message.message["data"]).decode()


def list_troubleshooting(
    state: State, domain: str, *, command_type: str | None, limit: int, offset: int
) -> list[TroubleshootingItem]:
    check_domain(domain)
    waiting = sorted(
        (key for key in state.parked if key[0] == domain),
        key=lambda key: (state.parked[key][1], key[1]),
    )
    rows = [state.commands[key] for key in waiting]
    wanted = [row for row in rows if command_type in {None, row.command_type}]
    return [_item(state, row) for row in wanted[offset : offset + limit]]


def _item(state: State, row: CommandRow) -> TroubleshootingItem:
    archived = state.queues.get(row.queue_name).archive.get(row.msg_id)
    try:
        data = None if archived is None else decode_payload(_payload(archived))
    except InvalidPayloadError:
        data = None  # it may be the very reason why the command is parked
    reason, parked_at = state.parked[row.key]
    stack = _failure_stack(state, row)
    return made(
        TroubleshootingItem, row, reason=reason, parked_at=parked_at, data=data, stack=stack
    )


def _failure_stack(state: State, row: CommandRow) -> dict[str, Any] | None:
    wanted = (row.domain, row.command_id, AuditEventType.FAILED)
    for event in reversed(state.audit):
        if (event.domain, event.command_id, event.event_type) == wanted:
            return copy.deepcopy((event.details or {}).get("stack"))
    return None


def get_audit_trail(
    state: State, command_id: UUID, *, domain: str | None, limit: int
) -> list[AuditEvent]:
    events = [
        event
        for event in state.audit
        if event.command_id == command_id and domain in {None, event.domain}
    ]
    return [replace(event, details=_details(state, event)) for event in events[:limit]]


def _details(state: State, event: AuditEvent) -> dict[str, Any] | None:
    """A copy; what SENT tells of its command is read from the command."""
    row = state.commands.get((event.domain, event.command_id))
    if event.event_type != AuditEventType.SENT or row is None:
        return copy.deepcopy(event.details)
    told = {"type": row.command_type, "correlation_id": str(row.correlation_id)}
    return {**told, **copy.deepcopy(event.details or {})}


# -- batches


def _shown(batch: BatchRow) -> BatchMetadata:
    data = copy.deepcopy(batch.custom_data)
    return made(BatchMetadata, batch, status=str(batch.status), custom_data=data)


def get_batch(state: State, domain: str, batch_id: UUID) -> BatchMetadata | None:
    batch = state.batches.get(batch_id)
    return _shown(batch) if batch is not None and batch.domain == domain else None


def list_batches(
    state: State, domain: str, *, status: str | None, limit: int, offset: int
) -> list[BatchMetadata]:
    found = [
        batch
        for batch in state.batches.values()
        if batch.domain == domain and status in {None, batch.status}
    ]
    found.sort(key=lambda batch: batch.batch_id)
    found.sort(key=lambda batch: batch.created_at, reverse=True)  # those of one time stay by id
    return [_shown(batch) for batch in found[offset : offset + limit]]


def list_batch_commands(
    state: State, domain: str, batch_id: UUID, *, status: str | None, limit: int, offset: int
) -> list[CommandMetadata]:
    rows = rows_of_batch(state, domain, batch_id)
    found = [row for row in rows if status in {None, row.status}]
    return [shown_command(state, row) for row in found[offset : offset + limit]]


def closed_batches(state: State, batch_ids: Sequence[UUID]) -> list[BatchMetadata]:
    found = [state.batches[batch_id] for batch_id in set(batch_ids) & state.batches.keys()]
    return [_shown(batch) for batch in found if batch.completed_at is not None]


def rows_of_batch(state: State, domain: str, batch_id: UUID) -> list[CommandRow]:
    """In the order of creation; commands that joined the batch later come after these."""
    rows = [
        row for row in state.commands.values() if row.batch_id == batch_id and row.domain == domain
    ]
    return sorted(rows, key=lambda row: (*row.place, row.created_at, row.command_id))


# -- replies


def read_replies(state: State, queue: str, *, vt_seconds: int, quantity: int) -> list[QueuedReply]:
    # A queue that does not exist yet is empty.
    found = state.queues.read(queue, vt_seconds, quantity) if state.queues.exists(queue) else []
    return [QueuedReply(queue, message.msg_id, message.body.decode()) for message in found]


def delete_replies(state: State, queue: str, msg_ids: Collection[int]) -> None:
    state.queues.delete(queue, msg_ids)


def archive_replies(state: State, queue: str, msg_ids: Collection[int]) -> None:
    state.queues.archive(queue, msg_ids)


def take_inbox_reply(state: State, domain: str, command_id: UUID) -> str | None:
    body: Any = state.inbox.pop((domain, command_id), None)
    return None if body is None else body.decode()


def what_is_left(state: State, domain: str, *, include_delayed: bool) -> str | None:
    now = state.clock.now()
    if is_paused(state, domain, now):
        return "paused"
    # Those of a paused type are not leased either; in PostgreSQL they have no time then.
    left_out = paused_types(state, domain, now)
    queue = state.queues.get(commands_queue(domain)).messages
    messages = [each for each in queue.values() if each.type not in left_out]
    if any(message.vt <= now for message in messages):
        return "due"
    waiting = {row.msg_id for row in state.commands.values() if row.is_waiting}
    later = (each for each in messages if each.vt < INFINITY and each.msg_id in waiting)
    return "delayed" if include_delayed and any(later) else None
