"""What all acceptance tests share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.acceptance.app import EFFECTS

Effects = Callable[..., Awaitable[list[tuple[Any, ...]]]]


@pytest.fixture
async def effects(conn: psycopg.AsyncConnection[Any]) -> Effects:
    """Makes the table of effects, and reads the (epoch, step) of a command."""
    await conn.execute(EFFECTS)

    async def read(command_id: UUID) -> list[tuple[Any, ...]]:
        cursor = await conn.execute(
            "select epoch, step from effect where command_id = %s order by at", (command_id,)
        )
        return await cursor.fetchall()

    return read
