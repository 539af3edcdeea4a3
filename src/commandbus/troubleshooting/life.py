"""The life of one command: what happened, with the time between, and why it stands as it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString
from uuid import UUID

from commandbus.database.rows import (
    AUDIT_COLUMNS,
    COMMAND_COLUMNS,
    COMMANDS_WHERE,
    HISTORY_WHERE,
    command_of,
)
from commandbus.errors import CommandNotFoundError
from commandbus.models import (
    EVERYTHING,
    AuditEvent,
    AuditEventType,
    CommandMetadata,
    Viewer,
)
from commandbus.names import check_domain, check_uuid
from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.life_words import LifeFacts, life_sentence

#: Commands of the same correlation that are shown.
MAX_SIBLINGS = 20

_COMMAND: LiteralString = (
    COMMANDS_WHERE + "c.domain = %s and c.command_id = %s"
    " and {schema}.visible_batch(cast(%s as text), c.batch_id)"
)
_MOVED: LiteralString = (
    HISTORY_WHERE + "c.domain = %s and c.command_id = %s"
    " and {schema}.visible_batch(cast(%s as text), c.batch_id)"
)
_EVENTS: LiteralString = (
    "select e.left_out, "  # noqa: S608  (literals only)
    + AUDIT_COLUMNS
    + " from {schema}.command_events(%s, %s, cast(%s as text)) e"
    " cross join lateral (select (e.event).*) a"
)
_FACTS: LiteralString = "select * from {schema}.command_facts(%s, %s)"
# At first only the ids, by the index of the correlation: the rest is read of a page.
_SIBLINGS: LiteralString = (
    "(select "  # noqa: S608  (literals only)
    + COMMAND_COLUMNS
    + ", cast(null as timestamptz) from {schema}.command_bus_command c where "
    "(c.domain, c.command_id) in (select s.domain, s.command_id"
    " from {schema}.command_bus_command s where s.correlation_id = %s and s.command_id <> %s"
    " and {schema}.visible_batch(cast(%s as text), s.batch_id)"
    " and (cast(%s as text[]) is null or s.domain = any(cast(%s as text[]))) limit %s))"
    " union all (" + HISTORY_WHERE + "c.correlation_id = %s and c.command_id <> %s"
    " and {schema}.visible_batch(cast(%s as text), c.batch_id)"
    " and (cast(%s as text[]) is null or c.domain = any(cast(%s as text[]))) limit %s)"
)

#: Events that end an attempt.
_ENDS = frozenset(
    {
        AuditEventType.COMPLETED,
        AuditEventType.FAILED,
        AuditEventType.LEASE_EXPIRED,
        AuditEventType.RELEASED,
        AuditEventType.SNOOZED,
        AuditEventType.DISCARDED,
        AuditEventType.CANCELED,
    }
)


@dataclass(frozen=True, slots=True)
class LifeStep:
    """One event, and how long after the one before it came."""

    event: AuditEvent
    #: None: it is the first, or the events before it are left out.
    seconds_since_previous: float | None
    seconds_since_sent: float
    attempt: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the handler: who, when, and how it ended."""

    number: int | None
    worker: str | None
    started_at: datetime
    #: None: it runs, or its end is among the events that are left out.
    ended_at: datetime | None
    #: The event that ended it.
    outcome: str | None
    error_code: str | None
    error_message: str | None
    #: Where in the code it was raised.
    stack: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class CommandLife:
    """A command, what happened to it, what is beside it, and what a person may do."""

    command: CommandMetadata
    #: Why it stands where it stands, in words.
    sentence: str
    #: Oldest first. Of more than 200 only the first and the last 50.
    steps: tuple[LifeStep, ...]
    #: Events between them that are left out; -1: more than 10,000.
    left_out: int
    attempts: tuple[Attempt, ...]
    #: What the state allows; whether the caller may, its scopes say.
    actions: tuple[Action, ...]
    facts: LifeFacts
    #: Others with the same correlation, oldest first, and whether there are more.
    siblings: tuple[CommandMetadata, ...]
    has_more_siblings: bool

    @property
    def gap_after(self) -> int | None:
        """After how many of the steps the events are that are left out."""
        return len(self.steps) // 2 if self.left_out else None


class Lives(Groups):
    """Reads lives."""

    async def life(
        self,
        domain: str,
        command_id: UUID,
        *,
        viewer: Viewer = EVERYTHING,
        domains: Iterable[str] | None = None,
    ) -> CommandLife:
        """What happened to a command and why it stands where it stands; no payload.

        Four reads by key, however old it is. `domains`: where its siblings may be; None: anywhere.
        """
        wanted, gateway = check_uuid(command_id), self._store.gateway
        params = (check_domain(domain), wanted)
        found = await gateway.row(_COMMAND, (*params, viewer.owner), into=command_of)
        if found is None:
            found = await gateway.row(_MOVED, (*params, viewer.owner), into=command_of)
        if found is None:
            raise CommandNotFoundError(domain, wanted)
        rows = await gateway.rows(_EVENTS, (*params, viewer.owner))
        events = [AuditEvent(*row[1:]) for row in rows]
        left_out: int = rows[0][0] if rows else 0
        # Gone between two reads, by retention: then nothing is known beside its row.
        facts = await gateway.row(_FACTS, params, into=LifeFacts) or LifeFacts()
        places = None if domains is None else sorted(domains)
        which = (found.correlation_id, wanted, viewer.owner, places, places, MAX_SIBLINGS + 1)
        siblings = await gateway.rows(_SIBLINGS, which + which, into=command_of)
        siblings.sort(key=lambda each: (each.created_at, each.command_id))
        return CommandLife(
            command=found,
            sentence=life_sentence(found, facts, events, datetime.now(UTC)),
            steps=steps_of(found, events, left_out),
            left_out=left_out,
            attempts=attempts_of(events),
            actions=()
            if found.history_since
            else allowed_actions(
                found.status, is_leased=found.leased_by is not None, has_payload=facts.has_payload
            ),
            facts=facts,
            siblings=tuple(siblings[:MAX_SIBLINGS]),
            has_more_siblings=len(siblings) > MAX_SIBLINGS,
        )


def steps_of(
    command: CommandMetadata, events: Sequence[AuditEvent], left_out: int = 0
) -> tuple[LifeStep, ...]:
    """The events with the time between them; across those that are left out nothing is told."""
    gap = len(events) // 2 if left_out else None
    found = []
    for index, event in enumerate(events):
        since = None
        if index and index != gap:
            since = (event.ts - events[index - 1].ts).total_seconds()
        told = (event.details or {}).get("attempt")
        sent = (event.ts - command.created_at).total_seconds()
        found.append(LifeStep(event, since, sent, told if isinstance(told, int) else None))
    return tuple(found)


def attempts_of(events: Sequence[AuditEvent]) -> tuple[Attempt, ...]:
    """The runs of the handler, in their order. Ends without a beginning are left out."""
    found: list[Attempt] = []
    begun: AuditEvent | None = None
    for event in events:
        is_end = event.event_type in _ENDS
        if begun is not None and (is_end or event.event_type == AuditEventType.RECEIVED):
            found.append(_attempt(begun, event if is_end else None))
            begun = None
        if event.event_type == AuditEventType.RECEIVED:
            begun = event
    if begun is not None:
        found.append(_attempt(begun, None))
    return tuple(found)


def _attempt(begun: AuditEvent, end: AuditEvent | None) -> Attempt:
    details = (end.details if end is not None else None) or {}
    has_failed = end is not None and end.event_type == AuditEventType.FAILED
    stack = details.get("stack")
    return Attempt(
        number=(begun.details or {}).get("attempt"),
        worker=begun.actor,
        started_at=begun.ts,
        ended_at=None if end is None else end.ts,
        outcome=None if end is None else end.event_type,
        error_code=details.get("code") if has_failed else None,
        error_message=details.get("message") if has_failed else None,
        stack=stack if isinstance(stack, dict) else None,
    )
