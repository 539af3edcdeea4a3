"""The form above the list of commands: times and suggestions; and ways to a pause of a type."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from commandbus import BatchCommand, CommandBus, PermanentCommandError, new_id
from commandbus.http.console import suggestions
from tests.console.world import console

LATE = "2026-01-02T03:04"


async def refused(bus: CommandBus, domain: str, kind: str, code: str) -> Any:
    """A command that ended in troubleshooting for this code."""

    @bus.handler(domain, kind)
    async def refuse(command: Any, context: Any) -> None:
        raise PermanentCommandError(code, "no")

    command_id = uuid4()
    await bus.send(domain, kind, command_id, {})
    await bus.run_worker(domain, until_empty=True)
    return command_id


def options(page: str, name: str) -> list[str]:
    found = re.search(rf'<datalist id="{name}">(.*?)</datalist>', page, re.S)
    assert found is not None, page
    return re.findall("<option>(.*?)</option>", found[1])


async def test_a_time_without_a_zone_is_that_of_the_server(bus: CommandBus) -> None:
    """As a browser without a script sends it; with one it has a zone."""
    await bus.send("shop", "Pay", uuid4(), {})
    async with console(bus, "read") as browser:
        later = await browser.text("/commands", created_after="2090-01-01T00:00", status="")
        plain = await browser.text("/commands", created_after=LATE, created_before="")
        zoned = await browser.text("/commands", created_after=f"{LATE}:30.25+01:00")
        wrong = await browser.get("/commands", created_after="yesterday")

    assert "None matches" in later
    assert "data-row=" in plain
    assert f'value="{LATE}:00"' in plain
    assert f'data-moment="{LATE}:00+00:00"' in plain
    assert 'value="2026-01-02T02:04:30"' in zoned, "the field shows UTC until the script comes"
    assert f'data-moment="{LATE}:30.250000+01:00"' in zoned, "what nobody changes stays exact"
    assert wrong.status_code == 400


async def test_fields_suggest_what_failed_and_what_is_shown_within_reach(
    bus: CommandBus, monkeypatch: Any
) -> None:
    await refused(bus, "shop", "Pay", "NO_ACCOUNT")
    await refused(bus, "post", "Ship", "NO_ADDRESS")
    await bus.send("shop", "Ask", uuid4(), {})
    asked: list[Any] = []
    real = bus.troubleshooting.find_groups

    async def counted(*args: Any, **more: Any) -> Any:
        asked.append(more["domains"])
        return await real(*args, **more)

    monkeypatch.setattr(bus.troubleshooting, "find_groups", counted)
    async with console(bus, "read") as browser:
        everything = await browser.text("/commands")
        await browser.text("/commands", status="COMPLETED")
        assert len(asked) == 1, "kept for all who see the same"
        one = await browser.text("/commands", domain="post")
    async with console(bus, "read", domains=("post",)) as browser:
        within = await browser.text("/commands")

    assert options(everything, "l-types") == ["Ask", "Pay", "Ship"]
    assert options(everything, "l-codes") == ["NO_ACCOUNT", "NO_ADDRESS"]
    for page in (one, within):
        assert options(page, "l-types") == ["Ship"]
        assert options(page, "l-codes") == ["NO_ADDRESS"]


async def test_there_are_never_many_suggestions(bus: CommandBus, monkeypatch: Any) -> None:
    monkeypatch.setattr(suggestions, "SHOWN", 3)
    monkeypatch.setattr(suggestions, "MAX_KEPT", 1)
    await bus.send_many("shop", [BatchCommand(f"T{n}", new_id(), {}) for n in range(9)])
    async with console(bus, "read") as browser:
        assert len(options(await browser.text("/commands", domain="shop"), "l-types")) == 3
        assert options(await browser.text("/commands", domain="post"), "l-types") == []
        kept = browser.client._transport.app.state.commandbus_console.suggestions._kept  # type: ignore[attr-defined]
        assert len(kept) == 1


async def test_a_type_can_be_paused_from_wherever_one_looks_at_it(bus: CommandBus) -> None:
    command_id = await refused(bus, "shop", "Pay", "NO_ACCOUNT")
    group = (await bus.troubleshooting.groups("shop"))[0].fingerprint
    places = [
        f"/commands/shop/{command_id}", "/commands?domain=shop&command_type=Pay",
        f"/troubleshooting/shop/groups/{group}",
    ]  # fmt: skip
    path = ""
    async with console(bus, "read", "operate") as browser:
        for place in places:
            page = await browser.text(place)
            link = re.search(r'href="/console(/domains/shop/pause[^"]*)"[^>]*>Pause Pay<', page)
            assert link is not None, place
            path = link[1]
        await browser.submit(path, "/domains/shop/pause", reason="the bank is down")
    async with console(bus, "read") as browser:
        for place in places:
            page = await browser.text(place)
            assert "needs the scope operate" in page.split("Pause Pay")[1][:120], place

    assert [(each.type, each.reason) for each in await bus.pauses("shop")] == [
        ("Pay", "the bank is down")
    ]
