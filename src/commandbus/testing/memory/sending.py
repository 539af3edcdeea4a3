"""Sending commands, creating batches, publishing replies: what goes into a queue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import (
    BatchNotFoundError,
    DatabaseError,
    DuplicateCommandError,
    InvalidNameError,
    InvalidOperationError,
)
from commandbus.models import AuditEventType, CommandStatus, NewBatch, NewCommand, ReplyOutcome
from commandbus.names import (
    INBOX,
    NO_REPLY,
    check_domain,
    commands_queue,
    inbox_channel,
    physical_queue,
    replies_queue,
)
from commandbus.testing.fakes import encode
from commandbus.testing.memory.tables import BatchRow, CommandRow, State

_QUEUE = re.compile(r"[a-z][a-z0-9_]{0,46}\Z")


def ensure_domain(state: State, domain: str) -> None:
    """Create the queues of a domain."""
    check_domain(domain)
    _ensure_queue(state, commands_queue(domain))
    _ensure_queue(state, replies_queue(domain))


def _ensure_queue(state: State, queue: str) -> None:
    if not _QUEUE.match(physical_queue(queue)):
        raise InvalidNameError(
            f"queue name {queue!r} is not well formed; use <domain>.<suffix>, at most 47 characters"
        )
    state.queues.create(queue)


def send_commands(
    state: State,
    domain: str,
    commands: Sequence[NewCommand],
    batch_id: UUID | None = None,
    *,
    actor: str | None = None,
    is_creation: bool = False,
) -> None:
    """Store and queue all of them, or raise.

    `is_creation`: the batch was created for them, and has counted them; they are numbered.
    Otherwise they join a batch that exists, which then counts more.
    """
    if not commands:
        return
    ensure_domain(state, domain)
    batch = None if batch_id is None else require_batch(state, domain, batch_id)
    for queue in {command.reply_to for command in commands} - {NO_REPLY, INBOX}:
        _ensure_queue(state, queue)
    known = _known_ids(state, domain, [command.command_id for command in commands])
    if known:
        raise DuplicateCommandError(domain, known)
    now = state.clock.now()
    msg_ids = state.queues.send_batch(
        commands_queue(domain), [_envelope(domain, command, now) for command in commands]
    )
    for number, (command, msg_id) in enumerate(zip(commands, msg_ids, strict=True), 1):
        row = CommandRow(
            domain=domain,
            queue_name=commands_queue(domain),
            msg_id=msg_id,
            command_id=command.command_id,
            command_type=command.command_type,
            status=CommandStatus.PENDING,
            attempts=0,
            max_attempts=command.max_attempts,
            lease_expires_at=None,
            last_error_type=None,
            last_error_code=None,
            last_error_msg=None,
            created_at=now,
            updated_at=now,
            reply_queue=command.reply_to,
            correlation_id=command.correlation_id,
            batch_id=batch_id,
            lease_epoch=0,
            leased_by=None,
            data=command.data,
            sequence_no=number if is_creation else None,
        )
        state.commands[row.key] = row
        state.record(row, AuditEventType.SENT, now, actor=actor)
    if batch is not None and not is_creation:
        if batch.completed_at is not None:
            raise InvalidOperationError(
                f"batch {batch_id} is finished; create a new batch for further commands"
            )
        state.change_batch(batch, total_count=batch.total_count + len(commands))
    state.wake_workers(domain)


def _known_ids(state: State, domain: str, ids: Sequence[UUID]) -> list[UUID]:
    # What was there before; only if all are new, what stands twice in the call.
    sent: Iterable[UUID] = (
        (key[1] for key in state.commands)
        if state.id_scope == "global"
        else (command_id for command_id in ids if (domain, command_id) in state.commands)
    )
    counts = Counter(ids)
    return sorted(set(sent) & set(ids)) or sorted(i for i, count in counts.items() if count > 1)


def _envelope(domain: str, command: NewCommand, now: datetime) -> dict[str, Any]:
    return {
        "command_id": str(command.command_id),
        "type": command.command_type,
        "domain": domain,
        "correlation_id": str(command.correlation_id),
        "reply_to": command.reply_to or None,
        "created_at": _iso8601(now),
        "data": orjson.loads(command.data),
    }


# -- batches


def require_batch(state: State, domain: str, batch_id: UUID) -> BatchRow:
    """The batch, if it is one of this domain; raises otherwise."""
    batch = state.batches.get(batch_id)
    if batch is None or batch.domain != domain:
        raise BatchNotFoundError(domain, batch_id)
    return batch


def create_batch(state: State, new: NewBatch, commands: Sequence[NewCommand]) -> None:
    """A batch with its commands, or the error about those that were sent before."""
    check_domain(new.domain)
    if new.batch_id in state.batches:
        raise DatabaseError(f"there is a batch {new.batch_id} already; give it an id of its own")
    state.batches[new.batch_id] = BatchRow(
        batch_id=new.batch_id,
        domain=new.domain,
        name=new.name,
        encoded_data=new.custom_data,
        on_complete=new.on_complete,
        notifies=new.notifies,
        created_at=state.clock.now(),
        total_count=len(commands),
    )
    send_commands(state, new.domain, commands, new.batch_id, actor=new.created_by, is_creation=True)


# -- replies


def publish_reply(
    state: State,
    row: CommandRow,
    outcome: ReplyOutcome,
    ended_at: datetime,
    *,
    data: Any = None,
    error: dict[str, str | None] | None = None,
) -> None:
    """Publish the one reply of a command that has ended. What cannot be published undoes that."""
    if row.reply_queue == NO_REPLY:
        return
    body = {
        "command_id": str(row.command_id),
        "correlation_id": str(row.correlation_id),
        "domain": row.domain,
        "type": f"{row.command_type}Response",
        "outcome": outcome.value,
        "completed_at": _iso8601(ended_at),
        "data": data,
        "error": error,
    }
    if row.reply_queue == INBOX:
        state.inbox[row.key] = encode(body)
        state.notices.append(inbox_channel(row.domain))
    else:
        state.queues.create(row.reply_queue)  # somebody may have dropped it
        state.queues.send_batch(row.reply_queue, [body])


def publish_cancel(state: State, row: CommandRow, reason: str) -> None:
    """Publish the reply of a command that was canceled."""
    error: dict[str, str | None] = {"code": "CANCELED", "message": reason, "class": "CANCELED"}
    publish_reply(state, row, ReplyOutcome.CANCELED, row.updated_at, error=error)


def _iso8601(moment: datetime) -> str:
    """UTC with microseconds and a Z, as in every envelope."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
