"""Commands: to find one by what is known of it. The filter is the address."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Query
from starlette.responses import RedirectResponse, Response

from commandbus.http.console.formats import look_of, now
from commandbus.http.console.queries import (
    ChoiceFilter,
    CodeFilter,
    DomainFilter,
    IdFilter,
    MomentFilter,
    StatusFilter,
    TypeFilter,
)
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.screens.troubleshooting import place_of
from commandbus.http.console.view import Show, View
from commandbus.http.schemas.base import PageOf50
from commandbus.models import CommandStatus

screen = Screen(
    "commands", "Commands", order=20, group=Group.WORK, icon="list", shortcut="c",
    domain_page="commands",
)  # fmt: skip

#: Times that can be chosen with a click.
PRESETS = [
    ("15 min", timedelta(minutes=15)), ("1 h", timedelta(hours=1)), ("24 h", timedelta(days=1)),
    ("7 d", timedelta(days=7)),
]  # fmt: skip
#: What the search field takes as `key:value`.
KEYS = ("domain", "status", "command_type", "error_code", "correlation_id", "batch_id")
SHORT = {"type": "command_type", "code": "error_code", "correlation": "correlation_id",
         "batch": "batch_id", "state": "status"}  # fmt: skip


def _criteria(
    domain: DomainFilter = None,
    status: StatusFilter = None,
    command_type: TypeFilter = None,
    error_code: CodeFilter = None,
    created_after: MomentFilter = None,
    created_before: MomentFilter = None,
    correlation_id: IdFilter = None,
    batch_id: IdFilter = None,
    history: ChoiceFilter = None,
) -> dict[str, Any]:
    return {
        "domain": domain, "status": status, "command_type": command_type,
        "error_code": error_code, "created_after": created_after,
        "created_before": created_before, "correlation_id": correlation_id, "batch_id": batch_id,
        "history": history or None,
    }  # fmt: skip


#: The filter, with the names of the API.
Criteria = Annotated[dict[str, Any], Depends(_criteria)]


@screen.page("/commands", live=1.8)
async def show(
    view: Show,
    criteria: Criteria,
    paging: PageOf50,
    q: Annotated[str, Query(max_length=400)] = "",
) -> Page | Response:
    """Commands, newest first, and how far the search looked. `q` leads to a filter."""
    if q.strip():
        return _sought(view, q)
    place = place_of(view, criteria["domain"])
    if place == "":
        return view.page("troubleshooting/choose.html", "Commands")
    asked = {**criteria, "domain": place, "history": bool(criteria["history"])}
    page = await view.bus.search.commands(**asked, viewer=view.viewer, **paging)
    is_first = paging["cursor"] is None
    given = {name: value for name, value in criteria.items() if value is not None}
    return view.page(
        "commands/index.html",
        "Commands",
        final=not is_first,
        commands=page.items,
        suggested=await view.console.suggestions.of(view, place, page.items),
        searched_to=page.searched_to,
        place=place,
        criteria={name: "" if value is None else value for name, value in criteria.items()},
        is_filtered=bool(set(given) - {"domain"}),
        chips=[(name, _said(each), view.here_with(**{name: None})) for name, each in given.items()],
        presets=_presets(view),
        statuses=[("", "any"), *((each.value, look_of(each).word) for each in CommandStatus)],
        next_page=None if page.next_cursor is None else view.here_with(cursor=page.next_cursor),
        first_page=None if is_first else view.here_with(),
        exports=[
            (form, view.url("commands.export", form=form, **_plain(given)))
            for form in ("csv", "jsonl")
        ],
        cli=_cli(given),
        curl=curl(view, "GET", view.console.registry.path("commands", _plain(given)).replace(
            "/commands", "/api/v1/commands", 1)),
    )  # fmt: skip


def _said(value: Any) -> str | datetime:
    if isinstance(value, CommandStatus):
        return look_of(value).word
    if value is True:
        return "in the history"
    return value if isinstance(value, datetime) else str(value)


def _plain(given: dict[str, Any]) -> dict[str, str]:
    return {
        name: value.isoformat()
        if hasattr(value, "isoformat")
        else "true"
        if value is True
        else str(value)
        for name, value in given.items()
    }


def _presets(view: View) -> list[tuple[str, str]]:
    found = [("any time", view.here_with(created_after=None, created_before=None))]
    for word, back in PRESETS:
        since = (now() - back).strftime("%Y-%m-%dT%H:%M:00Z")  # the same for all looks of a minute
        found.append((word, view.here_with(created_after=since, created_before=None)))
    return found


def _cli(given: dict[str, Any]) -> str:
    names = {
        "domain": "--domain", "status": "--status", "command_type": "--type",
        "error_code": "--error-code", "batch_id": "--batch", "correlation_id": "--correlation-id",
        "created_after": "--since", "created_before": "--until",
    }  # fmt: skip
    words = ["commandbus", "list"]
    for name, option in names.items():
        if name in given:
            words += [option, _plain(given)[name]]
    words += ["--history"] if "history" in given else []
    return shlex.join(words)


def _sought(view: View, q: str) -> Response:
    """Where a text leads: an id to what it is, `key:value` to the filter, a word to a type."""
    values: dict[str, str] = {}
    for word in q.split():
        if _is_uuid(word):
            return RedirectResponse(view.url("find", q=word), 303)
        key, found, value = word.partition(":")
        key = SHORT.get(key.lower(), key.lower())
        if found and value and key in KEYS:
            values[key] = value.upper() if key == "status" else value
        else:
            values["command_type"] = word
    return RedirectResponse(view.url("commands", **values), 303)


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
