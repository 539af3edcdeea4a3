"""Resources: what handlers are given by type, opened and closed in the right order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    HandlerContext,
    Handlers,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.handlers import Use
from commandbus.testing import fake_bus, run_until_idle


class Log(list[str]):
    """What happened, in order."""


@dataclass
class Config:
    url: str


class Bank:
    def __init__(self, url: str) -> None:
        self.url = url


class Session:
    pass


class Missing:
    pass


async def statuses(bus: CommandBus, *types: str) -> list[str]:
    ids = [await bus.send("payments", each, uuid4(), {}) for each in types]
    await run_until_idle(bus, skip_waits=True)
    found = [await bus.get_command("payments", each) for each in ids]
    return [str(each.status) for each in found if each is not None]


def app(log: Log) -> Handlers:
    """Resources of both scopes and of all four forms."""
    handlers = Handlers("payments")

    @handlers.resource
    def config() -> Config:
        log.append("config")
        return Config("bank.example")

    @handlers.resource
    async def bank(config: Config) -> AsyncIterator[Bank]:
        log.append("bank opened")
        yield Bank(config.url)
        log.append("bank closed")

    @handlers.resource(scope="command")
    def session(bank: Bank, ctx: HandlerContext) -> Iterator[Session]:
        log.append(f"session of {ctx.command.command_type}")
        try:
            yield Session()
        except LookupError:
            log.append("session saw the failure")
        log.append("session closed")

    @handlers.resource(scope="command")
    async def number(session: Session) -> int:
        return 7

    return handlers


async def test_resources_live_as_long_as_their_scope() -> None:
    log = Log()
    handlers = app(log)

    @handlers.handle("DebitAccount")
    async def debit(
        command: Command, ctx: HandlerContext, bank: Bank, session: Session, *, number: int
    ) -> None:
        log.append(f"handled at {bank.url} with {number}")

    @handlers.handle("CreditAccount")
    def credit(command: Command, ctx: HandlerContext, bank: Bank) -> None:
        log.append(f"handled in a thread at {bank.url}")

    bus = fake_bus(handlers)
    assert await statuses(bus, "DebitAccount") == ["COMPLETED"]
    assert log == [
        "config", "bank opened", "session of DebitAccount", "handled at bank.example with 7",
        "session closed", "bank closed",
    ]  # fmt: skip
    log.clear()
    assert await statuses(bus, "CreditAccount") == ["COMPLETED"]
    assert log == ["config", "bank opened", "handled in a thread at bank.example", "bank closed"]


async def test_a_worker_opens_only_what_its_handlers_need() -> None:
    log = Log()
    handlers = app(log)

    @handlers.handle("DebitAccount")
    async def debit(command: Command, ctx: HandlerContext) -> None: ...

    assert await statuses(fake_bus(handlers), "DebitAccount") == ["COMPLETED"]
    assert log == []


async def test_a_failure_stays_one_although_a_resource_caught_it() -> None:
    log = Log()
    handlers = app(log)

    @handlers.handle("DebitAccount")
    async def debit(command: Command, ctx: HandlerContext, session: Session) -> None:
        raise LookupError("no such account")

    bus = fake_bus(handlers)
    assert await statuses(bus, "DebitAccount") == ["IN_TROUBLESHOOTING_QUEUE"]
    assert "session saw the failure" in log
    assert log[-1] == "bank closed"


async def test_a_resource_of_a_command_that_cannot_be_opened_is_the_failure_of_its_handler() -> (
    None
):
    handlers = Handlers("payments")

    @handlers.resource(scope="command")
    async def session() -> Session:
        raise ConnectionError("no session")

    @handlers.handle("DebitAccount")
    async def debit(command: Command, ctx: HandlerContext, session: Session) -> None: ...

    bus = fake_bus(handlers)
    assert await statuses(bus, "DebitAccount") == ["IN_TROUBLESHOOTING_QUEUE"]
    (item,) = await bus.list_troubleshooting("payments")
    assert (item.last_error_code, item.attempts) == ("ConnectionError", 3)


async def test_a_worker_ends_and_closes_the_rest_if_a_resource_of_it_cannot_be_opened() -> None:
    log = Log()
    handlers = app(log)

    @handlers.resource
    async def broken(bank: Bank) -> Missing:
        raise ConnectionError("not there")

    @handlers.handle("DebitAccount")
    async def debit(command: Command, ctx: HandlerContext, missing: Missing) -> None: ...

    with pytest.raises(ConnectionError, match="not there"):
        await fake_bus(handlers).run_worker("payments")
    assert log == ["config", "bank opened", "bank closed"]


async def test_a_resource_that_is_a_plain_generator_is_closed_with_the_worker() -> None:
    handlers, log = needing(Handlers("payments"), Config), Log()

    @handlers.resource
    def config() -> Iterator[Config]:
        yield Config("x")
        log.append("closed")

    assert await statuses(fake_bus(handlers), "DebitAccount") == ["COMPLETED"]
    assert log == ["closed"]


async def test_a_plain_generator_resource_that_yields_twice_is_an_error_and_is_closed() -> None:
    handlers, log = needing(Handlers("payments"), Config), Log()

    @handlers.resource
    def config() -> Iterator[Config]:
        try:
            yield Config("x")
            yield Config("y")
        finally:
            log.append("closed")

    with pytest.raises(InvalidOperationError, match="yields more than once"):
        await statuses(fake_bus(handlers), "DebitAccount")
    assert log == ["closed"]


async def test_a_resource_that_yields_twice_is_an_error() -> None:
    handlers = needing(Handlers("payments"), Config)

    @handlers.resource
    async def config() -> AsyncIterator[Config]:
        yield Config("x")
        yield Config("y")

    with pytest.raises(InvalidOperationError, match="yields more than once"):
        await fake_bus(handlers).run_worker("payments", until_empty=True)


async def test_use_says_which_of_two_resources_of_a_type_is_meant() -> None:
    handlers = Handlers("payments")
    seen: list[str] = []

    @handlers.resource
    def first() -> Config:
        return Config("first")

    @handlers.resource
    def second() -> Config:
        return Config("second")

    @handlers.handle("DebitAccount")
    async def debit(
        command: Command,
        ctx: HandlerContext,
        one: Annotated[Config, Use(first)],
        two: Annotated[Config, Use(second)],
        other: int = 5,
    ) -> None:
        seen.extend([one.url, two.url, str(other)])

    assert await statuses(fake_bus(handlers), "DebitAccount") == ["COMPLETED"]
    assert seen == ["first", "second", "5"]


async def test_a_gathering_brings_the_resources_of_its_modules_and_its_own() -> None:
    inner, seen = Handlers("payments"), []

    @inner.handle("DebitAccount")
    async def debit(command: Command, ctx: HandlerContext, config: Config) -> None:
        seen.append(config.url)

    outer = Handlers()
    outer.include(inner)

    @outer.resource
    def config() -> Config:
        return Config("from outside")

    bus = fake_bus(outer)
    bus.include(Handlers())
    assert await statuses(bus, "DebitAccount") == ["COMPLETED"]
    assert seen == ["from outside"]


def refused(handlers: Handlers) -> str:
    """What a worker says of what its handlers need."""
    with pytest.raises(InvalidSettingError) as caught:
        fake_bus(handlers)._registry.resources_for("payments")
    return str(caught.value)


def needing(handlers: Handlers, kind: Any, *, is_async: bool = True) -> Handlers:
    async def debit(command: Command, ctx: HandlerContext, needed: Any) -> None: ...

    def in_thread(command: Command, ctx: HandlerContext, needed: Any) -> None: ...

    function = debit if is_async else in_thread
    function.__annotations__["needed"] = kind
    handlers.handle("DebitAccount")(function)
    return handlers


async def test_a_worker_refuses_to_start_without_what_its_handlers_need() -> None:
    handlers = needing(app(Log()), Missing)

    with pytest.raises(InvalidSettingError, match="there is no resource for Missing"):
        await fake_bus(handlers).run_worker("payments")
    assert refused(handlers).startswith(
        "payments/DebitAccount -> needed: Missing: there is no resource for Missing; write a "
        "function that returns it and mark it with @handlers.resource. There are: Bank, Config, "
    )


def test_a_missing_resource_is_told_with_the_chain() -> None:
    handlers = needing(Handlers("payments"), Bank)

    @handlers.resource
    def bank(session: Session) -> Bank:
        raise NotImplementedError

    text = refused(handlers)
    assert text.startswith("payments/DebitAccount -> needed: Bank -> ")
    assert "-> session: Session: there is no resource for Session" in text


def test_resources_that_need_each_other_are_told_with_the_chain() -> None:
    handlers = needing(Handlers("payments"), Bank)

    @handlers.resource
    def bank(config: Config) -> Bank:
        raise NotImplementedError

    @handlers.resource
    def config(bank: Bank) -> Config:
        raise NotImplementedError

    text = refused(handlers)
    assert "needed: Bank -> " in text
    assert "config: Config -> " in text
    assert "this resource needs itself" in text


def test_two_resources_of_a_type_are_told_with_the_remedy() -> None:
    handlers = needing(app(Log()), Config)

    @handlers.resource
    def other() -> Config:
        raise NotImplementedError

    text = refused(handlers)
    assert "make the same type; say which one with Annotated[…, Use(…)]" in text


def test_what_lives_longer_cannot_use_what_ends_with_a_command() -> None:
    handlers = needing(app(Log()), Missing)

    @handlers.resource
    def late(session: Session) -> Missing:
        raise NotImplementedError

    assert "lives as long as the worker and cannot use" in refused(handlers)


def test_a_handler_in_a_thread_cannot_have_a_resource_of_a_command() -> None:
    assert "which only `async def` handlers can have" in refused(
        needing(app(Log()), Session, is_async=False)
    )


def test_a_resource_that_is_used_and_not_marked_is_missing() -> None:
    def forgotten() -> Config:
        raise NotImplementedError

    handlers = needing(Handlers("payments"), Annotated[Config, Use(forgotten)])
    assert "there is no resource for Config" in refused(handlers)


def without_type(): ...


def of_context(ctx: HandlerContext) -> Config: ...  # type: ignore[empty-body]


def of_anything(config: Any, /) -> Bank: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("factory", "scope", "text"),
    [
        (without_type, "worker", "does not say what it makes"),
        (of_context, "worker", 'write @handlers.resource(scope="command")'),
        (of_anything, "worker", "the parameter config of the resource"),
        (of_context, "app", "use worker or command"),
        (Config, "worker", "a resource is a function or a generator"),
    ],
)
def test_what_is_no_resource_is_refused_where_it_is_written(
    factory: Any, scope: Any, text: str
) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        Handlers("payments").resource(scope=scope)(factory)
    assert text in str(caught.value)


def test_use_takes_a_function() -> None:
    wrong: Any = "bank"
    with pytest.raises(InvalidSettingError, match="Use takes the function of a resource"):
        fake_bus(needing(Handlers("payments"), Annotated[Config, Use(wrong)]))
