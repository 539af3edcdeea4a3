"""Troubleshooting: what failed for good waits here until a person decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from commandbus.commands.payload import encode_json, encode_payload
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidOperationError, PayloadLostError
from commandbus.handler import HandlerRegistry
from commandbus.models import CommandStatus, TroubleshootingItem
from commandbus.names import (
    check_command_type,
    check_domain,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.secrets import check_fits
from commandbus.store.searching import Edit
from commandbus.troubleshooting.edits import difference, unmasked
from commandbus.troubleshooting.groups import check_fingerprint

#: Characters of a note.
MAX_NOTE = 2_000


class Troubleshooting:
    """The operator's verbs. Of two at once one wins, the other gets InvalidOperationError."""

    def __init__(self, store: Store, registry: HandlerRegistry, *, max_bytes: int) -> None:
        self._store = store
        self._registry = registry
        self._max_bytes = max_bytes

    async def list(
        self,
        domain: str,
        *,
        command_type: str | None,
        limit: int,
        offset: int,
        group: str | None = None,
    ) -> list[TroubleshootingItem]:
        """What waits, longest first."""
        check_domain(domain)
        if command_type is not None:
            check_command_type(command_type)
        if group is not None:
            check_fingerprint(group)
        check_page(limit, offset)
        return await self._store.list_troubleshooting(
            domain, command_type=command_type, limit=limit, offset=offset, group=group
        )

    async def retry(
        self,
        domain: str,
        command_id: UUID,
        *,
        operator: str | None,
        reset_attempts: bool,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the same payload again, or an edited one."""
        check_domain(domain)
        wanted = check_uuid(command_id)
        actor = check_operator(operator)
        edit = None if payload is None else await self._edit(domain, wanted, payload)
        await self._store.operator_retry(
            domain,
            [wanted],
            actor=actor,
            reset_attempts=reset_attempts,
            edits=None if edit is None else {wanted: edit},
        )

    async def _edit(self, domain: str, command_id: UUID, payload: Mapping[str, Any]) -> Edit | None:
        """What the edit changes; None if that is nothing. The row is read before the payload: if
        somebody retries in between, the store finds that the edit was made from an older message.
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
        after = unmasked(orjson.loads(orjson.dumps(payload)), before, marked)
        data = encode_payload(after, max_bytes=self._max_bytes)
        entry = self._registry.find(domain, command.command_type)
        if entry is not None and entry.payload_type is not None:
            check_fits(entry.payload_type, after)
        changes = difference(before, after, marked)
        return Edit(data, command.msg_id, changes) if changes else None

    async def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys of a payload that are marked as secret, here or by any worker before."""
        entry = self._registry.find(domain, command_type)
        known = await self._store.secret_keys(domain, command_type)
        return known if entry is None else known | entry.secret_keys

    async def note(self, domain: str, command_id: UUID, text: str, *, operator: str | None) -> None:
        """Put a remark into the audit; the command stays as it is."""
        await self._store.add_note(
            check_domain(domain),
            check_uuid(command_id),
            text=redact_text(check_text(text, "note"), MAX_NOTE),
            actor=check_operator(operator),
        )

    async def cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None
    ) -> None:
        """End it as CANCELED, with a reply."""
        await self._store.operator_cancel(
            check_domain(domain),
            [check_uuid(command_id)],
            reason=redact_text(check_text(reason, "reason")),
            actor=check_operator(operator),
        )

    async def complete(
        self, domain: str, command_id: UUID, result_data: Any, *, operator: str | None
    ) -> None:
        """End it as COMPLETED with this result, with a reply."""
        await self._store.operator_complete(
            check_domain(domain),
            [check_uuid(command_id)],
            result=encode_json(result_data, what="result_data", max_bytes=self._max_bytes),
            actor=check_operator(operator),
        )
