"""Open resources: those of a worker while it runs, those of a command while it is handled."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from commandbus.errors import InvalidOperationError
from commandbus.handler import HandlerContext
from commandbus.handlers.needs import Need
from commandbus.handlers.resources import Graph, Resource


class OpenResources:
    """What the handlers of one worker are given."""

    def __init__(self, graph: Graph) -> None:
        self._found = graph.found
        self._of_worker = graph.of_worker
        self._values: dict[Resource, Any] = {}

    async def open(self, stack: AsyncExitStack) -> None:
        """Open what lives as long as the worker; the stack closes it, the last one first."""
        for resource in self._of_worker:
            named = {need.name: self._values[self._found[need]] for need in resource.needs}
            self._values[resource] = await _opened_for_good(resource, named, stack)

    def ready(self, needs: tuple[Need, ...]) -> dict[str, Any]:
        """The values of a handler in a thread, all of which live as long as the worker."""
        return {need.name: self._values[self._found[need]] for need in needs}

    async def call(
        self,
        handler: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
        needs: tuple[Need, ...],
        ctx: HandlerContext,
    ) -> Any:
        """Call a handler with its resources; those of the command are closed after it."""
        if all(self._found[need].scope == "worker" for need in needs):
            return await handler(*arguments, **named, **self.ready(needs))
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            made: dict[Resource, Any] = {}
            values = {need.name: await self._get(need, made, stack, ctx) for need in needs}
            try:
                result = await handler(*arguments, **named, **values)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            # A resource that catches what is raised at its `yield` does not undo the failure.
            raise failure
        return result

    async def _get(
        self, need: Need, made: dict[Resource, Any], stack: AsyncExitStack, ctx: HandlerContext
    ) -> Any:
        resource = self._found[need]
        if resource.scope == "worker":
            return self._values[resource]
        if resource not in made:
            named = {each.name: await self._get(each, made, stack, ctx) for each in resource.needs}
            named |= dict.fromkeys(resource.contexts, ctx)
            made[resource] = await _opened(resource, named, stack)
        return made[resource]


async def _opened(resource: Resource, named: Mapping[str, Any], stack: AsyncExitStack) -> Any:
    factory = resource.factory
    if inspect.isasyncgenfunction(factory):
        return await stack.enter_async_context(asynccontextmanager(factory)(**named))
    if inspect.isgeneratorfunction(factory):
        return stack.enter_context(contextmanager(factory)(**named))
    made = factory(**named)
    return await made if inspect.isawaitable(made) else made


async def _opened_for_good(
    resource: Resource, named: Mapping[str, Any], stack: AsyncExitStack
) -> Any:
    """Open it so that it goes on after its `yield` however the worker ends: cancelled, too."""
    if inspect.isasyncgenfunction(resource.factory):
        stream = resource.factory(**named)
        made = await anext(stream)
        stack.push_async_callback(_go_on, stream, resource.place)
        return made
    if inspect.isgeneratorfunction(resource.factory):
        steps = resource.factory(**named)
        made = next(steps)
        stack.callback(_go_on_in_step, steps, resource.place)
        return made
    return await _opened(resource, named, stack)


def _go_on_in_step(steps: Generator[Any, None, None], place: str) -> None:
    for _ in steps:
        steps.close()
        raise InvalidOperationError(f"the resource {place} yields more than once")


async def _go_on(stream: AsyncGenerator[Any, None], place: str) -> None:
    async for _ in stream:
        await stream.aclose()
        raise InvalidOperationError(f"the resource {place} yields more than once")
