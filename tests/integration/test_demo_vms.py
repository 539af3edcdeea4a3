"""The demo's virtual machines: governed batches that change rows in the completing transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from commandbus import CommandBus, Settings
from commandbus.demo import vms
from commandbus.errors import InvalidBatchRequestError
from commandbus.governance.model import BatchTicket, Item, TicketStatus
from tests.integration.governed import ADA, APPROVER
from tests.waiting import working

LOOSE = Settings(user_cooldown_seconds=0, max_user_pending_batches=50, max_user_pending_children=99)


@pytest.fixture
async def farm(dsn: str) -> AsyncIterator[CommandBus]:
    async with CommandBus.connect(dsn, settings=LOOSE) as bus:
        await vms.setup(bus)
        async with AsyncExitStack() as stack:
            assert bus.domains == ["approvals", "vms"]
            await stack.enter_async_context(working(bus, "vms"))
            await stack.enter_async_context(working(bus, "approvals"))
            yield bus


async def done(bus: CommandBus, batch_type: str, items: list[Item]) -> BatchTicket:
    made = await bus.governance.submit(ADA, batch_type, items)
    return await bus.governance.wait(ADA, made.ticket.ticket_id, seen=None, timeout=20)


def named(*names: str) -> list[Item]:
    return [{"name": name} for name in names]


async def test_machines_are_created_switched_and_after_an_approval_deleted(
    farm: CommandBus,
) -> None:
    created = await done(farm, "BATCH_CREATE", [{"name": "a", "cpu": 4}, *named("b", "c")])
    assert created.status is TicketStatus.COMPLETED
    assert (await done(farm, "BATCH_POWER_START", named("a", "b"))).success_count == 2
    restarted = await done(farm, "BATCH_POWER_RESTART", named("a", "c"))
    assert restarted.status is TicketStatus.PARTIAL_SUCCESS
    page = await farm.governance.page_children(ADA, restarted.ticket_id)
    assert [child.error_message for child in page.items] == [None, "c is off; start it instead"]
    await done(farm, "BATCH_POWER_STOP", named("b"))
    assert [tuple(each.values()) for each in await vms.list_machines(farm)] == [
        ("a", 4, 2048, True, 1), ("b", 2, 2048, False, 0), ("c", 2, 2048, False, 0),
    ]  # fmt: skip

    ticket = (await farm.governance.submit(ADA, "BATCH_DELETE", named("a", "b"))).ticket
    assert ticket.status is TicketStatus.PENDING_APPROVAL
    decision = {"ticket_id": str(ticket.ticket_id), "decision": "approve"}
    await farm.governance.submit(APPROVER, "BATCH_APPROVE", [decision])
    ended = await farm.governance.wait(ADA, ticket.ticket_id, seen=None, timeout=20)
    assert (ended.status, ended.decided_by) == (TicketStatus.COMPLETED, "petra")
    assert [each["name"] for each in await vms.list_machines(farm)] == ["c"]


async def test_what_cannot_be_is_refused_with_its_place(farm: CommandBus) -> None:
    await done(farm, "BATCH_CREATE", named("a"))
    bad: list[Item] = [
        {"name": "a"}, {"name": "Web 1"}, {"name": "x", "cpu": 99}, {"name": "x"},
        {"name": "y", "memory_mb": 1},
    ]  # fmt: skip
    with pytest.raises(InvalidBatchRequestError) as info:
        await farm.governance.submit(ADA, "BATCH_CREATE", bad)
    assert [(error.index, error.field) for error in info.value.errors] == [
        (0, "name"), (1, "name"), (2, "cpu"), (3, "name"), (4, "memory_mb"),
    ]  # fmt: skip
    with pytest.raises(InvalidBatchRequestError, match="item 1, name: there is no machine"):
        await farm.governance.submit(ADA, "BATCH_POWER_STOP", named("a", "nowhere", "a"))


async def test_two_requests_for_one_name_give_one_machine(farm: CommandBus) -> None:
    ended = await asyncio.gather(*(done(farm, "BATCH_CREATE", named("twin")) for _ in range(3)),
                                 return_exceptions=True)  # fmt: skip
    made = [each for each in ended if isinstance(each, BatchTicket) and each.success_count]
    assert len(made) == 1
