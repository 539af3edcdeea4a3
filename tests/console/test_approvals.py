"""The screen of approvals: what waits, exactly what it is, and decisions about what was seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.governance import BatchType
from commandbus.governance.model import BatchTicket, TicketStatus
from commandbus.http.console.screens import approvals
from tests.console.world import console
from tests.integration.governed import ADA, APPROVER, DOMAIN, caller, governed_bus, place_orders
from tests.waiting import until

pytestmark = pytest.mark.postgres
PETRA = caller("petra", Scope.APPROVE)
HOSTILE = "<script>alert(1)</script>"


async def told(conn: Any, items: Sequence[Any]) -> list[Any]:
    return [
        {"before": {"power": "on"}, "after": {"power": "off"}} if item["vm"] != "vm-2" else "gone"
        for item in items
    ]


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn) as bus:
        bus.governance.declare(
            BatchType(
                name="POWER_OFF", domain=DOMAIN, command_type="PowerOff", max_size=50,
                requires_approval=True, is_dangerous=True, preview=told,
                description="Switch machines off.",
            )
        )  # fmt: skip
        yield bus


async def asked(
    bus: CommandBus,
    count: int = 3,
    *,
    kind: str = "POWER_OFF",
    who: Any = ADA,
    reason: str = "move",
) -> BatchTicket:
    items = [
        {"vm": f"vm-{n}", "watts": 100 * n, "site": "eu", "password": f"hunter{n}"}
        for n in range(1, count + 1)
    ]
    if kind == "GUARDED":
        items = [{"n": n} for n in range(1, count + 1)]
    return (await bus.governance.submit(who, kind, items, reason=reason)).ticket


async def status_of(bus: CommandBus, ticket: BatchTicket) -> TicketStatus:
    return (await bus.governance.require(APPROVER, ticket.ticket_id)).status


async def test_an_approver_without_other_scopes_sees_every_item_masked_and_approves_it(
    shop: CommandBus,
) -> None:
    ticket = await asked(shop, reason=HOSTILE)
    async with console(shop, who=PETRA) as page:
        listed = await page.text("/approvals")
        assert "POWER_OFF" in listed
        assert "&lt;script&gt;" in listed
        assert HOSTILE not in listed
        text = await page.text(f"/approvals/{ticket.ticket_id}")
        assert HOSTILE not in text
        assert "hunter1" not in text
        assert "3 values hidden" in text
        assert "Switch machines off." in text
        assert "The same in all 3" in text
        assert ">site<" in text
        assert "largest" in text
        assert "smallest" in text
        assert "What each item would change" in text
        assert "gone" in text
        regions = await page.regions(f"/approvals/{ticket.ticket_id}")
        assert "Type 3 to approve" in regions["decision"]

        refused = await page.submit(text, "/decide", decision="approve", typed="4")
        assert refused.status_code == 400
        assert "type the number of items, which is 3" in refused.text
        assert await status_of(shop, ticket) is TicketStatus.PENDING_APPROVAL
        done = await page.submit(text, "/decide", decision="approve", typed="3", reason="agreed")
        assert done.status_code == 303
        after = await page.text(f"/approvals/{ticket.ticket_id}")
        assert "petra" in after
        assert "read-payload" in after  # it is decided now
    decided = await shop.governance.require(APPROVER, ticket.ticket_id)
    assert (decided.decided_by, decided.decision_reason) == ("petra", "agreed")


async def test_a_decision_about_something_else_than_was_shown_is_refused_and_shows_what_is_there(
    shop: CommandBus,
) -> None:
    ticket = await asked(shop, kind="GUARDED")
    async with console(shop, who=PETRA) as page:
        text = await page.text(f"/approvals/{ticket.ticket_id}")
        other = await page.submit(text, "/decide", decision="approve", digest="0" * 64)
        assert other.status_code == 409
        assert "Nothing was decided by you" in other.text
        assert await status_of(shop, ticket) is TicketStatus.PENDING_APPROVAL

        await shop.governance.decide(APPROVER, ticket.ticket_id, approve=False, reason="too many")
        late = await page.submit(text, "/decide", decision="approve")
        assert late.status_code == 409
        assert "petra decided" in late.text
        assert "too many" in late.text
    found = await shop.search.people(actor="petra")
    assert "CONSOLE_REFUSED" in {each.event_type for each in found.items}


async def test_a_rejection_needs_a_reason(shop: CommandBus) -> None:
    ticket = await asked(shop, kind="GUARDED")
    async with console(shop, who=PETRA) as page:
        text = await page.text(f"/approvals/{ticket.ticket_id}")
        assert (await page.submit(text, "/decide", decision="reject")).status_code == 400
        assert (await page.submit(text, "/decide", decision="perhaps")).status_code == 400
        done = await page.submit(text, "/decide", decision="reject", reason="not now")
        assert done.status_code == 303
        again = await asked(shop, kind="GUARDED")
        text = await page.text(f"/approvals/{again.ticket_id}")
        assert "Rejected before" in text
        assert "not now" in text
    assert await status_of(shop, ticket) is TicketStatus.CANCELED


async def test_own_requests_are_listed_and_need_somebody_else(shop: CommandBus) -> None:
    ada = caller("ada", Scope.READ, Scope.SUBMIT, Scope.APPROVE)
    ticket = await asked(shop, kind="GUARDED")
    async with console(shop, who=ada) as page:
        text = await page.text("/approvals")
        assert "needs somebody else" in text
        assert 'name="chosen"' not in text
        assert "Nothing of this waits for you" in text
        assert 'id="count-approvals">1<' not in text
        text = await page.text(f"/approvals/{ticket.ticket_id}")
        assert "You submitted it: it needs somebody else" in text
        assert "/decide" not in text
    async with console(shop, who=PETRA) as page:

        async def is_counted() -> bool:
            return 'id="count-approvals">1<' in await page.text("/approvals")

        await until(is_counted)


async def test_several_decisions_become_a_batch_of_their_own(shop: CommandBus) -> None:
    first, second = await asked(shop), await asked(shop, 2, kind="GUARDED")
    chosen = [f"{each.ticket_id}//{each.content_digest}" for each in (first, second)]
    approver = caller("petra", Scope.READ, Scope.APPROVE)
    async with console(shop, who=approver) as page:
        assert (
            await page.submit("/approvals", "/approvals-chosen", decision="approve")
        ).status_code == 400
        changed = await page.submit(
            "/approvals", "/approvals-chosen", decision="approve", chosen=[f"{first.ticket_id}//00"]
        )
        assert changed.status_code == 409
        asks = await page.submit(
            "/approvals", "/approvals-chosen", decision="approve", chosen=chosen
        )
        assert asks.status_code == 200
        assert "Approve 2 requests" in asks.text
        assert "Type 5 to go on" in asks.text
        fields = {"chosen": chosen, "reason": "release"}
        few = await page.submit(asks.text, "/approvals-chosen/decide", **fields, typed="2")
        assert few.status_code == 400
        done = await page.submit(asks.text, "/approvals-chosen/decide", **fields, typed="5")
        again = await page.submit(asks.text, "/approvals-chosen/decide", **fields, typed="5")
        assert (done.status_code, again.headers["location"]) == (303, done.headers["location"])
    made = UUID(done.headers["location"].rpartition("/")[2])
    ticket = await shop.governance.require(APPROVER, made)
    assert (ticket.batch_type, ticket.created_by, ticket.child_count) == (
        "BATCH_APPROVE",
        "petra",
        2,
    )
    assert await status_of(shop, first) is TicketStatus.PENDING_APPROVAL  # until a worker came


async def test_more_than_a_batch_takes_are_refused_at_once(shop: CommandBus) -> None:
    await asked(shop, kind="GUARDED")
    async with console(shop, who=PETRA) as page:
        many = await page.submit(
            "/approvals",
            "/approvals-chosen",
            decision="approve",
            chosen=[str(n) for n in range(21)],
        )
        assert many.status_code == 400
        assert "choose at most 20" in many.text


async def test_an_edit_is_decided_as_it_was_shown_and_not_by_who_proposed_it(
    shop: CommandBus,
) -> None:
    place_orders(shop, {1})
    ticket = (await shop.governance.submit(ADA, "ORDERS", [{"n": 1}, {"n": 2}])).ticket
    async with shop.worker(DOMAIN):
        await until(lambda: _failed(shop, ticket))
    parked = (await shop.troubleshooting.page(DOMAIN)).items[0].command_id
    await shop.troubleshooting.retry(DOMAIN, parked, payload={"n": 7}, operator="olga")
    address = f"/approvals/{ticket.ticket_id}"
    async with console(shop, "approve", "read", user="olga") as page:
        text = await page.text(address)
        assert "You proposed it: it needs somebody else" in text
        assert "needs somebody else" in await page.text("/approvals")
    async with console(shop, who=PETRA) as page:
        assert "edit of item 1" in await page.text("/approvals")
        text = await page.text(address)
        assert "+ data.n: 7" in text
        other = await page.submit(text, "/decide-edit", decision="approve", digest="0" * 64)
        assert other.status_code == 409
        done = await page.submit(text, "/decide-edit", decision="approve", reason="right")
        assert done.status_code == 303
        late = await page.submit(text, "/decide-edit", decision="approve")
        assert late.status_code in {403, 409}
    assert (await shop.governance.require(APPROVER, ticket.ticket_id)).edit_count == 0


async def _failed(bus: CommandBus, ticket: BatchTicket) -> bool:
    return (await bus.governance.require(APPROVER, ticket.ticket_id)).failed_count == 1


async def test_who_may_not_approve_sees_their_own_requests_only(shop: CommandBus) -> None:
    mine = await asked(shop, kind="GUARDED")
    other = await asked(shop, kind="GUARDED", who=caller("bob", Scope.SUBMIT))
    async with console(shop, who=caller("ada", Scope.READ)) as page:
        text = await page.text("/approvals")
        assert str(mine.ticket_id) in text
        assert str(other.ticket_id) not in text
        assert (await page.get(f"/approvals/{other.ticket_id}")).status_code == 404
        text = await page.text(f"/approvals/{mine.ticket_id}")
        assert "needs the scope approve" in text
        assert "The items are shown to those who may approve them" in text
        assert (await page.post(f"/approvals/{mine.ticket_id}/decide")).status_code == 403
        assert "No request here" in await page.text("/approvals", show="requests", status="FAILED")
    async with console(shop, "approve", domains=("elsewhere",)) as page:
        assert "Nothing waits for you" in await page.text("/approvals")
        assert (await page.get(f"/approvals/{mine.ticket_id}")).status_code == 404
        forged = await page.post(f"/approvals/{mine.ticket_id}/decide", decision="approve")
        assert forged.status_code == 403


async def test_a_preview_that_is_slow_does_not_hold_the_page_up(
    shop: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PREVIEW_SECONDS", 0.0)
    ticket = await asked(shop)
    async with console(shop, who=PETRA) as page:
        text = await page.text(f"/approvals/{ticket.ticket_id}")
    assert "it did not answer in time" in text
    assert "Your decision" in text
