"""Cancel, decide, retry and expiry of one batch at the same moment: no deadlock, one end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from commandbus import CommandBus
from commandbus.errors import CommandBusError, InvalidOperationError
from commandbus.governance.model import TicketStatus
from tests.integration.governed import (
    ADA,
    APPROVER,
    DOMAIN,
    OPERATOR,
    governed_bus,
    orders,
    place_orders,
)
from tests.waiting import working

RACES = 60
CHILDREN = 8


async def outcome(call: Coroutine[Any, Any, Any], errors: list[str]) -> None:
    try:
        await call
    except InvalidOperationError:
        pass  # the other one was first
    except CommandBusError as error:
        errors.append(f"{type(error).__name__}: {error}")


async def race(bus: CommandBus, chance: random.Random) -> list[str]:
    governance = bus.governance
    made = await governance.submit(ADA, "GUARDED", orders(CHILDREN))
    ticket_id = made.ticket.ticket_id
    errors: list[str] = []
    calls = [
        governance.decide(APPROVER, ticket_id, approve=True, reason=None),
        governance.cancel(ADA, ticket_id, "no longer wanted"),
        governance.cancel(OPERATOR, ticket_id, "not today"),
        governance.decide(APPROVER, ticket_id, approve=chance.random() < 0.7, reason="because"),
        governance.retry(ADA, ticket_id),
    ]
    chance.shuffle(calls)
    await asyncio.gather(*(outcome(call, errors) for call in calls))
    return errors


@pytest.mark.postgres
async def test_cancel_against_decide_never_deadlocks_and_ends_consistently(dsn: str) -> None:
    chance = random.Random(17)
    async with governed_bus(
        dsn, pool_size=20, max_global_pending_batches=1_000, max_user_pending_batches=1_000,
        max_user_pending_children=100_000,
    ) as bus:  # fmt: skip
        place_orders(bus, {3})
        async with working(bus, DOMAIN):
            errors: list[str] = []
            for _ in range(RACES // 6):
                found = await asyncio.gather(*(race(bus, chance) for _ in range(6)))
                errors += [error for each in found for error in each]
            assert errors == []
            page = await bus.governance.page(APPROVER, limit=200)
            for ticket in page.items:
                ended = await bus.governance.wait(APPROVER, ticket.ticket_id, seen=None, timeout=20)
                counted = (
                    ended.success_count + ended.failed_count + ended.canceled_count
                    + ended.pending_count
                )  # fmt: skip
                assert counted == CHILDREN
                assert ended.status not in {
                    TicketStatus.PENDING_APPROVAL,
                    TicketStatus.IN_PROGRESS,
                }
        diagnosis = await bus.upkeep.doctor()
        assert [each.code for each in diagnosis.findings if each.code.startswith("BATCH")] == []
