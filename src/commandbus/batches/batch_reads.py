"""Reading a batch: itself, how it stands, what went wrong; and sending it again with a reason."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

from commandbus.batches.standing import BatchEnding, BatchError, BatchErrors, BatchFacts
from commandbus.database.store import Store
from commandbus.errors import BatchNotFoundError
from commandbus.models import EVERYTHING, BatchMetadata, Viewer
from commandbus.names import check_domain, check_text, check_uuid
from commandbus.privacy.redaction import redact_text

_FACTS: LiteralString = "select * from {schema}.batch_facts(%s, %s)"
_ENDING: LiteralString = (
    "select e.*, b.batch_type is not null from {schema}.command_bus_batch b"
    " cross join {schema}.batch_ending(b.domain, b.batch_id) e"
    " where b.domain = %s and b.batch_id = %s"
)
# Both in one statement, for a page that shows them.
_OUTLOOK: LiteralString = (
    "select f.*, e.*, b.batch_type is not null from {schema}.command_bus_batch b"
    " cross join {schema}.batch_facts(b.domain, b.batch_id) f"
    " cross join {schema}.batch_ending(b.domain, b.batch_id) e"
    " where b.domain = %s and b.batch_id = %s"
)
_ERRORS: LiteralString = "select * from {schema}.batch_errors(%s, %s)"
_RETRY: LiteralString = "select {schema}.retry_batch_because(%s, %s, %s, cast(%s as text))"
_SEES: LiteralString = "select {schema}.visible_batch(%s, %s)"


class BatchReads:
    """Shows a batch; `facts` and `errors` need PostgreSQL."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(
        self, domain: str, batch_id: UUID, *, viewer: Viewer = EVERYTHING
    ) -> BatchMetadata | None:
        """One batch, or None."""
        wanted = check_uuid(batch_id, "batch_id")
        found = await self._store.get_batch(check_domain(domain), wanted)
        if found is not None and viewer.owner is not None:
            # Whose it is never changes.
            is_seen = await self._store.gateway.value(_SEES, (viewer.owner, wanted))
            return found if is_seen else None
        return found

    async def require(
        self, domain: str, batch_id: UUID, *, viewer: Viewer = EVERYTHING
    ) -> BatchMetadata:
        """One batch; raises BatchNotFoundError if there is none."""
        found = await self.get(domain, batch_id, viewer=viewer)
        if found is None:
            raise BatchNotFoundError(domain, check_uuid(batch_id, "batch_id"))
        return found

    async def facts(self, batch: BatchMetadata) -> BatchFacts:
        """What `batch_sentence` needs to say why a batch is open. One read, by key."""
        params = (batch.domain, batch.batch_id)
        found = await self._store.gateway.row(_FACTS, params, into=BatchFacts)
        return found or BatchFacts()

    async def ending(self, batch: BatchMetadata) -> BatchEnding:
        """What happens, or has happened, when a batch closes. One read, by key."""
        params = (batch.domain, batch.batch_id)
        found = await self._store.gateway.row(_ENDING, params, into=BatchEnding)
        return found or BatchEnding()

    async def outlook(self, batch: BatchMetadata) -> tuple[BatchFacts, BatchEnding]:
        """`facts` and `ending` of a batch that is open, in one read."""
        params = (batch.domain, batch.batch_id)
        found = await self._store.gateway.rows(_OUTLOOK, params)
        if not found:
            return BatchFacts(), BatchEnding()
        row = found[0]
        return BatchFacts(*row[:5]), BatchEnding(*row[5:])

    async def errors(self, batch: BatchMetadata) -> BatchErrors:
        """What failed or is parked of a batch, by error code.

        Of its first 100,000 commands, and of at most 10,000 that failed; `is_complete` says whether
        that is all.
        """
        if not batch.failed_count + batch.in_troubleshooting_count:
            return BatchErrors((), is_complete=True)
        params = (batch.domain, batch.batch_id)
        found = await self._store.gateway.rows(_ERRORS, params, into=BatchError)
        told = sum(each.parked + each.failed for each in found)
        whole = batch.failed_count + batch.in_troubleshooting_count
        return BatchErrors(tuple(found), is_complete=told >= whole)

    async def _retry_because(
        self, domain: str, batch_id: UUID, reason: str, actor: str | None
    ) -> int:
        text = redact_text(check_text(reason, "reason"))
        params = (domain, batch_id, text, actor)
        return int(await self._store.gateway.value(_RETRY, params, domain=domain))
