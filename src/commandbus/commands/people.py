"""People: what they did, and what an id is the id of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import InvalidSettingError
from commandbus.models import EVERYTHING, AuditEventType, Viewer
from commandbus.names import (
    check_choice,
    check_domain,
    check_names,
    check_text,
    check_uuid,
    in_utc,
)
from commandbus.paging import Page, check_page, cursor_of, position_of, read_number

#: Events of people that one call reads at most.
PEOPLE_SCAN = 100_000

_PEOPLE: LiteralString = (
    "select p.audit_id, p.first_id, p.domain, p.event_type, p.actor, p.ts, p.first_ts, p.events,"
    " p.command_id, p.batch_id, p.details_json"
    " from {schema}.list_people(cast(%s as text[]), cast(%s as text), cast(%s as text[]),"
    " cast(%s as timestamptz), cast(%s as timestamptz), cast(%s as bigint), %s, %s,"
    " cast(%s as text), %s) p"
)
_IDENTIFY: LiteralString = (
    "select f.kind, f.domain, f.status from {schema}.find_id(%s, cast(%s as text[]), %s) f"
)


@dataclass(frozen=True, slots=True)
class PersonEvent:
    """What somebody did: one event, or several of one kind in a row, as of a bulk operation."""

    audit_id: int
    #: The oldest event that it stands for.
    first_id: int
    #: `*`: about no single domain.
    domain: str
    event_type: str
    actor: str
    ts: datetime
    first_ts: datetime
    #: How many events it stands for; what follows is of the newest.
    events: int
    command_id: UUID
    batch_id: UUID | None
    details: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Identified:
    """What an id is the id of."""

    #: `command`, `batch`, `ticket`, `operation` (a bulk one), or `correlation` of commands.
    kind: str
    domain: str
    #: None of a correlation id, which is of many.
    status: str | None


class People:
    """What people did, and what an id is."""

    _store: Store

    async def people(
        self,
        *,
        domains: Collection[str] | None = None,
        actor: str | None = None,
        event_types: Iterable[AuditEventType] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PersonEvent]:
        """What people did, newest first: all events that name an actor, but sends.

        Events about single commands that one actor causes within a minute are one item. A page may
        have few items and still a cursor: then the walk stopped at `searched_to`.
        """
        check_page(limit)
        checked = audit_criteria(actor=actor, event_types=event_types, since=since, until=until)
        wanted = None if domains is None else sorted(check_domain(each) for each in domains)
        criteria = (wanted, *checked[3:])
        bound = ("people", criteria, viewer)
        start = position_of(cursor, bound, read_number)
        rows = await self._store.gateway.rows(
            _PEOPLE,
            (*criteria, start, limit, PEOPLE_SCAN, viewer.owner, not viewer.sees_access),
        )
        # A last row without a domain says how far the walk came before it stopped.
        found = [PersonEvent(*row) for row in rows if row[2] is not None]
        places = [[each.first_id] for each in found]
        if len(rows) > len(found):
            return Page(found, cursor_of([rows[-1][0]], bound), rows[-1][5], places, bound)
        if len(found) < limit:
            return Page(found, None, None, places, bound)
        return Page(found, cursor_of(places[-1], bound), None, places, bound)

    async def identify(
        self, some_id: UUID, *, domains: Collection[str] | None = None, viewer: Viewer = EVERYTHING
    ) -> list[Identified]:
        """What this id is the id of, in these domains; nothing that the viewer may not see."""
        reached = None if domains is None else [check_domain(each) for each in sorted(domains)]
        params = (check_uuid(some_id, "the id"), reached, viewer.owner)
        return await self._store.gateway.rows(_IDENTIFY, params, into=Identified)


def audit_criteria(
    *,
    domain: str | None = None,
    command_id: UUID | None = None,
    batch_id: UUID | None = None,
    actor: str | None = None,
    event_types: Iterable[AuditEventType] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[Any, ...]:
    """The criteria of `audit`, checked, in the order of list_audit."""
    check_names(domain)
    check_ids(command_id=command_id, batch_id=batch_id)
    if actor is not None:
        check_text(actor, "actor", max_length=200)
    kinds = None
    if event_types is not None:
        kinds = [check_choice(AuditEventType, each, "event") for each in event_types]
    return domain, command_id, batch_id, actor, kinds, *check_range(since=since, until=until)


def check_ids(**ids: Any) -> None:
    """Refuse what is no id."""
    for name, value in ids.items():
        if value is not None:
            check_uuid(value, name)


def check_range(**moments: Any) -> tuple[datetime | None, datetime | None]:
    """Two moments, of which the first must be earlier, checked and in UTC."""
    for name, value in moments.items():
        if value is not None and not (isinstance(value, datetime) and value.tzinfo):
            raise InvalidSettingError(f"{name} must be a datetime with a time zone")
    first, last = moments.values()
    if first is not None and last is not None and first >= last:
        raise InvalidSettingError(
            f"{' is not before '.join(moments)}, so nothing can be found; swap them?"
        )
    return None if first is None else in_utc(first), None if last is None else in_utc(last)
