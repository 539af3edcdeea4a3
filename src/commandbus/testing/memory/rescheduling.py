# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Another time, or another level, for what nobody has begun. All ids, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.flow import MAX_DELAY_SECONDS
from commandbus.models import AuditEventType
from commandbus.names import check_domain
from commandbus.testing.fakes import INFINITY
from commandbus.testing.memory.keys import is_behind
from commandbus.testing.memory.lapses import end_lapsed_paused
from commandbus.testing.memory.operator import movable, refuse
from commandbus.testing.memory.tables import CommandRow, State, iso8601

_PENDING = "a command that is PENDING"


def reschedule(
    state: State,
    domain: str,
    ids: Sequence[UUID],
    *,
    deliver_at: datetime | None,
    delay_seconds: float | None,
    actor: str | None,
) -> None:
    check_domain(domain)
    now = state.clock.now()
    wanted = now + timedelta(seconds=delay_seconds or 0.0) if deliver_at is None else deliver_at
    if wanted > now + timedelta(seconds=MAX_DELAY_SECONDS):
        raise InvalidInputError(
            "the new time is not within a year; delay a command by at most one year"
        )
    due = max(now, wanted)  # a time in the past is now
    end_lapsed_paused(state, domain, ids)
    rows = movable(state, domain, ids, lambda row: row.is_waiting)
    for row in rows:
        if problem := _problem(state, row, due):
            raise InvalidOperationError(
                f"cannot reschedule command {row.command_id}: {problem}; leave it out, or cancel "
                "it and send the work again under a new id"
            )
    refuse(state, domain, ids, rows, "reschedule", _PENDING)
    for row in rows:
        was = state.queues.get(row.queue_name).messages[row.msg_id].vt
        state.queues.set_vt(row.queue_name, [row.msg_id], due)
        state.change(row, deliver_at=due, updated_at=now)
        details = {"from": None if was == INFINITY else iso8601(was), "to": iso8601(due)}
        state.record(row, AuditEventType.RESCHEDULED, now, details, actor)
    state.wake_workers(domain)


def _problem(state: State, row: CommandRow, due: datetime) -> str | None:
    if row.expires_at is not None and row.expires_at <= due:
        return f"it expires at {iso8601(row.expires_at)}, before the new time"
    if is_behind(state, row):
        return "it waits behind others of its ordering key"
    return None


def set_priority(
    state: State, domain: str, ids: Sequence[UUID], priority: int, *, actor: str | None
) -> None:
    check_domain(domain)
    end_lapsed_paused(state, domain, ids)
    rows = movable(state, domain, ids, lambda row: row.is_waiting)
    refuse(state, domain, ids, rows, "prioritize", _PENDING)
    now = state.clock.now()
    for row in rows:
        state.queues.set_level(row.queue_name, row.msg_id, priority)
        state.change(row, priority=priority or None, updated_at=now)
        if priority != (row.priority or 0):
            details = {"from": row.priority or 0, "to": priority}
            state.record(row, AuditEventType.PRIORITY_CHANGED, now, details, actor)


def set_level_seconds(state: State, domain: str, seconds: float, *, actor: str | None) -> None:
    check_domain(domain)
    state.flows[domain] = replace(state.flow(domain), level_seconds=seconds)
    details = {"level_seconds": seconds}
    state.record_domain(domain, AuditEventType.LEVELS_CHANGED, details, actor)
