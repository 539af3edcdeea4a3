"""Governed batches from submission to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from commandbus import CommandBus
from commandbus.governed import ChildStatus, TicketStatus
from tests.integration.governed import ADA, governed_bus, orders, place_orders
from tests.waiting import working


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn) as bus:
        yield bus


async def test_a_submission_creates_the_batch_and_its_children(shop: CommandBus) -> None:
    made = await shop.governance.submit(ADA, "ORDERS", orders(3), reason="spring")
    assert not made.is_replay
    assert made.ticket == await shop.governance.get(ADA, made.ticket.ticket_id)
    assert made.ticket.status is TicketStatus.IN_PROGRESS
    page = await shop.governance.children(ADA, made.ticket.ticket_id)
    assert [child.sequence_no for child in page.items] == [1, 2, 3]
    assert {child.status for child in page.items} == {ChildStatus.PENDING}
    place_orders(shop, set())
    async with working(shop, "shop"):
        done = await shop.governance.wait(ADA, made.ticket.ticket_id, seen=None, timeout=20)
    assert done.status is TicketStatus.COMPLETED
