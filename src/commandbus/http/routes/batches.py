"""Batches of commands as the library has them. Governed batches are /api/v1/batches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from fastapi import APIRouter, Response

from commandbus.access.callers import demand_load
from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import viewer_of
from commandbus.batches.standing import batch_sentence, pace_of
from commandbus.errors import TicketNotFoundError
from commandbus.http.auth.scopes import Operator, Reader, Sender, Sight, refuse_new_domain, requires
from commandbus.http.openapi import problem_response
from commandbus.http.platform import Here, Wait, accepted
from commandbus.http.problems import Kind
from commandbus.http.schemas.base import DomainPath, PageOf50, PageOf100
from commandbus.http.schemas.batches import (
    BatchCreated,
    BatchErrorsView,
    BatchPaceView,
    BatchStandingView,
    BatchView,
    Canceled,
    Counted,
    CreateBatch,
    LoadResultView,
    LoadView,
    ResumeLoad,
    RetryBatch,
)
from commandbus.http.schemas.commands import CancelForm, CommandView
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute
from commandbus.models import BatchCommand, BatchMetadata, BatchStatus, CommandStatus
from commandbus.names import new_id
from commandbus.privacy.redaction import redact_payload

router = APIRouter(
    prefix="/command-batches/{domain}", tags=["batches of commands"], route_class=StrictRoute
)


def _view(batch: BatchMetadata, caller: Caller) -> BatchView:
    # What an application wrote there is as confidential as a payload.
    shown = redact_payload(batch.custom_data) if caller.may(Scope.READ_PAYLOAD) else None
    return BatchView.of(batch, custom_data=shown)


@router.post("", status_code=202)
async def create_command_batch(
    domain: DomainPath, form: CreateBatch, response: Response, here: Here, caller: Sender
) -> BatchCreated:
    """Create a batch with all its commands, or nothing. 403 if one of them is governed."""
    here.charge_commands(len(form.commands))
    await refuse_new_domain(here, caller, domain)
    commands: list[BatchCommand] = []
    for number, each in enumerate(form.commands, 1):
        made = BatchCommand(
            each.command_type,
            each.command_id or new_id(),
            each.data,
            correlation_id=each.correlation_id,
            **each.options(),
        )
        commands.append(made)
        if number % 1_000 == 0:
            await asyncio.sleep(0)  # other requests first
    batch_id = await here.bus.batches.create(
        domain, commands, name=form.name, custom_data=form.custom_data,
        on_behalf=here.bus.governance.on_behalf_of(caller, domain),
    )  # fmt: skip
    url = here.url(f"/api/v1/command-batches/{domain}/{batch_id}")
    accepted(response, url)
    ids = [command.command_id for command in commands]
    return BatchCreated(batch_id=batch_id, domain=domain, command_ids=ids, status_url=url)


@router.get("")
async def list_command_batches(
    domain: DomainPath,
    here: Here,
    caller: Reader,
    paging: PageOf50,
    status: BatchStatus | None = None,
) -> PageView[BatchView]:
    """List batches, newest first."""
    page = await here.bus.batches.page(domain, status=status, viewer=viewer_of(caller), **paging)
    return PageView[BatchView].of(page, items=[_view(batch, caller) for batch in page.items])


@router.get("/{batch_id}")
async def get_command_batch(
    domain: DomainPath, batch_id: UUID, response: Response, here: Here, caller: Reader, wait: Wait
) -> BatchView:
    """Show a batch; with `Prefer: wait=N` as soon as it has ended."""
    found = await here.bus.batches.require(domain, batch_id, viewer=viewer_of(caller))
    if found.completed_at is None and wait:
        response.headers["Preference-Applied"] = f"wait={wait:g}"
        try:
            found = await here.wait(
                lambda: here.bus.batches.wait(domain, batch_id, timeout=wait), found
            )
        except TimeoutError:
            found = await here.bus.batches.require(domain, batch_id)
    return _view(found, caller)


@router.get("/{batch_id}/commands", dependencies=[requires(Scope.READ)])
async def list_batch_commands(
    domain: DomainPath,
    batch_id: UUID,
    here: Here,
    viewer: Sight,
    paging: PageOf100,
    status: CommandStatus | None = None,
) -> PageView[CommandView]:
    """List the commands of a batch, in their order.

    With a status a page of a very large batch may have few commands, or none, and a next_cursor.
    """
    page = await here.bus.batches.page_commands(
        domain, batch_id, status=status, viewer=viewer, **paging
    )
    return PageView[CommandView].of(page)


@router.get(
    "/{batch_id}/load",
    dependencies=[requires(Scope.READ)],
    responses={409: problem_response(Kind.CONFLICT)},
)
async def get_load(domain: DomainPath, batch_id: UUID, here: Here, viewer: Sight) -> LoadView:
    """Show how far the load of a batch is, and what can be done with it; 409 if it is no load."""
    await here.bus.batches.require(domain, batch_id, viewer=viewer)
    load = await here.bus.loads.require(domain, batch_id)
    actions = await here.bus.batches.actions(domain, batch_id, load)
    return LoadView.of(load, actions=actions.allowed)


@router.post("/{batch_id}/resume")
async def resume_load(
    domain: DomainPath, batch_id: UUID, form: ResumeLoad, here: Here, caller: Sender
) -> LoadResultView:
    """Continue a load that stopped: your own, or with the scope operate any.

    The rows are its whole source, from the beginning. 403 if one of them is governed; earlier
    checkpoints stay.
    """
    await here.bus.batches.require(domain, batch_id, viewer=viewer_of(caller))
    demand_load(caller, await here.bus.loads.created_by(domain, batch_id))
    here.charge_commands(len(form.rows))
    who = here.bus.governance.on_behalf_of(caller, domain)
    result = await here.bus.loads.resume(domain, batch_id, form.rows, on_behalf=who)
    return LoadResultView.of(result)


@router.post("/{batch_id}/seal")
async def seal_load(domain: DomainPath, batch_id: UUID, here: Here, caller: Operator) -> LoadView:
    """End a load that stopped: what was loaded is the whole batch. A second one changes nothing."""
    load = await here.bus.loads.seal(domain, batch_id, operator=caller.user_id)
    actions = await here.bus.batches.actions(domain, batch_id, load)
    return LoadView.of(load, actions=actions.allowed)


@router.post("/{batch_id}/cancel")
async def cancel_command_batch(
    domain: DomainPath, batch_id: UUID, form: CancelForm, here: Here, caller: Operator
) -> Canceled:
    """Cancel the commands of a batch that no worker has leased; an open load is ended for good.

    With `running` = `request` workers are asked to end those that they have; those count too.
    """
    done = await here.bus.batches.cancel_counted(
        domain, batch_id, form.reason, running=form.running, operator=caller.user_id
    )
    return Canceled(
        count=done.canceled + done.requested, canceled=done.canceled, requested=done.requested
    )


@router.get("/{batch_id}/standing", dependencies=[requires(Scope.READ)])
async def get_batch_standing(
    domain: DomainPath, batch_id: UUID, here: Here, viewer: Sight
) -> BatchStandingView:
    """Say why a batch is open, how fast it goes, and what went wrong in it, by error code."""
    batch = await here.bus.batches.require(domain, batch_id, viewer=viewer)
    facts = await here.bus.batches.facts(batch)
    load = await here.bus.loads.get(domain, batch_id)
    now = datetime.now(UTC)
    return BatchStandingView(
        sentence=batch_sentence(batch, facts, now, load),
        pace=BatchPaceView.of(pace_of(batch, now)),
        errors=BatchErrorsView.of(await here.bus.batches.errors(batch)),
    )


@router.post("/{batch_id}/retry")
async def retry_command_batch(
    domain: DomainPath, batch_id: UUID, here: Here, caller: Operator, form: RetryBatch | None = None
) -> Counted:
    """Send the failed and the parked commands again. A second request finds nothing to do."""
    reason = None if form is None else form.reason
    await here.bus.batches.require(domain, batch_id, viewer=viewer_of(caller))
    try:
        # A governed batch has one rule for this, whatever the path: as often as its type allows.
        done = await here.bus.governance.retry(caller, batch_id, reason=reason)
    except TicketNotFoundError:
        count = await here.bus.batches.retry(
            domain, batch_id, reason=reason, operator=caller.user_id
        )
    else:
        count = len(done.retried)
    return Counted(count=count)
