"""Troubleshooting: what failed for good waits here until a person decides."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.models import TroubleshootingItem
from commandbus.naming import (
    check_command_type,
    check_domain,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.ops.groups import check_fingerprint
from commandbus.ops.paging import check_page
from commandbus.payload import encode_json
from commandbus.redaction import redact_text
from commandbus.store.base import Store


class Troubleshooting:
    """The operator's verbs. Of two at once one wins, the other gets InvalidOperationError."""

    def __init__(self, store: Store, *, max_result_bytes: int) -> None:
        self._store = store
        self._max_result_bytes = max_result_bytes

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
        self, domain: str, command_id: UUID, *, operator: str | None, reset_attempts: bool
    ) -> None:
        """Send the same payload again."""
        await self._store.operator_retry(
            check_domain(domain),
            [check_uuid(command_id)],
            actor=check_operator(operator),
            reset_attempts=reset_attempts,
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
            result=encode_json(result_data, what="result_data", max_bytes=self._max_result_bytes),
            actor=check_operator(operator),
        )
