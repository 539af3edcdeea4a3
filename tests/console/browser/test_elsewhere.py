"""On paper, with the colours of the system, in zones far from ours, and without a clipboard."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest

from commandbus import CommandBus
from tests.console.browser.chromium import Window
from tests.console.browser.seeded import World, declare, deployment, fail_many
from tests.console.browser.test_live import waiting
from tests.http_server import Served

#: How far a colour is from black, from 0 to 1.
LIGHTNESS = """([selector, name]) => {
  const [r, g, b] = getComputedStyle(document.querySelector(selector))[name]
    .match(/[\\d.]+/g).map(Number);
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}"""
#: A day before and a day after New Zealand turns its clocks back, typed there.
BEFORE, AFTER = "2026-04-04T12:00", "2026-04-06T12:00"


async def parked(bus: CommandBus, world: World) -> World:
    """One command that failed, and some that wait."""
    declare(bus, world)
    await waiting(bus, world)
    await fail_many(bus, world, {"account": 1})
    return world


@pytest.fixture(scope="module")
def place(server: Any, template: str) -> Iterator[tuple[Served, World]]:
    from tests.conftest import _new_database

    for dsn in _new_database(server, template):
        with deployment(dsn, parked, workers=False) as found:
            yield found


def test_paper_is_white_and_tells_who_printed_what(
    browser: Any, place: tuple[Served, World]
) -> None:
    service, world = place
    window = Window(browser, service.url, color_scheme="dark")
    window.sign_in(world.tokens["ada"])
    page = window.page
    path = f"/console/commands/payments/{world.commands['account']}"
    page.goto(service.url + path)
    assert page.evaluate(LIGHTNESS, ["body", "color"]) > 0.7  # it is dark on the screen

    page.emulate_media(media="print", color_scheme="dark")

    assert page.evaluate(LIGHTNESS, ["body", "color"]) < 0.3
    assert page.evaluate(LIGHTNESS, ["main .badge", "color"]) < 0.5
    assert not page.locator(".nav").is_visible()
    assert not page.locator("main .act-bar").first.is_visible()
    foot = page.inner_text(".bottom .only-print")
    assert path in foot
    assert "printed by ada" in foot
    window.check("paper")
    window.close()


def test_the_colours_of_the_system_are_taken_and_nothing_is_lost(
    browser: Any, place: tuple[Served, World]
) -> None:
    service, world = place
    window = Window(browser, service.url, forced_colors="active")
    window.sign_in(world.tokens["ada"])
    page = window.page
    page.goto(f"{service.url}/console/commands/payments/{world.commands['account']}")

    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    for part in ("main .badge", "main .button", "main button"):
        edge = page.locator(part).first.evaluate("(each) => getComputedStyle(each).borderStyle")
        assert edge == "solid", part
    assert page.locator("main .badge svg").first.is_visible()  # a shape, not a colour alone
    assert window.sideways() <= 0
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.check("colours of the system")
    window.close()


@pytest.mark.parametrize("name", ["Pacific/Auckland", "America/Anchorage"])
def test_times_are_those_of_the_viewer_also_when_clocks_change(
    browser: Any, place: tuple[Served, World], name: str
) -> None:
    service, world = place
    window = Window(browser, service.url, timezone_id=name)
    window.sign_in(world.tokens["ada"])
    page, zone = window.page, ZoneInfo(name)
    for path in ("/me", f"/commands/payments/{world.commands['account']}"):
        page.goto(f"{service.url}/console{path}")
        for each in page.locator("main time").all():
            moment = datetime.fromisoformat(each.get_attribute("datetime") or "")
            whole = f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S} {name}"
            assert each.get_attribute("title") == whole, path
            assert "UTC" not in each.inner_text()
        assert "UTC" not in page.inner_text("#live"), path

    page.goto(f"{service.url}/console/commands")
    page.locator("#f-created_after").fill(BEFORE)
    page.locator("#f-created_before").fill(AFTER)
    page.get_by_role("button", name="Show", exact=True).last.click()
    page.wait_for_url("**created_before=**")
    sent = parse_qs(urlsplit(page.url).query)
    for field, typed in (("created_after", BEFORE), ("created_before", AFTER)):
        wanted = datetime.fromisoformat(typed).replace(tzinfo=zone).astimezone(UTC)
        assert datetime.fromisoformat(sent[field][0]) == wanted, field
        assert page.input_value(f"#f-{field}") == typed
    window.check(name)
    window.close()


def test_an_id_is_copied_also_where_the_browser_has_no_clipboard(
    browser: Any, place: tuple[Served, World]
) -> None:
    service, world = place
    window = Window(browser, service.url)
    window.context.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "addEventListener('copy', () => { window.__copied = document.activeElement.value; });"
    )
    window.sign_in(world.tokens["ada"])
    page, wanted = window.page, str(world.commands["account"])
    page.goto(f"{service.url}/console/commands/payments/{wanted}")
    button = page.locator("h1 .copy, .page-head .copy").first

    button.click()

    page.wait_for_selector(".copy.did")
    assert page.evaluate("window.__copied") == wanted
    assert button.evaluate("(each) => each === document.activeElement")
    window.check("copied")
    window.close()
