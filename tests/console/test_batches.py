"""The screens of batches and loads: how far, why open, what went wrong, how to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, RetryPolicy, new_id
from commandbus.errors import PermanentCommandError
from commandbus.http.console.screens.batches import REMEMBERED, Memory
from commandbus.models import BatchMetadata
from tests.console.world import console
from tests.integration.governed import ADA, DOMAIN, governed_bus, orders, place_orders
from tests.waiting import until

pytestmark = pytest.mark.postgres
HOSTILE = "<img src=x onerror=alert(1)>"


async def some(bus: CommandBus, count: int = 3, domain: str = "shop", **more: Any) -> UUID:
    commands = [BatchCommand("Work", uuid4(), {"n": n}) for n in range(count)]
    return await bus.create_batch(domain, commands, **more)


async def refuse(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    if command.data["n"]:
        raise PermanentCommandError("NO_ACCOUNT", f"no account {HOSTILE}")
    return {}


async def test_a_batch_says_why_it_is_open_and_what_went_wrong_and_is_retried_with_a_reason(
    bus: CommandBus,
) -> None:
    batch = await some(bus, name=HOSTILE, custom_data={"password": "hunter2", "month": "may"})
    address = f"/batches/shop/{batch}"
    async with console(bus, "read", "operate", "read-payload", user="grace") as page:
        text = await page.text(address)
        assert "no worker of shop was heard of in the last minute" in text
        assert "no estimate" in text
        assert "nothing failed or is parked" in text
        assert "hunter2" not in text
        assert (await page.get(f"{address}/retry")).status_code == 409

        bus.register_handler("shop", "Work", refuse, retry_policy=RetryPolicy(max_attempts=1))
        async with bus.worker("shop"):
            await until(lambda: _parked(bus, batch, 2))
        text = await page.text(address)
        assert "Waits for 2 decisions of an operator" in text
        assert "NO_ACCOUNT" in text
        assert HOSTILE not in text
        assert "nothing is left to cancel" in text
        regions = await page.regions(address, status="IN_TROUBLESHOOTING_QUEUE")
        assert regions["commands"].count("data-row") == 2
        assert "NO_ACCOUNT" in regions["batch"]
        asked = await page.text(f"{address}/retry")
        assert "Retry 2 commands" in asked
        assert "2 in troubleshooting and 0 that failed" in asked
        assert (await page.submit(asked, "/retry")).status_code == 400
        assert (await page.submit(asked, "/retry", reason="mended")).status_code == 303
        assert (await page.submit(asked, "/retry", reason="again")).status_code == 303
    assert (await bus.batches.require("shop", batch)).in_troubleshooting_count == 0
    events = (await bus.search.people(actor="grace")).items
    assert any((each.details or {}).get("reason") == "mended" for each in events)


async def _parked(bus: CommandBus, batch: UUID, count: int) -> bool:
    return (await bus.batches.require("shop", batch)).in_troubleshooting_count == count


async def test_the_rest_of_a_batch_is_canceled_after_a_look_at_the_counts(bus: CommandBus) -> None:
    batch = await some(bus)
    address = f"/batches/shop/{batch}"
    async with console(bus, "read", "operate", user="grace") as page:
        asked = await page.text(f"{address}/cancel")
        assert "Cancel 3 commands" in asked
        assert (await page.post(f"{address}/cancel", reason="x")).status_code == 403  # no token
        done = await page.submit(asked, "/cancel", reason="ordered by mistake")
        assert done.status_code == 303
        text = await page.text(address)
        assert "3 canceled" in text
        assert 'data-url=""' in text  # it has ended: nothing lives any more
        assert (await page.get(f"{address}/cancel")).status_code == 409
    events = (await bus.search.people(actor="grace")).items
    assert any((each.details or {}).get("reason") == "ordered by mistake" for each in events)


async def test_the_failed_of_a_governed_batch_are_sent_as_often_as_their_type_allows(
    dsn: str,
) -> None:
    async with governed_bus(dsn) as bus:
        place_orders(bus, {1}, ends="fail")
        ticket = (await bus.governance.submit(ADA, "ORDERS", orders(2))).ticket
        address = f"/batches/{DOMAIN}/{ticket.ticket_id}"
        async with console(bus, "read", "operate", user="olga") as page:
            async with bus.worker(DOMAIN):
                for _ in range(2):  # of three dispatches, two are retries
                    await until(lambda: _has_ended(bus, ticket.ticket_id))
                    asked = await page.text(f"{address}/retry")
                    assert "The batch is open again" in asked
                    done = await page.submit(asked, "/retry", reason="mended")
                    assert done.status_code == 303
                await until(lambda: _has_ended(bus, ticket.ticket_id))
            done = await page.submit(await page.text(f"{address}/retry"), "/retry", reason="more")
            assert done.status_code == 303
            text = await page.text(address)
            assert "no attempt left" in text
            assert (
                f"/approvals/{ticket.ticket_id}" in text
            )  # it has ended: its request is still led to


async def _has_ended(bus: CommandBus, batch: UUID) -> bool:
    return (await bus.batches.require(DOMAIN, batch)).completed_at is not None


async def test_batches_are_listed_by_domain_and_the_open_ones_of_all(bus: CommandBus) -> None:
    async with console(bus, "read", "operate") as page:
        assert "No batch is open" in await page.text("/batches")
        await some(bus, name="first")
        hidden = await some(bus, domain="vault", name="secret one")
        regions = await page.regions("/batches")
        assert "first" in regions["batches"]
        assert "secret one" in regions["batches"]
        text = await page.text("/batches", domain="shop")
        assert "secret one" not in text
        assert "Next page" not in text
        assert "No batch in this state" in await page.text(
            "/batches", domain="shop", status="COMPLETED"
        )
        paged = await page.text("/batches", domain="shop", limit=1)
        assert "1 batch shown" in paged
    async with console(bus, "read", "operate", domains=("shop", "other")) as page:
        assert "secret one" not in await page.text("/batches")
        assert (await page.get("/batches", domain="vault")).status_code == 404
        assert (await page.get(f"/batches/vault/{hidden}")).status_code == 404
    async with console(bus, "read") as page:
        assert "Choose a domain" in await page.text("/batches")
        assert "first" in await page.text("/batches", domain="shop")
        batch = (await bus.batches.page("shop")).items[0].batch_id
        assert "needs the scope operate" in await page.text(f"/batches/shop/{batch}")
        assert (await page.get(f"/batches/shop/{batch}/cancel")).status_code == 403


async def test_the_rate_of_the_last_minute_is_from_what_was_seen(bus: CommandBus) -> None:
    found = await bus.batches.require("shop", await some(bus))
    memory, now = Memory(), datetime.now(UTC)
    assert memory.look(found, now) == []
    assert memory.look(found, now + timedelta(seconds=0.1)) == [(now, 0)]
    assert memory.look(found, now + timedelta(seconds=30)) == [(now, 0)]
    assert len(memory.look(found, now + timedelta(seconds=70))) == 1  # the first is forgotten
    for _ in range(REMEMBERED):
        memory.look(_other(found), now)
    assert memory.look(found, now) == []


def _other(batch: BatchMetadata) -> BatchMetadata:
    return replace(batch, batch_id=uuid4())


async def test_a_load_that_stopped_is_on_top_with_what_to_type(
    bus: CommandBus, tmp_path: Path
) -> None:
    source = tmp_path / "it's.ndjson"
    rows = [json.dumps({"n": n}) for n in range(4)]
    source.write_text("\n".join([*rows, "{broken"]))
    async with console(bus, "read", "operate") as page:
        assert "No load yet" in await page.text("/loads")
        result = await bus.loads.load(
            "shop", source, command_type="Work", name=HOSTILE, checkpoint_size=2
        )
        regions = await page.regions("/loads")
        assert "Interrupted" in regions["stopped"]
        assert f"commandbus batch resume shop {result.batch_id}" in regions["stopped"]
        assert "it&#39;" in regions["stopped"]  # quoted for the shell, and for the page
        assert HOSTILE not in regions["stopped"] + regions["loads"]
        assert f"/console/batches/shop/{result.batch_id}/cancel" in regions["stopped"]
        assert "4 of 5 rows in" in regions["stopped"]
        assert "4 of 5</td>" in regions["loads"]
        batch = await page.text(f"/batches/shop/{result.batch_id}")
        assert "Its load stopped" in batch
        assert "No load here" in await page.text("/loads", status="sealed")
    async with console(bus, "read", domains=("other",)) as page:
        assert "No load yet" in await page.text("/loads")
        assert (await page.get("/loads", domain="shop")).status_code == 404


async def test_a_source_without_length_has_no_total_and_a_complete_load_is_all_of_it(
    bus: CommandBus,
) -> None:
    endless = ({"n": n} for n in range(3))
    await bus.loads.load("shop", [{"n": n} for n in range(3)], command_type="Work", name="whole")
    await bus.loads.load("shop", endless, command_type="Work", name="unknown")
    found = {each.name: each for each in (await bus.loads.page()).items}
    assert (found["whole"].rows_total, found["whole"].rows_expected) == (3, None)
    assert (found["unknown"].rows_total, found["unknown"].rows_expected) == (None, None)


async def test_a_batch_says_what_happens_when_it_closes(bus: CommandBus) -> None:
    async def done(command: Any, ctx: Any) -> None: ...

    bus.register_handler("shop", "Work", done)
    closing = BatchCommand("CloseMonth", new_id(), {})
    batch_id = await bus.create_batch(
        "shop", [BatchCommand("Work", new_id(), {})],
        on_complete=lambda batch: None, on_complete_command=closing,
    )  # fmt: skip
    plain = await bus.create_batch("shop", [BatchCommand("Work", new_id(), {})])
    async with console(bus, "read") as browser:
        before = await browser.text(f"/batches/shop/{batch_id}")
        assert "CloseMonth is sent in shop; a callback of the process" in before
        assert "No command is sent." in await browser.text(f"/batches/shop/{plain}")
        ending = await bus.batches.ending(await bus.batches.require("shop", batch_id))
        assert not ending.is_sent

        await bus.run_worker("shop", until_empty=True)
        after = await browser.text(f"/batches/shop/{batch_id}")
        sent = await bus.batches.ending(await bus.batches.require("shop", batch_id))
        assert (sent.is_sent, sent.command_id) == (True, ending.command_id)
        assert f'href="/console/commands/shop/{sent.command_id}">CloseMonth</a> was sent' in after
