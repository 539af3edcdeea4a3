"""Execution limits: how many run at once, how often they start, who waits for what."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError
from commandbus.gates.model import ExecutionLimit, rule_text
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import DomainPath, TypeQuery

#: Keys of a limit by key that are shown.
KEYS_SHOWN = 50

screen = Screen(
    "execution_limits", "Execution limits", order=100, group=Group.RUNNING, icon="lanes",
    domain_page="execution_limits",
)  # fmt: skip


class Wanted(NamedTuple):
    """A limit as a form asks for it."""

    command_type: str | None
    per_key: bool
    max_running: int | None
    rate: float | None
    per: float
    burst: float | None


PerKey = Annotated[bool, Query(description="The limit by key of the type.")]


@screen.page("/execution-limits", live=5.0)
async def show(view: Show, domain: DomainFilter = None) -> Page:
    """The limits of all domains, or of one, with what runs and waits now."""
    domains = reached(view.caller, domain)
    found = await view.bus.limits.list(domains=domains)
    return view.page(
        "execution_limits/index.html", "Execution limits", limits=found, domain=domain,
        domains=[each.domain for each in await view.bus.upkeep.figures.overview(domains)],
    )  # fmt: skip


@screen.page("/execution-limits/{domain}", live=5.0)
async def one(
    view: Show, domain: DomainPath, command_type: TypeQuery = None, per_key: PerKey = False
) -> Page:
    """One limit: what it is up to, its keys, and the form that changes it."""
    await _known(view, domain)
    found = _find(await view.bus.limits.list(domain), command_type, per_key=per_key)
    keys = []
    if per_key and command_type is not None:
        keys = await view.bus.limits.keys(domain, command_type, limit=KEYS_SHOWN)
    title = domain if command_type is None else command_type
    return view.page(
        "execution_limits/one.html", title, limit=found, keys=keys, domain=domain,
        command_type=command_type, per_key=per_key,
    )  # fmt: skip


@screen.action("/execution-limits/{domain}/review", scope=Scope.OPERATE)
async def review(view: Show, domain: DomainPath, form: Fields) -> Page:
    """What would change, before it does: old and new, side by side."""
    await _known(view, domain)
    wanted = _wanted(form)
    before = _find(await view.bus.limits.list(domain), wanted.command_type, per_key=wanted.per_key)
    rule = rule_text(
        wanted.max_running, wanted.rate, wanted.per, wanted.burst or wanted.rate,
        is_paused=False,
    )  # fmt: skip
    what = wanted.command_type or domain
    running = 0 if before is None else before.running
    return view.page(
        "confirm.html",
        f"Limit {what}",
        verb=f"Limit {what}{' by key' if wanted.per_key else ''} to {rule}",
        action=view.url("execution_limits.set_limit", domain=domain),
        back=_address(view, domain, wanted.command_type, per_key=wanted.per_key),
        fields=_fields(form),
        happens=[
            f"Before: {before.rule if before and before.rule else 'no limit'}. After: {rule}.",
            "It holds for every worker at once, from its next look for commands on.",
        ],
        stays=[
            f"What runs goes on ({running:,} have a place now), also if it is more than that.",
            "What finds no room waits, in its order, and loses no attempt.",
        ],
        look="primary",
        cli=_cli("set", domain, wanted),
        curl=curl(view, "PUT", _path(domain, wanted.command_type), _body(wanted)),
    )


@screen.action("/execution-limits/{domain}/set", scope=Scope.OPERATE)
async def set_limit(view: Show, domain: DomainPath, form: Fields) -> Response:
    """Set a limit."""
    await _known(view, domain)
    wanted = _wanted(form)
    await view.bus.limits.set(
        domain, wanted.command_type, per_key=wanted.per_key,
        max_running=wanted.max_running, rate=wanted.rate, per=wanted.per,
        burst=wanted.burst, operator=view.actor, reason=form.required("reason", "Reason"),
    )  # fmt: skip
    return view.to("execution_limits", "The limit is set.", domain=domain)


@screen.page("/execution-limits/{domain}/clear", scope=Scope.OPERATE)
async def ask_clear(
    view: Show, domain: DomainPath, command_type: TypeQuery = None, per_key: PerKey = False
) -> Page:
    """The page before a limit is removed."""
    found = _find(await view.bus.limits.list(domain), command_type, per_key=per_key)
    if found is None:
        raise not_found("no such limit")
    return view.page(
        "confirm.html",
        "Remove a limit",
        verb=f"Remove the limit of {found.name}",
        action=view.url("execution_limits.clear", domain=domain),
        back=_address(view, domain, command_type, per_key=per_key),
        fields={"command_type": command_type or "", "per_key": "1" if per_key else ""},
        happens=[f"{found.waiting:,} that wait for it become due.", f"It was: {found.rule}."],
        stays=["What runs goes on.", "Other limits hold."],
        cli=_cli("clear", domain, Wanted(command_type, per_key, None, None, 1.0, None)),
        curl=curl(
            view,
            "DELETE",
            f"{_path(domain, command_type)}?reason=why{'&per_key=true' if per_key else ''}",
        ),
    )


@screen.action("/execution-limits/{domain}/clear", scope=Scope.OPERATE)
async def clear(view: Show, domain: DomainPath, form: Fields) -> Response:
    """Remove a limit."""
    was_there = await view.bus.limits.clear(
        domain, form.text("command_type") or None, per_key=form.text("per_key") == "1",
        operator=view.actor, reason=form.required("reason", "Reason"),
    )  # fmt: skip
    notice = "The limit is removed." if was_there else "There was none any more."
    return view.to("execution_limits", notice, domain=domain)


def _path(domain: str, command_type: str | None) -> str:
    return f"/api/v1/limits/{domain}{f'/{command_type}' if command_type else ''}"


def _body(wanted: Wanted) -> dict[str, Any]:
    given = {
        "max_running": wanted.max_running, "rate": wanted.rate, "burst": wanted.burst,
        "per_seconds": None if wanted.rate is None else wanted.per,
        "per_key": wanted.per_key or None, "reason": "why",
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _cli(verb: str, domain: str, wanted: Wanted) -> str:
    given = {
        "type": wanted.command_type, "max-running": wanted.max_running, "rate": wanted.rate,
        "per": None if wanted.rate is None else wanted.per, "burst": wanted.burst,
    }  # fmt: skip
    words = ["commandbus", "limits", verb, domain]
    for name, value in given.items():
        words += [] if value is None else [f"--{name}", f"{value}"]
    words += ["--per-key"] * wanted.per_key
    return shlex.join([*words, "--reason", "why"])


def _fields(form: Form) -> dict[str, str]:
    names = ("command_type", "per_key", "max_running", "rate", "per", "burst")
    return {name: form.text(name) for name in names}


def _wanted(form: Form) -> Wanted:
    found = Wanted(
        form.text("command_type") or None,
        form.text("per_key") == "1",
        form.number("max_running"),
        form.decimal("rate"),
        form.decimal("per") or 1.0,
        form.decimal("burst"),
    )
    if found.max_running is None and found.rate is None:
        raise InvalidInputError("say how many may run at once, or how many may start, or both")
    return found


def _find(
    found: list[ExecutionLimit], command_type: str | None, *, per_key: bool
) -> ExecutionLimit | None:
    return next((x for x in found if (x.type, x.per_key) == (command_type, per_key)), None)


def _address(view: View, domain: str, command_type: str | None, *, per_key: bool) -> str:
    more = {} if command_type is None else {"command_type": command_type}
    return view.url(
        "execution_limits.one", domain=domain, **more, **({"per_key": "true"} if per_key else {})
    )


async def _known(view: View, domain: str) -> None:
    reached = view.caller.reaches(domain)
    if not reached or not await view.bus.upkeep.figures.knows_domain(domain):
        raise not_found("no such domain")
