# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Ordering keys: what sql/functions/keys.sql does.

The head of a key is the only one of its commands that can be due: the messages of those behind it
are at INFINITY, in the order of their key_seq.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from commandbus.models import AuditEventType
from commandbus.testing.fakes import INFINITY
from commandbus.testing.memory.tables import CommandRow, OrderingKey, State


def take_place(
    state: State, domain: str, command_id: UUID, ordering_key: str, now: datetime
) -> tuple[int, datetime]:
    """The number of a command that goes to the end of its key, and when its message is due."""
    number = 1 + max((row.key_seq or 0 for row in state.commands.values()), default=0)
    head = state.heads.setdefault((domain, ordering_key), command_id)
    return number, now if head == command_id else INFINITY


def is_behind(state: State, row: CommandRow) -> bool:
    """Whether it is the turn of another command of its key."""
    if row.ordering_key is None:
        return False
    return state.heads.get((row.domain, row.ordering_key)) != row.command_id


def waiting_text(state: State, row: CommandRow) -> str:
    """What a command behind others waits for: what sql/functions/key_reads.sql says."""
    place = (row.domain, row.ordering_key or "")
    head = state.heads[place]
    behind = [each.command_id for each in _open_rows(state, place) if each.command_id != head]
    is_blocked = (row.domain, head) in state.parked
    blocks = ", which is parked and blocks it" if is_blocked else ""
    number = behind.index(row.command_id) + 1
    return f"number {number} behind {head} of key {row.ordering_key}{blocks}"


def key_policy(state: State, domain: str) -> str:
    return state.flow(domain).on_park


def set_key_policy(
    state: State, domain: str, on_park: str, *, reason: str | None, actor: str | None
) -> None:
    # The next of the keys that are blocked is due after this verb: see promote.
    before = key_policy(state, domain)
    if before == on_park:
        return
    state.flows[domain] = replace(state.flow(domain), on_park=on_park)
    details = {"on_park": on_park, "before": before, "reason": reason}
    state.record_domain(domain, AuditEventType.KEY_POLICY_SET, details, actor)


def promote(state: State) -> None:
    """Where the head of a key holds it no more, the next one is due; it may always be called."""
    if not state.heads:
        return
    now = state.clock.now()
    for place, head in tuple(state.heads.items()):
        if _holds(state, state.commands.get((place[0], head))):
            continue
        waiting = _open_rows(state, place)
        if not waiting:
            del state.heads[place]
            continue
        row = waiting[0]
        state.heads[place] = row.command_id
        state.queues.set_vt(row.queue_name, [row.msg_id], now)
        state.wake_workers(row.domain)


def _holds(state: State, row: CommandRow | None) -> bool:
    """Whether it runs or will run; or is parked where that blocks a key."""
    if row is None:
        return False
    is_blocked = row.key in state.parked and state.flow(row.domain).on_park == "block"
    return row.is_open or is_blocked


def _open_rows(state: State, place: OrderingKey) -> list[CommandRow]:
    rows = [
        row
        for row in state.commands.values()
        if (row.domain, row.ordering_key) == place and row.is_open
    ]
    return sorted(rows, key=lambda row: row.key_seq or 0)
