"""Executors of bulk operations: `BulkOperations.run`, and the workers of the domain.

One chunk is one transaction in the database. An edit is applied here, before that transaction: the
payload of a parked command does not change, and a command that has left troubleshooting since is
skipped. So whatever happens to the process, each payload is edited once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.database.encoding import edits
from commandbus.database.model import Edit
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError
from commandbus.privacy.redaction import redact_text
from commandbus.troubleshooting.bulk_edit import EDIT_CHUNK, MAX_REASON, Edited, Editor
from commandbus.troubleshooting.model import BulkStatus, BulkStep
from commandbus.troubleshooting.patch import edit_of

#: Items that one transaction acts on at most.
CHUNK = 500
#: Seconds whose share of a rate one chunk has at most, as in run_bulk_chunk.
STEP_SECONDS = 0.25

_EDIT_OF: LiteralString = (
    "select o.domain, o.rate, o.arguments -> 'edit', o.done + o.skipped + o.failed + 1"
    " from {schema}.command_bus_bulk_operation o"
    " where o.operation_id = %s and o.status = 'running' and o.arguments ? 'edit'"
)
_ITEMS: LiteralString = (
    "select i.command_id from {schema}.command_bus_bulk_item i"
    " where i.operation_id = %s and i.item_no >= %s order by i.item_no limit %s"
)
_RUN_CHUNK: LiteralString = (
    "select status, acted, wait_seconds from {schema}.run_bulk_chunk(%s, %s, %s, cast(%s as jsonb))"
)


class BulkExecutor:
    """Acts on bulk operations, chunk by chunk, under a name."""

    def __init__(self, store: Store, editor: Editor, name: str) -> None:
        self._store = store
        self._editor = editor
        self._name = name

    async def run_chunk(self, operation_id: UUID) -> BulkStep:
        """Act on the next items of an operation, in one transaction."""
        gateway = self._store.gateway.patient
        limit, document = CHUNK, None
        for domain, rate, stored, first in await gateway.rows(_EDIT_OF, (operation_id,)):
            limit = (
                EDIT_CHUNK if rate is None else min(EDIT_CHUNK, max(1, int(rate * STEP_SECONDS)))
            )
            found = await gateway.rows(_ITEMS, (operation_id, first, limit))
            document = await self._edits(domain, first, [row[0] for row in found], stored)
        params = (operation_id, limit, self._name, document)
        [(status, *rest)] = await gateway.rows(_RUN_CHUNK, params)
        return BulkStep(BulkStatus(status), *rest)

    async def _edits(
        self, domain: str, first: int, ids: Sequence[UUID], stored: Mapping[str, Any]
    ) -> str:
        try:
            edit = edit_of(stored)
        except InvalidInputError as error:
            # Started through SQL, where nobody checked it: its items fail, others get their turn.
            reason = redact_text(str(error), MAX_REASON)
            return _chunk_document(first, {}, {str(command_id): reason for command_id in ids})
        return _chunk_document(first, await self._editor.edited(domain, ids, edit), {})


def _chunk_document(first: int, edited: Mapping[UUID, Edited], refused: dict[str, str]) -> str:
    """What run_bulk_chunk takes. Its audit says which paths were changed, and no value."""
    changed: dict[UUID, Edit] = {}
    same: list[str] = []
    for command_id, one in edited.items():
        if one.failure is not None:
            refused[str(command_id)] = one.failure
        elif one.paths:
            paths = {"paths": list(one.paths)}
            changed[command_id] = Edit(orjson.dumps(one.after), one.msg_id, paths)
        else:
            same.append(str(command_id))
    others = {"first": first, "same": same, "refused": refused}
    return orjson.dumps({**others, "edits": orjson.Fragment(edits(changed))}).decode()
