"""What a service on top of CommandBus needs: API tokens, pages by key, repeats, health, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from commandbus.access.tokens import Tokens
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, DuplicateCommandError
from commandbus.models import CommandMetadata, TroubleshootingItem
from commandbus.names import check_domain, check_uuid
from commandbus.ops.pages import BatchCommandPage, BatchPage, Pages, TroubleshootingPage, serving
from commandbus.privacy.redaction import redact_value
from commandbus.settings import Settings
from commandbus.store.serving import DomainFigures, GovernedFigures, ServingStore
from commandbus.troubleshooting.queue import Troubleshooting


class ServiceVerbs:
    """Part of CommandBus."""

    _store: Store
    _settings: Settings
    _troubleshooting: Troubleshooting

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers."""
        raise NotImplementedError

    @property
    def tokens(self) -> Tokens:
        """The API tokens of the HTTP service."""
        return Tokens(self._store, self._settings.token_pepper)

    async def check(self) -> None:
        """Raise if the database cannot be reached, or is not one that this version works with."""
        await self._store.check()

    async def knows_domain(self, domain: str) -> bool:
        """Whether a domain is in use: it has handlers here, or queues in the database."""
        if check_domain(domain) in self.domains or not isinstance(self._store, ServingStore):
            return True
        return await self._store.knows_domain(domain)

    async def original_of_repeat(
        self, domain: str, command_type: str, command_id: UUID, data: Mapping[str, Any]
    ) -> CommandMetadata:
        """The command that was sent before under this id, if it is the same one.

        For callers that repeat a request because its answer was lost. Another type, or another
        payload: DuplicateCommandError. The payload of a command that has ended may be gone; then
        the type alone must match.
        """
        wanted = check_uuid(command_id)
        found = await self._store.get_command(check_domain(domain), wanted)
        if found is None or found.command_type != command_type:
            raise DuplicateCommandError(domain, [wanted])
        payload = await self._store.get_payload(domain, wanted)
        if payload is not None and orjson.loads(payload) != orjson.loads(orjson.dumps(data)):
            raise DuplicateCommandError(domain, [wanted])
        return found

    async def get_payload(self, domain: str, command_id: UUID) -> Any:
        """The payload of a command with its secrets masked; None if it is gone."""
        wanted = check_uuid(command_id)
        found = await self._store.get_command(check_domain(domain), wanted)
        if found is None:
            raise CommandNotFoundError(domain, wanted)
        text = await self._store.get_payload(domain, wanted)
        return None if text is None else await self._masked(found, orjson.loads(text))

    async def mask_item(self, item: TroubleshootingItem) -> Any:
        """The payload of a parked command with its secrets masked."""
        return None if item.data is None else await self._masked(item, item.data)

    async def _masked(self, of: CommandMetadata | TroubleshootingItem, data: Any) -> Any:
        marked = await self._troubleshooting.secret_keys(of.domain, of.command_type)
        return redact_value(data, marked=marked)

    # -- pages by key

    async def page_troubleshooting(
        self,
        domain: str,
        *,
        type: str | None = None,  # noqa: A002  (the name that list_troubleshooting has)
        group: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> TroubleshootingPage:
        """What waits for an operator, longest first, page by page."""
        return await Pages(self._store).parked(
            domain, command_type=type, group=group, limit=limit, cursor=cursor
        )

    async def get_troubleshooting(self, domain: str, command_id: UUID) -> TroubleshootingItem:
        """One parked command; CommandNotFoundError if it is not parked."""
        return await Pages(self._store).parked_one(domain, command_id)

    async def page_batches(
        self,
        domain: str,
        *,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BatchPage:
        """Batches of a domain, newest first, page by page."""
        return await Pages(self._store).batches(domain, status=status, limit=limit, cursor=cursor)

    async def page_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BatchCommandPage:
        """Commands of a batch in their order, page by page."""
        return await Pages(self._store).batch_commands(
            domain, batch_id, status=status, limit=limit, cursor=cursor
        )

    # -- figures

    async def domain_figures(self) -> Sequence[DomainFigures]:
        """How much waits, runs and is parked in each domain; one query, for metrics."""
        return await serving(self._store).domain_figures()

    async def governed_figures(self, since: datetime) -> Sequence[GovernedFigures]:
        """The counters of governed batches that are open, or have ended since then."""
        return await serving(self._store).governed_figures(since)

    def pool_figures(self) -> Mapping[str, int]:
        """How the pool of connections stands: max, size, available, waiting."""
        return serving(self._store).pool_figures()
