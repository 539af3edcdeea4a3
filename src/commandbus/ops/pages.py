"""Pages by key: batches, their commands, and what is parked. No page costs more than the first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from commandbus.commands.audit import check_status
from commandbus.database.store import Store
from commandbus.errors import (
    BatchNotFoundError,
    CommandNotFoundError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.models import BatchMetadata, BatchStatus, CommandMetadata, TroubleshootingItem
from commandbus.names import check_command_type, check_domain, check_uuid
from commandbus.ops.cursors import bad_cursor, cursor_of, position_of
from commandbus.paging import check_page
from commandbus.store.serving import ServingStore, TroubleshootingSearch
from commandbus.troubleshooting.groups import check_fingerprint


@dataclass(frozen=True, slots=True)
class TroubleshootingPage:
    """Some of what waits for an operator, longest first."""

    items: list[TroubleshootingItem]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Some batches, newest first."""

    batches: list[BatchMetadata]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class BatchCommandPage:
    """Some commands of a batch, in their order."""

    commands: list[CommandMetadata]
    next_cursor: str | None


def serving(store: Store) -> ServingStore:
    """The store, if it has what the service asks for."""
    if not isinstance(store, ServingStore):
        raise InvalidOperationError(
            "the in-memory store has no pages by key, receipts or figures; test them on the "
            "embedded server"
        )
    return store


class Pages:
    """Reads one page after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def parked(
        self,
        domain: str,
        *,
        command_type: str | None,
        group: str | None,
        limit: int,
        cursor: str | None,
    ) -> TroubleshootingPage:
        """What waits, longest first."""
        criteria = TroubleshootingSearch(
            check_domain(domain),
            None if command_type is None else check_command_type(command_type),
            None if group is None else check_fingerprint(group),
        )
        check_page(limit)
        after = None if cursor is None else _moment_and_id(position_of(cursor, criteria))
        found = await serving(self._store).page_troubleshooting(criteria, after=after, limit=limit)
        if len(found) < limit:
            return TroubleshootingPage(found, None)
        last = [found[-1].parked_at.isoformat(), str(found[-1].command_id)]
        return TroubleshootingPage(found, cursor_of(last, criteria))

    async def parked_one(self, domain: str, command_id: UUID) -> TroubleshootingItem:
        """One that waits; raises if it does not."""
        wanted = check_uuid(command_id)
        criteria = TroubleshootingSearch(check_domain(domain), command_id=wanted)
        found = await serving(self._store).page_troubleshooting(criteria, after=None, limit=1)
        if not found:
            raise CommandNotFoundError(domain, wanted)
        return found[0]

    async def batches(
        self, domain: str, *, status: str | None, limit: int, cursor: str | None
    ) -> BatchPage:
        """Batches, newest first."""
        check_domain(domain)
        check_page(limit)
        if status is not None and status not in set(BatchStatus):
            names = ", ".join(BatchStatus)
            raise InvalidSettingError(f"no status {status!r}; use one of {names}")
        bound = ("batches", domain, status)
        before = None if cursor is None else _moment_and_id(position_of(cursor, bound))
        found = await serving(self._store).page_batches(
            domain, status=status, before=before, limit=limit
        )
        if len(found) < limit:
            return BatchPage(found, None)
        last = [found[-1].created_at.isoformat(), str(found[-1].batch_id)]
        return BatchPage(found, cursor_of(last, bound))

    async def batch_commands(
        self, domain: str, batch_id: UUID, *, status: str | None, limit: int, cursor: str | None
    ) -> BatchCommandPage:
        """Commands of a batch, in their order."""
        check_page(limit)
        wanted = check_uuid(batch_id, "batch_id")
        state = check_status(status)
        bound = ("batch commands", domain, str(wanted), status)
        after = None if cursor is None else _numbered(position_of(cursor, bound))
        if await self._store.get_batch(check_domain(domain), wanted) is None:
            raise BatchNotFoundError(domain, wanted)
        found = await serving(self._store).page_batch_commands(
            domain, wanted, status=state, after=after, limit=limit
        )
        commands = [command for _, command in found]
        if len(found) < limit:
            return BatchCommandPage(commands, None)
        number, last = found[-1]
        position = [number, last.created_at.isoformat(), str(last.command_id)]
        return BatchCommandPage(commands, cursor_of(position, bound))


def _moment_and_id(position: list[Any]) -> tuple[datetime, UUID]:
    try:
        at, key = position
        return _moment(at), UUID(key)
    except (ValueError, TypeError, AttributeError):
        raise bad_cursor() from None


def _numbered(position: list[Any]) -> tuple[int, datetime, UUID]:
    try:
        number, at, key = position
        if type(number) is not int or not 0 <= number <= 2**31 - 1:
            raise bad_cursor()
        return number, _moment(at), UUID(key)
    except (ValueError, TypeError, AttributeError):
        raise bad_cursor() from None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise bad_cursor()
    return moment
