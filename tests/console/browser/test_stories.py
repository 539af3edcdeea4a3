"""More stories by keyboard alone: mend a command, stop a bulk retry half-way, revoke a token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from commandbus import Command, CommandBus, HandlerContext, PermanentCommandError, new_id
from commandbus.http.console import sign_in
from tests.canaries import Canaries
from tests.console.browser.chromium import Window
from tests.console.browser.keyboard import MOST, Keyboard
from tests.console.browser.seeded import TWICE, World, deployment, tokens
from tests.console.browser.test_journeys import says
from tests.console.browser.test_live import until
from tests.http_server import Served
from tests.parking import park

MANY = 3_000
DONE = "#region-progress .figure"


@dataclass
class Bank:
    """Handlers, and what they have seen."""

    password: str
    transfers: list[dict[str, Any]] = field(default_factory=list)
    debits: int = 0

    async def transfer(self, command: Command, ctx: HandlerContext) -> None:
        if not command.data["currency"]:
            raise PermanentCommandError("NO_CURRENCY", "a transfer needs a currency")
        self.transfers.append(command.data)

    async def debit(self, command: Command, ctx: HandlerContext) -> None:
        self.debits += 1


async def several_thousand(dsn: str, bank: Bank, bus: CommandBus, world: World) -> World:
    """They are parked for one cause that is mended; beside them is one that needs an edit."""
    bus.register_handler("payments", "Transfer", bank.transfer, retry_policy=TWICE)
    bus.register_handler("payments", "Debit", bank.debit, retry_policy=TWICE)
    await tokens(bus, world)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("select commandbus.ensure_domain('payments')")
        await park(conn, MANY, domain="payments", command_type="Debit", code="BANK_CLOSED",
                   message="the bank was closed for")  # fmt: skip
    data = {"amount": 9007199254740991, "currency": "", "password": bank.password}
    for name in ("transfer", "other", "third"):
        world.commands[name] = new_id()
        await bus.send("payments", "Transfer", world.commands[name], data)
    return world


@pytest.fixture(scope="module")
def place(server: Any, template: str) -> Iterator[tuple[Served, World, Bank]]:
    from tests.conftest import _new_database

    bank = Bank(Canaries().password)
    for dsn in _new_database(server, template):
        with deployment(dsn, partial(several_thousand, dsn, bank)) as (service, world):
            yield service, world, bank


def test_one_command_is_edited_and_sent_again(
    browser: Any, place: tuple[Served, World, Bank]
) -> None:
    service, world, bank = place
    window = Window(browser, service.url)
    window.sign_in(world.tokens["ada"])
    page, keys, done = window.page, Keyboard(window.page), len(bank.transfers)
    keys.press("/")
    keys.type(str(world.commands["transfer"]))
    with page.expect_navigation():
        keys.press("Enter")
    says(page, "NO_CURRENCY")
    keys.follow("Edit and retry", "a")
    keys.to_field("payload")
    text = page.evaluate("document.activeElement.value")
    assert '"currency": ""' in text
    keys.press("Control+a")
    keys.type(text.replace('"currency": ""', '"currency": "EUR"'))
    keys.follow("Show the difference", "button")
    assert "EUR" in page.inner_text(".diff .new")
    assert page.locator(".diff .new").count() == 1
    window.axe("the difference")
    heading = page.inner_text("h1")
    keys.to_field("reason")
    keys.type("the form had lost it")
    keys.follow(heading, "button")
    page.wait_for_selector("#region-standing .is-done")

    says(page, "the form had lost it")
    # What was hidden kept its value, and the number all its digits.
    sent = {"amount": 9007199254740991, "currency": "EUR", "password": bank.password}
    assert bank.transfers[done:] == [sent]
    window.check("one edit")
    window.close()


def rate_of(keys: Keyboard, wanted: str) -> None:
    keys.to_field("rate")
    while keys.page.evaluate("document.activeElement.value") != wanted:
        before = keys.page.evaluate("document.activeElement.value")
        keys.press("ArrowDown")
        assert keys.page.evaluate("document.activeElement.value") != before


def test_a_retry_of_thousands_is_stopped_half_way_and_resumed(
    browser: Any, place: tuple[Served, World, Bank]
) -> None:
    service, world, bank = place
    window = Window(browser, service.url)
    window.sign_in(world.tokens["ada"])
    page, keys = window.page, Keyboard(window.page)
    keys.go("t")
    says(page, f"{MANY:,}")
    keys.press("j")
    with page.expect_navigation():
        keys.press("Enter")
    keys.follow(f"Retry {MANY:,}")
    heading = page.inner_text("h1")
    rate_of(keys, "100")
    keys.to_field("reason")
    keys.type("the bank is open again")
    keys.follow(heading, "button")
    page.wait_for_function(
        "(done) => Number(document.querySelector(done).textContent.replaceAll(',', '')) >= 50",
        arg=DONE, timeout=60_000,
    )  # fmt: skip

    keys.follow("Stop", "button")
    said = re.search(r"([\d,]+) of 3,000 were acted on", page.inner_text("body"))
    assert said is not None, page.inner_text("main")
    done = int(said[1].replace(",", ""))
    assert 50 <= done < MANY
    window.axe("stopped")

    keys.follow("Resume with", "a")
    heading = page.inner_text("h1")
    assert f"{MANY - done:,}" in heading
    rate_of(keys, "own")
    keys.to_field("own_rate")
    keys.type("2000")
    keys.to_field("reason")
    keys.type("the bank said it can take more")
    keys.follow(heading, "button")
    page.evaluate("window.__same = true")
    page.wait_for_function(
        "() => document.querySelector('#live').innerText.startsWith('Ended')", timeout=90_000
    )

    assert page.evaluate("window.__same") is True
    assert page.inner_text(DONE) == f"{MANY:,}"
    keys.go("t")
    assert "the bank was closed" not in page.inner_text("main")
    keys.go("o")
    page.wait_for_function(
        "() => document.querySelector('main .figure').textContent.trim() === '0'", timeout=60_000
    )
    assert bank.debits == MANY  # each of them once
    window.check("stopped and resumed")
    window.close()


def test_a_token_is_revoked_and_a_session_ended(
    browser: Any, place: tuple[Served, World, Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, world, _ = place
    windows = {name: Window(browser, service.url) for name in ("ada", "forgotten", "reader")}
    for name, window in windows.items():
        window.expected = ("status of 401", "status of 403", "Failed to load")
        window.sign_in(world.tokens["ada" if name == "forgotten" else name])
    page, keys = windows["ada"].page, Keyboard(windows["ada"].page)
    monkeypatch.setattr(sign_in, "PROOF_LIFE", timedelta(0))  # as if it were long ago

    keys.press("/")
    keys.type("tokens")
    with page.expect_navigation():
        keys.press("Enter")
    to_row(keys, "Revoke", "a", "reader")
    with page.expect_navigation():
        keys.press("Enter")
    heading = page.inner_text("h1")
    assert "reader" in heading
    keys.to_field("reason")
    keys.type("has left the company")
    keys.follow(heading, "button")
    assert "again" in page.inner_text("h1")
    windows["ada"].axe("the token again")
    keys.to_field("proof")
    keys.type(world.tokens["ada"])
    keys.follow("Go on", "button")
    assert "The token is revoked" in page.inner_text("body")

    to_row(keys, "End", "button", "Mozilla", without="this one")
    with page.expect_navigation():
        keys.press("Enter")
    assert "The session is ended" in page.inner_text("body")
    for name in ("forgotten", "reader"):
        other = windows[name].page
        other.wait_for_url(lambda url: "/sign-in" in url)  # it notices by itself
    assert page.goto(f"{service.url}/console/").status == 200
    windows["ada"].check("revoked")
    for window in windows.values():
        window.close()


def to_row(keys: Keyboard, name: str, tag: str, text: str, without: str = "-") -> None:
    """Tab to a button in the row that has this text."""
    row = "(document.activeElement.closest('tr')?.innerText ?? '')"
    for _ in range(MOST):
        keys.to(name, tag)
        found = keys.page.evaluate(row)
        if text in found and without not in found:
            return
    raise AssertionError(f"no row has {text!r}")


def test_the_same_is_done_without_a_script(browser: Any, place: tuple[Served, World, Bank]) -> None:
    service, world, bank = place
    window = Window(browser, service.url, java_script_enabled=False)
    window.sign_in(world.tokens["ada"])
    page, done = window.page, len(bank.transfers)
    console = f"{service.url}/console"

    page.goto(f"{console}/commands/payments/{world.commands['other']}")
    page.get_by_role("link", name="Edit and retry").click()
    field = page.locator("[name=payload]")
    field.fill(field.input_value().replace('"currency": ""', '"currency": "EUR"'))
    page.get_by_role("button", name="Show the difference").click()
    assert "EUR" in page.inner_text(".diff .new")
    page.locator("[name=reason]").fill("the form had lost it")
    page.get_by_role("button", name=page.inner_text("h1")).click()
    until(lambda: len(bank.transfers) > done)
    sent = {"amount": 9007199254740991, "currency": "EUR", "password": bank.password}
    assert bank.transfers[-1] == sent

    page.goto(f"{console}/commands/payments/{world.commands['third']}")
    page.get_by_role("link", name="Others with the same cause").click()
    page.get_by_role("link", name=re.compile("^Retry ")).click()
    page.locator("[name=reason]").fill("to see it again")
    page.get_by_role("button", name=page.inner_text("h1")).click()
    page.get_by_role("button", name="Stop").click()
    assert "Nothing was changed" in page.inner_text("body")
    page.get_by_role("link", name=re.compile("^Resume with")).click()
    page.locator("[name=reason]").fill("it was nothing")
    page.get_by_role("button", name=page.inner_text("h1")).click()
    assert page.get_by_role("button", name=re.compile("^Stop")).count() == 1

    page.goto(f"{console}/tokens")
    page.get_by_role("row", name="denied").get_by_role("link", name="Revoke").click()
    page.locator("[name=reason]").fill("has left the company")
    page.get_by_role("button", name=page.inner_text("h1")).click()
    assert "The token is revoked" in page.inner_text("body")
    window.close()
