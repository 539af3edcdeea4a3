"""Two people at once: exactly one effect, and the other is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from commandbus import CommandBus
from commandbus.governance.model import TicketStatus
from commandbus.models import AuditEventType
from tests.console.test_approvals import asked, shop, status_of
from tests.console.test_command import parked
from tests.console.test_troubleshooting import one_group, operations
from tests.console.world import EVERYTHING, Browser, console
from tests.parking import park

pytestmark = pytest.mark.postgres
__all__ = ["shop"]


async def both(
    bus: CommandBus, page: str, act: Callable[[Browser, str], Awaitable[Any]], **who: Any
) -> list[Any]:
    """Two people open a page, and both send its form at once."""
    async with AsyncExitStack() as stack:
        people = [
            await stack.enter_async_context(console(bus, *EVERYTHING, user=name))
            for name in ("ann", "bea")
        ]
        pages = [await each.text(page) for each in people]
        return list(await asyncio.gather(*map(act, people, pages)))


async def test_two_who_retry_one_group_make_one_operation(bus: CommandBus, conn: Any) -> None:
    await park(conn, 12)
    group = await one_group(bus)
    where = f"/troubleshooting/shop/decide/retry?group={group.fingerprint}"

    answers = await both(
        bus, where, lambda who, page: who.submit(page, "/start/retry", reason="again")
    )
    for each in await operations(bus):
        await conn.execute("update commandbus.command_bus_bulk_operation set starts_at = now()")
        await bus.bulk.run(each.operation_id)

    assert all(each.status_code in {303, 409} for each in answers)
    sent = await bus.search.audit(event_types=[AuditEventType.OPERATOR_RETRY])
    assert len(sent.items) == 12, "each command was sent again once"
    assert len({each.command_id for each in sent.items}) == 12


async def test_two_who_edit_one_payload_send_it_once(bus: CommandBus) -> None:
    command_id = await parked(bus)
    here = f"/commands/shop/{command_id}"

    async def act(who: Browser, page: str) -> Any:
        shown = await who.submit(page, "/edit", payload='{"account": 8}')
        return await who.submit(shown.text, "/send", reason="right account")

    answers = await both(bus, f"{here}/edit", act)

    assert sorted(each.status_code for each in answers) == [303, 409]
    [late] = [each for each in answers if each.status_code == 409]
    assert "Nothing was done" in late.text
    sent = await bus.search.audit(
        command_id=command_id, event_types=[AuditEventType.OPERATOR_RETRY]
    )
    assert len(sent.items) == 1


async def test_two_who_decide_one_ticket_decide_it_once(shop: CommandBus) -> None:
    ticket = await asked(shop)
    decisions = {"ann": "approve", "bea": "reject"}

    async def act(who: Browser, page: str) -> Any:
        name = "ann" if "You are ann" in page else "bea"
        return await who.submit(
            page, "/decide", decision=decisions[name], typed="3", reason=f"says {name}"
        )

    answers = await both(shop, f"/approvals/{ticket.ticket_id}", act)

    assert sorted(each.status_code for each in answers) == [303, 409]
    [late] = [each for each in answers if each.status_code == 409]
    winner = "ann" if answers[1] is late else "bea"
    assert f"says {winner}" in late.text
    status = await status_of(shop, ticket)
    assert status is not TicketStatus.PENDING_APPROVAL
    assert (status is TicketStatus.CANCELED) == (winner == "bea")
