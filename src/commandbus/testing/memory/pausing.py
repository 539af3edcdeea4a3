# ruff: noqa: D103  (the verbs are documented once, in database/store.py)
"""Pauses of a domain and of command types, and what is due in spite of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from commandbus.errors import InvalidInputError
from commandbus.flow import Pause
from commandbus.models import AuditEventType
from commandbus.names import check_domain, commands_queue
from commandbus.testing.fakes import INFINITY
from commandbus.testing.memory.tables import State, iso8601


def pause(
    state: State,
    domain: str,
    command_type: str | None,
    *,
    reason: str,
    until: datetime | timedelta | None,
    actor: str | None,
) -> None:
    check_domain(domain)
    now = state.clock.now()
    until = now + until if isinstance(until, timedelta) else until
    if not state.queues.exists(commands_queue(domain)):
        raise InvalidInputError(
            f"there is no domain {domain!r}; a domain begins with its first command or worker; "
            "check the name"
        )
    if until is not None and until <= now:
        raise InvalidInputError(
            f"the end of a pause, {iso8601(until)}, is not in the future; give a later time, by "
            "the clock of the database, or none"
        )
    end_pauses(state)
    flow = state.flow(domain)
    pauses = {**flow.pauses, command_type: Pause(domain, now, until, actor, reason, command_type)}
    state.flows[domain] = replace(flow, pauses=pauses)
    details = {"type": command_type, "reason": reason, "until": until}
    state.record_domain(domain, AuditEventType.PAUSED, details, actor)
    state.wake_workers(domain)


def resume(
    state: State,
    domain: str,
    command_type: str | None,
    *,
    actor: str | None,
    reason: str | None = None,
) -> bool:
    check_domain(domain)
    end_pauses(state)
    found = state.flow(domain).pauses.get(command_type)
    if found is None:
        return False
    details = {"type": command_type, "paused_at": found.since, "reason": reason or found.reason}
    details |= {} if reason is None else {"pause_reason": found.reason}
    _end(state, domain, command_type, details, actor)
    return True


def end_pauses(state: State) -> None:
    """End the pauses whose time is over; on PostgreSQL that is a chore of the workers."""
    now = state.clock.now()
    for domain, flow in tuple(state.flows.items()):
        for command_type, each in flow.pauses.items():
            if _is_over(each, now):
                of_type = {"type": each.type, "paused_at": each.since, "reason": each.reason}
                told = of_type if each.type is not None else {}
                _end(state, domain, command_type, {**told, "until": each.until}, None)


def _is_over(each: Pause, now: datetime) -> bool:
    return each.until is not None and each.until <= now


def _end(
    state: State,
    domain: str,
    command_type: str | None,
    details: Mapping[str, Any],
    actor: str | None,
) -> None:
    flow = state.flow(domain)
    pauses = {name: each for name, each in flow.pauses.items() if name != command_type}
    state.flows[domain] = replace(flow, pauses=pauses)
    state.record_domain(domain, AuditEventType.RESUMED, details, actor)
    state.wake_workers(domain)


def is_paused(state: State, domain: str, now: datetime) -> bool:
    """Whether nothing of the domain may start."""
    found = state.flow(domain).pauses.get(None)
    return found is not None and not _is_over(found, now)


def paused_types(state: State, domain: str, now: datetime) -> set[str]:
    """The command types of which nothing may start."""
    pauses = state.flow(domain).pauses.items()
    return {name for name, each in pauses if name is not None and not _is_over(each, now)}


def pauses(state: State, domains: Sequence[str] | None = None) -> list[Pause]:
    now, wanted = state.clock.now(), sorted(state.flows if domains is None else domains)
    found = [each for domain in wanted for each in state.flow(domain).pauses.values()]
    holding = [each for each in found if not _is_over(each, now)]
    return sorted(holding, key=lambda each: (each.domain, each.type or ""))


def due_in(state: State, domains: Sequence[str]) -> dict[str, float]:
    now = state.clock.now()
    found = [(domain, due_at(state, domain)) for domain in domains]
    return {name: max((due - now).total_seconds(), 0.0) for name, due in found if due is not None}


def due_at(state: State, domain: str) -> datetime | None:
    """When the next command is due, the past if one is; None if none will be by itself."""
    queue, pauses = commands_queue(domain), state.flow(domain).pauses
    if not state.queues.exists(queue):
        return None
    due = []
    for message in state.queues.get(queue).messages.values():
        held = [each for name, each in pauses.items() if name in (None, message.type)]
        due.append(max([message.vt, *(each.until or INFINITY for each in held)]))
    return min((moment for moment in due if moment < INFINITY), default=None)
