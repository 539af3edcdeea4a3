"""One command: its life with the time between, why it stands where it stands, and its payload."""

from __future__ import annotations

import shlex
from typing import Any, Literal
from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.http.console.formats import pretty_json, raw_json
from commandbus.http.console.forms import Fields
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.schemas.base import DomainPath
from commandbus.troubleshooting import CommandLife, LifeStep

screen = Screen(
    "command", "Command", order=0, group=Group.WORK, icon="list",
    domain_page="commands",
)  # fmt: skip

#: Seconds between two events from which on the wait is drawn, and the longest one that is.
WAIT_SHOWN = 1.0

#: Where a reply is: words, and the picture and colour of its badge.
REPLIES: dict[str, tuple[str, str, str]] = {
    "open": ("follows when it ends", "s-pending", "pending"),
    "unwanted": ("nobody wants one", "dot", "pending"),
    "waiting": ("waits to be taken", "s-waits", "waits"),
    "leased": ("is being read", "s-progress", "progress"),
    "taken": ("was taken", "s-done", "done"),
    "gone": ("was taken, or removed by retention", "s-done", "pending"),
    "unknown": ("cannot be found in its queue", "warn", "waits"),
}

#: What events are called, and the picture and colour of what went wrong or right.
EVENTS: dict[str, tuple[str, str, str]] = {
    "SENT": ("Sent", "s-pending", "pending"),
    "RECEIVED": ("A worker began", "s-progress", "progress"),
    "COMPLETED": ("Completed", "s-done", "done"),
    "FAILED": ("Failed", "s-failed", "failed"),
    "CANCELED": ("Canceled", "s-canceled", "canceled"),
    "LEASE_EXPIRED": ("The lease ran out", "clock", "failed"),
    "STALE_RESULT_REJECTED": ("A late result was refused", "warn", "waits"),
    "MOVED_TO_TROUBLESHOOTING_QUEUE": ("Parked for a decision", "s-parked", "parked"),
    "OPERATOR_RETRY": ("Sent again by a person", "user", "progress"),
    "OPERATOR_CANCEL": ("Canceled by a person", "user", "canceled"),
    "OPERATOR_COMPLETE": ("Completed by a person", "user", "done"),
    "NOTE": ("Note", "book", "pending"),
    "SNOOZED": ("Put off by its handler", "clock", "pending"),
    "RELEASED": ("Given back by its worker", "prev", "pending"),
    "CANCEL_REQUESTED": ("Asked to end", "user", "waits"),
    "EXPIRED": ("Expired before it began", "clock", "canceled"),
    "GIVEN_UP": ("Given up", "s-failed", "failed"),
}


@screen.page("/commands/{domain}/{command_id}", live=1.0)
async def show(view: Show, domain: DomainPath, command_id: UUID) -> Page:
    """What happened to it, why it stands there, and what can be done."""
    return await life_page(view, domain, command_id)


async def life_page(view: View, domain: str, command_id: UUID, problem: str = "") -> Page:
    """The page of a command; `problem`: why something that was asked for was not done."""
    life = await view.bus.troubleshooting.life(
        domain, command_id, viewer=view.viewer, domains=view.caller.domains
    )
    path = f"/api/v1/commands/{domain}/{command_id}/life"
    return view.page(
        "command/show.html",
        life.command.command_type,
        status=409 if problem else 200,
        final=life.command.status.is_terminal,
        life=life,
        command=life.command,
        steps=_shown(life),
        problem=problem,
        replies=REPLIES,
        cli=f"commandbus show {command_id} --domain {domain}",
        curl=curl(view, "GET", path),
    )


def _shown(life: CommandLife) -> list[dict[str, Any]]:
    """The steps with what is drawn: waits to scale, compared with the longest one."""
    longest = max((each.seconds_since_previous or 0 for each in life.steps), default=0)
    found: list[dict[str, Any]] = []
    for index, step in enumerate(life.steps):
        if index == life.gap_after:
            found.append({"left_out": life.left_out})
        waited = step.seconds_since_previous or 0
        share = 0.0 if waited < WAIT_SHOWN else round(max(2.0, 100 * waited / longest), 1)
        found.append({"step": step, "share": share, "waited": waited, **_words(step)})
    return found


def _words(step: LifeStep) -> dict[str, Any]:
    event = step.event
    plain = event.event_type.replace("_", " ").capitalize()
    word, picture, colour = EVENTS.get(event.event_type, (plain, "dot", "pending"))
    details = dict(event.details or {})
    text = [details.pop(name, None) for name in ("reason", "note", "text", "message")]
    return {
        "word": word, "picture": picture, "colour": colour,
        "text": [str(each) for each in text if each],
        "code": details.pop("code", None), "edit": details.pop("changes", None),
        "stack": details.pop("stack", None), "operation": details.pop("operation_id", None),
        "rest": {name: value for name, value in details.items() if name not in {"attempt", "via"}},
    }  # fmt: skip


@screen.page("/commands/{domain}/{command_id}/payload", scope=Scope.READ_PAYLOAD)
async def payload(
    view: Show, domain: DomainPath, command_id: UUID, form: Literal["indented", "raw"] = "indented"
) -> Page:
    """What it was sent with, what it had before it was edited, what was replied; masked."""
    search = view.bus.search
    command = await search.require(domain, command_id, viewer=view.viewer)
    return view.page(
        "command/payload.html",
        f"Payload of {command.command_type}",
        command=command,
        payload=await search.payload(domain, command_id),
        former=await search.former_payloads(domain, command_id),
        reply=await search.reply(domain, command_id),
        replies=REPLIES,
        written=raw_json if form == "raw" else pretty_json,
        form=form,
        cli=shlex.join(["commandbus", "show", str(command_id), "--domain", domain, "--payload"]),
        curl=curl(view, "GET", f"/api/v1/commands/{domain}/{command_id}/reply?payload=true"),
    )


@screen.action("/commands/{domain}/{command_id}/note", scope=Scope.OPERATE)
async def note(view: Show, domain: DomainPath, command_id: UUID, form: Fields) -> Response:
    """Put a remark into the audit of a command."""
    await view.bus.search.require(domain, command_id, viewer=view.viewer)
    await view.bus.troubleshooting.note(
        domain, command_id, form.required("text", "Note"), operator=view.actor
    )
    return view.to("command", "The note is in the audit.", domain=domain, command_id=command_id)
