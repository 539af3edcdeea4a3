"""The service or the database goes away under open pages and comes back: nothing is false."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from commandbus import CommandBus, Settings
from commandbus.access.model import Caller
from commandbus.embedded import EmbeddedPostgres
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from commandbus.wiring import migrate_database
from tests.console.browser.chromium import Window
from tests.console.browser.seeded import (
    EVERYTHING,
    SETTINGS,
    World,
    declare,
    deployment,
    fail_many,
    payments,
)
from tests.console.browser.test_journeys import request_of_grace
from tests.console.browser.test_live import READY, shows

IS_LIVE = "#live[data-state=live]"
#: Each of the four has a stream: more do not, in one browser.
STANDS = {"overview": READY, "commands": "main tbody", "bulk": "#region-progress",
          "approval": "#region-ticket"}  # fmt: skip


async def under_way(bus: CommandBus, world: World) -> World:
    """Commands that wait, a request that waits, and a bulk operation that nobody carries out."""
    await request_of_grace(bus, world)
    await bus.send_many("email", payments(3, kind="SendInvoice"))
    await fail_many(bus, world, {"account": 3})
    (group,) = await bus.troubleshooting.groups("payments")
    begun = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter("payments", group=group.fingerprint), operator="grace",
        reason="the accounts are back", start_after=3_600,
    )  # fmt: skip
    world.ids["operation"] = str(begun.operation_id)
    return world


async def meanwhile(bus: CommandBus, world: World) -> None:
    """What others do while nobody can see it."""
    declare(bus, world)
    await bus.send_many("email", payments(1, kind="SendInvoice"))
    await bus.bulk.stop(UUID(world.ids["operation"]), operator="grace")
    bob, ticket = Caller("bob", frozenset(EVERYTHING), None), UUID(world.ids["ticket"])
    await bus.governance.decide(bob, ticket, approve=False, reason="not this month")


def elsewhere(work: Callable[[], Awaitable[Any]]) -> None:
    """The browser's loop runs in this thread."""

    async def do() -> None:
        await work()

    thread = threading.Thread(target=lambda: asyncio.run(do()))
    thread.start()
    thread.join()


def others_act(dsn: str, world: World) -> None:
    async def act() -> None:
        async with CommandBus.connect(dsn) as bus:
            await meanwhile(bus, world)

    elsewhere(act)


def four_pages(window: Window, world: World) -> dict[str, Any]:
    """Open, live, each with its content; the one that is asked is not the one that is typed in."""
    ids = world.ids
    paths = {
        "overview": "/?domain=email", "commands": "/commands?domain=email",
        "bulk": f"/bulk/{ids['operation']}", "approval": f"/approvals/{ids['ticket']}",
    }  # fmt: skip
    pages = {}
    for name, path in paths.items():
        page = pages[name] = window.context.new_page()
        page.goto(f"{window.url}/console{path}")
        page.wait_for_selector(IS_LIVE)
        page.evaluate("window.__same = true")
    window.page.close()
    window.page = pages["overview"]
    shows(pages["overview"], "3")
    pages["approval"].get_by_label("Reason").fill("it was checked")
    return pages


def say_that_it_is_down(window: Window, pages: dict[str, Any], word: str) -> None:
    """They say so, are grey and can be read, have their time, and what acts is disabled."""
    before = {name: page.inner_text(STANDS[name]) for name, page in pages.items()}
    for name, page in pages.items():
        page.wait_for_function(
            "(word) => document.querySelector('#live').innerText.includes(word)"
            " && document.documentElement.classList.contains('stale')",
            arg=word, timeout=60_000,
        )  # fmt: skip
        assert "as of" in page.inner_text("#live"), name
        assert page.locator("main form[method=post] button:enabled").count() == 0, name
        window.axe(f"{name}, down", page=page)
    assert pages["overview"].inner_text(READY) == "3"
    for name in ("commands", "bulk", "approval"):
        words = page_words(pages[name].inner_text(STANDS[name]))
        assert words == page_words(before[name]), name


def page_words(text: str) -> list[str]:
    """Without the times, which go on."""
    return [each for each in text.split() if not any(sign.isdigit() for sign in each)]


def come_back(pages: dict[str, Any]) -> None:
    """By themselves, as one sees at what was typed, and with what is true now."""
    for name, page in pages.items():
        page.wait_for_function(
            "() => ['Live', 'Ended'].some((word) =>"
            " document.querySelector('#live').innerText.startsWith(word))"
            " && !document.documentElement.classList.contains('stale')",
            timeout=60_000,
        )
        assert page.evaluate("window.__same") is True, name
        assert page.locator("main form button:disabled").count() == 0, name
    shows(pages["overview"], "4", patience=60)
    pages["commands"].get_by_text("1 newer").wait_for()
    pages["bulk"].locator("#region-progress >> text=Resume").wait_for()
    assert pages["bulk"].get_by_role("button", name="Stop").count() == 0
    pages["approval"].locator("#region-ticket >> text=not this month").wait_for()
    assert pages["approval"].get_by_role("button", name="Approve").count() == 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def nothing(bus: CommandBus, world: World) -> World:
    declare(bus, world)
    return world


def test_pages_survive_a_restart_of_the_service(browser: Any, dsn: str) -> None:
    settings = replace(SETTINGS, port=free_port())
    with deployment(dsn, under_way, workers=False, settings=settings) as (service, world):
        window = Window(browser, service.url)
        window.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "Failed to load")
        window.sign_in(world.tokens["ada"])
        pages = four_pages(window, world)

    say_that_it_is_down(window, pages, "No connection")
    others_act(dsn, world)

    with deployment(dsn, nothing, workers=False, settings=settings):
        come_back(pages)
        window.check("restart of the service")
        window.close()


def test_pages_survive_a_restart_of_the_database(browser: Any) -> None:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="commandbus-browser-", dir=memory))
    database = EmbeddedPostgres(folder)
    try:
        database.start()
        dsn = database.dsn
        elsewhere(lambda: migrate_database(dsn, Settings()))
        with deployment(dsn, under_way, workers=False) as (service, world):
            window = Window(browser, service.url)
            window.expected = ("503", "Failed to load")
            window.sign_in(world.tokens["ada"])
            pages = four_pages(window, world)
            database.stop()

            say_that_it_is_down(window, pages, "The database does not answer")
            other = window.context.new_page()
            other.goto(f"{service.url}/console/workers")
            assert other.inner_text("h1"), "a page says what is wrong"
            assert "Traceback" not in other.content()
            window.axe("without a database", page=other)
            other.close()

            database.start()
            assert database.dsn == dsn
            others_act(dsn, world)
            come_back(pages)
            window.check("restart of the database")
            window.close()
    finally:
        database.stop()
        shutil.rmtree(folder, ignore_errors=True)
