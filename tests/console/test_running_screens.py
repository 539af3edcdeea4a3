"""The screens of what runs: overview, workers, domains, schedules, execution limits."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.governance import BatchType
from commandbus.upkeep.needs import NeedKind, Urgency, needs_of
from commandbus.upkeep.overview import DomainOverview
from tests.console.world import EVERYTHING, console

pytestmark = pytest.mark.postgres


async def some(bus: CommandBus, domain: str = "shop") -> None:
    for _ in range(3):
        await bus.send(domain, "Work", uuid4(), {})


async def test_overview_says_what_is_wrong_and_leads_there(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read") as page:
        text = await page.text("/")
        assert "nobody works on shop: 3 are ready" in text
        assert "/console/domains/shop" in text
        regions = await page.regions("/")
        assert "nobody works on shop" in regions["needs"]
        assert "shop" in regions["domains"]


async def test_overview_of_an_empty_bus_says_how_to_begin(bus: CommandBus) -> None:
    async with console(bus, "read") as page:
        text = await page.text("/")
    assert "No command was sent yet" in text
    assert "commandbus worker" in text


async def test_overview_shows_only_domains_that_the_caller_reaches(bus: CommandBus) -> None:
    await some(bus)
    await some(bus, "vault")
    async with console(bus, "read", domains=("shop",)) as page:
        text = await page.text("/")
        assert "shop" in text
        assert "vault" not in text
        assert (await page.get("/domains/vault")).status_code == 404


async def test_a_domain_is_paused_with_a_reason_and_resumed(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read", "operate", user="grace") as page:
        asked = await page.text("/domains/shop/pause")
        assert "3 are ready" in asked
        refused = await page.submit(asked, "/pause")
        assert refused.status_code == 400
        assert await bus.pauses("shop") == []
        done = await page.submit(asked, "/pause", reason="a flood of <b>orders</b>", seconds="900")
        assert done.status_code == 303
        (pause,) = await bus.pauses("shop")
        assert (pause.by, pause.reason) == ("grace", "a flood of <b>orders</b>")
        assert pause.until is not None
        shown = await page.text("/domains/shop")
        assert "a flood of &lt;b&gt;orders&lt;/b&gt;" in shown
        assert (await page.submit(shown, "/resume")).status_code == 303
        assert await bus.pauses("shop") == []


async def test_who_may_not_operate_sees_which_scope_is_missing(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read") as page:
        assert "needs the scope operate" in await page.text("/domains/shop")
        assert (await page.get("/domains/shop/pause")).status_code == 403


async def test_a_pause_of_an_odd_length_is_refused(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read", "operate") as page:
        asked = await page.text("/domains/shop/pause")
        answer = await page.submit(asked, "/pause", reason="x", seconds="12")
        assert answer.status_code == 400
        assert "choose for how long" in answer.text


async def test_workers_are_listed_with_their_signs_of_life(bus: CommandBus) -> None:
    async with console(bus, "read") as page:
        assert "No worker, and no domain yet" in await page.text("/workers")
        async with bus.worker("shop", concurrency=3):
            regions = await page.regions("/workers")
            assert "shop" in regions["workers"]
        assert "shop" in await page.text("/workers", domain="shop")


async def test_a_schedule_is_paused_resumed_run_and_removed(bus: CommandBus) -> None:
    await bus.schedules.put(
        "shop", "nightly", "CloseBooks", {"password": "hunter2", "day": 1}, cron="0 2 * * *",
        timezone="Europe/Berlin",
    )  # fmt: skip
    async with console(bus, "read", "operate", "read-payload", user="grace") as page:
        assert "0 2 * * * (Europe/Berlin)" in await page.text("/schedules")
        text = await page.text("/schedules/shop/nightly")
        assert text.count("<li><time") == 8
        assert "hunter2" not in text
        asked = await page.text("/schedules/shop/nightly/pause")
        await page.submit(asked, "/pause", reason="year end")
        paused = await bus.schedules.require("shop", "nightly")
        assert (paused.paused_by, paused.pause_reason) == ("grace", "year end")
        text = await page.text("/schedules/shop/nightly")
        assert "year end" in text
        sent = await page.submit(text, "/trigger")
        again = await page.submit(text, "/trigger")
        assert (sent.status_code, again.status_code) == (303, 303)
        assert len((await bus.search.commands(domain="shop")).items) == 1
        await page.submit(text, "/resume")
        assert (await bus.schedules.require("shop", "nightly")).paused_at is None
        await page.submit("/schedules/shop/nightly/delete", "/delete", reason="old")
        assert await bus.schedules.get("shop", "nightly") is None
        assert "No schedule yet" in await page.text("/schedules")


async def test_the_payload_of_a_schedule_needs_its_scope(bus: CommandBus) -> None:
    await bus.schedules.put("shop", "often", "Work", {"secretless": "value-7"}, every=60.0)
    async with console(bus, "read") as page:
        text = await page.text("/schedules/shop/often")
    assert "value-7" not in text
    assert "read-payload" in text


async def test_a_limit_is_set_after_a_look_at_old_and_new_and_cleared(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read", "operate", user="grace") as page:
        assert "No limit is set" in await page.text("/execution-limits")
        review = await page.submit(
            "/execution-limits/shop", "/review", command_type="Work", max_running="4", rate="10"
        )
        assert review.status_code == 200
        assert "Before: no limit. After: 4 at once, 10 in 1 s, burst 10." in review.text
        assert await bus.limits.list("shop") == []
        done = await page.submit(review.text, "/set", reason="the ledger is slow")
        assert done.status_code == 303
        (limit,) = await bus.limits.list("shop")
        assert (limit.type, limit.max_running, limit.rate) == ("Work", 4, 10.0)
        assert limit.updated_by == "grace"
        regions = await page.regions("/execution-limits")
        assert "4 at once" in regions["limits"]
        asked = await page.text("/execution-limits/shop/clear", command_type="Work")
        await page.submit(asked, "/clear", reason="it is fast again")
        assert await bus.limits.list("shop") == []


async def test_a_limit_that_says_nothing_is_refused(bus: CommandBus) -> None:
    await some(bus)
    async with console(bus, "read", "operate") as page:
        answer = await page.submit("/execution-limits/shop", "/review", command_type="Work")
        assert answer.status_code == 400
        assert "say how many may run at once" in answer.text
        unknown = await page.get("/execution-limits/nowhere")
        assert unknown.status_code == 404


def domain(**more: object) -> DomainOverview:
    values: dict[str, object] = {
        "domain": "shop", "ready": 0, "delayed": 0, "waiting": 0, "about": [], "due_seconds": 0.0,
        "parked": 0, "workers": 1, "silent": 0, "concurrency": 10, "in_flight": 0, "stuck": 0,
        "is_paused": False, "paused_until": None,
    }  # fmt: skip
    return DomainOverview(**(values | more))  # type: ignore[arg-type]


def test_needs_are_sorted_by_urgency_then_by_size() -> None:
    found = needs_of(
        [
            domain(domain="a", parked=5),
            domain(domain="b", ready=7, workers=0),
            domain(domain="c", ready=9, workers=0),
            domain(domain="d", is_paused=True, ready=3),
            domain(domain="e", silent=2, stuck=1),
            domain(domain="f", ready=1, due_seconds=600.0),
            domain(domain="g"),
        ],
        {},
    )
    assert [(need.urgency, need.kind, need.domain) for need in found] == [
        (Urgency.NOW, NeedKind.NOBODY_WORKS, "c"),
        (Urgency.NOW, NeedKind.NOBODY_WORKS, "b"),
        (Urgency.NOW, NeedKind.STUCK, "e"),
        (Urgency.SOON, NeedKind.PARKED, "a"),
        (Urgency.SOON, NeedKind.SILENT, "e"),
        (Urgency.SOON, NeedKind.LATE, "f"),
        (Urgency.KNOWN, NeedKind.PAUSED, "d"),
    ]


async def test_the_overview_says_what_waits_on_other_screens(bus: CommandBus, conn: Any) -> None:
    for domain in ("shop", "vault"):
        await bus.send(domain, "Work", uuid4(), {})
        await conn.execute(
            "insert into commandbus.command_bus_batch (batch_id, domain, created_at) values"
            " (gen_random_uuid(), %s, now())", (domain,),
        )  # fmt: skip
    await conn.execute(
        "insert into commandbus.command_bus_load (batch_id, domain, source, row_format, start_mode,"
        " status, created_at) select b.batch_id, b.domain, 's', '{}', 'sealed', 'failed', now()"
        " from commandbus.command_bus_batch b"
    )
    finding = {
        "code": "LOST", "severity": "error", "meaning": "m", "advice": "a", "found": 1,
        "examples": [], "can_fix": False,
    }  # fmt: skip
    result = {"findings": [{**finding, "domain": each} for each in ("shop", "vault")]}
    await conn.execute(
        "select commandbus.record_check('doctor', null, 'x', false, now(), %s)",
        (json.dumps({**result, "repairs": []}),),
    )
    async with console(bus, "read", domains=("bank", "shop")) as page:
        limited = await page.regions("/")
    async with console(bus, "read") as page:
        whole = await page.regions("/")
    assert "the doctor found 1 error in the data" in limited["needs"]
    assert "1 load stopped half-way" in limited["needs"]
    assert "the doctor found 2 errors in the data" in whole["needs"]
    assert "2 loads stopped half-way" in whole["needs"]


async def test_the_overview_tells_an_approver_what_waits_for_them(bus: CommandBus) -> None:
    kind = BatchType(
        name="REFUNDS", domain="shop", command_type="Refund", max_size=9, requires_approval=True
    )
    bus.governance.declare(kind)
    ann = Caller("ann", frozenset(Scope), None)
    await bus.governance.submit(ann, "REFUNDS", [{"n": 1}], reason="r")
    async with console(bus, *EVERYTHING, user="bea") as page:
        assert "1 waits for a decision of yours" in await page.text("/")
    async with console(bus, *EVERYTHING, user="ann") as page:
        assert "for a decision of yours" not in await page.text("/")
