"""When a command may start, and at which level: what sql/functions/flow.sql does at a send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from commandbus.errors import InvalidInputError
from commandbus.flow import MAX_DELAY_SECONDS, MAX_EXPIRY_SECONDS, Flow
from commandbus.models import NewCommand
from commandbus.testing.fakes import encode
from commandbus.testing.memory.keys import is_behind, take_place
from commandbus.testing.memory.tables import CommandRow, State

_NOTHING = Flow()


@dataclass(frozen=True, slots=True)
class Place:
    """What a row keeps of the options of a send."""

    deliver_at: datetime | None
    expires_at: datetime | None
    priority: int | None
    ordering_key: str | None
    limit_key: str | None


def place_of(command: NewCommand, now: datetime) -> Place:
    """The place that a new command asks for; refuses what cannot be, by the clock of the store."""
    flow = command.flow or _NOTHING
    place = Place(
        deliver_at=_moment(flow.deliver_at, flow.delay_seconds, now),
        expires_at=_moment(flow.expires_at, flow.expires_in_seconds, now),
        priority=flow.priority,
        ordering_key=flow.ordering_key,
        limit_key=flow.limit_key,
    )
    if problem := _problem(place, now):
        raise InvalidInputError(f"command {command.command_id}: {problem}")
    return place


def _moment(moment: datetime | None, seconds: float | None, now: datetime) -> datetime | None:
    return moment if seconds is None else now + timedelta(seconds=seconds)


def _problem(place: Place, now: datetime) -> str | None:
    due, end = place.deliver_at, place.expires_at
    if due is not None and due > now + timedelta(seconds=MAX_DELAY_SECONDS):
        return (
            "deliver_at is more than a year ahead; delay a command by at most one year; a schedule "
            "can send it later"
        )
    if end is not None and end > now + timedelta(seconds=MAX_EXPIRY_SECONDS):
        return "expires_at is more than two years ahead; let a command expire within two years"
    if end is not None and end <= now:
        return (
            "expires_at is in the past, so it would never start; give a later time, by the clock "
            "of the database"
        )
    if due is not None and end is not None and end <= due:
        return "it would expire before it is delivered; let it expire after deliver_at"
    return None


def put_command(state: State, row: CommandRow, message: Any) -> CommandRow:
    """Put the message of a command that is new, or sent again: at its time, in its order.

    A time in the past is now: an earlier one would go before all that waits.
    """
    now = state.clock.now()
    number, due = row.key_seq, max(now, row.deliver_at or now)
    if row.ordering_key is not None and is_behind(state, row):
        number, due = take_place(state, row.domain, row.command_id, row.ordering_key, now)
    msg_id = state.queues.put(row.queue_name, encode(message), now, due, row.priority or 0)
    return state.change(row, msg_id=msg_id, key_seq=number)
