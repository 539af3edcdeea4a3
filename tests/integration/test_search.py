"""Bounded searches through the bus: a short page says how far it looked, and its cursor goes on."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from commandbus import CommandBus
from tests.integration.looking import send


@pytest.fixture
async def bounded(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> CommandBus:
    """A bus whose searches look at five rows at a time."""
    store: Any = bus._store
    for verb in ("search_commands", "list_audit"):
        monkeypatch.setattr(store, verb, partial(getattr(store, verb), scan=5))
    return bus


async def test_a_search_for_something_rare_goes_on_until_it_is_found(bounded: CommandBus) -> None:
    rare = await send(bounded, "Rare")
    for _ in range(17):
        await send(bounded)
    found: list[UUID] = []
    cursor, looks = None, []
    while True:
        page = await bounded.search_commands(command_type="Rare", cursor=cursor)
        found += [command.command_id for command in page.commands]
        if (cursor := page.next_cursor) is None:
            break
        assert page.searched_back_to is not None
        looks.append(page.searched_back_to)

    assert found == [rare]
    assert len(looks) == 3
    assert looks == sorted(looks, reverse=True)


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_listing_of_something_rare_goes_on_until_it_is_found(
    bounded: CommandBus, newest_first: bool
) -> None:
    ids = [await send(bounded) for _ in range(18)]
    at = ids[1] if newest_first else ids[16]
    await bounded.cancel("shop", at, "x", operator="ann")
    found: list[UUID] = []
    cursor, looks = None, 0
    while True:
        page = await bounded.list_audit(actor="ann", cursor=cursor, newest_first=newest_first)
        found += [event.command_id for event in page.events]
        if (cursor := page.next_cursor) is None:
            break
        assert page.searched_to is not None
        looks += 1

    assert found == [at]
    assert looks == 3


async def test_a_full_page_is_not_called_bounded(bounded: CommandBus) -> None:
    for _ in range(4):
        await send(bounded)
    page = await bounded.search_commands(limit=2)
    assert (len(page.commands), page.searched_back_to) == (2, None)
    rest = await bounded.search_commands(limit=2, cursor=page.next_cursor)
    assert len(rest.commands) == 2
