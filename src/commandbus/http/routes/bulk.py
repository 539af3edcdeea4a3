"""Bulk operations: one decision for many parked commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from commandbus.access.edits import demanded, seen_by
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import viewer_of
from commandbus.errors import BulkOperationNotFoundError
from commandbus.http.auth.scopes import (
    Operator,
    ReachedDomain,
    Reader,
    ShowPayload,
    Sight,
    refuse_domain,
    requires,
)
from commandbus.http.platform import Here, Platform
from commandbus.http.schemas.base import PageOf50, PageOf100
from commandbus.http.schemas.troubleshooting import (
    BulkFilterForm,
    BulkItemView,
    BulkPreviewView,
    BulkView,
    EditPreviewView,
    Fingerprint,
    PreviewEdit,
    ResumeBulk,
    StartBulk,
    bulk_view,
)
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute
from commandbus.troubleshooting.model import BulkFilter, BulkOperation, BulkOutcome, BulkStatus

router = APIRouter(prefix="/bulk-operations", tags=["bulk operations"], route_class=StrictRoute)


def _filter_of(caller: Caller, form: BulkFilterForm) -> BulkFilter:
    refuse_domain(caller, form.domain)
    return BulkFilter(**form.model_dump())


async def _reached(here: Platform, caller: Caller, operation_id: UUID) -> BulkOperation:
    found = await here.bus.bulk.require(operation_id, viewer=viewer_of(caller))
    if not caller.reaches(found.domain):
        raise BulkOperationNotFoundError(operation_id)
    return found


def _view(operation: BulkOperation) -> BulkView:
    return bulk_view(operation, datetime.now(UTC))


@router.post("/preview")
async def preview_bulk(
    form: BulkFilterForm,
    here: Here,
    caller: Reader,
    samples: Annotated[
        int, Query(ge=0, le=100, description="Commands that are shown, the oldest.")
    ] = 0,
) -> BulkPreviewView:
    """Count the commands that a filter matches now, by cause. Changes nothing."""
    chosen = _filter_of(caller, form)
    found = await here.bus.bulk.preview(chosen, samples=samples, viewer=viewer_of(caller))
    return BulkPreviewView.of(found)


@router.post("/preview-edit")
async def preview_edit(
    form: PreviewEdit, here: Here, caller: Operator, payload: ShowPayload
) -> EditPreviewView:
    """Show what an edit would change: counts, and the first commands. Changes nothing.

    The values, secrets masked, only with `payload`; otherwise the paths alone. Without the scope
    read-payload, the paths that it writes to, whether they change or not.
    """
    chosen = _filter_of(caller, form.filter)
    edit = demanded(caller, form.edit.read())
    preview = await here.bus.bulk.preview_edit(chosen, edit, examples=form.examples)
    return EditPreviewView.of(seen_by(caller, preview, edit, payload=payload))


@router.post("", status_code=202)
async def start_bulk(form: StartBulk, response: Response, here: Here, caller: Operator) -> BulkView:
    """Freeze what matches and let the workers of the domain act on it.

    A repeat with the same operation_id, or while the same decision still runs, is the same
    operation.
    """
    chosen = _filter_of(caller, form.filter)
    edit = None if form.edit is None else demanded(caller, form.edit.read())
    known = None if form.operation_id is None else await here.bus.bulk.get(form.operation_id)
    if known is not None:
        refuse_domain(caller, known.domain)
    started = await here.bus.bulk.start(
        form.verb, chosen, reason=form.reason, result_data=form.result,
        reset_attempts=form.reset_attempts, rate=form.rate, operator=caller.user_id,
        operation_id=form.operation_id, everything=form.everything,
        expected_total=form.expected_total, limit=form.limit, start_after=form.start_after,
        edit=edit,
        on_behalf=here.bus.governance.on_behalf_of(caller, chosen.domain),
    )  # fmt: skip
    response.headers["Location"] = here.url(f"/api/v1/bulk-operations/{started.operation_id}")
    return _view(started)


@router.get("", dependencies=[requires(Scope.READ)])
async def list_bulks(
    here: Here,
    domain: ReachedDomain,
    viewer: Sight,
    paging: PageOf50,
    status: BulkStatus | None = None,
    group: Annotated[
        Fingerprint | None,
        Query(description="Only those whose filter names this failure group; needs a domain."),
    ] = None,
) -> PageView[BulkView]:
    """List operations, newest first."""
    page = await here.bus.bulk.page(domain, status=status, group=group, viewer=viewer, **paging)
    return PageView[BulkView].of(page, items=[_view(each) for each in page.items])


@router.get("/{operation_id}")
async def get_bulk(operation_id: UUID, here: Here, caller: Reader) -> BulkView:
    """Show an operation and how far it is."""
    return _view(await _reached(here, caller, operation_id))


@router.get("/{operation_id}/items")
async def list_bulk_items(
    operation_id: UUID,
    here: Here,
    caller: Reader,
    paging: PageOf100,
    outcome: BulkOutcome | None = None,
) -> PageView[BulkItemView]:
    """List the commands of an operation, with the outcome of each."""
    await _reached(here, caller, operation_id)
    page = await here.bus.bulk.page_items(operation_id, outcome=outcome, **paging)
    return PageView[BulkItemView].of(page)


@router.post("/{operation_id}/stop")
async def stop_bulk(operation_id: UUID, here: Here, caller: Operator) -> BulkView:
    """Stop it. After the response no further command is acted on."""
    await _reached(here, caller, operation_id)
    return _view(await here.bus.bulk.stop(operation_id, operator=caller.user_id))


@router.post("/{operation_id}/resume")
async def resume_bulk(
    operation_id: UUID, form: ResumeBulk, here: Here, caller: Operator
) -> BulkView:
    """Continue a stopped operation, at another rate if one is given."""
    await _reached(here, caller, operation_id)
    resumed = await here.bus.bulk.resume(
        operation_id, rate=form.rate, reason=form.reason, operator=caller.user_id
    )
    return _view(resumed)
