"""The registry of handlers, and the context that a handler is given."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from commandbus.commands.preparing import Preparer
from commandbus.database.model import Lease
from commandbus.errors import (
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidNameError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
)
from commandbus.handler import HandlerContext
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import Command
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings


async def run_async(command: Command, ctx: HandlerContext) -> None:
    pass


def run_sync(command: Command, ctx: HandlerContext) -> None:
    pass


class AsyncCallable:
    async def __call__(self, command: Command, ctx: HandlerContext) -> None:
        pass


class SyncCallable:
    def __call__(self, command: Command, ctx: HandlerContext) -> None:
        pass


def a_lease(**changes: Any) -> Lease:
    values: dict[str, Any] = {
        "domain": "payments", "command_id": uuid4(), "command_type": "Debit", "msg_id": 7,
        "lease_epoch": 4, "attempt": 2, "max_attempts": 3, "is_suspect": False,
        "correlation_id": uuid4(), "reply_queue": "payments.replies", "batch_id": None,
        "created_at": datetime.now(UTC), "payload": "{}",
    }  # fmt: skip
    return Lease(**(values | changes))


def a_context(conn: Any = None, extended: list[Any] | None = None) -> HandlerContext:
    lease = a_lease()
    command: Command = Command(
        lease.domain, lease.command_type, lease.command_id, {}, lease.correlation_id,
        lease.reply_queue, lease.created_at,
    )  # fmt: skip

    async def extend(held: Lease, seconds: float) -> None:
        if extended is not None:
            extended.append((held, seconds))

    prepare = Preparer(Settings(), RetryPolicy()).command
    return HandlerContext(command, lease, extend, prepare, conn)


def test_a_registered_handler_is_found_by_domain_and_type() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async)
    registry.register("payments", "Credit", run_sync)
    registry.register("orders", "Debit", run_sync)
    assert registry.get("payments", "Debit").handler is run_async
    assert registry.get("orders", "Debit").handler is run_sync
    assert registry.domains() == ["orders", "payments"]
    assert {entry.command_type for entry in registry.of_domain("payments")} == {"Debit", "Credit"}


def test_a_handler_may_be_looked_for_without_an_error() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async)
    assert registry.find("payments", "Debit") is registry.get("payments", "Debit")
    assert registry.find("payments", "Credit") is None


def test_an_unknown_handler_is_an_error_that_says_what_to_do() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async)
    for key in (("payments", "debit"), ("orders", "Debit")):
        with pytest.raises(HandlerNotFoundError, match="register one and retry the command"):
            registry.get(*key)


def test_a_second_handler_for_a_type_is_refused_and_the_first_stays() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async)
    with pytest.raises(HandlerAlreadyRegisteredError, match=r"payments/Debit already .*run_async"):
        registry.register("payments", "Debit", run_sync)
    assert registry.get("payments", "Debit").handler is run_async


@pytest.mark.parametrize(
    ("domain", "command_type"),
    [("Payments", "Debit"), ("payments", ""), ("", "Debit"), (None, "D")],
)
def test_a_handler_is_refused_under_a_badly_formed_name(domain: Any, command_type: Any) -> None:
    registry = HandlerRegistry()
    with pytest.raises(InvalidNameError):
        registry.register(domain, command_type, run_async)
    assert registry.domains() == []


@pytest.mark.parametrize("handler", [None, "name", 5])
def test_a_handler_is_refused_when_it_cannot_be_called(handler: Any) -> None:
    with pytest.raises(InvalidSettingError, match="payments/Debit is not callable"):
        HandlerRegistry().register("payments", "Debit", handler)


@pytest.mark.parametrize("policy", [3, {"max_attempts": 3}, RetryPolicy])
def test_a_handler_is_refused_with_something_else_than_a_policy(policy: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"use RetryPolicy\("):
        HandlerRegistry().register("payments", "Debit", run_async, retry_policy=policy)


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (run_async, True),
        (run_sync, False),
        (AsyncCallable(), True),
        (SyncCallable(), False),
        (functools.partial(run_async), True),
        (functools.partial(run_sync), False),
    ],
)
def test_a_handler_is_known_as_asynchronous_in_every_form(handler: Any, is_async: bool) -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", handler)
    assert registry.get("payments", "Debit").is_async is is_async


def test_a_transactional_handler_of_a_thread_commits_there() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async, transactional=True)
    registry.register("payments", "Credit", run_sync, transactional=True)
    in_pool, in_thread = (registry.get("payments", name) for name in ("Debit", "Credit"))
    assert (in_pool.is_transactional, in_pool.commits_in_thread) == (True, False)
    assert (in_thread.is_transactional, in_thread.commits_in_thread) == (True, True)
    assert in_pool.needs_pool
    assert not in_thread.needs_pool


def test_a_wrapped_async_handler_has_an_async_transaction() -> None:
    @functools.wraps(run_async)
    def wrapper(command: Command, ctx: HandlerContext) -> Any:
        return run_async(command, ctx)

    registry = HandlerRegistry()
    registry.register("payments", "Debit", wrapper, transactional=True)
    assert not registry.get("payments", "Debit").commits_in_thread


@pytest.mark.parametrize(
    ("provider", "advice"), [("yes", "use True, or a provider"), (1, "use True, or a provider")]
)
def test_a_provider_that_is_none_is_refused(provider: Any, advice: str) -> None:
    with pytest.raises(InvalidSettingError, match=advice):
        HandlerRegistry().register("payments", "Debit", run_sync, transactional=provider)


def test_a_factory_of_sessions_is_refused_because_their_end_commits_nothing() -> None:
    class Factory:
        kw: ClassVar[dict[str, Any]] = {}

        def begin(self) -> None: ...

        def __call__(self) -> Any: ...

    with pytest.raises(InvalidSettingError, match=r"use SqlAlchemy\(factory\)"):
        HandlerRegistry().register("payments", "Debit", run_sync, transactional=Factory())


def test_only_a_policy_of_the_handler_itself_limits_its_attempts() -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", run_async, retry_policy=RetryPolicy(max_attempts=7))
    registry.register("payments", "Credit", run_async)
    registry.register("orders", "Ship", run_async, retry_policy=RetryPolicy(max_attempts=2))
    assert registry.limits("payments") == {"Debit": 7}


def test_a_handler_without_a_policy_counts_lapses_as_the_bus_does() -> None:
    registry, every = HandlerRegistry(), RetryPolicy(count_lapses="every")
    registry.register("payments", "Debit", run_async, retry_policy=every)
    registry.register("payments", "Refund", run_async, retry_policy=RetryPolicy())
    registry.register("payments", "Credit", run_async)
    registry.register("orders", "Ship", run_async, retry_policy=every)
    assert registry.count_every("payments", RetryPolicy()) == ["Debit"]
    assert registry.count_every("payments", every) == ["Debit", "Credit"]


def test_a_context_shows_the_lease() -> None:
    ctx = a_context()
    assert (ctx.attempt, ctx.max_attempts, ctx.msg_id, ctx.lease_epoch) == (2, 3, 7, 4)
    assert ctx.correlation_id == ctx.lease.correlation_id


def test_a_context_without_a_transaction_refuses_its_connection() -> None:
    with pytest.raises(InvalidOperationError, match="transactional=True"):
        _ = a_context().conn
    marker = object()
    assert a_context(conn=marker).conn is marker


@pytest.mark.parametrize("seconds", [1, 90, 43_200])
async def test_a_context_extends_its_own_lease(seconds: float) -> None:
    extended: list[Any] = []
    ctx = a_context(extended=extended)
    await ctx.extend_visibility(seconds)
    assert extended == [(ctx.lease, seconds)]


@pytest.mark.parametrize("seconds", [0, -1, 43_201, float("nan"), float("inf")])
async def test_a_context_refuses_an_absurd_extension(seconds: float) -> None:
    extended: list[Any] = []
    with pytest.raises(InvalidSettingError, match="1 to 43,200"):
        await a_context(extended=extended).extend_visibility(seconds)
    assert extended == []


def test_a_context_collects_what_it_sends_and_passes_the_correlation_on() -> None:
    ctx = a_context()
    first, second, other = uuid4(), uuid4(), uuid4()
    assert ctx.send("orders", "Ship", first, {"n": 1}) == first
    ctx.send("payments", "Credit", second, {}, None, other)
    assert [domain for domain, _, _ in ctx.sends] == ["orders", "payments"]
    commands = [command for _, command, _ in ctx.sends]
    assert [c.command_id for c in commands] == [first, second]
    assert [c.correlation_id for c in commands] == [ctx.correlation_id, other]
    assert commands[0].data == b'{"n":1}'


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("Orders", "Ship", UUID(int=1), {}), InvalidNameError),
        (("orders", "Ship", UUID(int=1), {"a": {1}}), InvalidPayloadError),
    ],
)
def test_a_context_refuses_to_send_what_is_not_well_formed(
    arguments: Any, error: type[Exception]
) -> None:
    ctx = a_context()
    with pytest.raises(error):
        ctx.send(*arguments)
    assert ctx.sends == ()
