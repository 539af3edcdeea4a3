"""Doctor: is the data sound, since when not, what to do. A look never begins a run."""

from __future__ import annotations

import re
from functools import partial

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.http.auth.scopes import reached_domain
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.problems import not_found
from commandbus.http.routes.operations import reached
from commandbus.upkeep.findings import Finding
from commandbus.upkeep.known import Severity


async def _errors(view: View) -> int | None:
    """The number beside the name: errors that the last run has found."""
    last = (await view.bus.upkeep.runs.last()).last
    if last is None:
        return None
    found = last.within(view.caller.domains).findings
    return sum(1 for each in found if each.severity is Severity.ERROR) or None


screen = Screen(
    "doctor", "Doctor", order=130, group=Group.TRUST, icon="heart", count=_errors,
    is_count_shared=True,
)  # fmt: skip


@screen.page("/doctor", live=1.8)
async def show(view: Show) -> Page:
    """The last result, by severity."""
    found = await view.bus.upkeep.runs.last()
    domains, viewer = view.caller.domains, view.viewer
    last = None if found.last is None else found.last.within(domains, viewer)
    newer = None if found.newer is None else found.newer.within(domains, viewer)
    is_well = last is not None and not last.findings
    return view.page(
        "doctor/index.html",
        "Doctor",
        last=last,
        well_since=await view.bus.upkeep.runs.well_since(domains) if is_well else None,
        leads=partial(_leads, view),
        newer=newer,
        places=_places(view),
        is_running=found.is_running,
        chores=await view.bus.upkeep.chores(view.caller.domains),
    )


#: Where what is named by a finding is looked at, if that is no id.
_PAGES = {
    "WORKER_SILENT": "workers", "WORKER_STUCK": "workers", "WAKEUPS_DEAD": "workers",
    "NO_WORKER": "workers", "GATE_UNUSED": "execution_limits",
}  # fmt: skip
_OF_DOMAIN = {
    "DOMAIN_PAUSED": "workers.domain", "QUEUE_MISSING": "workers.domain",
    "REPLIES_UNREAD": "workers.domain", "REPLIES_REFUSED": "workers.domain",
    "RETENTION_BEHIND": "workers.upkeep", "CHORE_LATE": "workers.upkeep",
}  # fmt: skip
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _leads(view: View, finding: Finding, example: str) -> str:
    """The address of what a finding names; empty: the console has no page of it."""
    found = _ID.search(example)
    if found is not None:  # of a command, a batch or a load: finding it tells which
        return view.url("find", q=found[0])
    domain, code = finding.domain, finding.code
    if domain is None:
        return view.url("tokens") if code.startswith("TOKEN_") else ""
    if code == "GROUP_COUNTERS":
        return view.url("troubleshooting.group", domain=domain, fingerprint=example)
    if code.startswith("SCHEDULE_"):
        return view.url("schedules.one", domain=domain, name=example)
    if code in _OF_DOMAIN:
        return view.url(_OF_DOMAIN[code], domain=domain)
    return view.url(_PAGES[code], domain=domain) if code in _PAGES else ""


def _places(view: View) -> list[str]:
    """What a run may look at: one domain of several; empty: all that the caller reaches."""
    domains = view.caller.domains
    return [""] if domains is None or len(domains) == 1 else sorted(domains)


@screen.action("/doctor/run", scope=Scope.OPERATE)
async def run(view: Show, form: Fields) -> Response:
    """Examine the database, in the background; who reaches several domains says which one."""
    domain = reached_domain(view.caller, form.text("domain") or None)
    await view.bus.upkeep.runs.start(domain=domain, operator=view.actor)
    return view.to("doctor", f"The doctor looks{f' at {domain}' if domain else ''}.")


@screen.page("/doctor/fix", scope=Scope.ADMIN)
async def ask_fix(view: Show, domain: DomainFilter = None) -> Page:
    """What would be fixed, before it is; who reaches several domains chooses one first."""
    domains = reached(view.caller, domain)
    last = (await view.bus.upkeep.runs.last()).last
    if last is None or not last.within(domains).fixable:
        raise not_found("nothing that can be fixed was found; run the doctor first")
    if domains is not None and len(domains) > 1:
        return view.page("troubleshooting/choose.html", "Fix")
    fixable = last.within(domains).fixable
    total = sum(each.found for each in fixable)
    return view.page(
        "confirm.html",
        "Fix",
        verb=f"Fix {total:,} findings",
        action=view.url("doctor.fix"),
        back=view.url("doctor"),
        fields={"run_id": last.run_id, "domain": domain or ""},
        happens=[
            *(f"{each.found:,} of {each.domain or 'all'}: {each.meaning}" for each in fixable),
            "Then the doctor looks again.",
        ],
        stays=["What it cannot fix by itself stays as it is.", "Each repair is in the audit."],
        look="primary",
        cli="commandbus doctor --fix",
        curl=curl(view, "POST", "/api/v1/doctor/fixes", {"run_id": last.run_id, "reason": "why"}),
    )


@screen.action("/doctor/fix", scope=Scope.ADMIN)
async def fix(view: Show, form: Fields) -> Response:
    """Repair what the last run has found."""
    run_id = form.number("run_id")
    if run_id is None:
        raise not_found("no such run")
    await view.bus.upkeep.runs.fix(
        run_id, form.required("reason", "Reason"), operator=view.actor,
        domain=reached_domain(view.caller, form.text("domain") or None),
    )  # fmt: skip
    return view.to("doctor", "The repair has begun.")
