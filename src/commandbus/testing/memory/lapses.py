"""Leases that have lapsed: what is told of one, and the end of those that nobody takes over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from commandbus.models import AuditEventType, CommandStatus
from commandbus.testing.memory.pausing import is_paused, paused_types
from commandbus.testing.memory.tables import CommandRow, State, iso8601


def lapsed_lease(row: CommandRow) -> dict[str, Any]:
    """Whose lease ran out, from when to when."""
    times = {"leased_at": row.updated_at, "lease_ended_at": row.lease_expires_at}
    shown = {name: iso8601(moment) for name, moment in times.items() if moment is not None}
    return {"worker": row.leased_by, **shown}


def end_lapsed_paused(state: State, domain: str, ids: Iterable[UUID]) -> None:
    """End the lapsed leases of what is paused: no receive comes to take them over.

    What the lapse costs is up to the next receive, as in sql/functions/leases.sql.
    """
    now = state.clock.now()
    all_are, types = is_paused(state, domain, now), paused_types(state, domain, now)
    for command_id in ids:
        row = state.commands.get((domain, command_id))
        if row is None or not row.is_open or row.leased_by is None:
            continue
        message = state.queues.get(row.queue_name).messages.get(row.msg_id)
        if message is None or message.vt > now or not (all_are or row.command_type in types):
            continue
        state.record(row, AuditEventType.LEASE_EXPIRED, now, lapsed_lease(row))
        state.change(
            row,
            status=CommandStatus.PENDING,
            lease_epoch=row.lease_epoch + 1,
            leased_by=None,
            lease_expires_at=None,
            lapses=abs(row.lapses) + 1,
            updated_at=now,
        )
