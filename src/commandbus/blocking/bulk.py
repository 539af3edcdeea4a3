"""`bus.bulk` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.models import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any
    from uuid import UUID
    from commandbus.database.model import OnBehalf
    from commandbus.models import Viewer
    from commandbus.paging import Page
    from commandbus.troubleshooting.bulk import BulkOperations, BulkProgress
    from commandbus.troubleshooting.model import (
        BulkFilter, BulkItem, BulkOperation, BulkOutcome, BulkPreview, BulkStatus, BulkVerb,
        EditPreview,
    )
    from commandbus.troubleshooting.patch import PayloadEdit


class BlockingBulkOperations(BlockingFacet["BulkOperations"]):
    """Starts, runs, stops and shows bulk operations."""

    def get(self, operation_id: UUID, *, viewer: Viewer = EVERYTHING) -> BulkOperation | None:
        """One operation, or None."""
        return self._bridge.run(self._facet.get(operation_id, viewer=viewer))

    def require(self, operation_id: UUID, *, viewer: Viewer = EVERYTHING) -> BulkOperation:
        """One operation; raises BulkOperationNotFoundError if there is none."""
        return self._bridge.run(self._facet.require(operation_id, viewer=viewer))

    def page(
        self, domain: str | None = None, *, domains: Collection[str] | None = None,
        status: BulkStatus | None = None, group: str | None = None, viewer: Viewer = EVERYTHING,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[BulkOperation]:
        """Operations, newest first, page by page; `domains`: only of one of these."""
        return self._bridge.run(self._facet.page(
            domain, domains=domains, status=status, group=group, viewer=viewer, limit=limit,
            cursor=cursor,
        ))

    def page_items(
        self, operation_id: UUID, *, outcome: BulkOutcome | None = None, limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BulkItem]:
        """The commands of an operation and what became of each, in their order, page by page."""
        return self._bridge.run(self._facet.page_items(
            operation_id, outcome=outcome, limit=limit, cursor=cursor,
        ))

    def preview(
        self, chosen: BulkFilter, *, samples: int = 0, viewer: Viewer = EVERYTHING,
    ) -> BulkPreview:
        """What matches now, counted by failure group, most first; `total` is for
        `expected_total`."""
        return self._bridge.run(self._facet.preview(chosen, samples=samples, viewer=viewer))

    def preview_edit(
        self, chosen: BulkFilter, edit: PayloadEdit, *, examples: int = 10,
    ) -> EditPreview:
        """What an edit would change, secrets masked: counts, and the first commands. No change
        yet."""
        return self._bridge.run(self._facet.preview_edit(chosen, edit, examples=examples))

    def start(
        self, verb: BulkVerb, chosen: BulkFilter, *, edit: PayloadEdit | None = None,
        reason: str | None = None, result_data: Any = None, reset_attempts: bool = True,
        rate: float | None = None, operator: str | None = None, operation_id: UUID | None = None,
        everything: bool = False, expected_total: int | None = None, limit: int | None = None,
        start_after: float | None = None, on_behalf: OnBehalf | None = None,
    ) -> BulkOperation:
        """Decide for many parked commands: "retry", "cancel" or "complete"."""
        return self._bridge.run(self._facet.start(
            verb, chosen, edit=edit, reason=reason, result_data=result_data,
            reset_attempts=reset_attempts, rate=rate, operator=operator, operation_id=operation_id,
            everything=everything, expected_total=expected_total, limit=limit,
            start_after=start_after, on_behalf=on_behalf,
        ))

    def run(self, operation_id: UUID, *, on_progress: BulkProgress | None = None) -> BulkOperation:
        """Act on it here, until it is finished or stopped. Others may act on it too."""
        return self._bridge.run(self._facet.run(operation_id, on_progress=on_progress))

    def stop(self, operation_id: UUID, *, operator: str | None = None) -> BulkOperation:
        """Act on no further item; an operation that is finished is refused."""
        return self._bridge.run(self._facet.stop(operation_id, operator=operator))

    def resume(
        self, operation_id: UUID, *, rate: float | None = None, reason: str | None = None,
        operator: str | None = None,
    ) -> BulkOperation:
        """Go on where it was left, at another rate if one is given."""
        return self._bridge.run(self._facet.resume(
            operation_id, rate=rate, reason=reason, operator=operator,
        ))
