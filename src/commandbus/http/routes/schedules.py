"""Schedules: put them, look at them, pause, resume, trigger and delete them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Response

from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError, ScheduleNotFoundError
from commandbus.http.auth.scopes import (
    Operator,
    ReachedDomain,
    Sender,
    ShowPayload,
    refuse_new_domain,
    requires,
)
from commandbus.http.platform import Here, accepted
from commandbus.http.schemas.base import DomainPath, Moment, PageOf50, Why
from commandbus.http.schemas.schedules import (
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    SchedulePath,
    ScheduleView,
    TicksView,
    Triggered,
    TriggerSchedule,
    schedule_view,
)
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute
from commandbus.names import NO_REPLY, replies_queue
from commandbus.schedules.ticks import MAX_CRON_LENGTH

Count = Annotated[int, Query(ge=1, le=100, description="How many ticks.")]

router = APIRouter(prefix="/schedules", tags=["schedules"], route_class=StrictRoute)


@router.get("", dependencies=[requires(Scope.READ)])
async def list_schedules(
    here: Here, domain: ReachedDomain, paging: PageOf50
) -> PageView[ScheduleView]:
    """List schedules by domain and name, without their payloads."""
    page = await here.bus.schedules.list(domain, **paging)
    return PageView[ScheduleView].of(page, items=[schedule_view(each) for each in page.items])


@router.get("/preview", dependencies=[requires(Scope.READ)])
async def preview_schedule(
    here: Here,
    cron: Annotated[str | None, Query(max_length=MAX_CRON_LENGTH, examples=["0 6 * * 1-5"])] = None,
    timezone: Annotated[str | None, Query(max_length=100, examples=["Europe/Berlin"])] = None,
    every_seconds: Annotated[float | None, Query(ge=1)] = None,
    at: Moment = None,
    count: Count = 10,
) -> TicksView:
    """Show when a schedule with these times would be due next. Changes nothing."""
    ticks = await here.bus.schedules.preview(
        cron=cron, timezone=timezone, every=every_seconds, at=at, count=count
    )
    return TicksView(ticks=list(ticks))


@router.get("/{domain}/{name}/preview", dependencies=[requires(Scope.READ)])
async def preview_stored_schedule(
    domain: DomainPath, name: SchedulePath, here: Here, count: Count = 10
) -> TicksView:
    """Show when a schedule is due next, as it is stored: intervals go on from where they began.

    Whether it is paused is not considered, nor what is skipped or delayed.
    """
    return TicksView(ticks=list(await here.bus.schedules.preview(domain, name, count=count)))


@router.get("/{domain}/{name}", dependencies=[requires(Scope.READ)])
async def get_schedule(
    domain: DomainPath, name: SchedulePath, here: Here, payload: ShowPayload
) -> ScheduleView:
    """Show a schedule."""
    return schedule_view(await here.bus.schedules.require(domain, name, show_data=payload))


@router.put("/{domain}/{name}")
async def put_schedule(
    domain: DomainPath, name: SchedulePath, form: PutSchedule, here: Here, caller: Sender
) -> ScheduleView:
    """Create a schedule, or replace the one of this name. The same again changes nothing.

    A schedule that somebody else has put is replaced by operators only. A governed command type
    is 403, also for those who may pass by governance, and so is replacing a schedule of one.
    """
    here.charge_commands(1)
    await refuse_new_domain(here, caller, domain)
    await here.bus.governance.register()
    made = await here.bus.schedules.put(
        domain, name, form.command_type, form.data, cron=form.cron, timezone=form.timezone,
        every=form.every_seconds, at=form.at, missed=form.missed, missed_cap=form.missed_cap,
        overlap=form.overlap, jitter=form.jitter_seconds, expires_in=form.expires_in_seconds,
        priority=form.priority, ordering_key=form.ordering_key, meta=form.meta,
        reply_to=replies_queue(domain) if form.wants_reply else NO_REPLY,
        max_attempts=form.max_attempts, operator=caller.user_id,
        on_behalf=here.bus.governance.on_behalf_of(caller, domain),
        only_own=not caller.may(Scope.OPERATE),
    )  # fmt: skip
    return schedule_view(made)


@router.delete("/{domain}/{name}", status_code=204)
async def delete_schedule(
    domain: DomainPath, name: SchedulePath, here: Here, caller: Operator, reason: Why = None
) -> None:
    """Remove a schedule; the commands that it has sent stay."""
    if not await here.bus.schedules.delete(domain, name, reason=reason, operator=caller.user_id):
        raise ScheduleNotFoundError(domain, name)


@router.post("/{domain}/{name}/pause")
async def pause_schedule(
    domain: DomainPath, name: SchedulePath, form: PauseSchedule, here: Here, caller: Operator
) -> ScheduleView:
    """Stop the ticks of a schedule until it is resumed."""
    paused = await here.bus.schedules.pause(
        domain, name, reason=form.reason, operator=caller.user_id
    )
    return schedule_view(paused)


@router.post("/{domain}/{name}/resume")
async def resume_schedule(
    domain: DomainPath,
    name: SchedulePath,
    here: Here,
    caller: Operator,
    form: ResumeSchedule | None = None,
) -> ScheduleView:
    """Let a schedule fire again."""
    wanted = form or ResumeSchedule(catch_up=False)
    resumed = await here.bus.schedules.resume(
        domain, name, catch_up=wanted.catch_up, reason=wanted.reason, operator=caller.user_id
    )
    return schedule_view(resumed)


async def _chosen_id(
    form: TriggerSchedule | None = None,
    idempotency_key: Annotated[
        UUID | None, Header(description="The same as command_id, for clients that have it.")
    ] = None,
) -> UUID | None:
    wanted = None if form is None else form.command_id
    if wanted is not None and idempotency_key not in {None, wanted}:
        raise InvalidInputError("command_id and Idempotency-Key differ; send one of them")
    return wanted or idempotency_key


@router.post("/{domain}/{name}/trigger", status_code=202)
async def trigger_schedule(
    domain: DomainPath,
    name: SchedulePath,
    response: Response,
    here: Here,
    caller: Operator,
    command_id: Annotated[UUID | None, Depends(_chosen_id)],
    form: TriggerSchedule | None = None,
) -> Triggered:
    """Send the command of a schedule now, also if it is paused. No tick is moved.

    A repeat with the same id sends nothing. A governed command type is 403: submit it as a batch.
    """
    here.charge_commands(1)
    await here.bus.governance.register()
    sent = await here.bus.schedules.trigger(
        domain, name, command_id=command_id, operator=caller.user_id,
        reason=None if form is None else form.reason,
        on_behalf=here.bus.governance.on_behalf_of(caller, domain),
    )  # fmt: skip
    url = here.url(f"/api/v1/commands/{domain}/{sent}")
    accepted(response, url)
    return Triggered(domain=domain, command_id=sent, status_url=url)
