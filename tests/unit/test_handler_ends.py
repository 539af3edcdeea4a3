"""Whatever a handler does, its command ends with an outcome; on a bus in memory."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, RetryPolicy
from commandbus.errors import InvalidSettingError
from commandbus.models import TroubleshootingItem
from commandbus.testing import fake_bus, run_until_idle

DOMAIN = "shop"


class PanicException(BaseException):
    """As the one of Rust extensions: derived straight from BaseException."""


class Mute(Exception):  # noqa: N818
    """Neither its text nor its attributes can be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    @property
    def code(self) -> str:
        raise RuntimeError("no code")

    message = details = code


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise PanicException("no items")


def with_bad_details() -> BaseException:
    error = ValueError("x")
    error.details = Unreadable(a=1)  # type: ignore[attr-defined]
    return error


ENDS: dict[str, Callable[[], BaseException]] = {
    "GeneratorExit": GeneratorExit,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("both", [GeneratorExit()]),
    "PanicException": lambda: PanicException("panicked"),
    "SystemExit": lambda: SystemExit(3),
    "CancelledError": asyncio.CancelledError,
    "Mute": Mute,
    "ValueError": with_bad_details,
}


@pytest.fixture
def fake() -> CommandBus:
    return fake_bus(retry_policy=RetryPolicy(max_attempts=2))


async def parked(fake: CommandBus, handler: Any, **options: Any) -> TroubleshootingItem:
    """How the command of this handler is parked, all its attempts used."""
    fake.register_handler(DOMAIN, "Work", handler, **options)
    await fake.send(DOMAIN, "Work", uuid4(), {})
    await run_until_idle(fake, DOMAIN, skip_waits=True)
    [item] = await fake.list_troubleshooting(DOMAIN)
    return item


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("kind", ["async", "thread", "transactional"])
async def test_whatever_a_handler_raises_is_a_counted_failure(
    fake: CommandBus, kind: str, name: str
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise ENDS[name]()

    def work_in_thread(command: Command, ctx: HandlerContext) -> None:
        raise ENDS[name]()

    handler = work_in_thread if kind == "thread" else work
    item = await parked(fake, handler, transactional=kind == "transactional")
    assert (item.last_error_code, item.attempts) == (name, 2)
    assert item.last_error_type == "TRANSIENT"


async def test_an_error_that_a_future_brings_is_a_counted_failure_too(fake: CommandBus) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(GeneratorExit())
        await future

    item = await parked(fake, work)
    assert (item.last_error_code, item.attempts) == ("GeneratorExit", 2)


# -- a callable is judged by what it returns


async def debit(command: Command, ctx: HandlerContext) -> str:
    await asyncio.sleep(0)
    return "on the loop" if threading.current_thread() is threading.main_thread() else "elsewhere"


def decorated(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Awaitable[str]:
        return function(*args, **kwargs)

    return wrapper


class Callable1:
    async def __call__(self, command: Command, ctx: HandlerContext) -> str:
        return await debit(command, ctx)


class Callable2:
    def __call__(self, command: Command, ctx: HandlerContext) -> Awaitable[str]:
        return debit(command, ctx)


async def passed_on(command: Command, ctx: HandlerContext) -> Awaitable[str]:
    return debit(command, ctx)


def with_more(extra: int, command: Command, ctx: HandlerContext) -> Awaitable[str]:
    return debit(command, ctx)


RETURNING: dict[str, Any] = {
    "a decorated function": decorated(debit),
    "a lambda": lambda command, ctx: debit(command, ctx),  # noqa: PLW0108
    "a partial": functools.partial(with_more, 1),
    "an object with async __call__": Callable1(),
    "an object whose __call__ returns a coroutine": Callable2(),
    "an async function that returns a coroutine": passed_on,
}
_loops: list[asyncio.AbstractEventLoop] = []


async def _future(coroutine: Any) -> Any:
    return [asyncio.ensure_future(coroutine)]  # in a list: a coroutine awaits what it returns


RETURNING["a future"] = lambda command, ctx: asyncio.run_coroutine_threadsafe(
    _future(debit(command, ctx)), _loops[0]
).result()[0]


@pytest.mark.parametrize("what", RETURNING)
async def test_what_a_handler_returns_is_awaited_on_the_event_loop(
    fake: CommandBus, what: str
) -> None:
    _loops[:] = [asyncio.get_running_loop()]
    fake.register_handler(DOMAIN, "Work", RETURNING[what])
    await fake.send(DOMAIN, "Work", uuid4(), {})
    await run_until_idle(fake, DOMAIN)
    [reply] = [reply async for reply in fake.replies(DOMAIN, wait=False)]
    assert reply.data == "on the loop"


async def test_a_decorated_async_handler_may_be_transactional(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Work", decorated(debit), transactional=True)
    sent = await fake.send(DOMAIN, "Work", uuid4(), {})
    await run_until_idle(fake, DOMAIN)
    found = await fake.get_command(DOMAIN, sent)
    assert found is not None
    assert found.status is CommandStatus.COMPLETED


class Unbound:
    def method(self, command: Command, ctx: HandlerContext) -> None: ...


def generator(command: Command, ctx: HandlerContext) -> Any:
    yield 1


async def async_generator(command: Command, ctx: HandlerContext) -> Any:
    yield 1


@pytest.mark.parametrize(
    "handler",
    [
        lambda: None,
        lambda command: None,
        lambda command, ctx, third: None,
        lambda command, *, ctx: None,
        Unbound.method,
        functools.partial(with_more, 1, ctx=None),  # type: ignore[arg-type]
    ],
)
def test_a_handler_that_cannot_be_called_with_two_arguments_is_refused(
    fake: CommandBus, handler: Any
) -> None:
    with pytest.raises(InvalidSettingError, match=r"must accept .*command, context"):
        fake.register_handler(DOMAIN, "Work", handler)


@pytest.mark.parametrize("handler", [generator, async_generator])
def test_a_generator_is_refused(fake: CommandBus, handler: Any) -> None:
    with pytest.raises(InvalidSettingError, match="generator"):
        fake.register_handler(DOMAIN, "Work", handler)


def third_is_given(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(command: Command, ctx: HandlerContext) -> Any:
        return function(command, ctx, "third")

    return wrapper


@pytest.mark.parametrize(
    "handler",
    [
        print,
        dict.fromkeys,
        Unbound().method,
        lambda *args: None,
        lambda command, ctx, third=3: None,
        third_is_given(lambda command, ctx, third: None),
    ],
)
def test_a_handler_that_can_be_called_with_two_arguments_is_accepted(
    fake: CommandBus, handler: Any
) -> None:
    fake.register_handler(DOMAIN, "Work", handler)
    assert fake.domains == [DOMAIN]
