"""Live pages in a real browser: quick, many at once, none while hidden, and never false."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.console.browser.chromium import Window
from tests.console.browser.seeded import (
    SETTINGS,
    World,
    be_patient,
    deployment,
    payments,
    tokens,
)
from tests.http_server import served

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
READY = "main .figure"


async def waiting(bus: Any, world: World) -> World:
    """A domain with three commands, which nobody works off, and a form that acts."""
    await tokens(bus, world)
    await bus.send_many("email", payments(3, kind="SendInvoice"))
    return world


def add_ready(dsn: str, count: int) -> None:
    """A change in the database, by somebody who does not know the console."""
    import asyncio

    from commandbus import CommandBus

    async def send() -> None:
        async with CommandBus.connect(dsn) as bus:
            await bus.send_many("email", payments(count, kind="SendInvoice"))

    # The browser's loop runs in this thread.
    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    thread.join()


def shows(page: Any, text: str, selector: str = READY, patience: float = 30.0) -> float:
    """Wait until the element has this text; returns the seconds that it took."""
    began = time.monotonic()
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.trim() === text",
        arg=[selector, text], timeout=patience * 1000, polling=50,
    )  # fmt: skip
    return time.monotonic() - began


def until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_change_reaches_the_pixel_within_two_seconds(browser: Any, dsn: str) -> None:
    with deployment(dsn, waiting, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        shows(window.page, "3")
        # Whoever has chosen or opened something keeps it.
        window.page.evaluate("window.__same = document.querySelector('main h1')")
        taken = []
        for number in range(4, 9):
            add_ready(dsn, 1)
            taken.append(shows(window.page, str(number)))

        assert statistics.median(taken) < 2.0, taken
        assert window.page.evaluate("window.__same === document.querySelector('main h1')")
        window.check("live")
        window.close()


def test_twenty_tabs_of_one_browser_all_load_and_all_stay_true(browser: Any, dsn: str) -> None:
    apps: list[Any] = []
    world = World()

    def tune(app: Any) -> None:
        be_patient(app)
        apps.append(app)

    with served(dsn, lambda bus: waiting(bus, world), SETTINGS, tune=tune) as service:
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        pages = [window.page] + [window.context.new_page() for _ in range(19)]
        for page in pages[1:]:
            page.goto(f"{service.url}/console/")
        for page in pages:
            assert page.inner_text("h1") == "Overview"
        live = apps[0].state.commandbus_console
        add_ready(dsn, 1)
        for page in pages:
            shows(page, "4")

        assert live.live.watching == 1  # one view, one watcher, however many look
        for page in pages:
            page.evaluate(HIDE, True)
        until(lambda: live.live.watching == 0, 10)
        add_ready(dsn, 1)
        pages[0].evaluate(HIDE, False)
        shows(pages[0], "5")
        window.check("twenty tabs")
        window.close()
