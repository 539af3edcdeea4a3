"""Legacy: what loading asks of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from uuid import UUID

from commandbus.loads.model import LoadMetadata, NewLoad
from commandbus.models import NewCommand


@runtime_checkable
class LoadingStore(Protocol):
    """The verbs of loading; each may be repeated. The store in memory does without them."""

    async def begin_load(self, load: NewLoad) -> None:
        """Create the batch of a load, or find that it is there, begun in the same way."""

    async def load_chunk(
        self,
        domain: str,
        batch_id: UUID,
        commands: Sequence[NewCommand],
        *,
        checkpoint: int,
        first_row: int,
        digest: bytes,
    ) -> bool:
        """Commit one checkpoint; False if it was there. DuplicateCommandError: nothing of it is."""

    async def seal_load(self, domain: str, batch_id: UUID, rows: int) -> None:
        """The source ended after so many rows: the batch may end from now on."""

    async def dispatch_load(self, domain: str, batch_id: UUID, limit: int) -> int:
        """Queue the next so many rows of a sealed load; returns how many are queued in all."""

    async def fail_load(self, domain: str, batch_id: UUID, error: str) -> None:
        """Note why a load stopped."""

    async def get_load(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        """One load, or None."""
