"""Searching commands and the audit: pages, and the cursors that lead from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import InvalidSettingError
from commandbus.models import AuditEvent, AuditEventType, CommandMetadata
from commandbus.names import check_command_type, check_domain, check_text, check_uuid
from commandbus.ops.cursors import bad_cursor, cursor_of, position_of
from commandbus.paging import check_page
from commandbus.store.searching import AuditSearch, CommandSearch, Place


@dataclass(frozen=True, slots=True)
class CommandPage:
    """Some of the commands that were searched for, newest first.

    With a `next_cursor` there may be more: give it to the next call. `searched_back_to` is set if
    the page is not full because the search went far back without finding enough.
    """

    commands: list[CommandMetadata]
    next_cursor: str | None
    searched_back_to: datetime | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some events of the audit, and the cursor that leads on; None: there are no more now.

    `searched_to` is set if the page is not full because the search went far without finding enough.
    """

    events: list[AuditEvent]
    next_cursor: str | None
    searched_to: datetime | None


class Searching:
    """Searches that never read a whole table."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def commands(
        self, criteria: CommandSearch, *, limit: int, cursor: str | None
    ) -> CommandPage:
        """One page of commands."""
        _check_commands(criteria)
        check_page(limit)
        start = None if cursor is None else _place_of(cursor, criteria)
        found = await self._store.search_commands(criteria, start=start, limit=limit)
        place = found.next_place
        if place is None:
            return CommandPage(found.commands, None, None)
        position = [place.at.isoformat(), str(place.command_id) if place.command_id else None]
        is_bounded = place.command_id is None
        return CommandPage(
            found.commands, cursor_of(position, criteria), place.at if is_bounded else None
        )

    async def audit(
        self, criteria: AuditSearch, *, newest_first: bool, limit: int, cursor: str | None
    ) -> AuditPage:
        """One page of the audit."""
        _check_audit(criteria)
        check_page(limit)
        bound = (criteria, newest_first)
        start = None if cursor is None else _number_of(cursor, bound)
        found = await self._store.list_audit(
            criteria, start=start, newest_first=newest_first, limit=limit
        )
        following = None if found.next_id is None else cursor_of([found.next_id], bound)
        return AuditPage(found.events, following, found.searched_to)


def _check_commands(criteria: CommandSearch) -> None:
    if criteria.domain is not None:
        check_domain(criteria.domain)
    if criteria.command_type is not None:
        check_command_type(criteria.command_type)
    if criteria.error_code is not None:
        check_text(criteria.error_code, "error_code", max_length=200)
    for name in ("command_id", "batch_id", "correlation_id"):
        if getattr(criteria, name) is not None:
            check_uuid(getattr(criteria, name), name)
    _check_range(criteria.created_after, criteria.created_before, "created_after", "created_before")


def _check_audit(criteria: AuditSearch) -> None:
    if criteria.domain is not None:
        check_domain(criteria.domain)
    for name in ("command_id", "batch_id"):
        if getattr(criteria, name) is not None:
            check_uuid(getattr(criteria, name), name)
    if criteria.actor is not None:
        check_text(criteria.actor, "actor", max_length=200)
    for kind in criteria.event_types or ():
        if kind not in set(AuditEventType):
            names = ", ".join(AuditEventType)
            raise InvalidSettingError(f"no event {kind!r}; use one of {names}")
    _check_range(criteria.since, criteria.until, "since", "until")


def _check_range(first: Any, last: Any, first_name: str, last_name: str) -> None:
    for value, name in ((first, first_name), (last, last_name)):
        if value is None:
            continue
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise InvalidSettingError(f"{name} must be a datetime with a time zone")
    if first is not None and last is not None and first >= last:
        raise InvalidSettingError(
            f"{first_name} is not before {last_name}, so nothing can be found; swap them?"
        )


def _place_of(cursor: str, bound: object) -> Place:
    try:
        at, command_id = position_of(cursor, bound)
        return Place(datetime.fromisoformat(at), None if command_id is None else UUID(command_id))
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidSettingError):
            raise
        raise bad_cursor() from None


def _number_of(cursor: str, bound: object) -> int:
    match position_of(cursor, bound):
        case [int(number)]:
            return number
        case _:
            raise bad_cursor()
