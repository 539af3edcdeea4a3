"""Why something goes on, runs or ends: the same in Python, over HTTP and in the console."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from commandbus import CommandBus
from commandbus.cli.main import app as program
from commandbus.errors import InvalidInputError
from commandbus.troubleshooting import BulkFilter, BulkVerb
from tests.console.world import EVERYTHING, console
from tests.http_world import app_of, client_of
from tests.parking import park

Conn = psycopg.AsyncConnection[Any]
WHY = "the bank is back, password=hunter2"


async def reasons(bus: CommandBus) -> dict[str, list[Any]]:
    """The reasons in the audit, oldest first, by the kind of the event."""
    found: dict[str, list[Any]] = {}
    for event in (await bus.search.audit(newest_first=False, limit=500)).items:
        found.setdefault(event.event_type, []).append((event.details or {}).get("reason"))
    return found


async def stopped(bus: CommandBus, conn: Conn) -> Any:
    await park(conn, 2)
    made = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter("shop"), reason="first", operator="dora", everything=True,
        start_after=600,
    )  # fmt: skip
    await bus.bulk.stop(made.operation_id)
    return made.operation_id


async def nightly(bus: CommandBus) -> None:
    await bus.schedules.put("shop", "nightly", "Work", {}, cron="0 3 * * *")


async def test_a_reason_is_kept_by_each_verb_with_its_secrets_masked(
    bus: CommandBus, conn: Conn
) -> None:
    operation = await stopped(bus, conn)
    await nightly(bus)
    token = (await bus.tokens.create("eve", ["read"], expires_in=timedelta(days=1))).token
    await bus.bulk.resume(operation, reason=WHY, operator="ann")
    for of_type in (None, "Work"):
        await bus.pause("shop", type=of_type, reason="the bank is away")
        await bus.resume("shop", type=of_type, reason=WHY, operator="ann")
    await bus.schedules.pause("shop", "nightly", reason="why not")
    await bus.schedules.resume("shop", "nightly", reason=WHY)
    await bus.schedules.trigger("shop", "nightly", reason=WHY)
    await bus.schedules.delete("shop", "nightly", reason=WHY)
    await bus.tokens.revoke(token.token_id, reason=WHY, actor="ann")

    found = await reasons(bus)
    for kind, count in (
        ("BULK_RESUMED", 1), ("RESUMED", 2), ("SCHEDULE_RESUMED", 1), ("SCHEDULE_TRIGGERED", 1),
        ("SCHEDULE_DELETED", 1), ("TOKEN_REVOKED", 1),
    ):  # fmt: skip
        assert len(found[kind]) == count, kind
        assert all("the bank is back" in each for each in found[kind]), (kind, found[kind])
    assert "hunter2" not in str(found)
    assert found["BULK_STARTED"] == ["first"]
    events = (await bus.search.audit(domain="shop", limit=500)).items
    paused_for = [
        (e.details or {}).get("pause_reason") for e in events if e.event_type == "RESUMED"
    ]
    assert paused_for == ["the bank is away"] * 2


async def test_without_a_reason_the_audit_is_as_before_and_a_wrong_one_changes_nothing(
    bus: CommandBus, conn: Conn
) -> None:
    operation = await stopped(bus, conn)
    await nightly(bus)
    await bus.pause("shop", reason="away")
    for wrong in ("", " ", "x\0y", "x" * 2_001):
        with pytest.raises(InvalidInputError):
            await bus.resume("shop", reason=wrong)
        with pytest.raises(InvalidInputError):
            await bus.schedules.delete("shop", "nightly", reason=wrong)
        with pytest.raises(InvalidInputError):
            await bus.bulk.resume(operation, reason=wrong)
    assert await bus.resume("shop")
    await bus.bulk.resume(operation)
    assert await bus.schedules.delete("shop", "nightly")
    found = await reasons(bus)
    assert found["RESUMED"] == ["away"]
    assert found["BULK_RESUMED"] == ["first"]
    assert found["SCHEDULE_DELETED"] == [None]


async def test_http_and_the_command_line_take_the_same_reason(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    operation = await stopped(bus, conn)
    await nightly(bus)
    await bus.pause("shop", reason="away")
    token = (await bus.tokens.create("eve", ["read"], expires_in=timedelta(days=1))).token
    calls = [
        ("POST", f"bulk-operations/{operation}/resume", {"reason": "r1"}),
        ("POST", "domains/shop/resume", {"reason": "r2"}),
        ("POST", "schedules/shop/nightly/pause", {"reason": "r3"}),
        ("POST", "schedules/shop/nightly/resume", {"reason": "r4"}),
        ("POST", "schedules/shop/nightly/trigger", {"command_id": str(uuid4()), "reason": "r5"}),
        ("DELETE", "schedules/shop/nightly?reason=r6", None),
        ("POST", f"tokens/{token.token_id}/revoke", {"reason": "r7"}),
    ]
    async with client_of(app_of(bus)) as client:
        for method, path, form in calls:
            answer = await client.request(method, f"/api/v1/{path}", json=form)
            assert answer.status_code < 300, (path, answer.text)
    texts = json.dumps(await reasons(bus))
    assert [number for number in range(1, 8) if f'"r{number}"' not in texts] == []

    await nightly(bus)
    await bus.pause("shop", reason="away")
    await bus.bulk.stop(operation)
    other = (await bus.tokens.create("eve", ["read"], expires_in=timedelta(days=1))).token
    for words in (
        ["bulk", "resume", str(operation), "--no-wait", "--reason", "c1"],
        ["resume", "shop", "--reason", "c2"],
        ["schedule", "resume", "shop", "nightly", "--reason", "c3"],
        ["schedule", "trigger", "shop", "nightly", "--reason", "c4"],
        ["schedule", "delete", "shop", "nightly", "--reason", "c5"],
        ["token", "revoke", other.token_id, "--reason", "c6"],
    ):
        result = await _typed(words, dsn)
        assert result.exit_code == 0, (words, result.output)
    texts = json.dumps(await reasons(bus))
    # A schedule that is not paused stays as it is, so nothing is written about it.
    assert [number for number in (1, 2, 4, 5, 6) if f'"c{number}"' not in texts] == []


async def _typed(words: list[str], dsn: str) -> Any:
    """The command line has a loop of its own, so it gets a thread of its own."""
    return await asyncio.to_thread(CliRunner().invoke, program, [*words, "--dsn", dsn])


async def test_the_console_asks_for_it_and_the_audit_has_it(bus: CommandBus, conn: Conn) -> None:
    operation = await stopped(bus, conn)
    await nightly(bus)
    token = (await bus.tokens.create("ann", ["read"], expires_in=timedelta(days=1))).token
    await bus.pause("shop", reason="away")
    async with console(bus, *EVERYTHING) as browser:
        for page, action in (
            (f"/bulk/{operation}/resume", "/resume"),
            ("/schedules/shop/nightly/delete", "/delete"),
            (f"/tokens/{token.token_id}/revoke", "/revoke"),
        ):
            assert (await browser.submit(page, action)).status_code == 400, "none was given"
        resumed = await browser.submit("/domains/shop", "/resume", reason="w1")
        ran = await browser.submit("/schedules/shop/nightly", "/trigger", reason="w2")
        again = await browser.submit("/schedules/shop/nightly", "/trigger")
        went_on = await browser.submit(
            f"/bulk/{operation}/resume", "/resume", reason="w3", rate="same"
        )
        gone = await browser.submit("/schedules/shop/nightly/delete", "/delete", reason="w4")
        ended = await browser.submit(f"/tokens/{token.token_id}/revoke", "/revoke", reason="w5")
    for answer in (resumed, ran, again, went_on, gone, ended):
        assert answer.status_code == 303, answer.text
    found = await reasons(bus)
    assert found["RESUMED"] == ["w1"]
    assert found["SCHEDULE_TRIGGERED"] == ["w2", None]
    assert found["BULK_RESUMED"] == ["w3"]
    assert found["SCHEDULE_DELETED"] == ["w4"]
    assert found["TOKEN_REVOKED"] == ["w5"]
