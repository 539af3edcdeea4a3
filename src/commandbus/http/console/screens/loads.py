"""Loads: is the import going, where did it stop, how to go on."""

from __future__ import annotations

from functools import partial

from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import PageOf50
from commandbus.loads.model import LoadStatus

#: Loads that are not done that are looked at, to find those that stopped.
OPEN_SHOWN = 100

screen = Screen(
    "loads", "Loads", order=60, group=Group.WORK, icon="load",
    domain_page="loads",
)  # fmt: skip


@screen.page("/loads", live=1.8)
async def show(
    view: Show, paging: PageOf50, domain: DomainFilter = None, status: LoadStatus | None = None
) -> Page:
    """Those that stopped on top, with what to type; then all, newest first."""
    if domain is not None and not view.caller.reaches(domain):
        raise not_found("no such domain")
    reach = view.caller.domains if domain is None else [domain]
    look = partial(view.bus.loads.page, domains=reach, viewer=view.viewer)
    stopped = []
    if not paging["cursor"]:
        found = await look(is_open=True, limit=OPEN_SHOWN)
        stopped = [each for each in found.items if each.is_interrupted]
    page = await look(status=status, **paging)
    return view.page(
        "loads/index.html",
        "Loads",
        stopped=stopped,
        loads=page.items,
        domain=domain,
        state=status,
        next=view.here_with(cursor=page.next_cursor) if page.next_cursor else None,
        first=view.here_with() if paging["cursor"] else None,
    )
