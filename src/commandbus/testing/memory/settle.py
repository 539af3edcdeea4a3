"""Settling: a group of mixed outcomes, fenced by their leases, with what the handlers send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from commandbus.models import AuditEventType, Outcome, OutcomeKind, ParkReason
from commandbus.names import commands_queue
from commandbus.testing.memory.outcomes import complete, fail, park, release, retry
from commandbus.testing.memory.sending import send_commands
from commandbus.testing.memory.tables import CommandRow, State


def settle(state: State, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
    """Write outcomes, kind by kind; returns the commands whose lease is lost."""
    state.queues.get(commands_queue(domain))
    # Before the first command moves: afterwards nobody holds a lease any more.
    sends = [
        outgoing
        for outcome in outcomes
        if _held_row(state, domain, outcome) is not None
        for outgoing in outcome.sends
    ]
    lost: set[UUID] = set()
    for kind in OutcomeKind:
        lost |= _settle_kind(state, domain, kind, [o for o in outcomes if o.kind is kind])
    for outgoing in sends:
        send_commands(state, outgoing.domain, outgoing.commands, outgoing.batch_id)
    return lost


def _settle_kind(
    state: State, domain: str, kind: OutcomeKind, outcomes: Sequence[Outcome]
) -> set[UUID]:
    now = state.clock.now()
    moved = set()
    for outcome in outcomes:
        row = _held_row(state, domain, outcome)
        if row is not None:
            _MOVES[kind](state, row, outcome, now)
            moved.add(row.command_id)
    rest = [outcome for outcome in outcomes if outcome.lease.command_id not in moved]
    return _reject_stale(state, domain, rest)


def _held_row(state: State, domain: str, outcome: Outcome) -> CommandRow | None:
    row = state.commands.get((domain, outcome.lease.command_id))
    return row if row is not None and row.is_open and row.is_held(outcome.lease) else None


def _reject_stale(state: State, domain: str, rest: Sequence[Outcome]) -> set[UUID]:
    lost = set()
    for outcome in rest:
        row = state.commands.get((domain, outcome.lease.command_id))
        # The same epoch without a lease: this very outcome was recorded before.
        if row is None or row.lease_epoch == outcome.lease.lease_epoch:
            continue
        details = {"lease_epoch": outcome.lease.lease_epoch}
        state.record(row, AuditEventType.STALE_RESULT_REJECTED, state.clock.now(), details)
        lost.add(row.command_id)
    return lost


def _park(state: State, row: CommandRow, outcome: Outcome, now: datetime) -> None:
    park(state, row, outcome.reason or ParkReason.PERMANENT, outcome.failure, now)


_MOVES: dict[OutcomeKind, Callable[[State, CommandRow, Outcome, datetime], None]] = {
    OutcomeKind.COMPLETE: complete,
    OutcomeKind.RETRY: retry,
    OutcomeKind.PARK: _park,
    OutcomeKind.FAIL: fail,
    OutcomeKind.RELEASE: release,
}
