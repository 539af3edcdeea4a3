"""The troubleshooting queue: what failed for good waits here until a person decides.

`bus.troubleshooting`. Of two operators at once one wins, the other gets InvalidOperationError.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.database import encoding
from commandbus.database.model import Edit, OnBehalf
from commandbus.database.rows import parked_item_of
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import EVERYTHING, CommandStatus, TroubleshootingItem, Viewer
from commandbus.names import (
    check_command_type,
    check_domain,
    check_names,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.paging import Page, check_page, every, page_of, position_of, read_key
from commandbus.payload import encode_json, encode_payload
from commandbus.privacy.redaction import redact_payload, redact_text
from commandbus.troubleshooting.edits import difference
from commandbus.troubleshooting.groups import MAX_NOTE, check_fingerprint
from commandbus.troubleshooting.life import Lives
from commandbus.troubleshooting.unmasking import unmasked
from commandbus.typed.codec import check_fits

#: Items of one page when all are read: each has its payload.
EVERY_MASKED_LIMIT = 100

_PAGE: LiteralString = (
    "select t.*, {schema}.failure_stack(t.domain, t.command_id)"
    " from {schema}.page_troubleshooting(%s, %s, %s, cast(%s as uuid),"
    " cast(%s as timestamptz), cast(%s as uuid), %s, 0, cast(%s as text)) t"
)

_EDIT_FOR: LiteralString = (
    "select {schema}.edit_for(%s, cast(%s as uuid[]), %s, cast(%s as jsonb), cast(%s as jsonb))"
)
#: From the counters of failure groups, never from the commands.
_COUNTS: LiteralString = (
    "select g.domain, cast(sum(g.parked_count) as bigint) from {schema}.command_bus_failure_group g"
    " where g.parked_count > 0 and (cast(%s as text) is null or g.domain = %s)"
    " group by g.domain order by g.domain"
)


_HAS_EDIT: LiteralString = (
    "select exists (select from {schema}.command_bus_edit e"
    " where e.command_id = %s and e.domain = %s)"
)

#: What the payloads of a batch must fit, by its id; None: anything.
ItemType = Callable[[UUID], Awaitable[type[Any] | None]]


class Troubleshooting(Lives):
    """The operator's verbs."""

    def __init__(
        self,
        store: Store,
        registry: HandlerRegistry,
        *,
        max_bytes: int,
        item_type: ItemType | None = None,
    ) -> None:
        super().__init__(store)
        self._registry = registry
        self._max_bytes = max_bytes
        self._item_type = item_type

    async def page(
        self,
        domain: str | None,
        *,
        command_type: str | None = None,
        group: str | None = None,
        viewer: Viewer = EVERYTHING,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TroubleshootingItem]:
        """What waits, longest first, with its payload, page by page; None: in all domains.

        `group`: only this failure group, by its whole fingerprint.
        """
        bound = (
            "troubleshooting",
            None if domain is None else check_domain(domain),
            None if command_type is None else check_command_type(command_type),
            None if group is None else check_fingerprint(group),
            viewer.owner,
        )
        check_page(limit)
        after = position_of(cursor, bound, read_key) or (None, None)
        found = await self._store.gateway.rows(
            _PAGE,
            (*bound[1:4], None, *after, limit + 1, viewer.owner),
            into=parked_item_of,
            domain=domain or "",
        )
        return page_of(found, limit, bound, lambda last: [last.parked_at, last.command_id])

    def every_masked(
        self,
        domain: str,
        *,
        command_type: str | None = None,
        group: str | None = None,
        viewer: Viewer = EVERYTHING,
    ) -> AsyncGenerator[TroubleshootingItem]:
        """All that `page` finds, page after page, the payloads with their secrets masked."""

        def read(cursor: str | None) -> Awaitable[Page[TroubleshootingItem]]:
            limit = EVERY_MASKED_LIMIT
            return self.page(
                domain, command_type=command_type, group=group, viewer=viewer, limit=limit,
                cursor=cursor,
            )  # fmt: skip

        return self._masked(every(read))

    async def _masked(
        self, items: AsyncIterator[TroubleshootingItem]
    ) -> AsyncGenerator[TroubleshootingItem]:
        marked: dict[tuple[str, str], frozenset[str]] = {}
        async for item in items:
            key = (item.domain, item.command_type)
            if key not in marked:
                marked[key] = await self.secret_keys(*key)
            data = None if item.data is None else redact_payload(item.data, marked[key])
            yield replace(item, data=data)

    async def counts(self, domain: str | None = None) -> dict[str, int]:
        """How many commands are parked, by domain; only domains that have some."""
        check_names(domain)
        return dict(await self._store.gateway.patient.rows(_COUNTS, (domain, domain)))

    async def get(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING
    ) -> TroubleshootingItem | None:
        """One parked command, or None if it is not parked."""
        wanted = check_uuid(command_id)
        params = (check_domain(domain), None, None, wanted, None, None, 1, viewer.owner)
        return await self._store.gateway.row(_PAGE, params, into=parked_item_of, domain=domain)

    async def require(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING
    ) -> TroubleshootingItem:
        """One parked command; CommandNotFoundError if it is not parked."""
        found = await self.get(domain, command_id, viewer=viewer)
        if found is None:
            raise CommandNotFoundError(domain, check_uuid(command_id))
        return found

    async def masked(self, item: TroubleshootingItem) -> Any:
        """The payload of a parked command with its secrets masked."""
        if item.data is None:
            return None
        marked = await self.secret_keys(item.domain, item.command_type)
        return redact_payload(item.data, marked)

    async def retry(
        self,
        domain: str,
        command_id: UUID,
        *,
        operator: str | None = None,
        reset_attempts: bool = True,
        payload: Mapping[str, Any] | None = None,
        on_behalf: OnBehalf | None = None,
    ) -> bool:
        """Send the same payload again, or an edited one; returns whether it was sent.

        The audit gets the difference, redacted; the old payload stays in PGMQ's archive. Fields of
        an edited payload that are left masked, as they were shown, keep their real values.

        An edited child of a governed batch is not sent: its edit waits until somebody else has
        approved it, and needs an `operator`. `on_behalf` (`bus.governance.on_behalf_of`): for a
        caller, to whom an edit of a governed command type is refused if no governed batch has the
        command. If the caller may pass by governance, both are sent, and the audit says so.
        """
        check_domain(domain)
        wanted = check_uuid(command_id)
        actor = check_operator(operator)
        edit = None if payload is None else await self._edit(domain, wanted, payload)
        if edit is not None and on_behalf is not None:
            edits, who = encoding.edits({wanted: edit}), encoding.on_behalf(on_behalf)
            params = (domain, [wanted], reset_attempts, edits, who)
            await self._store.gateway.rows(_EDIT_FOR, params, domain=domain)
        else:
            await self._store.operator_retry(
                domain,
                [wanted],
                actor=actor,
                reset_attempts=reset_attempts,
                edits=None if edit is None else {wanted: edit},
            )
        if edit is None or not self._store.has_gateway:
            return True
        return not await self._store.gateway.value(_HAS_EDIT, (wanted, domain))

    async def _edit(self, domain: str, command_id: UUID, payload: Mapping[str, Any]) -> Edit | None:
        """What the edit changes; None if it changes nothing.

        The row is read before the payload: if somebody retries in between, the store finds that
        the edit was made from an older message.
        """
        encode_payload(payload, max_bytes=self._max_bytes)  # refused before anything is read
        command = await self._store.get_command(domain, command_id)
        if command is None:
            raise CommandNotFoundError(domain, command_id)
        if command.status is not CommandStatus.IN_TROUBLESHOOTING_QUEUE:
            raise InvalidOperationError(
                f"cannot retry command {command_id}: it is {command.status}, and only a command in "
                "troubleshooting can be"
            )
        old = await self._store.get_payload(domain, command_id)
        if old is None:
            raise PayloadLostError(
                f"the payload of command {command_id} is no longer archived; cancel or complete "
                "it, and send the work again under a new id"
            )
        marked = await self.secret_keys(domain, command.command_type)
        before = orjson.loads(old)
        given = orjson.loads(orjson.dumps(payload))
        after = unmasked(given, before, marked)
        data = encode_payload(after, max_bytes=self._max_bytes)
        entry = self._registry.find(domain, command.command_type)
        if entry is not None and entry.payload_type is not None:
            check_fits(entry.payload_type, after)
        if self._item_type is not None and command.batch_id is not None:
            item_type = await self._item_type(command.batch_id)
            if item_type is not None:
                check_fits(item_type, after)
        changes = difference(before, after, marked, edited=given)
        return Edit(data, command.msg_id, changes) if changes else None

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys of a payload that are marked as secret, here or by any worker before."""
        known = await self._store.secret_keys(domain, command_type)
        return known | self._registry.marked(domain, command_type)

    async def note(
        self, domain: str, command_id: UUID, text: str, *, operator: str | None = None
    ) -> None:
        """Put a remark into the audit; the command stays as it is."""
        await self._store.add_note(
            check_domain(domain),
            check_uuid(command_id),
            text=redact_text(check_text(text, "note"), MAX_NOTE),
            actor=check_operator(operator),
        )

    async def cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None = None
    ) -> None:
        """End it as CANCELED, with a reply."""
        await self._store.operator_cancel(
            check_domain(domain),
            [check_uuid(command_id)],
            reason=redact_text(check_text(reason, "reason")),
            actor=check_operator(operator),
        )

    async def complete(
        self, domain: str, command_id: UUID, result_data: Any = None, *, operator: str | None = None
    ) -> None:
        """End it as COMPLETED with this result, with a reply."""
        await self._store.operator_complete(
            check_domain(domain),
            [check_uuid(command_id)],
            result=encode_json(result_data, what="result_data", max_bytes=self._max_bytes),
            actor=check_operator(operator),
        )
