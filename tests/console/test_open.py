"""`commandbus open`: an address that signs in once, and no secret where it would stay."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from commandbus import CommandBus
from commandbus.cli.main import app
from tests.console.test_sessions import visiting


def run(dsn: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["open", *arguments, "--operator", "bob", "--dsn", dsn])


async def test_the_printed_address_signs_in_with_the_scopes_that_were_asked_for(
    bus: CommandBus, dsn: str
) -> None:
    options = ["--print", "--json", "--scope", "read", "--url", "https://bus.example/x/"]
    made = await asyncio.to_thread(run, dsn, *options)
    found = json.loads(made.stdout)
    address, _, code = found["url"].partition("#")

    assert made.exit_code == 0, made.output
    assert address == "https://bus.example/x/console/sign-in"
    assert found["user_id"] == "bob"
    async with visiting(bus) as browser:
        assert (await browser.post("/sign-in", code=code)).status_code == 303
        page = await browser.text("/me")
    assert "You are bob" in page
    assert "operate" not in page.split("<main")[1].split("<footer")[0]


def test_a_browser_is_opened_and_the_code_is_not_printed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    monkeypatch.setenv("COMMANDBUS_HTTP_PORT", "8123")

    made = run(dsn)

    [target] = opened
    assert target.startswith("http://127.0.0.1:8123/console/sign-in#")
    assert target.partition("#")[2] not in made.stdout
    assert "as bob" in made.stdout


def test_without_a_browser_and_a_terminal_no_secret_is_printed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: False)

    assert "#" not in run(dsn).stdout
    assert "write it like https" in run(dsn, "--url", "bus.example").output
