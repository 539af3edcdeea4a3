"""Cursors and criteria of searches: what is refused before a database is asked."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidInputError, InvalidOperationError, InvalidSettingError
from commandbus.testing import InMemoryStore


@pytest.fixture
def bus() -> CommandBus:
    """A bus without a database: what it refuses, it refuses before it needs one."""
    return CommandBus(store=InMemoryStore())


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
    command_id = await bus.send("shop", "Sell", uuid4(), {})
    with pytest.raises(InvalidInputError):
        await bus.troubleshooting.note("shop", command_id, text)
    assert [e.event_type for e in await bus.get_audit_trail(command_id)] == ["SENT"]


async def test_a_search_needs_a_database(bus: CommandBus) -> None:
    for call in (bus.search.commands(), bus.search.audit()):
        with pytest.raises(InvalidOperationError, match="needs PostgreSQL"):
            await call
