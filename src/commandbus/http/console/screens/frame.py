"""What belongs to every page: finding a thing, who one is, the theme, the list of keys."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from fastapi import Query
from starlette.responses import RedirectResponse, Response

from commandbus.access.model import Scope
from commandbus.commands.people import Identified
from commandbus.http.console import cookies
from commandbus.http.console.formats import cause
from commandbus.http.console.forms import Fields
from commandbus.http.console.screen import Page, Screen
from commandbus.http.console.sign_in import sign_out
from commandbus.http.console.view import ROOT, Show, View

#: What looks like the beginning of a fingerprint.
_BEGINNING = re.compile("[0-9a-f]{4,64}")
#: Causes and domains that are listed.
SHOWN = 20
#: Every caller who is let in may.
ANY = tuple(scope for scope in Scope if scope is not Scope.READ)

screen = Screen("frame", "Console", order=0, alternatives=ANY)


@screen.page("/find", name="find")
async def find(view: Show, q: Annotated[str, Query(max_length=200)] = "") -> Page | Response:
    """Find a thing by its id, or a cause by the beginning of its fingerprint, with one read; a
    screen or a domain by its name, with none.
    """
    found: list[tuple[str, str]] = []
    looked_for = _uuid_of(q)
    if looked_for is not None and view.may(Scope.READ):
        things = await view.bus.search.identify(
            looked_for, domains=view.caller.domains, viewer=view.viewer
        )
        found = [(_said(each), _address(view, each, looked_for)) for each in things]
        if len(found) == 1:
            return RedirectResponse(found[0][1], 303)
    words = q.strip().lower()
    if _BEGINNING.fullmatch(words) and view.may(Scope.READ):
        found += await _causes(view, words)
        if len(found) == 1:
            return RedirectResponse(found[0][1], 303)
    if words and view.may(Scope.READ):
        domains = await view.console.domains_for(view)
        found += [
            (f"Domain {each}", view.url("workers.domain", domain=each))
            for each in domains
            if words in each
        ][:SHOWN]
    screens = [
        each
        for each in view.console.registry.screens
        if words and each.order and view.may_open(each) and words in each.title.lower()
    ]
    return view.page(
        "frame/find.html", "Find", q=q, found=found, screens=screens, is_id=looked_for is not None
    )


async def _causes(view: View, beginning: str) -> list[tuple[str, str]]:
    """The failure groups whose fingerprint begins so."""
    found = await view.bus.troubleshooting.find_groups(
        domains=view.caller.domains, search=beginning, include_empty=True, viewer=view.viewer
    )
    return [
        (f"Cause {each.fingerprint} in {each.domain}: {cause(each)}"[:200],
         view.url("troubleshooting.group", domain=each.domain, fingerprint=each.fingerprint))
        for each in found.groups
        if each.fingerprint.startswith(beginning)
    ][:SHOWN]  # fmt: skip


def _uuid_of(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def _said(found: Identified) -> str:
    words = {
        "command": "Command", "batch": "Batch", "ticket": "Governed batch",
        "operation": "Bulk operation", "correlation": "Commands with this correlation id",
    }  # fmt: skip
    return f"{words[found.kind]} in {found.domain}"


def _address(view: View, found: Identified, some_id: UUID) -> str:
    match found.kind:
        case "command":
            return view.url("command", domain=found.domain, command_id=some_id)
        case "batch":
            return view.url("batches.batch", domain=found.domain, batch_id=some_id)
        case "ticket":
            return view.url("approvals.ticket", batch_id=some_id)
        case "operation":
            return view.url("bulk.operation", operation_id=some_id)
        case _:
            return view.url("commands", domain=found.domain, correlation_id=some_id)


@screen.page("/me", name="me", personal=True)
async def me(view: Show) -> Page:
    """Who the caller is, and what it may do."""
    return view.page("frame/me.html", "You")


@screen.page("/help", name="help")
async def keys(view: Show) -> Page:
    """The keys, for browsers without a script too."""
    return view.page("frame/help.html", "Keys")


@screen.action("/sign-out", name="sign-out", scope=Scope.READ, alternatives=ANY, audited=False)
async def leave(view: Show) -> Response:
    """End the session of this browser."""
    return await sign_out(view)


@screen.action("/theme", name="theme", scope=Scope.READ, alternatives=ANY, audited=False)
async def theme(view: Show, form: Fields) -> Response:
    """Choose light, dark, or what the system says; or how close the rows of tables stand."""
    back = form.text("back")
    target = back if back.startswith(view.here.url(f"{ROOT}/")) else view.url("overview")
    answer, root = RedirectResponse(target, 303), view.here.url("")
    is_secure = view.console.is_secure(view.request)
    if density := form.text("density"):
        cookies.set_density(answer, root, density, is_secure=is_secure)
    else:
        cookies.set_theme(answer, root, form.text("theme"), is_secure=is_secure)
    return answer
