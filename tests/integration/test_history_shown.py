"""The history of commands, as the console, HTTP, the command line and owners of tickets see it."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.cli.main import app
from commandbus.governance import BatchType
from commandbus.names import new_id
from tests.console.world import console
from tests.http_world import app_of, caller, client_of

Conn = psycopg.AsyncConnection[Any]
DAY = timedelta(days=1)


async def move_all(bus: CommandBus) -> None:
    """What has ended is in the history from now on."""
    await bus.upkeep.set_retention("history", 700 * DAY)
    await bus.upkeep.prune(older_than=timedelta(0), kinds=["commands"])


async def moved(bus: CommandBus, count: int = 2) -> list[UUID]:
    ids = [await bus.send("shop", "Work", new_id(), {"n": n}) for n in range(count)]
    for command_id in ids:
        await bus.cancel("shop", command_id, "not wanted")
    await move_all(bus)
    return ids


async def test_a_command_of_the_history_is_a_page_that_changes_nothing(bus: CommandBus) -> None:
    known, _ = await moved(bus)
    here = new_id()
    await bus.send("shop", "Work", here, {})
    async with console(bus, "read", "operate") as browser:
        page = await browser.text(f"/commands/shop/{known}")
        current = await browser.text("/commands?domain=shop&history=")
        found = await browser.text("/commands?domain=shop&history=true")
        led = await browser.get(f"/find?q={known}")

    assert "in the history, for" in page
    assert "Add the note" not in page
    assert str(known) in found
    assert str(known) not in current
    assert str(here) in current
    assert str(here) not in found
    assert "commandbus list --domain shop --history" in found
    assert f"/commands/shop/{known}" in str(led.url) + led.headers.get("location", "")


async def test_http_finds_what_is_in_the_history_and_refuses_its_ids(bus: CommandBus) -> None:
    known, _ = await moved(bus)
    served = app_of(bus, ann=caller("read", "send", "operate"))
    form = {"domain": "shop", "command_type": "Work", "data": {"n": 9}}
    async with client_of(served, "ann") as client:
        one = (await client.get(f"/api/v1/commands/shop/{known}")).json()
        some = (await client.get("/api/v1/commands", params={"history": "true", "limit": 1})).json()
        none = (await client.get("/api/v1/commands")).json()
        life = (await client.get(f"/api/v1/commands/shop/{known}/life")).json()
        again = await client.post("/api/v1/commands", json={**form, "command_id": str(known)})
        cancel = await client.post(f"/api/v1/commands/shop/{known}/cancel", json={"reason": "no"})
        export = await client.get("/api/v1/exports/commands", params={"history": "true"})

    assert one["history_since"] is not None
    assert len(some["items"]) == 1
    assert some["next_cursor"] is not None
    assert none["items"] == []
    assert life["actions"] == []
    assert again.status_code == 409
    assert (cancel.status_code, "is in the history since" in cancel.text) == (409, True)
    assert len(export.text.splitlines()) == 2


@pytest.mark.parametrize("more", [{}, {"unique_key": "k"}])
async def test_a_repeat_over_http_is_answered_from_the_history(
    bus: CommandBus, more: dict[str, Any]
) -> None:
    await bus.send("shop", "Work", new_id(), {})
    served = app_of(bus, ann=caller("send"), bob=caller("send", user="bob"))
    known = str(new_id())
    form = {
        "domain": "shop", "command_type": "Work", "data": {"n": 1}, "command_id": known, **more,
    }  # fmt: skip
    async with client_of(served, "ann") as client:
        first = (await client.post("/api/v1/commands", json=form)).json()
        await bus.cancel("shop", UUID(known), "not wanted")
        await move_all(bus)
        again = (await client.post("/api/v1/commands", json=form)).json()
        other = await client.post("/api/v1/commands", json={**form, "data": {"n": 2}})
    async with client_of(served, "bob") as client:
        stranger = await client.post("/api/v1/commands", json=form)

    assert (first["is_repeat"], again["is_repeat"]) == (False, True)
    assert again["status"] == "CANCELED"
    assert (other.status_code, stranger.status_code) == (409, 409)


async def test_the_command_line_lists_and_shows_the_history(bus: CommandBus, dsn: str) -> None:
    known, _ = await moved(bus)

    async def run(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--dsn", dsn])
        return result.stdout + result.stderr

    listed = json.loads(await run("list", "--history", "--domain", "shop", "--json"))
    assert len(listed["commands"]) == 2
    assert json.loads(await run("list", "--json"))["commands"] == []
    shown = json.loads(await run("show", str(known), "--json"))
    assert shown["command"]["history_since"] == next(
        each["history_since"] for each in listed["commands"] if each["command_id"] == str(known)
    )
    assert "in the history, for" in await run("show", str(known))
    assert "leave out --running" in await run("list", "--history", "--running")
    rules = await run("db", "retention", "set", "history", "30d", "--domain", "shop")
    assert "history of domain shop: kept 30 days" in rules
    assert "0 commands of the history" in await run("db", "prune", "--dry-run")


async def test_children_of_a_ticket_are_there_when_they_are_in_the_history(bus: CommandBus) -> None:
    bus.governance.declare(BatchType(name="WORK", domain="shop", command_type="Work", max_size=9))
    ann = Caller("ann", frozenset(Scope), None)
    ticket = (await bus.governance.submit(ann, "WORK", [{"n": n} for n in range(3)])).ticket
    await bus.batches.cancel("shop", ticket.ticket_id, reason="not wanted")
    before = (await bus.governance.page_children(ann, ticket.ticket_id)).items
    await move_all(bus)

    assert (await bus.governance.page_children(ann, ticket.ticket_id)).items == before
    first = await bus.governance.page_children(ann, ticket.ticket_id, limit=2)
    rest = await bus.governance.page_children(
        ann, ticket.ticket_id, limit=2, cursor=first.next_cursor
    )
    assert [*first.items, *rest.items] == before
    served = app_of(bus, bob=caller("read", user="bob"), ann=caller("read"))
    url = f"/api/v1/commands/shop/{before[0].ticket_id}"
    for who, wanted in (("bob", 404), ("ann", 200)):
        async with client_of(served, who) as client:
            assert (await client.get(url)).status_code == wanted
            found = (await client.get("/api/v1/commands", params={"history": "true"})).json()
            assert len(found["items"]) == (3 if who == "ann" else 0)
