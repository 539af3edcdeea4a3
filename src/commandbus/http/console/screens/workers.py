"""Workers and domains: is there capacity, who is silent, does anybody serve a domain. Pauses."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import DomainPath, TypeQuery
from commandbus.upkeep.overview import DomainOverview
from commandbus.upkeep.retention import PRUNERS, RetentionRule

screen = Screen(
    "workers", "Workers", order=80, group=Group.RUNNING, icon="worker", shortcut="w",
    domain_page="workers",
)  # fmt: skip

#: How long a pause may be chosen to last: seconds as a text, and words. Empty: until it is resumed.
PAUSES = [
    ("", "until somebody resumes it"),
    ("900", "15 minutes"),
    ("3600", "1 hour"),
    ("14400", "4 hours"),
    ("86400", "1 day"),
]


#: What retention calls what it removes, and what people call it.
KINDS = {
    "audit": "Events of what has ended",
    "archives": "Archived messages, with the payloads of what has ended",
    "replies": "Replies that nobody took",
    "history": "Commands and batches that were moved to the history",
    "commands": "Commands and batches that have ended",
}
#: The chore that removes it.
PRUNING = "prune old rows"


class Kept(NamedTuple):
    """How long one kind is kept, and by which rule; none: for ever."""

    what: str
    kind: str
    rule: RetentionRule | None


@screen.page("/workers", live=5.0)
async def show(view: Show, domain: DomainFilter = None) -> Page:
    """Workers, the most silent first, and the domains that they serve."""
    chosen = view.caller.domains if domain is None else _only(view, domain)
    workers = await view.bus.upkeep.figures.workers(chosen)
    domains = await view.bus.upkeep.figures.overview(chosen)
    return view.page(
        "workers/index.html", "Workers", workers=workers, domains=domains, domain=domain
    )


@screen.page("/domains/{domain}", name="workers.domain", live=5.0)
async def domain(view: Show, domain: DomainPath) -> Page:
    """One domain: how it stands and moves, who works, what is paused."""
    at = await _stand_of(view, domain)
    rates = (await view.bus.upkeep.figures.rates([domain])).get(domain)
    workers = await view.bus.upkeep.figures.workers([domain])
    pauses = await view.bus.pauses(domain)
    return view.page(
        "workers/domain.html", domain, at=at, rates=rates, workers=workers, pauses=pauses,
        seconds_left=None if rates is None else rates.seconds_to_drain(at.ready),
    )  # fmt: skip


@screen.page("/domains/{domain}/upkeep", name="workers.upkeep", live=5.0)
async def upkeep(view: Show, domain: DomainPath) -> Page:
    """What is kept how long, and the chores: when each was done, when it is due, what it did."""
    await _stand_of(view, domain)
    rules = await view.bus.upkeep.get_retention()
    chores = await view.bus.upkeep.chores([domain])
    removed = next((each for each in chores if each.name == PRUNING), None)
    return view.page(
        "workers/upkeep.html", f"Upkeep of {domain}", domain=domain, chores=chores,
        kept=[_kept(rules, domain, kind) for kind in PRUNERS],
        removed=removed,
        cli=f"commandbus db retention set audit 90d --domain {domain}\n"
        "commandbus db prune --dry-run",
        curl=curl(view, "GET", "/api/v1/chores"),
    )  # fmt: skip


def _kept(rules: list[RetentionRule], domain: str, kind: str) -> Kept:
    """The rule that holds: its own, or else that of all domains."""
    found = {each.domain: each for each in rules if each.kind == kind}
    return Kept(KINDS.get(kind, kind), kind, found.get(domain) or found.get(None))


@screen.page("/domains/{domain}/pause", scope=Scope.OPERATE, name="workers.ask_pause")
async def ask_pause(view: Show, domain: DomainPath, command_type: TypeQuery = None) -> Page:
    """The page before a pause."""
    at = await _stand_of(view, domain)
    what = domain if command_type is None else f"{command_type} of {domain}"
    more = "" if command_type is None else f" --type {command_type}"
    fields = {} if command_type is None else {"type": command_type}
    return view.page(
        "workers/pause.html",
        f"Pause {what}",
        verb=f"Pause {what}",
        action=view.url("workers.pause", domain=domain),
        back=view.url("workers.domain", domain=domain),
        fields=fields,
        happens=[
            f"No worker starts another one of {what}; {at.ready:,} are ready in the domain.",
            "What workers have leased and not started goes back within two seconds.",
        ],
        stays=[
            f"What runs goes on to its end; {at.in_flight:,} are in flight.",
            "Sends are accepted, and wait.",
            "Nobody is told, and nothing is lost: resume ends it.",
        ],
        look="primary",
        choices=PAUSES,
        cli=f"commandbus pause {domain}{more} --reason '…'",
        curl=curl(view, "POST", f"/api/v1/domains/{domain}/pause", {"reason": "why", **fields}),
    )


@screen.action("/domains/{domain}/pause", scope=Scope.OPERATE)
async def pause(view: Show, domain: DomainPath, form: Fields) -> Response:
    """Pause a domain, or one of its command types."""
    await _stand_of(view, domain)
    until = _until(form.text("seconds"))
    chosen = form.text("type") or None
    await view.bus.pause(
        domain,
        type=chosen,
        reason=form.required("reason", "Reason"),
        until=until,
        operator=view.actor,
    )
    return view.to("workers.domain", f"{chosen or domain} is paused.", domain=domain)


@screen.action("/domains/{domain}/resume", scope=Scope.OPERATE)
async def resume(view: Show, domain: DomainPath, form: Fields) -> Response:
    """End the pause of a domain, or of one of its command types."""
    await _stand_of(view, domain)
    chosen = form.text("type") or None
    was_paused = await view.bus.resume(
        domain, type=chosen, reason=form.text("reason") or None, operator=view.actor
    )
    what = chosen or domain
    notice = (
        f"{what} is resumed." if was_paused else f"{what} was not paused: somebody was quicker."
    )
    return view.to("workers.domain", notice, domain=domain)


def _only(view: View, domain: str) -> list[str]:
    return [domain] if view.caller.reaches(domain) else []


async def _stand_of(view: View, domain: str) -> DomainOverview:
    """404 for a domain that is not there, and for one that the caller may not see."""
    found = await view.bus.upkeep.figures.overview(_only(view, domain))
    if not found:
        raise not_found("no such domain")
    return found[0]


def _until(seconds: str) -> timedelta | None:
    if not seconds:
        return None
    if seconds not in {code for code, _ in PAUSES}:
        raise InvalidInputError("choose for how long it is to be paused")
    return timedelta(seconds=int(seconds))
