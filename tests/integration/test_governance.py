"""Governed batches from submission to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import BatchCommand, CommandBus, InvalidOperationError
from commandbus.access.model import Caller, Scope
from commandbus.errors import (
    BatchSizeExceededError,
    DatabaseUnavailableError,
    InvalidBatchRequestError,
    InvalidInputError,
    InvalidSettingError,
    PermissionDeniedError,
    TicketNotFoundError,
)
from commandbus.governance import submission
from commandbus.governance.model import ChildStatus, Item, ItemError, TicketAction, TicketStatus
from commandbus.governance.types import BatchType
from commandbus.testing import fake_bus
from tests.integration.governed import (
    ADA,
    ADMIN,
    APPROVER,
    BOB,
    DOMAIN,
    OPERATOR,
    ORDERS,
    caller,
    governed_bus,
    orders,
    place_orders,
)
from tests.waiting import until, working


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn) as bus:
        yield bus


async def count(conn: psycopg.AsyncConnection[Any], table: str) -> int:
    cursor = await conn.execute(f"select count(*) from commandbus.{table}".encode())
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def test_a_batch_is_submitted_worked_off_and_ends(shop: CommandBus) -> None:
    made = await shop.governance.submit(ADA, "ORDERS", orders(3), reason="token=abc12345")
    ticket_id = made.ticket.ticket_id
    assert not made.is_replay
    assert made.ticket == await shop.governance.get(ADA, ticket_id)
    assert (made.ticket.status, made.ticket.pending_count) == (TicketStatus.IN_PROGRESS, 3)
    assert made.ticket.reason == "token=[REDACTED]"
    page = await shop.governance.page_children(ADA, ticket_id, limit=2)
    assert [child.sequence_no for child in page.items] == [1, 2]
    rest = await shop.governance.page_children(ADA, ticket_id, cursor=page.next_cursor, limit=2)
    assert ([child.sequence_no for child in rest.items], rest.next_cursor) == ([3], None)
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await shop.governance.page_children(
            ADA, ticket_id, cursor=page.next_cursor, status=ChildStatus.FAILED
        )

    place_orders(shop, {2})
    waiting = asyncio.create_task(shop.governance.wait(ADA, ticket_id, seen=None, timeout=20))
    async with working(shop, DOMAIN):
        ended = await waiting
    assert (ended.status, ended.success_count, ended.failed_count) == (
        TicketStatus.PARTIAL_SUCCESS, 2, 1,
    )  # fmt: skip
    failed = await shop.governance.page_children(ADA, ticket_id, status=ChildStatus.FAILED)
    (child,) = failed.items
    assert child.sequence_no == 2
    assert child.error_message == "nothing left, password=[REDACTED]"
    assert [reply async for reply in shop.replies(DOMAIN, wait=False)] == []


async def test_limits_after_a_submission_count_it(shop: CommandBus) -> None:
    made = await shop.governance.submit(ADA, "ORDERS", orders(4))
    values = {state.limit_type.value: state.current_value for state in made.limits}
    assert values == {
        "global_api_requests": 0, "global_pending_batches": 1, "user_pending_batches": 1,
        "user_cooldown": 0, "user_pending_children": 4,
    }  # fmt: skip
    assert await shop.governance.limit_states("ada") == made.limits


# -- what is refused


async def test_bad_items_are_named_and_nothing_is_created(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    items: list[Item] = [{"n": 1}, {"n": "two", "secret": "s3cr3t-value"}, {"note": "x"}]
    with pytest.raises(InvalidBatchRequestError, match=r"item 1.*2 items in all") as info:
        await shop.governance.submit(ADA, "ORDERS", items)
    assert [(error.index, error.field) for error in info.value.errors] == [
        (1, "secret"), (1, "n"), (2, "n"),
    ]  # fmt: skip
    assert "s3cr3t-value" not in repr(info.value.errors)
    for table in ("command_bus_batch", "command_bus_command", "rate_limit_counter"):
        assert await count(conn, table) == 0


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "at least one"),
        ("text", "list of objects"),
        ({"n": 1}, "list of objects"),
        ([{"n": 1}, 7], "item 1: data must be a dict"),
        ([{"n": 2**60}], "item 0: .*beyond"),
        ([{"n": 1, "note": "\x00"}], "item 0: .*NUL"),
    ],
)
async def test_a_request_of_the_wrong_shape_is_refused(
    shop: CommandBus, items: Any, text: str
) -> None:
    with pytest.raises(InvalidBatchRequestError, match=text):
        await shop.governance.submit(ADA, "ORDERS", items)


async def test_too_many_items_are_refused_before_the_database_is_asked(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with governed_bus(dsn, max_user_pending_children=20) as bus:
        with pytest.raises(BatchSizeExceededError, match="at most 50") as info:
            await bus.governance.submit(ADA, "ORDERS", orders(51))
        assert not info.value.contact_admin
        with pytest.raises(BatchSizeExceededError, match="administrator") as more:
            await bus.governance.submit(ADA, "ORDERS", orders(21))
        assert (more.value.max_value, more.value.contact_admin) == (20, True)
        assert await count(conn, "command_bus_batch") == 0


async def test_whoever_may_not_submit_is_told_so(shop: CommandBus) -> None:
    for nobody, items in (
        (caller("ada", Scope.READ), orders(1)),
        (caller("ada", Scope.SUBMIT, domains={"bank"}), []),  # before the shape is looked at
    ):
        with pytest.raises(PermissionDeniedError, match="ORDERS"):
            await shop.governance.submit(nobody, "ORDERS", items)
    with pytest.raises(InvalidBatchRequestError, match="did you mean ORDERS"):
        await shop.governance.submit(ADA, "ORDER", orders(1))
    with pytest.raises(InvalidBatchRequestError, match="not a UUID"):
        await shop.governance.submit(ADA, "ORDERS", orders(1), request_id="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidBatchRequestError, match="reason must be"):
        await shop.governance.submit(ADA, "ORDERS", orders(1), reason=" ")


async def test_a_check_of_the_application_reads_in_the_submissions_transaction(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    seen: list[Any] = []

    async def check(own: Any, who: Caller, items: Sequence[Item]) -> list[ItemError]:
        cursor = await own.execute("select count(*) from pg_locks where locktype = 'advisory'")
        seen.append(((await cursor.fetchone())[0] >= 2, who.user_id))
        return [ItemError(n, "n", "sold out") for n, i in enumerate(items) if i["n"] == 13]

    shop.governance.declare(
        BatchType(name="CHECKED", domain=DOMAIN, command_type="X", max_size=5, check=check)
    )
    with pytest.raises(InvalidBatchRequestError, match="item 1, n: sold out"):
        await shop.governance.submit(ADA, "CHECKED", orders(2, 12))
    assert await count(conn, "command_bus_batch") == 0
    await shop.governance.submit(ADA, "CHECKED", orders(2))
    assert seen == [(True, "ada"), (True, "ada")]


async def test_a_check_that_hangs_is_given_up_and_lets_the_next_submission_pass(
    shop: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(own: Any, who: Caller, items: Sequence[Item]) -> list[ItemError]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(submission, "CHECK_SECONDS", 0.05)
    shop.governance.declare(
        BatchType(name="HANGING", domain=DOMAIN, command_type="X", max_size=5, check=hang)
    )
    with pytest.raises(DatabaseUnavailableError, match="the check of HANGING took more than"):
        await shop.governance.submit(ADA, "HANGING", orders(1))
    assert (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket.child_count == 1


# -- repeats


async def test_a_repeat_gets_the_same_batch_and_another_body_is_refused(shop: CommandBus) -> None:
    key = uuid4()
    made = await shop.governance.submit(ADA, "ORDERS", orders(2), request_id=key)
    again = await shop.governance.submit(ADA, "ORDERS", orders(2), request_id=key)
    assert (again.is_replay, again.ticket) == (True, made.ticket)
    for items, reason in ((orders(3), None), (orders(2), "another")):
        with pytest.raises(InvalidBatchRequestError, match="used before with another body"):
            await shop.governance.submit(ADA, "ORDERS", items, request_id=key, reason=reason)
    other = await shop.governance.submit(ADA, "GUARDED", orders(2), request_id=key)
    assert other.ticket.ticket_id != made.ticket.ticket_id


async def test_requests_with_one_id_at_once_create_one_batch(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    key = uuid4()
    found = await asyncio.gather(
        *(shop.governance.submit(ADA, "ORDERS", orders(2), request_id=key) for _ in range(20))
    )
    assert len({each.ticket.ticket_id for each in found}) == 1
    assert sum(not each.is_replay for each in found) == 1
    assert await count(conn, "command_bus_batch") == 1


# -- who sees what


async def test_a_ticket_is_there_for_its_owner_and_for_operators_of_its_domain(
    shop: CommandBus,
) -> None:
    ticket = (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket
    for eyes in (ADA, OPERATOR, ADMIN, caller("o", Scope.READ, Scope.APPROVE, domains={DOMAIN})):
        assert await shop.governance.get(eyes, ticket.ticket_id) == ticket
    for stranger in (
        BOB,
        caller("ada", Scope.READ, domains={"bank"}),
        caller("o", Scope.READ, Scope.OPERATE, domains={"bank"}),
    ):
        assert await shop.governance.get(stranger, ticket.ticket_id) is None
        with pytest.raises(TicketNotFoundError):
            await shop.governance.require(stranger, ticket.ticket_id)
        with pytest.raises(TicketNotFoundError):
            await shop.governance.page_children(stranger, ticket.ticket_id)
        assert (await shop.governance.page(stranger)).items == []
    for verb in (shop.governance.retry, lambda c, t: shop.governance.cancel(c, t, "x")):
        with pytest.raises(TicketNotFoundError):
            await verb(BOB, ticket.ticket_id)
        with pytest.raises(PermissionDeniedError, match="submit"):
            await verb(caller("ada", Scope.READ), ticket.ticket_id)
        with pytest.raises(PermissionDeniedError, match="operate"):
            await verb(caller("o", Scope.APPROVE), ticket.ticket_id)
    with pytest.raises(PermissionDeniedError, match="read"):
        await shop.governance.get(caller("ada", Scope.SUBMIT), ticket.ticket_id)
    assert await shop.governance.get(ADMIN, uuid4()) is None
    with pytest.raises(TicketNotFoundError):
        await shop.governance.require(ADMIN, uuid4())
    plain = await shop.create_batch(DOMAIN, [BatchCommand("X", uuid4(), {})])
    with pytest.raises(TicketNotFoundError):
        await shop.governance.require(ADMIN, plain)


async def test_the_actions_of_a_ticket_depend_on_its_state_and_on_the_caller(
    shop: CommandBus,
) -> None:
    allowed = shop.governance.allowed_actions
    retry, cancel, *decide = TicketAction
    approver_of_elsewhere = caller("petra", Scope.READ, Scope.APPROVE, domains={"bank"})
    waiting = (await shop.governance.submit(ADA, "GUARDED", orders(1))).ticket
    assert waiting.actions == (cancel, *decide)
    assert allowed(ADA, waiting) == allowed(OPERATOR, waiting) == (cancel,)
    assert allowed(APPROVER, waiting) == tuple(decide)
    assert allowed(ADMIN, waiting) == (cancel, *decide)
    for stranger in (BOB, caller("ada", Scope.READ), approver_of_elsewhere):
        assert allowed(stranger, waiting) == ()
    assert allowed(caller("ada", Scope.SUBMIT, Scope.APPROVE), waiting) == (cancel,)

    place_orders(shop, {1}, ends="fail")
    ticket_id = (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket.ticket_id
    async with working(shop, DOMAIN):
        ended = await shop.governance.wait(ADA, ticket_id, seen=None, timeout=20)
    assert (ended.is_open, allowed(ADA, ended), allowed(APPROVER, ended)) == (False, (retry,), ())


async def test_an_approver_may_decide_its_own_ticket_if_the_settings_say_so(dsn: str) -> None:
    own = caller("ada", Scope.READ, Scope.SUBMIT, Scope.APPROVE)
    async with governed_bus(dsn, self_approval=True) as bus:
        ticket = (await bus.governance.submit(own, "GUARDED", orders(1))).ticket
        assert bus.governance.allowed_actions(own, ticket) == ticket.actions


async def test_tickets_are_listed_newest_first_in_pages(dsn: str) -> None:
    async with governed_bus(dsn, max_user_pending_batches=10) as bus:
        mine = [(await bus.governance.submit(ADA, "ORDERS", orders(1))).ticket for _ in range(5)]
        waits = (await bus.governance.submit(BOB, "GUARDED", orders(1))).ticket
        first = await bus.governance.page(ADA, limit=3)
        rest = await bus.governance.page(ADA, limit=3, cursor=first.next_cursor)
        assert [*first.items, *rest.items] == mine[::-1]
        assert rest.next_cursor is None
        assert (await bus.governance.page(ADA, created_by="bob")).items == []
        everything = await bus.governance.page(ADMIN)
        assert everything.items == [waits, *mine[::-1]]
        assert (await bus.governance.page(ADMIN, created_by="bob")).items == [waits]
        assert (await bus.governance.page(ADMIN, batch_type="GUARDED")).items == [waits]
        waiting = await bus.governance.page(ADMIN, status=TicketStatus.PENDING_APPROVAL)
        assert waiting.items == [waits]
        assert (await bus.governance.page(ADMIN, status=TicketStatus.FAILED)).items == []
        with pytest.raises(InvalidSettingError, match="cursor is not one"):
            await bus.governance.page(ADA, cursor="bm8")
        with pytest.raises(InvalidInputError, match="no status"):
            await bus.governance.page(ADA, status="DONE")  # type: ignore[arg-type]


# -- waiting


async def test_waiting_ends_at_the_next_change_or_at_the_timeout(shop: CommandBus) -> None:
    ticket = (await shop.governance.submit(ADA, "GUARDED", orders(2))).ticket
    seen = shop.governance.version(ticket)
    same = await shop.governance.wait(ADA, ticket.ticket_id, seen=seen, timeout=0.05)
    assert shop.governance.version(same) == seen
    at_once = await shop.governance.wait(ADA, ticket.ticket_id, seen="older", timeout=30)
    assert at_once == ticket
    waiters = [
        asyncio.create_task(shop.governance.wait(ADA, ticket.ticket_id, seen=each, timeout=30))
        for each in (seen, None, seen)
    ]
    await until(lambda: len(shop.governance._watch._waiters[ticket.ticket_id]) == 3)
    await shop.governance.cancel(ADA, ticket.ticket_id, "no longer wanted")
    for changed in await asyncio.gather(*waiters):
        assert changed.status is TicketStatus.CANCELED
        assert shop.governance.version(changed) != seen
    assert shop.governance._watch._waiters == {}


async def test_whoever_waits_for_a_ticket_that_is_removed_is_told(
    shop: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    ticket = (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket
    waiter = asyncio.create_task(shop.governance.wait(ADA, ticket.ticket_id, seen=None, timeout=30))
    await until(lambda: shop.governance._watch._waiters)
    await conn.execute("delete from commandbus.command_bus_command")
    await conn.execute("delete from commandbus.command_bus_batch")
    with pytest.raises(TicketNotFoundError):
        await waiter


# -- retry and cancel


async def test_a_retry_is_for_failed_children_and_a_double_click_is_one(shop: CommandBus) -> None:
    place_orders(shop, {1, 2}, ends="fail")
    ticket_id = (await shop.governance.submit(ADA, "ORDERS", orders(3))).ticket.ticket_id
    async with working(shop, DOMAIN):
        ended = await shop.governance.wait(ADA, ticket_id, seen=None, timeout=20)
    assert ended.status is TicketStatus.PARTIAL_SUCCESS

    clicks = await asyncio.gather(
        *(shop.governance.retry(ADA, ticket_id, reason="again") for _ in range(4))
    )
    assert sorted(click.retried for click in clicks) == [(), (), (), (1, 2)]
    assert clicks[0].ticket.status is TicketStatus.IN_PROGRESS

    async with working(shop, DOMAIN):
        await shop.governance.wait(ADA, ticket_id, seen=None, timeout=20)
        third = await shop.governance.retry(OPERATOR, ticket_id)
        assert third.retried == (1, 2)
        await shop.governance.wait(ADA, ticket_id, seen=None, timeout=20)
    last = await shop.governance.retry(ADA, ticket_id)
    assert (last.retried, last.exhausted) == ((), (1, 2))
    page = await shop.governance.page_children(ADA, ticket_id)
    assert [child.attempt_count for child in page.items] == [3, 3, 1]


async def test_a_cancel_ends_what_is_pending(shop: CommandBus) -> None:
    ticket_id = (await shop.governance.submit(ADA, "ORDERS", orders(3))).ticket.ticket_id
    with pytest.raises(InvalidBatchRequestError, match="reason must be"):
        await shop.governance.cancel(ADA, ticket_id, "")
    canceled = await shop.governance.cancel(ADA, ticket_id, "wrong list")
    assert (canceled.status, canceled.canceled_count) == (TicketStatus.CANCELED, 3)
    assert await shop.governance.cancel(OPERATOR, ticket_id, "again") == canceled
    assert (await shop.governance.retry(ADA, ticket_id)).retried == ()


# -- types, and a bus without PostgreSQL


def test_a_batch_type_is_declared_once_and_well_formed() -> None:
    bus = fake_bus()
    bus.governance.declare(ORDERS)
    with pytest.raises(InvalidSettingError, match="ORDERS is declared already"):
        bus.governance.declare(ORDERS)
    good: dict[str, Any] = {"domain": "shop", "command_type": "X", "max_size": 5}
    bus.governance.declare(BatchType(name="A", path="/x", operation="a", **good))
    for operation in ("a", None):
        with pytest.raises(InvalidSettingError, match="share the path /x"):
            bus.governance.declare(BatchType(name="B", path="/x", operation=operation, **good))
    bus.governance.declare(BatchType(name="B", path="/x", operation="b", **good))
    for bad in (
        {"name": "orders"}, {"name": ""}, {"name": "A" * 65}, {"max_size": 0}, {"domain": "A"},
        {"command_type": ""}, {"path": "x"}, {"operation": "a"}, {"max_attempts": 0},
        {"payload_type": int},
    ):  # fmt: skip
        with pytest.raises(InvalidInputError):
            BatchType(**{"name": "C", **good, **bad})


async def test_without_postgresql_types_can_be_declared_and_everything_else_says_so() -> None:
    governance = fake_bus().governance
    governance.declare(ORDERS)
    assert not governance.is_available
    for asked in (
        governance.submit(ADA, "ORDERS", orders(1)),
        governance.page(ADA),
        governance.get(ADA, uuid4()),
        governance.count_request("ada"),
        governance.limits_status(ADMIN),
    ):
        with pytest.raises(InvalidOperationError, match="needs PostgreSQL"):
            await asked


async def test_commands_cannot_join_a_governed_batch(shop: CommandBus) -> None:
    ticket_id: UUID = (await shop.governance.submit(ADA, "ORDERS", orders(1))).ticket.ticket_id
    with pytest.raises(InvalidOperationError, match="is governed"):
        await shop.send(DOMAIN, "PlaceOrder", uuid4(), {"n": 1}, batch_id=ticket_id)
