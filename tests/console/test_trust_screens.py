"""The screens of trust: audit, doctor, tokens and sessions."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.models import AuditEventType
from commandbus.troubleshooting import BulkFilter, BulkVerb
from tests.console.world import console
from tests.parking import park
from tests.waiting import until

pytestmark = pytest.mark.postgres


async def test_audit_shows_people_and_on_request_machines(bus: CommandBus) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    await bus.pause("shop", reason="<script>alert(1)</script>", operator="grace")
    async with console(bus, "read") as page:
        people = await page.text("/audit")
        assert "PAUSED" in people
        assert "grace" in people
        assert "<script>alert" not in people
        assert "&lt;script&gt;alert(1)" in people
        assert '<span class="mono">SENT</span>' not in people
        both = await page.text("/audit", machine="true")
        assert '<span class="mono">SENT</span>' in both
        assert "No event matches" in await page.text("/audit", actor="nobody")
        assert "Not sealed" in people or "Sealed" in people


async def test_audit_of_other_domains_is_not_shown(bus: CommandBus) -> None:
    await bus.send("vault", "Work", uuid4(), {})
    await bus.pause("vault", reason="secret plans", operator="grace")
    async with console(bus, "read", domains=("shop",)) as page:
        assert "secret plans" not in await page.text("/audit")


async def test_the_audit_is_narrowed_by_time_and_its_bulk_lines_open(
    bus: CommandBus, conn: Any
) -> None:
    await park(conn, 3)
    done = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop"), reason="gone", operator="dora", everything=True
    )
    await bus.bulk.run(done.operation_id)
    async with console(bus, "read") as page:
        text = await page.text("/audit", event_type="OPERATOR_CANCEL")
        (inside,) = re.findall(r'href="([^"]*)" aria-label="Open the 3 events"', text)
        opened = (await page.client.get(unescape(inside))).text
        assert opened.count("data-row=") == 3
        assert "No event matches" in await page.text("/audit", until="2020-01-01T00:00:00Z")
        assert "No event matches" not in await page.text("/audit", since="2020-01-01T00:00:00Z")
        assert 'name="since"' in text
        assert (await page.get("/audit", since="yesterday")).status_code == 400


async def test_the_audit_is_exported_as_it_is_filtered_and_that_is_in_the_audit(
    bus: CommandBus,
) -> None:
    for domain in ("shop", "vault"):
        await bus.send(domain, "Work", uuid4(), {})
        await bus.pause(domain, reason=f"=cmd of {domain}", operator="grace")
    async with console(bus, "read", domains=("bank", "shop"), user="ann") as page:
        text = await page.text("/audit", machine="true")
        assert "/audit.csv?machine=true" in text
        people = await page.text("/audit.jsonl")
        both = await page.text("/audit.csv", machine="true")
        assert (await page.get("/audit.csv", domain="vault")).status_code == 404
    assert [json.loads(line)["event_type"] for line in people.splitlines()] == ["PAUSED"]
    assert "vault" not in people + both
    assert "SENT" in both
    noted = (await bus.search.people(event_types=[AuditEventType.CONSOLE_ACTION])).items
    assert {each.details["action"] for each in noted if each.details} == {"audit.export"}


async def test_the_seals_are_verified_by_a_click_in_the_background(bus: CommandBus) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    await bus.upkeep.seal_audit()
    async with console(bus, "read", "operate", user="grace") as page:
        text = await page.text("/audit")
        assert "Never verified" in text
        assert (await page.submit(text, "/audit/verify", window="all")).status_code == 303
        assert (await page.submit(text, "/audit/verify", window="x")).status_code == 400

        async def verified() -> bool:
            return "Never verified" not in await page.text("/audit")

        await until(verified)
        assert "Verified" in await page.text("/audit")
    async with console(bus, "read", "operate", domains=("shop",)) as page:
        assert "/audit/verify" not in await page.text("/audit")


async def test_the_doctor_runs_when_asked_and_not_by_a_look(bus: CommandBus) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    async with console(bus, "read", "operate", user="grace") as page:
        text = await page.text("/doctor")
        assert "The doctor has never looked" in text
        assert (await page.submit(text, "/doctor/run")).status_code == 303

        async def ended() -> bool:
            return (await bus.upkeep.runs.last()).last is not None

        await until(ended)
        regions = await page.regions("/doctor")
        assert "grace" in regions["doctor"]
        assert (await page.get("/doctor/fix")).status_code == 403


async def test_who_only_reads_cannot_run_the_doctor(bus: CommandBus) -> None:
    async with console(bus, "read") as page:
        text = await page.text("/doctor")
        assert "needs the scope operate" in text
        assert (await bus.upkeep.runs.last()).newer is None


async def test_nothing_to_fix_is_said(bus: CommandBus) -> None:
    async with console(bus, "read", "operate", "admin") as page:
        answer = await page.get("/doctor/fix")
        assert answer.status_code == 404
        assert "run the doctor first" in answer.text


async def test_a_token_is_revoked_after_a_question(bus: CommandBus) -> None:
    mine = await bus.tokens.create("ann", ["read"])
    other = await bus.tokens.create("bob", ["read", "operate"])
    async with console(bus, "read", user="ann") as page:
        text = await page.text("/tokens")
        assert mine.token.token_id in text
        assert other.token.token_id not in text
        assert (await page.get(f"/tokens/{other.token.token_id}/revoke")).status_code == 404
        asked = await page.text(f"/tokens/{mine.token.token_id}/revoke")
        assert "it was never used" in asked
        assert (await page.submit(asked, "/revoke", reason="old")).status_code == 303
        found = await bus.tokens.find(mine.token.token_id)
        assert found is not None
        assert found.token.revoked_at is not None
        assert "Revoked" in await page.text("/tokens", include_ended="true")


async def test_an_administrator_sees_all_tokens_and_no_secret(bus: CommandBus) -> None:
    made = await bus.tokens.create("bob", ["read"], label="<b>ci</b>")
    who = Caller("root", frozenset([Scope.READ, Scope.ADMIN]), None, None)
    async with console(bus, who=who) as page:
        text = await page.text("/tokens")
        assert made.token.token_id in text
        assert "&lt;b&gt;ci&lt;/b&gt;" in text
        assert made.text[-20:] not in text


async def test_only_own_sessions_can_be_ended(bus: CommandBus) -> None:
    token = (await bus.tokens.create("ann", ["read"])).token
    await bus.tokens.sessions.begin(token.token_id, "ann", None, {"address": "192.0.2.1"})
    (session,) = await bus.tokens.sessions.list("ann")
    async with console(bus, "read", user="bob") as page:
        text = await page.text("/tokens")
        assert str(session.session_id) not in text
    async with console(bus, "read", user="ann") as page:
        text = await page.text("/tokens")
        assert (await page.submit(text, "/sessions/end")).status_code == 303
        assert await bus.tokens.sessions.list("ann") == []


async def test_newer_events_wait_behind_a_bar_and_a_look_into_the_past_is_not_repeated(
    bus: CommandBus,
) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    await bus.pause("shop", reason="first", operator="eve")
    async with console(bus, "read") as page:
        text = await page.text("/audit")
        before = (await page.regions("/audit"))["events"]
        await bus.resume("shop", reason="second", operator="eve")
        after = (await page.regions("/audit"))["events"]
        past = await page.text("/audit", until="2020-01-01T00:00:00Z")
    assert 'id="region-events" data-region="hold"' in text
    assert 'data-url="/console/live/audit"' in text
    assert 'data-url=""' in past
    assert after.count("data-row=") == before.count("data-row=") + 1
    assert before.split("data-row=")[1][:10] in after  # the row that was there is there
