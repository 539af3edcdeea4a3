"""Every screen in a real browser: with data, empty, denied; both themes, four widths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus import CommandBus
from tests.canaries import assert_hidden
from tests.console.browser.chromium import Window
from tests.console.browser.seeded import World, addresses, deployment, empty, full
from tests.console.test_hostile_rows import MARKUP, SCRIPT, TURNED, poison
from tests.http_server import Served

Error: Any = pytest.importorskip("playwright.sync_api").Error
#: Pages before an action: there only while the state allows it.
ASKS = ("cancel", "clear", "decide", "edit", "fix", "resume", "retry", "unexempt")
NOT_NOW = {200, 400, 404, 409}
#: What everybody may open who has a token.
OWN = {"/find", "/help", "/me", "/tokens"}
WIDTHS = (390, 820, 1440)
NARROWEST = 320
#: Tables that have more columns than their window shows.
WIDER = """[...document.querySelectorAll("main .table-box")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"""


@pytest.fixture(scope="module")
def data(server: Any, template: str) -> Iterator[tuple[Served, World]]:
    from tests.conftest import _new_database

    for dsn in _new_database(server, template):
        with deployment(dsn, full, workers=False) as found:
            yield found


def look_at_all(window: Window, paths: list[str], **options: Any) -> None:
    """All of them, so that one run tells everything that is wrong."""
    wrong: list[str] = []
    for path in paths:
        try:
            look(window, path, **options)
        except (AssertionError, Error) as error:
            wrong.append(f"{path}: {str(error)[:700]}")
            window.faults.clear()
    assert not wrong, "\n\n".join(wrong)


def look(
    window: Window,
    path: str,
    *,
    allowed: tuple[int, ...] = (200,),
    deeply: tuple[int, ...] = (390, 1440),
) -> None:
    """One page: at each width and in each theme."""
    page = window.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="light")
    good = {*allowed, *(NOT_NOW if path.split("?", maxsplit=1)[0].endswith(ASKS) else ())}
    # The browser says itself that a page was refused.
    window.expected = tuple(f"status of {each}" for each in good)
    answer = page.goto(f"{window.url}/console{path}", wait_until="load")
    assert_hidden(answer.text(), path)
    assert answer.status in good, (path, answer.status, page.inner_text("main"))
    assert page.locator("h1").count() == 1, path
    for width in (*WIDTHS, NARROWEST):
        page.set_viewport_size({"width": width, "height": 900})
        assert window.sideways() <= 0, (path, width, window.sideways())
        assert page.evaluate(WIDER) == [], (path, width)
        if width in deeply:
            # So high that the bar at the end of a phone's screen covers nothing.
            page.set_viewport_size({"width": width, "height": 4000})
            window.axe(f"{path} {width} light")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="dark")
    if deeply:
        window.axe(f"{path} dark", only=("color-contrast",))
    window.check(path)


def test_every_screen_with_data(browser: Any, data: tuple[Served, World]) -> None:
    service, world = data
    window = Window(browser, service.url)
    window.sign_in(world.tokens["ada"])
    look_at_all(window, addresses(world))
    window.close()


def test_who_may_only_read_sees_what_cannot_be_done_and_why(
    browser: Any, data: tuple[Served, World]
) -> None:
    service, world = data
    window = Window(browser, service.url, viewport={"width": 390, "height": 844})
    window.sign_in(world.tokens["reader"])
    paths, ids = addresses(world), world.ids
    deep = {
        "/troubleshooting?domain=payments",
        f"/troubleshooting/payments/groups/{ids['fingerprint']}",
        f"/commands/payments/{ids['command_id']}", f"/bulk/{ids['operation_id']}",
        "/approvals", f"/batches/email/{ids['batch_id']}", "/domains/payments",
    }  # fmt: skip
    assert deep <= set(paths)
    look_at_all(window, sorted(deep), allowed=(200, 403), deeply=(390,))
    rest = [each for each in paths if each not in deep]
    look_at_all(window, rest, allowed=(200, 403, 404), deeply=())
    window.close()


def test_every_screen_denied_says_which_scope_is_missing(
    browser: Any, data: tuple[Served, World]
) -> None:
    service, world = data
    window = Window(browser, service.url)
    window.expected = ("status of 403",)
    window.sign_in(world.tokens["denied"])
    paths = [each for each in addresses(world) if each not in OWN and not each.endswith("/revoke")]
    deep = {"/", f"/commands/payments/{world.ids['command_id']}", "/doctor/fix", "/settings"}
    assert deep <= set(paths)
    look_at_all(window, sorted(deep), allowed=(403,), deeply=(390,))
    assert "scope" in window.page.inner_text("main")
    look_at_all(window, [each for each in paths if each not in deep], allowed=(403,), deeply=())
    window.close()


def test_what_others_wrote_into_rows_does_nothing_on_any_screen(browser: Any, dsn: str) -> None:
    async def poisoned(bus: CommandBus, world: World) -> World:
        await full(bus, world)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            assert await poison(conn, SCRIPT + MARKUP + TURNED) > 5
        return world

    with deployment(dsn, poisoned, workers=False) as (service, world):
        wrong = faults_of(browser, service, world)
    assert not wrong, "\n\n".join(wrong)


def faults_of(browser: Any, service: Served, world: World) -> list[str]:
    """Of every screen: a policy that was broken, a request elsewhere, a script, a page too wide."""
    window = Window(browser, service.url, viewport={"width": 390, "height": 844})
    window.page.on("dialog", lambda each: window.faults.append(f"says {each.message}"))
    window.sign_in(world.tokens["ada"])
    wrong = []
    for path in addresses(world):
        window.expected = tuple(f"status of {each}" for each in NOT_NOW)
        window.open(path)
        try:
            window.check(path)
            assert window.sideways() <= 0
        except AssertionError as error:
            wrong.append(f"{path}: {str(error)[:500]}")
            window.faults.clear()
    window.close()
    return wrong


def test_every_screen_empty(browser: Any, dsn: str) -> None:
    with deployment(dsn, empty) as (service, world):
        window = Window(browser, service.url)
        window.page.goto(f"{service.url}/console/sign-in")
        window.axe("sign-in")
        window.sign_in(world.tokens["ada"])
        look_at_all(window, addresses(world), deeply=(390,))
        # What is not there, and what cannot be read, in the frame.
        nothing = "/commands/email/00000000-0000-7000-8000-000000000000"
        wrong = "/audit?since=yesterday", "/bulk?cursor=broken", "/troubleshooting/NO/groups/x"
        look_at_all(window, [nothing, "/commands/NO/x", *wrong], allowed=(400, 404), deeply=(390,))
        window.page.goto(f"{service.url}/docs")
        window.axe("/docs")
        window.check("/docs")
        window.close()
