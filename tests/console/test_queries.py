"""Every page asks the database a few times, however much it shows."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus import CommandBus
from tests.console.browser.seeded import World, addresses, full
from tests.console.world import EVERYTHING, console

#: Statements of one page. Beside them every page proves its session and its token, and now and
#: then counts for the navigation: all three are kept for five seconds, for all pages.
MOST = 4
#: Pages that must show everything that one decision is about, to the one who decides.
DECISIONS = {"/approvals/": 12, "/troubleshooting/payments/edit": 5}


async def test_a_page_asks_at_most_four_times_but_before_decisions(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await full(bus, World())
    asked: list[str] = []
    gateway: Any = bus._store.gateway
    real = gateway._run

    async def run(text: str, *more: Any) -> Any:
        asked.append(text)
        return await real(text, *more)

    monkeypatch.setattr(gateway, "_run", run)
    wrong: dict[str, list[str]] = {}
    async with console(bus, *EVERYTHING) as browser:
        app = browser.client._transport.app  # type: ignore[attr-defined]

        async def no_counts(view: Any) -> dict[str, int]:
            return {}

        monkeypatch.setattr(app.state.commandbus_console, "counts_for", no_counts)
        for path in addresses(world):
            asked.clear()
            answer = await browser.client.get(f"/console{path}")
            assert answer.status_code < 500, (path, answer.text)
            most = next((most for begin, most in DECISIONS.items() if path.startswith(begin)), MOST)
            if len(asked) > most:
                wrong[path] = [each.strip()[:120] for each in asked]
    assert not wrong, {path: len(each) for path, each in wrong.items()}
