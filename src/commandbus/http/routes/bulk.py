"""Bulk operations: one decision for many parked commands."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from commandbus.access.model import Caller, Scope
from commandbus.errors import BulkOperationNotFoundError, InvalidOperationError
from commandbus.http.platform import Here, Platform, path_of
from commandbus.http.schemas.base import DomainQuery, Limit
from commandbus.http.schemas.troubleshooting import (
    BulkFilterForm,
    BulkItemList,
    BulkItemView,
    BulkList,
    BulkPreviewView,
    BulkView,
    ResumeBulk,
    StartBulk,
)
from commandbus.http.security import reached_domain, refuse_domain, requires
from commandbus.troubleshooting.model import BulkFilter, BulkOperation, BulkOutcome, BulkStatus

router = APIRouter(prefix="/bulk-operations", tags=["bulk operations"])

Reader = Annotated[Caller, requires(Scope.READ)]
Operator = Annotated[Caller, requires(Scope.OPERATE)]


def _filter_of(caller: Caller, form: BulkFilterForm) -> BulkFilter:
    refuse_domain(caller, form.domain)
    values = form.model_dump()
    ids = values.pop("command_ids")
    return BulkFilter(**values, command_ids=None if ids is None else tuple(ids))


async def _reached(here: Platform, caller: Caller, operation_id: UUID) -> BulkOperation:
    found = await here.bus.bulk.get(operation_id)
    if found is None or not caller.reaches(found.domain):
        raise BulkOperationNotFoundError(operation_id)
    return found


@router.post("/preview")
async def preview_bulk(form: BulkFilterForm, here: Here, caller: Reader) -> BulkPreviewView:
    """Count what a filter matches now, by cause. Changes nothing."""
    return BulkPreviewView.model_validate(await here.bus.bulk.preview(_filter_of(caller, form)))


@router.post("", status_code=202)
async def start_bulk(
    form: StartBulk, request: Request, response: Response, here: Here, caller: Operator
) -> BulkView:
    """Freeze what matches and let the workers of the domain act on it.

    A repeat with the same operation_id, or while the same decision still runs, is the same
    operation.
    """
    chosen = _filter_of(caller, form.filter)
    known = None if form.operation_id is None else await here.bus.bulk.get(form.operation_id)
    if known is not None:
        refuse_domain(caller, known.domain)
    elif form.expected_total is not None:
        total = (await here.bus.bulk.preview(chosen)).total
        if total != form.expected_total:
            raise InvalidOperationError(
                f"the filter matches {total} commands now, not {form.expected_total}; look at the "
                "preview again"
            )
    started = await here.bus.bulk.start(
        form.verb, chosen, reason=form.reason, result_data=form.result,
        reset_attempts=form.reset_attempts, rate=form.rate, operator=caller.user_id,
        operation_id=form.operation_id, everything=form.everything,
    )  # fmt: skip
    url = path_of(request, f"/api/v1/bulk-operations/{started.operation_id}")
    response.headers["Location"] = url
    return BulkView.model_validate(started)


@router.get("")
async def list_bulks(
    here: Here,
    caller: Reader,
    domain: DomainQuery = None,
    status: BulkStatus | None = None,
    before: Annotated[UUID | None, Query(description="`next_before` of the page before.")] = None,
    limit: Limit = 50,
) -> BulkList:
    """List operations, newest first."""
    found = await here.bus.bulk.operations(
        reached_domain(caller, domain), status=status, limit=limit, before=before
    )
    return BulkList(
        items=[BulkView.model_validate(operation) for operation in found],
        next_before=found[-1].operation_id if len(found) == limit else None,
    )


@router.get("/{operation_id}")
async def get_bulk(operation_id: UUID, here: Here, caller: Reader) -> BulkView:
    """Show an operation and how far it is."""
    return BulkView.model_validate(await _reached(here, caller, operation_id))


@router.get("/{operation_id}/items")
async def list_bulk_items(
    operation_id: UUID,
    here: Here,
    caller: Reader,
    outcome: BulkOutcome | None = None,
    after: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Limit = 100,
) -> BulkItemList:
    """List what became of each command."""
    await _reached(here, caller, operation_id)
    found = await here.bus.bulk.items(operation_id, outcome=outcome, after=after, limit=limit)
    return BulkItemList(
        items=[BulkItemView.model_validate(item) for item in found],
        next_after=found[-1].item_no if len(found) == limit else None,
    )


@router.post("/{operation_id}/stop")
async def stop_bulk(operation_id: UUID, here: Here, caller: Operator) -> BulkView:
    """Stop it: once this is answered, no further command is acted on."""
    await _reached(here, caller, operation_id)
    return BulkView.model_validate(await here.bus.bulk.stop(operation_id, operator=caller.user_id))


@router.post("/{operation_id}/resume")
async def resume_bulk(
    operation_id: UUID, form: ResumeBulk, here: Here, caller: Operator
) -> BulkView:
    """Let it go on where it was left, at another rate if one is given."""
    await _reached(here, caller, operation_id)
    return BulkView.model_validate(
        await here.bus.bulk.resume(operation_id, rate=form.rate, operator=caller.user_id)
    )
