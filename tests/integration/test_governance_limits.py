"""Limits as users and administrators meet them, exact under concurrency."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.access.model import Caller
from commandbus.errors import (
    BatchSizeExceededError,
    InvalidInputError,
    PermissionDeniedError,
    RateLimitExceededError,
)
from commandbus.governance.model import LimitType, Submission, TicketStatus, UserLimits
from tests.integration.governed import (
    ADA,
    ADMIN,
    BOB,
    DOMAIN,
    caller,
    governed_bus,
    orders,
    place_orders,
)
from tests.waiting import working


async def attempt(bus: CommandBus, who: Caller, **more: Any) -> Submission | RateLimitExceededError:
    try:
        return await bus.governance.submit(who, "ORDERS", orders(2), **more)
    except RateLimitExceededError as error:
        return error


async def rows(conn: psycopg.AsyncConnection[Any], query: str) -> list[Any]:
    return await (await conn.execute(query.encode())).fetchall()


async def test_fifty_submissions_of_one_user_at_once_leave_exactly_three_pending(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with governed_bus(dsn) as bus:
        found = await asyncio.gather(*(attempt(bus, ADA) for _ in range(50)))
        refused = [each for each in found if isinstance(each, RateLimitExceededError)]
        assert len(refused) == 47
        assert {(e.limit_type, e.scope, e.current_value, e.max_value) for e in refused} == {
            ("user_pending_batches", "user", 3, 3)
        }
        assert all(e.contact_admin and e.retry_after >= 1 for e in refused)
        states = {s.limit_type: s.current_value for s in await bus.governance.limit_states("ada")}
        assert states[LimitType.USER_PENDING_BATCHES] == 3
        assert states[LimitType.USER_PENDING_CHILDREN] == 6
    assert await rows(
        conn, "select count(*), sum(total_count) from commandbus.command_bus_batch"
    ) == [(3, 6)]
    assert await rows(conn, "select count(*) from commandbus.command_bus_command") == [(6,)]


async def test_two_hundred_users_at_once_fill_the_global_limit_exactly(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    # Two processes share a database: the limit is the database's, not a bus's.
    limits = {"max_global_pending_batches": 40, "connect_timeout_seconds": 30.0}
    async with governed_bus(dsn, **limits) as one, governed_bus(dsn, **limits) as two:
        found = await asyncio.gather(
            *(attempt((one, two)[n % 2], caller(f"user{n}")) for n in range(200))
        )
    kinds = Counter(
        "made" if isinstance(each, Submission) else str(each.limit_type) for each in found
    )
    assert kinds == {"made": 40, "global_pending_batches": 160}
    assert await rows(
        conn, "select count(*) from commandbus.command_bus_batch where is_pending"
    ) == [(40,)]


async def test_a_repeat_while_throttled_returns_the_original_and_charges_nothing(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with governed_bus(dsn, user_cooldown_seconds=120, max_user_pending_batches=1) as bus:
        key = uuid4()
        made = await attempt(bus, ADA, request_id=key)
        assert isinstance(made, Submission)
        before = await rows(conn, "select * from commandbus.rate_limit_counter")
        other = await attempt(bus, ADA)
        assert isinstance(other, RateLimitExceededError)
        again = await attempt(bus, ADA, request_id=key)
        assert isinstance(again, Submission)
        assert (again.is_replay, again.ticket) == (True, made.ticket)
        assert await rows(conn, "select * from commandbus.rate_limit_counter") == before


async def test_a_cooldown_binds_one_user_and_what_was_refused_does_not_begin_it(dsn: str) -> None:
    async with governed_bus(dsn, user_cooldown_seconds=120) as bus:
        with pytest.raises(BatchSizeExceededError):
            await bus.governance.submit(ADA, "ORDERS", orders(31))
        assert isinstance(await attempt(bus, ADA), Submission)
        refused = await attempt(bus, ADA)
        assert isinstance(refused, RateLimitExceededError)
        assert refused.limit_type == "user_cooldown"
        assert 110 <= refused.retry_after <= refused.max_value == 120
        assert isinstance(await attempt(bus, BOB), Submission)


async def test_a_pending_approval_holds_the_limit_and_an_ended_batch_does_not(dsn: str) -> None:
    async with governed_bus(dsn, max_user_pending_batches=1) as bus:
        ticket = (await bus.governance.submit(ADA, "GUARDED", orders(1))).ticket
        assert isinstance(await attempt(bus, ADA), RateLimitExceededError)
        await bus.governance.cancel(ADA, ticket.ticket_id, "x")
        assert isinstance(await attempt(bus, ADA), Submission)


async def test_requests_are_counted_for_all_users_and_refused_ones_too(dsn: str) -> None:
    async with governed_bus(dsn, max_global_api_requests=5) as bus:
        found = await asyncio.gather(
            *(bus.governance.count_request(f"user{n % 3}") for n in range(9)),
            return_exceptions=True,
        )
        refused = [each for each in found if isinstance(each, RateLimitExceededError)]
        states = {s.limit_type: s for s in await bus.governance.limit_states("ada")}
        counted = states[LimitType.GLOBAL_API_REQUESTS].current_value
        # Unless a minute ended meanwhile, when counting begins anew.
        if counted == 9:
            assert sorted(error.current_value for error in refused) == [6, 7, 8, 9]
            assert all(1 <= error.retry_after <= 60 for error in refused)
            assert not any(error.contact_admin for error in refused)


async def test_administrators_exempt_users_and_give_them_limits_of_their_own(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with governed_bus(dsn, max_user_pending_batches=1) as bus:
        verbs = bus.governance
        assert isinstance(await attempt(bus, ADA), Submission)
        later = datetime.now(UTC) + timedelta(hours=1)
        exempted = await verbs.exempt(ADMIN, "ada", "release, password=x1y2z3", expires_at=later)
        assert exempted.reason == "release, password=[REDACTED]"
        assert isinstance(await attempt(bus, ADA), Submission)
        own = await verbs.set_user_limits(ADMIN, UserLimits("bob", max_pending_batches=2))
        assert (own.max_pending_batches, own.updated_by) == (2, "root")
        await attempt(bus, BOB)
        assert isinstance(await attempt(bus, BOB), Submission)

        status = await verbs.limits_status(ADMIN)
        assert status.exemptions == (exempted,)
        assert status.overrides == (own,)
        assert {s.limit_type.value: s.current_value for s in status.limits} == {
            "global_api_requests": 0, "global_pending_batches": 4,
        }  # fmt: skip
        assert [user for user, _ in status.users] == ["ada", "bob"]
        assert [(s.current_value, s.max_value) for _, states in status.users for s in states] == [
            (2, None), (0, None), (4, None), (2, 2), (0, 0), (4, 30),
        ]  # fmt: skip
        assert status.defaults["user_pending_batches"] == 1

        assert await verbs.unexempt(ADMIN, "ada")
        assert not await verbs.unexempt(ADMIN, "ada")
        assert isinstance(await attempt(bus, ADA), RateLimitExceededError)
        assert await verbs.set_user_limits(ADMIN, UserLimits("bob")) == UserLimits("bob")
        assert (await verbs.limits_status(ADMIN)).overrides == ()
    events = await rows(
        conn,
        "select event_type, actor, details_json ->> 'user_id' from commandbus.command_bus_audit"
        " where domain = '*' order by audit_id",
    )
    assert events == [
        ("LIMIT_EXEMPTED", "root", "ada"),
        ("LIMITS_CHANGED", "root", "bob"),
        ("LIMIT_EXEMPTION_ENDED", "root", "ada"),
        ("LIMITS_CHANGED", "root", "bob"),
    ]


async def test_only_administrators_change_limits_and_not_to_nonsense(dsn: str) -> None:
    async with governed_bus(dsn) as bus:
        verbs = bus.governance
        for call in (
            verbs.exempt(ADA, "ada", "please"),
            verbs.unexempt(ADA, "ada"),
            verbs.set_user_limits(ADA, UserLimits("ada", max_pending_batches=99)),
            verbs.limits_status(ADA),
        ):
            with pytest.raises(PermissionDeniedError, match="admin"):
                await call
        now = datetime.now(UTC)
        for nonsense in (
            verbs.exempt(ADMIN, "", "x"),
            verbs.exempt(ADMIN, "ada", ""),
            verbs.exempt(ADMIN, "ada", "x", expires_at=now - timedelta(seconds=1)),
            verbs.exempt(ADMIN, "ada", "x", expires_at=now.replace(tzinfo=None)),
            verbs.set_user_limits(ADMIN, UserLimits("ada", max_pending_batches=-1)),
            verbs.set_user_limits(ADMIN, UserLimits("ada", cooldown_seconds=10**9)),
        ):
            with pytest.raises(InvalidInputError):
                await nonsense


async def test_a_batch_in_troubleshooting_does_not_hold_the_limit(dsn: str) -> None:
    async with governed_bus(dsn, max_user_pending_batches=1) as bus:
        place_orders(bus, {1})
        made = await bus.governance.submit(ADA, "ORDERS", orders(1))
        async with working(bus, DOMAIN):
            ended = await bus.governance.wait(ADA, made.ticket.ticket_id, seen=None, timeout=20)
        assert (ended.status, ended.completed_at) == (TicketStatus.FAILED, None)
        assert isinstance(await attempt(bus, ADA), Submission)
