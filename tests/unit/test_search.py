"""Cursors and criteria of searches: what is refused before a database is asked."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.testing import InMemoryStore


@pytest.fixture
async def bus() -> CommandBus:
    bus = CommandBus(store=InMemoryStore())
    for _ in range(5):
        await bus.send("shop", "Sell", uuid4(), {})
    return bus


async def test_a_cursor_leads_through_all_pages(bus: CommandBus) -> None:
    ids: list[Any] = []
    cursor = None
    while True:
        page = await bus.search.commands(limit=2, cursor=cursor)
        ids += [command.command_id for command in page.commands]
        assert page.searched_back_to is None
        if (cursor := page.next_cursor) is None:
            break
    assert len(set(ids)) == 5

    numbers: list[int] = []
    cursor = None
    while True:
        events = await bus.search.audit(limit=2, cursor=cursor, newest_first=False)
        numbers += [event.audit_id for event in events.events]
        if (cursor := events.next_cursor) is None:
            break
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5


def forged(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@pytest.mark.parametrize(
    "cursor", ["", "x", "ä", "e30", forged(), "bnVsbA", 5, b"x", forged("00000000", "now", "x")]
)
async def test_a_cursor_that_is_none_is_refused(bus: CommandBus, cursor: Any) -> None:
    with pytest.raises(InvalidSettingError, match="cursor"):
        await bus.search.commands(cursor=cursor)
    with pytest.raises(InvalidSettingError, match="cursor"):
        await bus.search.audit(cursor=cursor)


async def test_a_cursor_with_a_forged_place_is_refused(bus: CommandBus) -> None:
    good = (await bus.search.commands(limit=2)).next_cursor or ""
    digest = json.loads(base64.urlsafe_b64decode(good + "=="))[0]
    for values in ([], ["now", None], ["2026-05-01T10:00+00:00", "x"], [5, None]):
        with pytest.raises(InvalidSettingError, match="cursor is not one"):
            await bus.search.commands(cursor=forged(digest, *values))
    good = (await bus.search.audit(limit=2)).next_cursor or ""
    digest = json.loads(base64.urlsafe_b64decode(good + "=="))[0]
    with pytest.raises(InvalidSettingError, match="cursor is not one"):
        await bus.search.audit(cursor=forged(digest, "x"))


async def test_a_cursor_of_another_search_is_refused(bus: CommandBus) -> None:
    cursor = (await bus.search.commands(limit=2)).next_cursor
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await bus.search.commands(domain="shop", cursor=cursor)
    cursor = (await bus.search.audit(limit=2)).next_cursor
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await bus.search.audit(cursor=cursor, newest_first=False)


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    "criteria",
    [
        {"domain": "No"}, {"command_type": ""}, {"status": "ready"}, {"error_code": " "},
        {"command_id": "x"}, {"batch_id": 5}, {"correlation_id": "x"}, {"limit": 0},
        {"created_after": "today"}, {"created_after": NOW.replace(tzinfo=None)},
        {"created_after": NOW, "created_before": NOW},
    ],
)  # fmt: skip
async def test_criteria_that_cannot_be_meant_are_refused(
    bus: CommandBus, criteria: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        await bus.search.commands(**criteria)


@pytest.mark.parametrize(
    "criteria",
    [
        {"domain": "No"}, {"command_id": "x"}, {"batch_id": 5}, {"actor": ""}, {"limit": 10**6},
        {"event_types": ["SENT", "LOST"]}, {"since": 5},
        {"since": NOW, "until": NOW - timedelta(days=1)},
    ],
)  # fmt: skip
async def test_criteria_of_the_audit_that_cannot_be_meant_are_refused(
    bus: CommandBus, criteria: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        await bus.search.audit(**criteria)


@pytest.mark.parametrize("text", ["", "  ", None, "x" * 2_001, "a\x00b"])
async def test_a_note_that_says_nothing_is_refused(bus: CommandBus, text: Any) -> None:
    [command] = (await bus.search.commands(limit=1)).commands
    with pytest.raises(InvalidInputError):
        await bus.troubleshooting.note("shop", command.command_id, text)
    assert [e.event_type for e in await bus.get_audit_trail(command.command_id)] == ["SENT"]
