# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""What goes into queues, commands and replies; and batches, whose counters follow the commands."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import orjson

from commandbus.database.model import NewBatch
from commandbus.errors import (
    BatchNotFoundError,
    DatabaseError,
    DuplicateCommandError,
    InvalidNameError,
    InvalidOperationError,
)
from commandbus.flow import Flow
from commandbus.models import AuditEventType, BatchStatus, CommandStatus, NewCommand, ReplyOutcome
from commandbus.names import (
    INBOX,
    NO_REPLY,
    batches_channel,
    check_domain,
    commands_queue,
    inbox_channel,
    physical_queue,
    replies_queue,
)
from commandbus.testing.fakes import encode
from commandbus.testing.memory.placing import Place, place_of, put_command
from commandbus.testing.memory.tables import BatchRow, CommandRow, State, iso8601, made

#: The classes of states that counters depend on; never whether a command was IN_PROGRESS.
StateClass = Literal["open", "in_troubleshooting", "completed", "failed", "canceled"]

_NEW_COMMAND: dict[str, Any] = {
    "status": CommandStatus.PENDING, "attempts": 0, "lease_epoch": 0, "lapses": 0,
    "started_alone": False, "snoozes": None, "leased_by": None, "lease_expires_at": None,
    "last_error_type": None, "last_error_code": None, "last_error_msg": None, "key_seq": None,
    "due_at": None, "waiting_for": None, "history_since": None,
    "cancel_requested_at": None, "cancel_requested_by": None, "cancel_reason": None,
}  # fmt: skip
_NEW_BATCH: dict[str, Any] = {
    "status": BatchStatus.PENDING, "completed_count": 0, "failed_count": 0, "canceled_count": 0,
    "in_troubleshooting_count": 0, "started_at": None, "completed_at": None, "close_count": 0,
    "history_since": None,
}  # fmt: skip
_QUEUE = re.compile(r"[a-z][a-z0-9_]{0,46}\Z")


def ensure_domain(state: State, domain: str) -> None:
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
    now = state.clock.now()
    places = [place_of(command, now) for command in commands]
    known = _known_ids(state, domain, [command.command_id for command in commands])
    if known:
        raise DuplicateCommandError(domain, known)
    for number, (command, place) in enumerate(zip(commands, places, strict=True), 1):
        row = made(
            CommandRow, command, **_NEW_COMMAND, **asdict(place), domain=domain, msg_id=0,
            queue_name=commands_queue(domain), created_at=now, updated_at=now,
            reply_queue=command.reply_to, batch_id=batch_id,
            sequence_no=number if is_creation else None,
        )  # fmt: skip
        row = put_command(state, row, _envelope(domain, command, now))
        state.record(row, AuditEventType.SENT, now, _shown_place(place), actor)
    if batch is not None and not is_creation:
        if batch.completed_at is not None:
            raise InvalidOperationError(
                f"batch {batch_id} is finished; create a new batch for further commands"
            )
        state.change_batch(batch, total_count=batch.total_count + len(commands))
    state.wake_workers(domain)


def _known_ids(state: State, domain: str, ids: Sequence[UUID]) -> list[UUID]:
    # The ids that were sent before; only if all are new, those that are twice in this call.
    sent = {i for where, i in state.commands if where == domain or state.id_scope == "global"}
    return sorted(sent.intersection(ids)) or sorted(i for i, n in Counter(ids).items() if n > 1)


def _envelope(domain: str, command: NewCommand, now: datetime) -> dict[str, Any]:
    return {
        "command_id": str(command.command_id),
        "type": command.command_type,
        "domain": domain,
        "correlation_id": str(command.correlation_id),
        "reply_to": command.reply_to or None,
        "created_at": iso8601(now),
        "data": orjson.loads(command.data),
        **({} if command.meta is None else {"meta": dict(command.meta)}),
    }


def _shown_place(place: Place) -> dict[str, Any] | None:
    """For the audit: what was said, without what was not."""
    said = {name: value for name, value in asdict(place).items() if value is not None}
    shown = {
        name: iso8601(value) if isinstance(value, datetime) else value
        for name, value in said.items()
    }
    return shown or None


# -- batches


def require_batch(state: State, domain: str, batch_id: UUID) -> BatchRow:
    """The batch, if it is one of this domain; raises otherwise."""
    batch = state.batches.get(batch_id)
    if batch is None or batch.domain != domain:
        raise BatchNotFoundError(domain, batch_id)
    return batch


def create_batch(state: State, new: NewBatch, commands: Sequence[NewCommand]) -> None:
    check_domain(new.domain)
    if new.batch_id in state.batches:
        raise DatabaseError(f"there is a batch {new.batch_id} already; give it an id of its own")
    data = None if new.custom_data is None else orjson.loads(new.custom_data)
    state.batches[new.batch_id] = made(
        BatchRow, new, **_NEW_BATCH, custom_data=data, total_count=len(commands),
        created_at=state.clock.now(),
    )  # fmt: skip
    actor = new.created_by if new.actor is None else new.actor
    send_commands(state, new.domain, commands, new.batch_id, actor=actor, is_creation=True)


def start_batch(state: State, row: CommandRow, now: datetime) -> None:
    """The first command of a batch was received."""
    batch = state.batches.get(row.batch_id) if row.batch_id is not None else None
    if batch is None or batch.status != BatchStatus.PENDING:
        return
    batch = state.change_batch(batch, status=BatchStatus.IN_PROGRESS, started_at=now)
    state.record(batch, AuditEventType.BATCH_STARTED, now)


def move_batch_counters(
    state: State, row: CommandRow, origin: StateClass, target: StateClass, actor: str | None = None
) -> None:
    """Count a command that moved from one class to another.

    Its batch closes when that was the last; a closed one of which a command moves back is reopened.
    """
    if row.batch_id is None:
        return
    batch = state.batches[row.batch_id]
    counts = {
        f"{name}_count": getattr(batch, f"{name}_count") + (name == target) - (name == origin)
        for name in ("completed", "failed", "canceled", "in_troubleshooting")
    }
    batch = state.change_batch(batch, **counts)
    if batch.is_done and batch.completed_at is None:
        _close(state, batch, actor)
    elif not batch.is_done and batch.completed_at is not None:
        batch = state.change_batch(batch, status=BatchStatus.IN_PROGRESS, completed_at=None)
        state.record(batch, AuditEventType.BATCH_REOPENED, state.clock.now(), actor=actor)


def _close(state: State, batch: BatchRow, actor: str | None) -> None:
    now = state.clock.now()
    has_failures = batch.failed_count + batch.canceled_count > 0
    batch = state.change_batch(
        batch,
        status=BatchStatus.COMPLETED_WITH_FAILURES if has_failures else BatchStatus.COMPLETED,
        started_at=batch.started_at or now,
        completed_at=now,
        close_count=batch.close_count + 1,
    )
    counts = {
        name: getattr(batch, f"{name}_count")
        for name in ("total", "completed", "failed", "canceled")
    }
    details = {"status": str(batch.status), **counts}
    state.record(batch, AuditEventType.BATCH_COMPLETED, now, details, actor=actor)
    if batch.on_complete is not None:
        _send_closing_command(state, batch, orjson.loads(batch.on_complete), actor)
    if batch.notifies:
        state.notices.append(batches_channel(batch.domain))


def _send_closing_command(
    state: State, batch: BatchRow, asked: dict[str, Any], actor: str | None
) -> None:
    domain, reply_to = asked["domain"], asked.get("reply_to")
    # Only this closing has the id; if the batch is opened and closed again, it has another.
    name = f"{batch.batch_id}/{batch.close_count}".encode()
    command = NewCommand(
        command_type=asked["type"],
        command_id=UUID(hashlib.md5(name, usedforsecurity=False).hexdigest()),
        data=orjson.dumps(asked.get("data") or {}),
        reply_to=replies_queue(domain) if reply_to is None else reply_to,
        correlation_id=batch.batch_id,
        max_attempts=asked.get("max_attempts") or 3,
        flow=Flow(**{each.name: asked[each.name] for each in fields(Flow) if each.name in asked}),
        meta=asked.get("meta"),
    )
    send_commands(state, domain, [command], actor=actor)


# -- replies


def publish_reply(
    state: State,
    row: CommandRow,
    outcome: ReplyOutcome,
    *,
    data: Any = None,
    error: Any = None,
    meta: Mapping[str, str] | None = None,
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
        "completed_at": iso8601(row.updated_at),
        "data": data,
        "error": error,
        **({} if meta is None else {"meta": dict(meta)}),
    }
    if row.reply_queue == INBOX:
        state.inbox[row.key] = encode(body)
        state.notices.append(inbox_channel(row.domain))
    else:
        state.queues.create(row.reply_queue)  # it may have been dropped
        state.queues.send_batch(row.reply_queue, [body])


def publish_cancel(
    state: State,
    row: CommandRow,
    reason: str | None,
    code: str = "CANCELED",
    meta: Mapping[str, str] | None = None,
) -> None:
    """Publish the reply of a command that was canceled."""
    error = {"code": code, "message": reason, "class": "CANCELED"}
    publish_reply(state, row, ReplyOutcome.CANCELED, error=error, meta=meta)
