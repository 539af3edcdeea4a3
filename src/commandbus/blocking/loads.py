"""`bus.loads` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.loads.model import LoadStart
from commandbus.models import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Unpack
    from uuid import UUID
    from commandbus.database.model import OnBehalf
    from commandbus.flow import SendOptions
    from commandbus.loads.listing import LoadOverview
    from commandbus.loads.load import Loads
    from commandbus.loads.model import LoadMetadata, LoadResult, LoadStatus, OnProgress
    from commandbus.models import BatchCommand, BatchCompletionCallback, Viewer
    from commandbus.paging import Page


class BlockingLoads(BlockingFacet["Loads"]):
    """Loads sources into batches. Needs PostgreSQL."""

    def load(
        self, domain: str, source: object, *, command_type: str | None = None,
        id_column: str | None = None, type_column: str | None = None, delimiter: str | None = None,
        start: LoadStart = LoadStart.SEALED, checkpoint_size: int | None = None,
        dispatch_rate: float | None = None, batch_id: UUID | None = None, name: str | None = None,
        custom_data: dict[str, Any] | None = None, created_by: str | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | None = None, on_progress: OnProgress | None = None,
        actor: str | None = None, **send_options: Unpack[SendOptions],
    ) -> LoadResult:
        """Create a batch of any size from a source, in checkpoints, in little memory."""
        return self._bridge.run(self._facet.load(
            domain, source, command_type=command_type, id_column=id_column,
            type_column=type_column, delimiter=delimiter, start=start,
            checkpoint_size=checkpoint_size, dispatch_rate=dispatch_rate, batch_id=batch_id,
            name=name, custom_data=custom_data, created_by=created_by, on_complete=on_complete,
            on_complete_command=on_complete_command, on_progress=on_progress, actor=actor,
            **send_options,
        ))

    def resume(
        self, domain: str, batch_id: UUID, source: object, *, dispatch_rate: float | None = None,
        on_complete: BatchCompletionCallback | None = None, on_progress: OnProgress | None = None,
        actor: str | None = None, on_behalf: OnBehalf | None = None,
    ) -> LoadResult:
        """Go on with a load after its last checkpoint; `source` is the same, from its
        beginning."""
        return self._bridge.run(self._facet.resume(
            domain, batch_id, source, dispatch_rate=dispatch_rate, on_complete=on_complete,
            on_progress=on_progress, actor=actor, on_behalf=on_behalf,
        ))

    def seal(self, domain: str, batch_id: UUID, *, operator: str | None = None) -> LoadMetadata:
        """Take what was loaded for the whole: the batch ends once that has ended."""
        return self._bridge.run(self._facet.seal(domain, batch_id, operator=operator))

    def cancel(
        self, domain: str, batch_id: UUID, reason: str, *, operator: str | None = None,
    ) -> int:
        """Cancel what no worker has, and load nothing more; returns how many commands."""
        return self._bridge.run(self._facet.cancel(domain, batch_id, reason, operator=operator))

    def get(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        """How far a load is, from any process; None if there is no such load."""
        return self._bridge.run(self._facet.get(domain, batch_id))

    def page(
        self, *, domains: Collection[str] | None = None, status: LoadStatus | None = None,
        is_open: bool = False, viewer: Viewer = EVERYTHING, limit: int = 50,
        cursor: str | None = None,
    ) -> Page[LoadOverview]:
        """Loads of all domains or of those that are named, newest first."""
        return self._bridge.run(self._facet.page(
            domains=domains, status=status, is_open=is_open, viewer=viewer, limit=limit,
            cursor=cursor,
        ))

    def created_by(self, domain: str, batch_id: UUID) -> str | None:
        """Who began a load, if that was said; raises if there is no such load."""
        return self._bridge.run(self._facet.created_by(domain, batch_id))

    def require(self, domain: str, batch_id: UUID) -> LoadMetadata:
        """One load; raises if there is no such batch, or if it is not a load."""
        return self._bridge.run(self._facet.require(domain, batch_id))
