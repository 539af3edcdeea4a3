"""Reads: what sql/functions/reads.sql and the queries of the PostgreSQL store answer."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from commandbus.commands.payload import decode_payload
from commandbus.errors import InvalidPayloadError
from commandbus.models import (
    AuditEvent,
    Command,
    QueuedReply,
    TroubleshootingItem,
)
from commandbus.names import check_domain, commands_queue
from commandbus.testing.fakes import StoredMessage
from commandbus.testing.memory.tables import CommandRow, State


def matches(row: CommandRow, criteria: CommandFilter) -> bool:
    """Whether a command is one of those that are asked for."""
    wanted = (
        (criteria.domain, row.domain),
        (criteria.command_type, row.command_type),
        (criteria.status, row.status),
        (criteria.batch_id, row.batch_id),
        (criteria.correlation_id, row.correlation_id),
    )
    return (
        all(want is None or want == has for want, has in wanted)
        and (criteria.created_after is None or row.created_at >= criteria.created_after)
        and (criteria.created_before is None or row.created_at < criteria.created_before)
    )


def list_troubleshooting(
    state: State,
    domain: str,
    *,
    command_type: str | None,
    limit: int,
    offset: int,
    group: str | None,
) -> list[TroubleshootingItem]:
    """What waits for an operator, longest first."""
    check_domain(domain)
    waiting = sorted(
        (
            key
            for key, parked in state.parked.items()
            if key[0] == domain and group in {None, parked.fingerprint}
        ),
        key=lambda key: (state.parked[key].parked_at, key[1]),
    )
    rows = [state.commands[key] for key in waiting]
    wanted = [row for row in rows if command_type in {None, row.command_type}]
    return [_item(state, row) for row in wanted[offset : offset + limit]]


def _item(state: State, row: CommandRow) -> TroubleshootingItem:
    parked = state.parked[row.key]
    archived = state.queues.get(commands_queue(row.domain)).archive.get(row.msg_id)
    return TroubleshootingItem(
        domain=row.domain,
        command_id=row.command_id,
        command_type=row.command_type,
        reason=parked.reason,
        parked_at=parked.parked_at,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        last_error_type=row.last_error_type,
        last_error_code=row.last_error_code,
        last_error_msg=row.last_error_msg,
        correlation_id=row.correlation_id,
        reply_queue=row.reply_queue,
        batch_id=row.batch_id,
        created_at=row.created_at,
        data=None if archived is None else _decoded(_payload(archived)),
    )


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


def read_replies(state: State, queue: str, *, vt_seconds: int, quantity: int) -> list[QueuedReply]:
    """Lease replies. A queue that nobody has written to yet is empty, not an error."""
    if not state.queues.exists(queue):
        return []
    found = state.queues.read(queue, vt_seconds, quantity)
    return [QueuedReply(queue, message.msg_id, message.body.decode()) for message in found]


def take_inbox_reply(state: State, domain: str, command_id: UUID) -> str | None:
    """Take the reply that `call` waits for."""
    body: Any = state.inbox.pop((domain, command_id), None)
    return None if body is None else body.decode()
