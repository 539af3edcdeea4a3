"""Every page and every action, from the list of routes: who may, and who may not."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.http import HttpSettings
from commandbus.http.console.registry import registry
from commandbus.http.console.screen import ActionRoute, PageRoute
from tests.console.test_sessions import visiting
from tests.console.world import EVERYTHING, console

ROUTES = [route for _, route in registry().routes()]
SOME_ID = UUID(int=7)
#: What parameters that are no ids may be.
WORDS = {"fingerprint": "9f86d081884c7d65", "verb": "retry", "action": "retry", "form": "csv"}


def filled(path: str, domain: str = "shop") -> str:
    """A path with something in place of each parameter."""
    return re.sub(
        r"\{(\w+)(?::\w+)?\}",
        lambda found: {"domain": domain, "token_id": SOME_ID.hex, **WORDS}.get(
            found[1], str(SOME_ID)
        ),
        path,
    )


def pages() -> list[str]:
    found = []
    for route in ROUTES:
        if isinstance(route, PageRoute):
            found.append(filled(route.path))
            if route.live_seconds is not None:
                found.append(f"/live{filled(route.path)}")
    return found


def test_every_page_names_a_scope() -> None:
    assert len(ROUTES) > 15
    assert all(route.scope in Scope for route in ROUTES)


async def test_a_stranger_sees_no_page_and_no_stream_and_does_nothing(bus: CommandBus) -> None:
    # Refusals are late for strangers who do not stop asking: not here.
    settings = HttpSettings(token_cache_seconds=0, max_auth_failures=1_000)
    async with visiting(bus, settings=settings) as browser:
        browser.client.cookies.set("commandbus-session-8080", "x" * 43)
        for path in pages():
            answer = await browser.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/console/sign-in"), path
        browser.client.headers["Accept"] = "text/event-stream"
        assert (await browser.get("/live/settings")).status_code == 401
        for route in ROUTES:
            if isinstance(route, ActionRoute):
                assert (await browser.post(filled(route.path))).status_code == 401, route.path


async def test_a_caller_without_the_scope_is_told_which_one(bus: CommandBus) -> None:
    # A service takes seconds to build: one for each set of scopes, not one for each route.
    by_scopes: dict[tuple[str, ...], list[PageRoute | ActionRoute]] = {}
    for route in ROUTES:
        enough = {route.scope, *route.alternatives, Scope.ADMIN}
        lacking = tuple(each for each in EVERYTHING if Scope(each) not in enough)
        if lacking:
            by_scopes.setdefault(lacking, []).append(route)
    assert by_scopes
    for lacking, routes in by_scopes.items():
        async with console(bus, *lacking) as browser:
            for route in routes:
                path = filled(route.path)
                if isinstance(route, PageRoute):
                    answer = await browser.get(path)
                else:
                    answer = await browser.post(path)
                assert answer.status_code == 403, route.name
                assert route.scope.value in answer.text


async def test_another_domain_is_not_there(bus: CommandBus) -> None:
    async with console(bus, *EVERYTHING, domains=("bank",)) as browser:
        for route in ROUTES:
            if "{domain}" not in route.path:
                continue
            path = filled(route.path)
            if isinstance(route, PageRoute):
                answer = await browser.get(path)
            else:
                answer = await browser.post(path)
            assert answer.status_code == 404, route.name


@pytest.mark.parametrize("headers", [{}, {"Origin": "https://evil.example"}])
async def test_no_action_is_taken_without_its_own_form(
    bus: CommandBus, headers: dict[str, str]
) -> None:
    async with console(bus, *EVERYTHING) as browser:
        for route in ROUTES:
            if not isinstance(route, ActionRoute):
                continue
            path = f"/console{filled(route.path)}"
            answer = await browser.client.post(path, data={"csrf": "0" * 64}, headers=headers)
            assert answer.status_code == 403, route.name
            assert (await browser.client.get(path)).status_code in {404, 405, 200}


async def test_the_navigation_has_what_the_caller_may_open(bus: CommandBus) -> None:
    async with console(bus, "read") as browser:
        page = await browser.text("/")
    async with console(bus, "send") as browser:
        nothing = await browser.text("/me")

    listed = set(re.findall(r'data-title="([^"]+)"', page))
    readable = {
        each.title
        for each in registry().screens
        if each.order and Scope.READ in {each.scope, *each.alternatives}
    }
    assert listed == readable
    # Whatever a token is for, its user may look at it.
    assert set(re.findall(r'data-title="([^"]+)"', nothing)) == {"Tokens"}
