"""Numbers in the guides that follow from the SQL, counted there."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import tuple_row

from commandbus import CommandBus, CommandStatus
from tests.docs.markdown import GUIDES

WORDS = {"five": 5, "eleventh": 11}


async def leases_until_parked(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any], *, runs_alone: bool
) -> int:
    """How often a command is handed out whose worker dies every time."""
    command_id = await bus.send("shop", "Poison", uuid4(), {}, max_attempts=3)
    leases = 0
    while leases < 100:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute(
            "select lease_epoch, is_suspect, msg_id"
            " from commandbus.receive_commands('shop', 30, 10, 'doomed')"
        )
        row = await cursor.fetchone()
        if row is None:
            break
        leases += 1
        epoch, is_suspect, msg_id = row
        assert is_suspect == (leases > 2)
        if is_suspect and runs_alone:
            await conn.execute(
                "select commandbus.confirm_start('shop', %s, %s)", (command_id, epoch)
            )
        # The worker is gone without a word, and its lease over.
        await conn.execute("select pgmq.set_vt('shop__commands', %s::bigint, 0)", (msg_id,))
    found = await bus.get_command("shop", command_id)
    assert found is not None
    assert found.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert found.last_error_code == "LEASE_EXPIRED"
    return leases


@pytest.mark.parametrize(
    ("sentence", "runs_alone"),
    [
        (r"with `max_attempts=3` a command that kills its worker each time is started (\w+)", True),
        (r"the (\w+) lapse in a row parks it", False),
    ],
)
async def test_the_price_of_a_crash_is_as_the_guide_says(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any], sentence: str, runs_alone: bool
) -> None:
    text = " ".join((GUIDES / "retries.md").read_text(encoding="utf-8").split())
    claimed = re.search(sentence, text)
    assert claimed is not None

    leases = await leases_until_parked(bus, conn, runs_alone=runs_alone)

    assert leases == WORDS[claimed[1]]


async def test_a_retry_that_keeps_the_count_grants_one_attempt(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await leases_until_parked(bus, conn, runs_alone=True)
    (item,) = await bus.list_troubleshooting("shop")

    await bus.operator_retry("shop", item.command_id, reset_attempts=False)

    cursor = await conn.execute(
        "select attempt, max_attempts from commandbus.receive_commands('shop', 30, 1, 'next')"
    )
    assert await cursor.fetchone() == (3, 3)


async def test_the_body_of_a_reply_has_the_keys_that_the_guide_lists(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    command_id = await bus.send("shop", "Work", uuid4(), {})
    await bus.cancel("shop", command_id, "not needed")
    text = (GUIDES / "replies.md").read_text(encoding="utf-8")
    listed = text[text.index("## The body") :]

    cursor = await conn.execute("select body from commandbus.read_replies('shop.replies', 30, 1)")
    row = await cursor.fetchone()

    assert row is not None
    body = json.loads(row[0])
    for key in [*body, *body["error"]]:
        assert f"`{key}`" in listed, key
    assert body["type"] == "WorkResponse"
