"""Searches through the bus: a page that stopped early says how far it looked, and cursors."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.commands import search
from commandbus.errors import InvalidSettingError
from tests.integration.looking import send


@pytest.fixture
async def bounded(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> CommandBus:
    """A bus whose searches look at five rows at a time."""
    monkeypatch.setattr(search, "SCAN_LIMIT", 5)
    return bus


async def test_a_search_for_something_rare_goes_on_until_it_is_found(bounded: CommandBus) -> None:
    rare = await send(bounded, "Rare")
    for _ in range(17):
        await send(bounded)
    found: list[UUID] = []
    cursor, looks = None, []
    while True:
        page = await bounded.search.commands(command_type="Rare", cursor=cursor)
        found += [command.command_id for command in page.items]
        if (cursor := page.next_cursor) is None:
            break
        assert page.searched_to is not None
        looks.append(page.searched_to)

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
        page = await bounded.search.audit(actor="ann", cursor=cursor, newest_first=newest_first)
        found += [event.command_id for event in page.items]
        if (cursor := page.next_cursor) is None:
            break
        assert page.searched_to is not None
        looks += 1

    assert found == [at]
    assert looks == 3


async def test_a_full_page_is_not_called_bounded(bounded: CommandBus) -> None:
    for _ in range(4):
        await send(bounded)
    page = await bounded.search.commands(limit=2)
    assert (len(page.items), page.searched_to) == (2, None)
    rest = await bounded.search.commands(limit=2, cursor=page.next_cursor)
    assert len(rest.items) == 2


# -- cursors


@pytest.fixture
async def filled(bus: CommandBus) -> CommandBus:
    """A bus with five commands."""
    for _ in range(5):
        await send(bus)
    return bus


async def test_a_cursor_leads_through_all_pages(filled: CommandBus) -> None:
    ids: list[Any] = []
    cursor = None
    while True:
        page = await filled.search.commands(limit=2, cursor=cursor)
        ids += [command.command_id for command in page.items]
        assert page.searched_to is None
        if (cursor := page.next_cursor) is None:
            break
    assert len(set(ids)) == 5

    numbers: list[int] = []
    cursor = None
    while True:
        events = await filled.search.audit(limit=2, cursor=cursor, newest_first=False)
        numbers += [event.audit_id for event in events.items]
        if (cursor := events.next_cursor) is None:
            break
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5


def forged(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


async def test_a_cursor_with_a_forged_place_is_refused(filled: CommandBus) -> None:
    good = (await filled.search.commands(limit=2)).next_cursor or ""
    digest = json.loads(base64.urlsafe_b64decode(good + "=="))[0]
    for values in ([], ["now", None], ["2026-05-01T10:00+00:00", "x"], [5, None]):
        with pytest.raises(InvalidSettingError, match="cursor is not one"):
            await filled.search.commands(cursor=forged(digest, *values))
    good = (await filled.search.audit(limit=2)).next_cursor or ""
    digest = json.loads(base64.urlsafe_b64decode(good + "=="))[0]
    with pytest.raises(InvalidSettingError, match="cursor is not one"):
        await filled.search.audit(cursor=forged(digest, "x"))


async def test_a_cursor_of_another_search_is_refused(filled: CommandBus) -> None:
    cursor = (await filled.search.commands(limit=2)).next_cursor
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await filled.search.commands(domain="shop", cursor=cursor)
    cursor = (await filled.search.audit(limit=2)).next_cursor
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await filled.search.audit(cursor=cursor, newest_first=False)
