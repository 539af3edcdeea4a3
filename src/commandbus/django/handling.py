"""Handlers inside a test: with all that a worker has around them, on the connection of the test.

What is asynchronous (middleware, resources, `async def` handlers) runs on one event loop for the
whole of a drain. What asks the database, and `def` handlers, run in the thread of the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from asgiref.sync import sync_to_async
from django.db import connections

from commandbus.handler import HandlerContext, HandlerEntry
from commandbus.handlers.registry import HandlerRegistry
from commandbus.handlers.resources import Graph
from commandbus.handlers.scopes import OpenResources
from commandbus.middleware.base import Call, CallOutcome, enter_all, leave_all
from commandbus.privacy.redaction import redact_text
from commandbus.wiring import finish
from commandbus.worker.outcomes import secrets_of

#: Runs a function in the thread of the test.
InTest = Callable[..., Awaitable[Any]]


async def in_thread_of_test(function: Callable[..., Any], *arguments: Any) -> Any:
    """From the event loop, which is in another thread meanwhile."""
    return await sync_to_async(_plain, thread_sensitive=True)(function, *arguments)


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Where there is no loop of ours, because the thread of the test has one that runs already."""
    return function(*arguments)


def _plain(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as stop:
        # A coroutine cannot raise it. Those who handle commands in threads do the same.
        raise RuntimeError("the handler raised StopIteration") from stop


class Attempt:
    """What a context asks of the run that it belongs to."""

    must_stop = False
    is_canceled = False
    call: Call | None = None

    def say(self, fraction: float, message: str | None) -> None:
        """Progress is for those who look on."""

    def wait_for(self, begin: Any) -> None:
        """What a handler in a thread asks the event loop for: here it happens at once."""
        finish(begin())

    def tell(self, outcome: CallOutcome) -> None:
        """Tell the middleware how it ended."""
        call, self.call = self.call, None
        if call is not None and call.entry.layers is not None:
            call.entry.layers.tell(call, outcome)


class Handling:
    """Middleware, resources and hooks of threads around the handlers of one drain."""

    def __init__(self, registry: HandlerRegistry, in_test: InTest) -> None:
        self._registry = registry
        self._in_test = in_test
        self._stack = AsyncExitStack()
        #: By domain: each has a worker of its own, with resources of its own.
        self._resources: dict[str, OpenResources] = {}
        self._is_begun = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The last handler has ended."""
        async with self._stack:
            if self._is_begun:
                await self._in_test(self._end_thread)

    def _end_thread(self) -> None:
        with _other_connections():
            self._registry.thread_hooks.ended()

    async def run(self, entry: HandlerEntry, context: HandlerContext, attempt: Attempt) -> Any:
        """Call a handler with what is around it."""
        if entry.needs:
            context._resources = await self._opened(entry)
        layers = entry.layers
        inner = partial(self._call, entry, context)
        if layers is None:
            return await inner()

        def redact(text: str) -> str:
            return redact_text(text, secrets=secrets_of(context.lease, entry))

        is_around = layers.handle is not None
        attempt.call = call = Call(
            context.command, context, entry, inner if is_around else None, redact
        )
        try:
            if layers.handle is not None:
                return await layers.handle(call)
            entered = enter_all(layers.surrounding, call)
            try:
                return await inner()
            finally:
                if entered is not None:
                    leave_all(call, entered)
        except BaseException as error:
            call.error = error
            raise

    async def _call(self, entry: HandlerEntry, context: HandlerContext) -> Any:
        if entry.is_async:
            result = await entry.handler(context.command, context)
        else:
            if not self._is_begun:
                self._is_begun = True
                await self._in_test(self._registry.thread_hooks.started)
            in_thread = None if entry.layers is None else entry.layers.in_thread
            if in_thread is None:
                result = await self._in_test(entry.handler, context.command, context)
            else:
                result = await self._in_test(in_thread, context.call)
        # A plain callable may return a coroutine: the wrapper of a decorator, a lambda.
        while result is not None and inspect.isawaitable(result):
            result = await result
        return result

    async def _opened(self, entry: HandlerEntry) -> OpenResources:
        """With the first handler that needs some: a domain without any asks for nothing."""
        found = self._resources.get(entry.domain)
        if found is None:
            graph = self._registry.resources_for(entry.domain) or Graph(())
            found = OpenResources(graph)
            await found.open(self._stack)
            self._resources[entry.domain] = found
        return found


@contextmanager
def _other_connections() -> Iterator[None]:
    """Where a thread ends, its connections are closed; those of the test are to stay."""
    own = connections.all(initialized_only=True)
    for wrapper in own:
        connections[wrapper.alias] = connections.create_connection(wrapper.alias)
    try:
        yield
    finally:
        for wrapper in own:
            connections[wrapper.alias].close()
            connections[wrapper.alias] = wrapper
