"""Schedules: what fires when, how it went last time; pause, resume, run now, remove."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import CommandBusError, ScheduleNotFoundError
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import DomainPath, PageOf50
from commandbus.http.schemas.schedules import SchedulePath
from commandbus.names import new_id
from commandbus.privacy.redaction import redact_text
from commandbus.schedules.model import Schedule, ScheduleStatus

#: How many of the next times are shown.
NEXT_SHOWN = 8

screen = Screen(
    "schedules", "Schedules", order=90, group=Group.RUNNING, icon="clock",
    domain_page="schedules",
)  # fmt: skip


@screen.page("/schedules", live=5.0)
async def show(view: Show, paging: PageOf50, domain: DomainFilter = None) -> Page:
    """Schedules by domain and name."""
    found = await view.bus.schedules.list(domains=reached(view.caller, domain), **paging)
    return view.page(
        "schedules/index.html",
        "Schedules",
        schedules=found.items,
        domain=domain,
        next=view.here_with(cursor=found.next_cursor) if found.next_cursor else None,
        first=view.here_with() if paging.get("cursor") else None,
    )


@screen.page("/schedules/{domain}/{name}", live=5.0)
async def one(view: Show, domain: DomainPath, name: SchedulePath) -> Page:
    """One schedule: its next times, its last command, what it sends."""
    shows = view.may(Scope.READ_PAYLOAD, domain)
    found = await view.bus.schedules.require(domain, name, show_data=shows)
    return view.page(
        "schedules/one.html",
        name,
        schedule=found,
        ticks=await _next_ticks(view, found),
        shows_payload=shows,
        run_id=new_id(),
    )


async def _next_ticks(view: View, found: Schedule) -> list[datetime]:
    """The times that follow; none if it is over, or if this machine does not know its zone."""
    if found.status is ScheduleStatus.FINISHED or found.at is not None:
        return [] if found.next_tick_at is None else [found.next_tick_at]
    try:
        ticks = await view.bus.schedules.preview(
            cron=found.cron, timezone=found.timezone, every=found.every_seconds, count=NEXT_SHOWN
        )
    except CommandBusError:
        return [] if found.next_tick_at is None else [found.next_tick_at]
    if found.every_seconds is not None and found.next_tick_at is not None:
        # An interval is counted from the schedule's beginning, not from now.
        step = ticks[1] - ticks[0]
        return [found.next_tick_at + step * place for place in range(NEXT_SHOWN)]
    return list(ticks)


@screen.page("/schedules/{domain}/{name}/pause", scope=Scope.OPERATE)
async def ask_pause(view: Show, domain: DomainPath, name: SchedulePath) -> Page:
    """The page before a pause."""
    await view.bus.schedules.require(domain, name)
    return view.page(
        "confirm.html",
        f"Pause {name}",
        verb=f"Pause the schedule {name}",
        action=view.url("schedules.pause", domain=domain, name=name),
        back=view.url("schedules.one", domain=domain, name=name),
        happens=["Its ticks send nothing until somebody resumes it; each is recorded as skipped."],
        stays=["Commands that it has sent run on.", "Run now still works."],
        look="primary",
        cli=f"commandbus schedule pause {domain} {name} --reason '…'",
        curl=curl(view, "POST", f"/api/v1/schedules/{domain}/{name}/pause", {"reason": "why"}),
    )


@screen.page("/schedules/{domain}/{name}/delete", scope=Scope.OPERATE)
async def ask_delete(view: Show, domain: DomainPath, name: SchedulePath) -> Page:
    """The page before its end."""
    await view.bus.schedules.require(domain, name)
    return view.page(
        "confirm.html",
        f"Remove {name}",
        verb=f"Remove the schedule {name}",
        action=view.url("schedules.delete", domain=domain, name=name),
        back=view.url("schedules.one", domain=domain, name=name),
        happens=["It is gone, and sends nothing any more. There is no undo: put it again."],
        stays=["Commands that it has sent stay, and run on.", "Its history stays in the audit."],
        cli=f"commandbus schedule delete {domain} {name} --reason '…'",
        curl=curl(view, "DELETE", f"/api/v1/schedules/{domain}/{name}?reason=why"),
    )


@screen.action("/schedules/{domain}/{name}/pause", scope=Scope.OPERATE)
async def pause(view: Show, domain: DomainPath, name: SchedulePath, form: Fields) -> Response:
    """Stop its ticks."""
    reason = form.required("reason", "Reason")
    await view.bus.schedules.pause(domain, name, reason=reason, operator=view.actor)
    return view.to("schedules.one", f"{name} is paused.", domain=domain, name=name)


@screen.action("/schedules/{domain}/{name}/resume", scope=Scope.OPERATE)
async def resume(view: Show, domain: DomainPath, name: SchedulePath, form: Fields) -> Response:
    """Let it fire again."""
    reason = form.text("reason") or None
    await view.bus.schedules.resume(domain, name, reason=reason, operator=view.actor)
    return view.to("schedules.one", f"{name} fires again.", domain=domain, name=name)


@screen.action("/schedules/{domain}/{name}/trigger", scope=Scope.OPERATE)
async def trigger(view: Show, domain: DomainPath, name: SchedulePath, form: Fields) -> Response:
    """Send its command now. The id is in the form: a second click sends nothing."""
    view.here.charge_commands(1)
    await view.bus.governance.register()
    sent = await view.bus.schedules.trigger(
        domain, name, command_id=UUID(form.required("command_id")), operator=view.actor,
        reason=form.text("reason") or None,
        on_behalf=view.bus.governance.on_behalf_of(view.caller, domain),
    )  # fmt: skip
    return view.to("schedules.one", f"Sent as {sent}.", domain=domain, name=name)


@screen.action("/schedules/{domain}/{name}/delete", scope=Scope.OPERATE)
async def delete(view: Show, domain: DomainPath, name: SchedulePath, form: Fields) -> Response:
    """Remove it."""
    reason = form.required("reason", "Reason")
    if not await view.bus.schedules.delete(domain, name, reason=reason, operator=view.actor):
        raise ScheduleNotFoundError(domain, name)
    return view.to("schedules", redact_text(f"{name} is removed."))
