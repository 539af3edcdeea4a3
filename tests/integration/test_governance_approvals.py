"""Approvals: alone and as a governed batch of their own, and by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.errors import (
    InvalidBatchRequestError,
    InvalidInputError,
    InvalidOperationError,
    PermissionDeniedError,
    TicketNotFoundError,
)
from commandbus.governance.model import TicketStatus
from tests.integration.governed import (
    ADA,
    APPROVER,
    DOMAIN,
    caller,
    governed_bus,
    orders,
    place_orders,
)
from tests.waiting import until_status, working

STRANGER = caller("x", Scope.APPROVE, domains={"bank"})
OWN = caller("ada", Scope.READ, Scope.SUBMIT, Scope.APPROVE)


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn) as bus:
        place_orders(bus, set())
        bus.governance.register_handlers()
        yield bus


async def guarded(bus: CommandBus, count: int = 2) -> UUID:
    made = await bus.governance.submit(ADA, "GUARDED", orders(count))
    assert made.ticket.status is TicketStatus.PENDING_APPROVAL
    return made.ticket.ticket_id


async def test_an_approved_batch_is_worked_off_and_a_rejected_one_never(shop: CommandBus) -> None:
    good, bad = await guarded(shop), await guarded(shop)
    async with working(shop, DOMAIN):
        approved = await shop.governance.decide(APPROVER, good, approve=True, reason=None)
        assert (approved.status, approved.decided_by) == (TicketStatus.IN_PROGRESS, "petra")
        rejected = await shop.governance.decide(APPROVER, bad, approve=False, reason="not now")
        assert (rejected.status, rejected.decision_reason) == (TicketStatus.CANCELED, "not now")
        done = await shop.governance.wait(ADA, good, seen=None, timeout=20)
    assert done.status is TicketStatus.COMPLETED
    page = await shop.governance.page_children(ADA, bad)
    assert [(child.status.value, child.attempt_count) for child in page.items] == [
        ("CANCELED", 0), ("CANCELED", 0),
    ]  # fmt: skip


async def test_a_decision_stands(shop: CommandBus) -> None:
    ticket_id = await guarded(shop)
    first = await shop.governance.decide(APPROVER, ticket_id, approve=True, reason="fine")
    again = await shop.governance.decide(APPROVER, ticket_id, approve=True, reason="fine")
    assert again == first
    with pytest.raises(InvalidOperationError, match="it was approved"):
        await shop.governance.decide(APPROVER, ticket_id, approve=False, reason="no")


async def test_who_may_not_decide_is_told_and_nothing_changes(shop: CommandBus) -> None:
    ticket_id = await guarded(shop)
    before = await shop.governance.require(APPROVER, ticket_id)
    decide = shop.governance.decide
    with pytest.raises(PermissionDeniedError, match="approve"):
        await decide(ADA, ticket_id, approve=True, reason=None)
    with pytest.raises(InvalidOperationError, match="somebody else must decide"):
        await decide(OWN, ticket_id, approve=True, reason=None)
    with pytest.raises(TicketNotFoundError):
        await decide(STRANGER, ticket_id, approve=True, reason=None)
    with pytest.raises(InvalidInputError, match="needs a reason"):
        await decide(APPROVER, ticket_id, approve=False, reason=None)
    with pytest.raises(TicketNotFoundError):
        await decide(APPROVER, uuid4(), approve=True, reason=None)
    assert await shop.governance.require(APPROVER, ticket_id) == before


async def test_self_approval_can_be_allowed(dsn: str) -> None:
    async with governed_bus(dsn, self_approval=True) as bus:
        ticket_id = await guarded(bus)
        decided = await bus.governance.decide(OWN, ticket_id, approve=True, reason=None)
        assert (decided.decided_by, decided.created_by) == ("ada", "ada")


async def test_approvals_are_submitted_as_a_batch_of_their_own(shop: CommandBus) -> None:
    good, bad = await guarded(shop), await guarded(shop)
    made = await shop.governance.submit(
        APPROVER,
        "BATCH_APPROVE",
        [
            {"ticket_id": str(good), "decision": "approve"},
            {"ticket_id": str(bad), "decision": "reject", "reason": "too late"},
        ],
    )
    async with working(shop, "approvals"):
        ended = await shop.governance.wait(APPROVER, made.ticket.ticket_id, seen=None, timeout=20)
    assert ended.status is TicketStatus.COMPLETED
    approved, rejected = [await shop.governance.require(ADA, each) for each in (good, bad)]
    assert (approved.status, approved.decided_by) == (TicketStatus.IN_PROGRESS, "petra")
    assert (rejected.status, rejected.decision_reason) == (TicketStatus.CANCELED, "too late")


async def test_bad_decisions_are_named_and_none_of_the_batch_is_created(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    waiting = await guarded(shop)
    plain = (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket.ticket_id
    approver = caller("petra", Scope.APPROVE, domains={DOMAIN, "approvals"})
    items = [
        {"ticket_id": str(waiting), "decision": "approve"},
        {"ticket_id": str(waiting), "decision": "approve"},
        {"ticket_id": str(plain), "decision": "approve"},
        {"ticket_id": str(uuid4()), "decision": "approve"},
        {"ticket_id": "x", "decision": "approve"},
        {"ticket_id": str(waiting), "decision": "maybe"},
        {"ticket_id": str(waiting), "decision": "reject"},
    ]
    # What does not fit the type is named first, and the database is not asked.
    with pytest.raises(InvalidBatchRequestError) as info:
        await shop.governance.submit(approver, "BATCH_APPROVE", items)
    assert [(error.index, error.field) for error in info.value.errors] == [(5, "decision")]
    del items[5]
    with pytest.raises(InvalidBatchRequestError) as info:
        await shop.governance.submit(approver, "BATCH_APPROVE", items)
    assert [(error.index, error.field) for error in info.value.errors] == [
        (1, "ticket_id"), (2, "ticket_id"), (3, "ticket_id"), (4, "ticket_id"), (5, "reason"),
    ]  # fmt: skip
    for who, text in (
        (OWN, "submitted by you"),
        (caller("petra", Scope.APPROVE, domains={"bank", "approvals"}), "no such batch"),
    ):
        with pytest.raises(InvalidBatchRequestError, match=text):
            await shop.governance.submit(who, "BATCH_APPROVE", items[:1])
    with pytest.raises(InvalidBatchRequestError, match="approver is not one of its fields"):
        await shop.governance.submit(APPROVER, "BATCH_APPROVE", [{**items[0], "approver": "eve"}])
    cursor = await conn.execute(
        "select count(*) from commandbus.command_bus_batch where domain = 'approvals'"
    )
    assert await cursor.fetchone() == (0,)


async def test_a_decision_that_was_not_submitted_as_a_batch_decides_nothing(
    shop: CommandBus,
) -> None:
    ticket_id = await guarded(shop)
    forged = await shop.send(
        "approvals", "DecideTicket", uuid4(), {"ticket_id": str(ticket_id), "decision": "approve"}
    )
    async with working(shop, "approvals"):
        ended = await until_status(shop, "approvals", forged, "FAILED")
    assert ended.last_error_code == "NOT_SUBMITTED"
    ticket = await shop.governance.require(ADA, ticket_id)
    assert ticket.status is TicketStatus.PENDING_APPROVAL


async def test_a_decision_that_came_too_late_fails_and_says_why(shop: CommandBus) -> None:
    ticket_id = await guarded(shop)
    made = await shop.governance.submit(
        APPROVER, "BATCH_APPROVE", [{"ticket_id": str(ticket_id), "decision": "approve"}]
    )
    await shop.governance.cancel(ADA, ticket_id, "changed my mind")
    async with working(shop, "approvals"):
        ended = await shop.governance.wait(APPROVER, made.ticket.ticket_id, seen=None, timeout=20)
    assert ended.status is TicketStatus.FAILED
    (child,) = (await shop.governance.page_children(APPROVER, made.ticket.ticket_id)).items
    assert child.error_message is not None
    assert "has ended" in child.error_message
