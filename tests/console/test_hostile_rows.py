"""Rows that somebody wrote straight into the tables are text on every screen, whatever they say."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus import CommandBus
from tests.console.browser.seeded import SETTINGS, World, addresses, full
from tests.console.world import EVERYTHING, console

pytestmark = pytest.mark.postgres

SCRIPT = "<script>alert(1)</script>"
MARKUP = "\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
TURNED = "\u202egnirts detrever\u202c\u2066"
NAMES = ["null", "0"]
#: Where people and machines write texts, by table.
TEXTS = {
    "command_bus_failure_group": ["message", "sample_message", "note", "assignee", "error_code",
                                  "error_class"],
    "command_bus_troubleshooting": ["last_error_msg", "last_error_code"],
    "command_bus_command": ["last_error_msg", "last_error_code", "leased_by", "reply_queue"],
    "command_bus_batch": ["name", "created_by", "batch_type", "decision_reason"],
    "command_bus_bulk_operation": ["reason", "actor", "executor"],
    "command_bus_load": ["source", "error"],
    "command_bus_api_token": ["label"],
    "command_bus_schedule": ["last_error", "pause_reason"],
    "command_bus_flow_rule": ["pause_reason", "updated_by", "paused_by"],
    "command_bus_worker": ["version"],
}  # fmt: skip

#: What no SQL function bounds: errors that workers report, and what people say.
LONG = {"message", "sample_message", "note", "last_error_msg", "last_error_code", "error",
        "last_error", "reason"}  # fmt: skip
#: Characters of a page, at most, whatever one row holds.
LARGEST = 400_000


async def poison(conn: Any, text: str) -> int:
    """Put a text wherever one may be; returns in how many columns it stands."""
    done = 0
    for table, columns in TEXTS.items():
        for column in columns:
            if len(text) > 1_000 and column not in LONG:
                continue
            there = await conn.execute(
                "select from information_schema.columns where table_schema = 'commandbus' and"
                " table_name = %s and column_name = %s and data_type = 'text'",
                (table, column),
            )
            if await there.fetchone() is None:
                continue
            try:
                await conn.execute(f'update commandbus."{table}" set "{column}" = %s', (text,))
                done += 1
            except Exception:  # noqa: BLE001  (a constraint of this column refuses it: as well)
                pass
    if len(text) > 1_000:
        return done
    await conn.execute(
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, actor,"
        " details_json) select 'payments', c.command_id, 'NOTE', clock_timestamp(), left(%s, 200),"
        " jsonb_build_object('text', %s::text, 'reason', %s::text)"
        " from commandbus.command_bus_command c limit 40",
        (text, text, text),
    )
    return done


@pytest.mark.long
async def test_what_rows_say_is_text_on_every_screen(bus: CommandBus, conn: Any) -> None:
    world = await full(bus, World())
    wrong: list[str] = []
    async with console(bus, *EVERYTHING, settings=SETTINGS) as browser:
        for text in (SCRIPT, MARKUP, TURNED, "x" * 1_000_000, *NAMES):
            places = await poison(conn, text)
            assert places > 5 or not text.strip(), (text[:20], places)
            for path in addresses(world):
                answer = await browser.client.get(f"/console{path}")
                page = answer.text
                if answer.status_code >= 500:
                    wrong.append(f"{path} answers {answer.status_code} to {text[:20]!r}")
                if SCRIPT in page or "<img src=x" in page or ">49<" in page:
                    wrong.append(f"{path} runs {text[:20]!r}")
                if len(page) > LARGEST:
                    wrong.append(f"{path} has {len(page):,} characters")
    assert not wrong, wrong
