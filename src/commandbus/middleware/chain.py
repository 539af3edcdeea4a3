"""Layers: the middleware of one handler, put together once; and those around one send."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

from commandbus.errors import HandlerError, InvalidOperationError, InvalidSettingError
from commandbus.middleware.base import (
    Call,
    CallOutcome,
    Drafts,
    Middleware,
    OwnCall,
    QuietCall,
    Surrounding,
    enter_all,
    leave_all,
)

_log = logging.getLogger("commandbus.worker")

_Async = Callable[[Call], Awaitable[Any]]
_InThread = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """The middleware around one handler. What none of them overrides is None."""

    handle: _Async | None
    in_thread: _InThread | None
    observers: tuple[Middleware, ...]
    #: Of a handler with no others on the loop: the worker calls them, and then the handler itself.
    surrounding: tuple[Surrounding, ...] = ()
    #: What an attempt is to all of them.
    call_type: type[Call] = Call

    def moved_into(self, handler: Callable[..., Any]) -> tuple[Callable[..., Any], Layers | None]:
        """The handler with the layers of its thread in it, and the layers that are left.

        For a handler whose thread begins and commits a transaction: they are inside it.
        """
        in_thread = self.in_thread
        if in_thread is None:
            return handler, self

        @functools.wraps(handler)
        def inside(command: Any, ctx: Any) -> Any:
            call = ctx.call
            return handler(command, ctx) if call is None else in_thread(call)

        return inside, replace(self, in_thread=None)

    def tell(self, call: Call, outcome: CallOutcome) -> None:
        """Tell everybody who wants to know how the attempt ends."""
        for each in self.observers:
            try:
                each.on_outcome(call, outcome, call.error)
            except Exception as error:  # noqa: BLE001  (it must not change what was decided)
                _log.warning(
                    "%s: on_outcome of the middleware %s failed, which changes nothing: %s",
                    call.command.command_id, type(each).__name__, call.redact(repr(error)),
                )  # fmt: skip


def check_middleware(middleware: object, what: str) -> tuple[Middleware, ...]:
    """A list of middleware as a tuple, or raise InvalidSettingError."""
    if isinstance(middleware, Middleware) or not isinstance(middleware, Iterable):
        raise InvalidSettingError(f"middleware of {what} must be a list, like [MyMiddleware()]")
    found = tuple(middleware)
    for each in found:
        if not isinstance(each, Middleware):
            hint = ""
            if isinstance(each, type) and issubclass(each, Middleware):
                hint = f"; it is a class, use {each.__name__}()"
            raise InvalidSettingError(
                f"middleware of {what} has {each!r} in it, which is no Middleware{hint}"
            )
        _check_kinds(each)
    return found


def _check_kinds(each: Middleware) -> None:
    name = type(each).__name__
    if not inspect.iscoroutinefunction(each.handle):
        raise InvalidSettingError(f"{name}.handle must be `async def`")
    for method in (each.handle_in_thread, each.sending, each.on_outcome):
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise InvalidSettingError(f"{name}.{method.__name__} must be `def`, not `async def`")


def overrides(each: Middleware, method: str) -> bool:
    """Whether a middleware has a method of its own."""
    return method in vars(each) or getattr(type(each), method) is not getattr(Middleware, method)


def layers_of(
    middleware: Sequence[Middleware],
    handler: Callable[..., Any],
    *,
    is_async: bool,
    is_transactional: bool = False,
) -> Layers | None:
    """Put the middleware of a handler together, the first outermost; None: there is nothing to do.

    Each layer is one frame, its own: `partial` and a function that returns a coroutine add none.
    """
    around = [each for each in middleware if overrides(each, "handle")]
    inside = [each for each in middleware if overrides(each, "handle_in_thread") and not is_async]
    observers = tuple(each for each in middleware if overrides(each, "on_outcome"))
    if not (around or inside or observers):
        return None
    handle: _Async | None = None
    surrounding: tuple[Surrounding, ...] = ()
    for together, group in groupby(reversed(around), key=_is_surrounding):
        inner = _innermost if handle is None else handle
        if together:
            surrounding = tuple(cast("Iterable[Surrounding]", group))[::-1]
            handle = partial(_surrounded, surrounding, inner)
        else:
            for each in group:
                handle = inner = _around(each.handle, inner)
    if len(surrounding) == len(around):
        handle = None
    else:
        surrounding = ()
    in_thread: _InThread | None = None
    for each in reversed(inside):
        within = partial(_in_thread, handler) if in_thread is None else in_thread
        in_thread = _around(each.handle_in_thread, within)
    call_type = Call
    if handle is None and all(isinstance(each, Surrounding) for each in observers):
        # What ends the transaction of a handler runs in the task of the handler, after it.
        call_type = QuietCall if is_transactional else OwnCall
    return Layers(handle, in_thread, observers, surrounding, call_type)


def _is_surrounding(each: Middleware) -> bool:
    return "handle" not in vars(each) and type(each).handle is Surrounding.handle


async def _surrounded(around: tuple[Surrounding, ...], inner: _Async, call: Call) -> Any:
    entered = enter_all(around, call)
    try:
        return await inner(call)
    finally:
        if entered is not None:
            leave_all(call, entered)


def _around(method: Callable[[Call, Any], Any], inner: Callable[[Call], Any]) -> _InThread:
    return lambda call: method(call, partial(inner, call))


async def _innermost(call: Call) -> Any:
    if call.has_proceeded or call.run_handler is None:
        raise InvalidOperationError(
            "a middleware called proceed() a second time; a command is tried again by its retry "
            "policy, not within one attempt"
        )
    call.has_proceeded = True
    result = await call.run_handler()
    if isinstance(result, HandlerError):
        raise result  # the same as if it had been raised: all middleware see one form of it
    return result


def _in_thread(handler: Callable[..., Any], call: Call) -> Any:
    return handler(call.command, call.ctx)


@contextmanager
def sending(middleware: Iterable[Middleware], drafts: Drafts) -> Iterator[None]:
    """Around one send, the first outermost. None of them can hide that a send has failed."""
    failed: BaseException | None = None
    with ExitStack() as stack:
        for each in middleware:
            stack.enter_context(each.sending(drafts))
        try:
            yield
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed
