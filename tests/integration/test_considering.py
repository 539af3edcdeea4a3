"""Considering a decision on a real database: earlier ones, who looked, what would change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.errors import (
    DatabaseError,
    InvalidOperationError,
    PermissionDeniedError,
    TicketNotFoundError,
)
from commandbus.governance import BatchType, ItemChange
from tests.integration.governed import ADA, APPROVER, BOB, DOMAIN, caller, governed_bus, orders

OWN = caller("ada", Scope.READ, Scope.SUBMIT, Scope.APPROVE)


async def told(conn: Any, items: Sequence[Any]) -> list[Any]:
    [(one,)] = await (await conn.execute("select 1")).fetchall()
    return [
        {"before": {"n": one, "password": "old"}, "after": {"n": item["n"], "password": "new"}}
        if item["n"] != 2
        else "there is no such thing"
        for item in items
    ]


async def writes(conn: Any, items: Sequence[Any]) -> list[Any]:
    await conn.execute("delete from commandbus.command_bus_look")
    return []


async def forgets(conn: Any, items: Sequence[Any]) -> list[Any]:
    return []


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn) as bus:
        for name, hook in (("TOLD", told), ("WRITES", writes), ("FORGETS", forgets)):
            bus.governance.declare(
                BatchType(
                    name=name,
                    domain=DOMAIN,
                    command_type=name.title(),
                    max_size=9,
                    requires_approval=True,
                    preview=hook,
                    is_dangerous=True,
                    description="x",
                )
            )
        yield bus


async def test_what_was_decided_before_and_who_has_looked_is_there(shop: CommandBus) -> None:
    governance = shop.governance
    first = (await governance.submit(ADA, "GUARDED", orders(2))).ticket
    await governance.decide(APPROVER, first.ticket_id, approve=False, reason="too many")
    other = (await governance.submit(BOB, "GUARDED", orders(1))).ticket
    await governance.decide(APPROVER, other.ticket_id, approve=True, reason=None)
    second = (await governance.submit(ADA, "GUARDED", orders(3))).ticket

    assert (await governance.consider(APPROVER, second.ticket_id)).looks == ()
    for _ in range(2):
        await governance.review(APPROVER, second.ticket_id)
    await governance.review(OWN, second.ticket_id)  # her own: no look of somebody who may decide
    found = await governance.consider(APPROVER, second.ticket_id)
    assert [(look.user_id, look.digest) for look in found.looks] == [
        ("petra", second.content_digest)
    ]
    assert [each.ticket_id for each in found.earlier] == [other.ticket_id, first.ticket_id]
    assert found.rejected is not None
    assert found.rejected.ticket.decision_reason == "too many"
    assert (found.rejected.changes, found.rejected.child_count) == (None, 2)  # no longer kept
    assert (found.why_not, found.is_dangerous, found.has_preview) == (None, False, False)
    own = await governance.consider(OWN, second.ticket_id)
    assert own.why_not == "you submitted it; somebody else must decide"
    decided = await governance.consider(APPROVER, first.ticket_id)
    assert decided.why_not == "it is CANCELED, and does not wait for a decision"
    assert decided.rejected is None
    with pytest.raises(PermissionDeniedError):
        await governance.consider(ADA, second.ticket_id)


async def test_with_payloads_that_are_kept_the_difference_to_the_rejected_one_is_told(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await conn.execute(
        "update commandbus.command_bus_setting set value = 'on' where name = 'payload_archive'"
    )
    governance = shop.governance
    first = (await governance.submit(ADA, "GUARDED", [{"n": 1}, {"n": 2}])).ticket
    await governance.decide(APPROVER, first.ticket_id, approve=False, reason="no")
    second = (await governance.submit(ADA, "GUARDED", [{"n": 1}, {"n": 5}])).ticket
    found = await governance.consider(APPROVER, second.ticket_id)
    assert found.rejected is not None
    assert found.rejected.changes == {2: {"changed": [{"path": "data.n", "from": "2", "to": "5"}]}}


async def test_a_type_tells_what_each_item_would_change_and_can_write_nothing(
    shop: CommandBus,
) -> None:
    governance = shop.governance
    ticket = (await governance.submit(ADA, "TOLD", orders(3))).ticket
    found = await governance.consider(APPROVER, ticket.ticket_id)
    assert (found.is_dangerous, found.has_preview, found.description) == (True, True, "x")
    changes = await governance.preview(APPROVER, ticket.ticket_id)
    mask = "[REDACTED]"
    assert changes[0] == ItemChange(1, {"n": 1, "password": mask}, {"n": 1, "password": mask})
    assert changes[1] == ItemChange(2, None, None, "there is no such thing")
    assert [
        c.sequence_no for c in await governance.preview(APPROVER, ticket.ticket_id, after=2)
    ] == [3]
    with pytest.raises(PermissionDeniedError):
        await governance.preview(ADA, ticket.ticket_id)
    await governance.decide(APPROVER, ticket.ticket_id, approve=False, reason="x")
    with pytest.raises(InvalidOperationError, match="does not wait"):
        await governance.preview(APPROVER, ticket.ticket_id)
    for name, kind, words in (
        ("WRITES", DatabaseError, "read-only"),
        ("FORGETS", InvalidOperationError, "answered 0 of 1 items"),
        ("GUARDED", InvalidOperationError, "cannot say"),
    ):
        odd = (await governance.submit(ADA, name, orders(1))).ticket
        with pytest.raises(kind, match=words):
            await governance.preview(APPROVER, odd.ticket_id)


async def test_one_look_tells_what_the_single_reads_tell(shop: CommandBus) -> None:
    governance = shop.governance
    ticket = (await governance.submit(ADA, "TOLD", orders(3))).ticket

    seen = await governance.examine(APPROVER, ticket.ticket_id, limit=2)
    assert seen.consideration is not None
    assert seen.consideration.looks == ()  # those before this one
    assert seen.consideration.limits == await governance.limit_states("ada")
    after = await governance.examine(APPROVER, ticket.ticket_id, limit=2)
    assert after.consideration == await governance.consider(APPROVER, ticket.ticket_id)
    assert seen.review == await governance.review(APPROVER, ticket.ticket_id, limit=2)
    assert list(seen.changes) == await governance.preview(APPROVER, ticket.ticket_id, limit=2)
    assert seen.review is not None
    rest = await governance.examine(APPROVER, ticket.ticket_id, cursor=seen.review.next_cursor)
    assert [each.sequence_no for each in rest.changes] == [3]

    own = await governance.examine(ADA, ticket.ticket_id)
    assert (own.ticket.ticket_id, own.consideration, own.review) == (ticket.ticket_id, None, None)
    reader = caller("rita", Scope.READ, Scope.OPERATE, Scope.READ_PAYLOAD)
    whole = await governance.examine(reader, ticket.ticket_id)
    assert whole.consideration is None
    assert whole.review == await governance.review(APPROVER, ticket.ticket_id)
    for nobody in (BOB, caller("eve", Scope.APPROVE, domains={"elsewhere"})):
        with pytest.raises(TicketNotFoundError):
            await governance.examine(nobody, ticket.ticket_id)
    with pytest.raises(TicketNotFoundError):
        await governance.examine(APPROVER, uuid4())

    odd = (await governance.submit(BOB, "FORGETS", orders(1))).ticket
    found = await governance.examine(APPROVER, odd.ticket_id)
    assert "answered 0 of 1 items" in found.preview_problem
    late = await governance.examine(APPROVER, odd.ticket_id, preview_seconds=0)
    assert late.preview_problem == "it did not answer in time"
