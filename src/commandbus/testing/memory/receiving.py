"""Receiving commands, and their leases: what sql/functions/commands.sql does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any
from uuid import UUID

import orjson

from commandbus.models import AuditEventType, CommandStatus, Failure, Lease, ParkReason
from commandbus.names import commands_queue
from commandbus.retry import TRANSIENT
from commandbus.testing.memory.counters import start_batch
from commandbus.testing.memory.outcomes import park
from commandbus.testing.memory.tables import CommandRow, State

#: Leases in a row that may lapse before a command is parked without a further start.
MAX_LAPSES = 10

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A message that was read, and what it says."""

    msg_id: int
    command_id: UUID | None
    payload: str | None


def receive_commands(
    state: State,
    domain: str,
    *,
    vt_seconds: int,
    quantity: int,
    worker: str,
    limits: Mapping[str, int],
    mark_in_progress: bool = True,
    from_head: bool = False,
) -> list[Lease]:
    """Lease up to `quantity` commands, the longest due first; what must not run is turned away."""
    messages = state.queues.read_due(
        commands_queue(domain), vt_seconds, quantity, from_head=from_head
    )
    now = state.clock.now()
    leases: list[Lease] = []
    refused: list[_Delivery] = []
    for delivery in [_delivery(message.msg_id, message.message) for message in messages]:
        row = _row_of(state, domain, delivery)
        if row is None or not _may_run(row, limits):
            refused.append(delivery)
            continue
        leased = state.change(
            row,
            status=CommandStatus.IN_PROGRESS if mark_in_progress else CommandStatus.PENDING,
            attempts=row.attempts + _counts(row),
            max_attempts=limits.get(row.command_type, row.max_attempts),
            lapses=row.lapses if row.leased_by is None else abs(row.lapses) + 1,
            lease_epoch=row.lease_epoch + 1,
            leased_by=worker,
            started_alone=False,
            lease_expires_at=now + timedelta(seconds=vt_seconds),
            updated_at=now,
        )
        start_batch(state, leased, now)
        if leased.lapses > 0:
            state.record(leased, AuditEventType.LEASE_EXPIRED, now)
        state.record(leased, AuditEventType.RECEIVED, now, {"attempt": leased.attempts}, worker)
        leases.append(_lease(leased, delivery))
    _turn_away(state, domain, refused, worker, limits)
    return leases


def _delivery(msg_id: int, message: Any) -> _Delivery:
    # Anybody may have put anything into the queue.
    envelope = message if isinstance(message, dict) else {}
    text = envelope.get("command_id")
    known = isinstance(text, str) and _UUID.match(text)
    payload = orjson.dumps(envelope["data"]).decode() if "data" in envelope else None
    return _Delivery(msg_id, UUID(text) if known else None, payload)


def _row_of(state: State, domain: str, delivery: _Delivery) -> CommandRow | None:
    """The open command of which this is the current message."""
    if delivery.command_id is None:
        return None
    row = state.commands.get((domain, delivery.command_id))
    return row if row is not None and row.is_open and row.msg_id == delivery.msg_id else None


def _counts(row: CommandRow) -> int:
    """1 for a further attempt. A lapse counts only if the command is known to have run alone."""
    return 1 if row.leased_by is None or row.started_alone else 0


def _may_run(row: CommandRow, limits: Mapping[str, int]) -> bool:
    limit = limits.get(row.command_type, row.max_attempts)
    return row.attempts + _counts(row) <= limit and abs(row.lapses) < MAX_LAPSES


def _lease(row: CommandRow, delivery: _Delivery) -> Lease:
    return Lease(
        domain=row.domain,
        command_id=row.command_id,
        command_type=row.command_type,
        msg_id=row.msg_id,
        lease_epoch=row.lease_epoch,
        attempt=row.attempts,
        max_attempts=row.max_attempts,
        is_suspect=abs(row.lapses) > 1,
        correlation_id=row.correlation_id,
        reply_queue=row.reply_queue,
        batch_id=row.batch_id,
        created_at=row.created_at,
        payload=delivery.payload,
    )


def _turn_away(
    state: State,
    domain: str,
    refused: Sequence[_Delivery],
    worker: str,
    limits: Mapping[str, int],
) -> None:
    for delivery in refused:
        row = _row_of(state, domain, delivery)
        if row is None:
            state.queues.archive(commands_queue(domain), [delivery.msg_id])
            continue
        limited = state.change(row, max_attempts=limits.get(row.command_type, row.max_attempts))
        failure = _used_up(limited)
        # Taking the lease fences the worker that may still be running it.
        taken = state.change(limited, leased_by=worker, lease_epoch=row.lease_epoch + 1)
        park(state, taken, ParkReason.EXHAUSTED, failure, state.clock.now())


def _used_up(row: CommandRow) -> Failure:
    used = f"{row.attempts} of {row.max_attempts}"
    if row.leased_by is not None:
        message = f"the worker stopped without a result, attempt {used}"
        return Failure(TRANSIENT, "LEASE_EXPIRED", message)
    return Failure(TRANSIENT, "ATTEMPTS_EXHAUSTED", f"no attempt left: {used} are used")


def confirm_start(state: State, lease: Lease) -> bool:
    """If this lease lapses too, the command is to blame."""
    row = state.commands.get((lease.domain, lease.command_id))
    if row is None or not row.is_leased_as(lease):
        return False
    state.change(row, started_alone=True)
    return True


def extend_leases(state: State, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
    """Extend what is still leased; returns the commands whose lease is lost."""
    queue = commands_queue(domain)
    state.queues.get(queue)
    until = state.clock.now() + timedelta(seconds=ceil(seconds))
    kept = set()
    for lease in leases:
        row = state.commands.get((domain, lease.command_id))
        if row is not None and row.is_leased_as(lease):
            state.change(row, lease_expires_at=until)
            state.queues.set_vt(queue, [row.msg_id], until)
            kept.add(row.command_id)
    return {lease.command_id for lease in leases} - kept
