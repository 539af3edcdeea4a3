"""Sending: what offer_commands of sql/functions/commands.sql does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import (
    BatchNotFoundError,
    DuplicateCommandError,
    InvalidNameError,
    InvalidOperationError,
)
from commandbus.models import AuditEventType, NewCommand
from commandbus.names import (
    INBOX,
    NO_REPLY,
    check_domain,
    commands_queue,
    physical_queue,
    replies_queue,
)
from commandbus.testing.memory.replies import iso8601
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
    if batch_id is not None:
        find_batch(state, domain, batch_id)
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
            command_id=command.command_id,
            command_type=command.command_type,
            msg_id=msg_id,
            max_attempts=command.max_attempts,
            created_at=now,
            updated_at=now,
            reply_queue=command.reply_to,
            correlation_id=command.correlation_id,
            batch_id=batch_id,
            data=command.data,
            sequence_no=number if is_creation else None,
        )
        state.commands[row.key] = row
        state.record(row, AuditEventType.SENT, now, actor=actor)
    if batch_id is not None and not is_creation:
        _join_batch(state, domain, batch_id, len(commands))
    state.wake_workers(domain)


def _known_ids(state: State, domain: str, ids: Sequence[UUID]) -> list[UUID]:
    # What was there before; only if all are new, what stands twice in the call.
    sent = (
        {key[1] for key in state.commands}
        if state.id_scope == "global"
        else {command_id for command_id in ids if (domain, command_id) in state.commands}
    )
    counts = Counter(ids)
    return sorted(sent & set(ids)) or sorted(i for i, count in counts.items() if count > 1)


def _envelope(domain: str, command: NewCommand, now: datetime) -> dict[str, Any]:
    return {
        "command_id": str(command.command_id),
        "type": command.command_type,
        "domain": domain,
        "correlation_id": str(command.correlation_id),
        "reply_to": command.reply_to or None,
        "created_at": iso8601(now),
        "data": orjson.loads(command.data),
    }


def find_batch(state: State, domain: str, batch_id: UUID) -> BatchRow:
    """The batch, if it is one of this domain."""
    batch = state.batches.get(batch_id)
    if batch is None or batch.domain != domain:
        raise BatchNotFoundError(domain, batch_id)
    return batch


def _join_batch(state: State, domain: str, batch_id: UUID, count: int) -> None:
    """New commands join a batch, which must not be finished."""
    batch = find_batch(state, domain, batch_id)
    if batch.completed_at is not None:
        raise InvalidOperationError(
            f"batch {batch_id} is finished; create a new batch for further commands"
        )
    state.change_batch(batch, total_count=batch.total_count + count)
