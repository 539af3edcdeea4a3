"""Three stories, by keyboard alone; and what they do, without a script."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from commandbus import CommandBus
from commandbus.access.model import Caller
from tests.console.browser.chromium import Window
from tests.console.browser.keyboard import Keyboard
from tests.console.browser.seeded import (
    EVERYTHING,
    World,
    declare,
    deployment,
    fail_many,
    full,
    thousand,
    tokens,
)


def says(page: Any, text: str, seconds: float = 60) -> None:
    """Wait until the page has this text, which nobody has to load again for it."""
    page.wait_for_function(
        "(text) => document.querySelector('main').innerText.includes(text)",
        arg=text, timeout=seconds * 1000, polling=100,
    )  # fmt: skip


def test_find_the_cause_of_1000_failures_and_replay_it_at_a_rate(browser: Any, dsn: str) -> None:
    with deployment(dsn, thousand) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page, keys = window.page, Keyboard(window.page)
        says(page, "1,000")
        keys.go("t")
        says(page, "980")
        keys.press("j")  # the first row is the largest cause
        assert "does not exist" in keys.focused()[1]
        with page.expect_navigation():
            keys.press("Enter")
        assert "does not exist" in page.inner_text("h1")
        world.is_mended = True  # somebody has put the accounts back

        keys.follow("Retry 980")
        heading = page.inner_text("h1")
        assert "980" in heading
        assert keys.focused()[0] == "h1"  # never on the button that acts
        keys.to_field("rate")
        while page.evaluate("document.activeElement.value") not in {"100", "100.0"}:
            before = page.evaluate("document.activeElement.value")
            keys.press("ArrowDown")
            assert page.evaluate("document.activeElement.value") != before
        keys.to_field("reason")
        keys.type("the accounts are back")
        keys.follow(heading, "button")

        assert re.match(r"/bulk/", window.path())
        says(page, "980")
        page.evaluate("window.__same = true")
        says(page, "Stop")
        page.wait_for_function(
            "() => document.querySelector('#live').innerText.startsWith('Ended')", timeout=90_000
        )
        assert page.evaluate("window.__same") is True  # watched to its end without a reload
        assert "980" in page.inner_text("#region-progress")
        window.check("replay")
        keys.go("t")
        says(page, "20 commands")
        window.close()


async def request_of_grace(bus: CommandBus, world: World) -> World:
    """Grace has submitted refunds; Ada may decide."""
    declare(bus, world)
    await tokens(bus, world)
    world.refund_seconds = 0.2
    grace = Caller("grace", frozenset(EVERYTHING), None)
    made = await bus.governance.submit(
        grace, "REFUNDS", [{"amount": 10 + n, "currency": "EUR"} for n in range(12)],
        reason="parcels were lost",
    )  # fmt: skip
    world.ids["ticket"] = str(made.ticket.ticket_id)
    return world


def test_approve_a_request_and_follow_its_batch_to_the_end(browser: Any, dsn: str) -> None:
    with deployment(dsn, request_of_grace) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page, keys = window.page, Keyboard(window.page)
        keys.go("a")
        says(page, "parcels were lost")
        keys.follow("REFUNDS", "a")
        says(page, "12 items")
        assert "EUR" in page.inner_text("main")
        keys.to_field("reason")
        keys.type("checked with the warehouse")
        keys.follow("Approve", "button")
        page.evaluate("window.__same = true")
        says(page, "12 completed")
        page.wait_for_function(
            "() => document.querySelector('#live').innerText.startsWith('Ended')"
        )

        assert page.evaluate("window.__same") is True
        assert "ada" in page.inner_text("main")
        window.check("approval")
        window.close()


def test_find_the_command_of_one_customer_and_read_its_life(browser: Any, dsn: str) -> None:
    with deployment(dsn, full, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page, keys = window.page, Keyboard(window.page)
        wanted = UUID(world.ids["command_id"])
        keys.press("/")  # the customer's mail has the id
        keys.type(str(wanted))
        with page.expect_navigation():
            keys.press("Enter")
        page.wait_for_url(f"**/commands/payments/{wanted}")
        text = page.inner_text("main")
        for word in ("NO_ACCOUNT", "troubleshooting", "Attempt"):
            assert word.lower() in text.lower(), (word, text)
        keys.follow("Show the payload", "a")
        assert "Ada Lovelace" in page.inner_text("main")
        window.check("one life")
        window.close()


async def two_causes(bus: CommandBus, world: World) -> World:
    await request_of_grace(bus, world)
    await fail_many(bus, world, {"account": 5})
    world.is_mended = True
    return world


def test_the_same_is_done_without_a_script(browser: Any, dsn: str) -> None:
    with deployment(dsn, two_causes) as (service, world):
        window = Window(browser, service.url, java_script_enabled=False)
        page = window.page
        window.sign_in(world.tokens["ada"])

        page.goto(f"{service.url}/console/troubleshooting?domain=payments")
        page.locator("main tbody th a").first.click()
        page.get_by_role("link", name="Retry 5").click()
        page.locator("[name=reason]").fill("the accounts are back")
        page.get_by_role("button", name=re.compile(r"^Retry 5")).click()
        for _ in range(60):
            if (
                "5" in page.locator("#region-progress").inner_text()
                and not page.get_by_role("button", name=re.compile("^Stop")).count()
            ):
                break
            page.wait_for_timeout(500)
            page.reload()
        else:
            raise AssertionError(page.inner_text("main"))

        page.goto(f"{service.url}/console/approvals/{world.ids['ticket']}")
        page.locator("[name=reason]").first.fill("checked")
        page.get_by_role("button", name=re.compile("^Approve")).click()
        assert "approved" in page.inner_text("main")

        page.goto(f"{service.url}/console/find?q={world.commands['account']}")
        page.wait_for_url(f"**/commands/payments/{world.commands['account']}")
        assert "NO_ACCOUNT" in page.inner_text("main")
        window.close()
