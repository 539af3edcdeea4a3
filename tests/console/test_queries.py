"""Every page asks the database a few times, however much it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.governance import BatchType
from commandbus.http.console.registry import registry
from commandbus.http.console.screens import overview
from tests.console.browser.seeded import World, addresses, full
from tests.console.world import EVERYTHING, console
from tests.http_world import caller

#: Statements of one page. Beside them every page proves its session and its token, and now and
#: then counts for the navigation and lists the domains: all are kept for five
#: seconds, for all pages.
MOST = 4


async def told(conn: Any, items: Sequence[Any]) -> list[Any]:
    return [{"before": {"n": 0}, "after": item} for item in items]


async def asked_again(bus: CommandBus) -> UUID:
    """A request of a type with a preview, after one like it that was rejected."""
    bus.governance.declare(
        BatchType(
            name="CHANGES", domain="payments", command_type="Change", max_size=9,
            requires_approval=True, preview=told,
        )
    )  # fmt: skip
    people = [Caller(name, frozenset(Scope), None) for name in ("bob", "petra")]
    await bus.governance.exempt(people[1], "bob", "two requests at once")
    made = [(await bus.governance.submit(people[0], "CHANGES", [{"n": n}])).ticket for n in (1, 2)]
    await bus.governance.decide(people[1], made[0].ticket_id, approve=False, reason="no")
    return made[1].ticket_id


async def test_a_page_asks_at_most_four_times(
    bus: CommandBus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conn.execute(
        "update commandbus.command_bus_setting set value = 'on' where name = 'payload_archive'"
    )
    world = await full(bus, World())
    pages = sum(
        not each.path.endswith(".{form}") for screen in registry().screens for each in screen.pages
    )
    # So is what the overview says of other screens; the first look reads it.
    monkeypatch.setattr(overview, "KEPT_SECONDS", math.inf)
    found = addresses(world)
    assert len({each.split("?")[0] for each in found}) == pages, "a page without an address"
    found.append(f"/approvals/{await asked_again(bus)}")
    asked: list[str] = []
    gateway: Any = bus._store.gateway
    real = gateway._run

    async def run(text: str, *more: Any) -> Any:
        asked.append(text)
        return await real(text, *more)

    monkeypatch.setattr(gateway, "_run", run)
    wrong: dict[str, list[str]] = {}
    answer: Any = None
    async with console(bus, *EVERYTHING) as browser:
        app = browser.client._transport.app  # type: ignore[attr-defined]

        async def no_counts(view: Any) -> dict[str, int]:
            return {}

        monkeypatch.setattr(app.state.commandbus_console, "counts_for", no_counts)
        await browser.text("/")
        await app.state.commandbus_console.domains_for(SimpleNamespace(caller=caller()))
        monkeypatch.setattr(app.state.commandbus_console, "_domains_at", math.inf)
        for path in found:
            asked.clear()
            answer = await browser.client.get(f"/console{path}")
            assert answer.status_code < 500, (path, answer.text)
            if len(asked) > MOST:
                wrong[path] = [each.strip()[:120] for each in asked]
    assert "Rejected before" in answer.text, "the last page shows all that it can"
    assert "What each item would change" in answer.text
    assert not wrong, {path: len(each) for path, each in wrong.items()}
