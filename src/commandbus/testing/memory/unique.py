# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Sending once, in memory: ids that are known, and keys of which one command at a time is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import orjson

from commandbus.database.model import Sent
from commandbus.errors import InvalidInputError, InvalidOperationError, UniqueKeyHeldError
from commandbus.flow import Flow
from commandbus.models import AuditEventType, NewCommand
from commandbus.testing.fakes import INFINITY, encode
from commandbus.testing.memory.placing import place_of
from commandbus.testing.memory.sending import ensure_domain, require_batch, send_commands
from commandbus.testing.memory.tables import CommandRow, State, iso8601


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A row of command_bus_unique."""

    command_id: UUID
    holds_while: str
    holds_until: datetime | None
    first_at: datetime


def send_new(
    state: State,
    domain: str,
    commands: Sequence[NewCommand],
    batch_id: UUID | None = None,
    *,
    actor: str | None = None,
) -> list[int]:
    ensure_domain(state, domain)
    if batch_id is not None:
        require_batch(state, domain, batch_id)
    known = {i for where, i in state.commands if where == domain or state.id_scope == "global"}
    new, left_out = [], []
    for number, command in enumerate(commands, 1):
        if command.command_id in known:
            left_out.append(number)
        else:
            known.add(command.command_id)
            new.append(command)
    send_commands(state, domain, new, batch_id, actor=actor)
    return left_out


def send_unique(
    state: State,
    domain: str,
    commands: Sequence[NewCommand],
    batch_id: UUID | None = None,
    *,
    actor: str | None = None,
    skips_known: bool = False,
) -> list[Sent]:
    verdicts: list[Sent] = []
    taken: dict[str, UUID] = {}
    for number, command in enumerate(commands, 1):
        flow = command.flow or Flow()
        holder = taken.get(flow.unique_key or "") or _holder(state, domain, flow.unique_key)
        if holder is None:
            verdicts.append(Sent(number, "sent", command.command_id))
            if flow.unique_key is not None:
                taken[flow.unique_key] = command.command_id
        elif flow.on_duplicate == "skip":
            verdicts.append(Sent(number, "skipped", holder))
        elif flow.on_duplicate == "replace":
            if batch_id is not None:
                raise InvalidInputError("a command of a batch is not replaced; send it without")
            _replace(state, domain, holder, command, actor)
            verdicts.append(Sent(number, "replaced", holder))
        else:
            raise UniqueKeyHeldError(domain, flow.unique_key or "", holder)
    fresh = [commands[each.number - 1] for each in verdicts if each.verdict == "sent"]
    left_out: set[UUID] = set()
    if skips_known:
        numbers = send_new(state, domain, fresh, batch_id, actor=actor)
        left_out = {fresh[number - 1].command_id for number in numbers}
    else:
        send_commands(state, domain, fresh, batch_id, actor=actor)
    for command in fresh:
        if command.command_id not in left_out:
            _hold(state, domain, command)
    return [
        replace(each, verdict="skipped")
        if each.verdict == "sent" and each.command_id in left_out
        else each
        for each in verdicts
    ]


def _holder(state: State, domain: str, key: str | None) -> UUID | None:
    """The command that holds a key now."""
    held = None if key is None else state.unique.get((domain, key))
    if held is None:
        return None
    row = state.commands.get((domain, held.command_id))
    if held.holds_until is not None:
        holds = held.holds_until > state.clock.now()
    elif held.holds_while == "open":
        holds = row is not None and row.is_open
    else:
        holds = row is not None and row.is_waiting
    return held.command_id if holds else None


def _hold(state: State, domain: str, command: NewCommand) -> None:
    flow = command.flow
    if flow is None or flow.unique_key is None:
        return
    now, rule = state.clock.now(), flow.unique_while or "open"
    until = None if isinstance(rule, str) else now + timedelta(seconds=rule)
    state.unique[domain, flow.unique_key] = KeyRow(command.command_id, str(rule), until, now)


def _replace(
    state: State, domain: str, holder: UUID, command: NewCommand, actor: str | None
) -> None:
    row, flow, now = state.commands[domain, holder], command.flow or Flow(), state.clock.now()
    place = place_of(command, now)
    _refuse_replacement(row, command)
    due, is_over = place.deliver_at or now, False
    if flow.max_wait_seconds is not None:
        first_at = state.unique[domain, flow.unique_key or ""].first_at
        limit = first_at + timedelta(seconds=flow.max_wait_seconds)
        due, is_over = min(due, limit), limit <= now
    due = max(due, now)
    messages = state.queues.get(row.queue_name).messages
    message = messages[row.msg_id]
    kept = {name: value for name, value in message.message.items() if name != "meta"}
    new = {} if command.meta is None else {"meta": dict(command.meta)}
    body = encode(kept | {"data": orjson.loads(command.data)} | new)
    vt = message.vt if message.vt == INFINITY else min(message.vt, due) if is_over else due
    messages[row.msg_id] = replace(message, body=body, vt=vt)
    later = due if due > now else None
    # What it has come to with the former payload is over.
    anew = {"attempts": 0, "lapses": 0, "started_alone": False, "snoozes": None}
    errors = dict.fromkeys(("last_error_type", "last_error_code", "last_error_msg"))
    row = state.change(
        row, data=command.data, updated_at=now, deliver_at=later, expires_at=place.expires_at,
        **anew, **errors,
    )  # fmt: skip
    times = {"deliver_at": later, "expires_at": place.expires_at}
    shown = {name: iso8601(moment) for name, moment in times.items() if moment is not None}
    details = {"offered_id": str(command.command_id), **shown}
    state.record(row, AuditEventType.REPLACED, now, details, actor)
    state.wake_workers(domain)


def _refuse_replacement(row: CommandRow, command: NewCommand) -> None:
    if row.command_type != command.command_type:
        raise InvalidInputError(
            f"command {command.command_id}: its key is held by {row.command_id}, a "
            f"{row.command_type}; use keys that name their command type"
        )
    if row.batch_id is not None or row.ordering_key is not None:
        raise InvalidOperationError(
            f"command {row.command_id} holds the key, and belongs to a batch or has an ordering "
            "key; such a command is not replaced"
        )
