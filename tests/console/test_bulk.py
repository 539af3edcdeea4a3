"""Bulk operations in the console: how far, stop, resume, what failed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg

from commandbus import CommandBus
from commandbus.troubleshooting import BulkFilter, BulkOperation, BulkStatus, BulkVerb
from tests.console.world import console
from tests.parking import park

OPERATOR = ("read", "operate")


async def started(bus: CommandBus, **more: Any) -> BulkOperation:
    return await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop"), reason="<b>gone</b>", operator="dora", everything=True,
        **more,
    )  # fmt: skip


async def test_an_operation_shows_who_why_how_far_and_its_items(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 3)
    operation = await started(bus, limit=2)
    await bus.bulk.run(operation.operation_id)

    async with console(bus) as browser:
        index = await browser.text("/bulk")
        none = await browser.text("/bulk", status="running")
        page = await browser.text(f"/bulk/{operation.operation_id}")
        regions = await browser.regions(f"/bulk/{operation.operation_id}", outcome="failed")

    assert "Cancel 2 commands" in index
    assert "None is running" in none
    assert "dora" in page
    assert "&lt;b&gt;gone&lt;/b&gt;" in page
    assert "inished: 2 of 2 done" in page
    assert page.count("/commands/shop/") == 2
    assert "None failed" in regions["items"]


async def test_without_operations_the_page_says_what_they_are(bus: CommandBus) -> None:
    async with console(bus) as browser:
        assert "No operation yet" in await browser.text("/bulk")
        assert (await browser.get(f"/bulk/{uuid4()}")).status_code == 404


async def test_one_click_stops_it_and_it_resumes_at_another_rate(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 3)
    operation = await started(bus, start_after=600)
    here = f"/bulk/{operation.operation_id}"

    async with console(bus, *OPERATOR) as browser:
        running = await browser.text(here)
        stop = await browser.submit(running, "/stop")
        stopped = await browser.text(here)
        ask = await browser.text(f"{here}/resume")
        resume = await browser.submit(ask, "/resume", rate="own", own_rate="7", reason="r")
        unclear = await browser.submit(ask, "/resume", rate="own", own_rate="", reason="r")
        audit = await bus.search.audit(actor="ann")

    assert "a stop undoes all of it" in running
    assert "Nothing was changed" in stopped
    assert "Resume with 3 commands left" in ask
    assert (stop.status_code, resume.status_code, unclear.status_code) == (303, 303, 400)
    found = await bus.bulk.require(operation.operation_id)
    assert (found.status, found.rate, found.stopped_by) == (BulkStatus.RUNNING, 7.0, "ann")
    kinds = [each.event_type for each in audit.items]
    assert {"BULK_STOPPED", "BULK_RESUMED", "CONSOLE_ACTION", "CONSOLE_REFUSED"} <= set(kinds)


async def test_readers_cannot_stop_and_other_domains_are_not_there(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 1)
    operation = await started(bus, start_after=600)
    here = f"/bulk/{operation.operation_id}"

    async with console(bus) as browser:
        page = await browser.text(here)
        denied = await browser.post(f"{here}/stop")
    async with console(bus, *OPERATOR, domains=("other",)) as browser:
        hidden = await browser.get(here)
        index = await browser.text("/bulk")
    async with console(bus, *OPERATOR) as browser:
        forged = await browser.post(f"{here}/stop", csrf="0" * 64)

    assert "needs the scope operate" in page
    assert (denied.status_code, hidden.status_code, forged.status_code) == (403, 404, 403)
    assert "No operation yet" in index
    assert (await bus.bulk.require(operation.operation_id)).is_running


async def test_what_failed_is_tried_again_as_an_operation_of_its_own(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    operation = await bus.bulk.start(BulkVerb.RETRY, BulkFilter("shop"), everything=True)
    await conn.execute(
        "update commandbus.command_bus_bulk_item set outcome = 'failed', detail = 'x'"
    )
    await conn.execute(
        "update commandbus.command_bus_bulk_operation set failed = 2, status = 'finished'"
    )

    async with console(bus, *OPERATOR) as browser:
        page = await browser.text(f"/bulk/{operation.operation_id}")
        ask = await browser.text(
            "/troubleshooting/shop/decide/retry", failed_of=operation.operation_id
        )

    assert f"failed_of={operation.operation_id}" in page
    assert "Retry 2 commands" in ask
    assert f"--failed-of {operation.operation_id}" in ask
