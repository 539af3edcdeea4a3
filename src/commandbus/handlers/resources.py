"""Resources: what handlers are given beside their command, known by type.

A resource is a function, or a generator that closes after its `yield`. They may depend on one
another. Which there are is data; a worker checks the graph and opens what its handlers need.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from commandbus.errors import InvalidSettingError
from commandbus.handler import HandlerContext, HandlerEntry
from commandbus.handlers.drafts import place_of
from commandbus.handlers.needs import Need, is_wanted, need_of
from commandbus.handlers.signatures import local_names, signature_of, yielded

#: How long a resource lives: as long as a worker, or as long as one command is handled.
Scope = Literal["worker", "command"]
_SCOPES = ("worker", "command")


@dataclass(frozen=True, slots=True)
class Resource:
    """A function that makes something, and what it needs for that."""

    factory: Callable[..., Any]
    scope: Scope
    kind: Any
    needs: tuple[Need, ...]
    #: Parameters that get the context of the handler.
    contexts: tuple[str, ...]
    place: str


def resource_of(factory: Callable[..., Any], scope: Scope) -> Resource:
    """Read what a resource makes and needs; raises InvalidSettingError."""
    place = place_of(factory)
    if not inspect.isroutine(factory):
        raise InvalidSettingError(f"a resource is a function or a generator, not {factory!r}")
    if scope not in _SCOPES:
        raise InvalidSettingError(f"the scope of {place} is {scope!r}; use worker or command")
    signature = signature_of(factory, f"resource {place}", local_names(factory))
    kind = None if signature is None else yielded(signature.returns)
    if signature is None or kind in {None, Any, type(None)}:
        raise InvalidSettingError(
            f"the resource {place} does not say what it makes; annotate what it returns, "
            "or yields: AsyncIterator[Session]"
        )
    contexts = tuple(each.name for each in signature.parameters if each.hint is HandlerContext)
    if contexts and scope == "worker":
        raise InvalidSettingError(
            f"the resource {place} takes the context of a handler, which one of scope 'worker' "
            'has not; write @handlers.resource(scope="command")'
        )
    others = [each for each in signature.parameters if each.name not in contexts]
    for each in others:
        if not each.has_default and (each.hint is None or not each.is_named):
            raise InvalidSettingError(
                f"the parameter {each.name} of the resource {place} needs a type, and must be one "
                "that can be given by name"
            )
    needs = tuple(need_of(each, place) for each in others if is_wanted(each))
    return Resource(factory, scope, kind, needs, contexts, place)


class Graph:
    """The resources that handlers need, each found, in the order in which they can be opened."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = list(dict.fromkeys(resources))
        #: By need: what it is met with.
        self.found: dict[Need, Resource] = {}
        #: Of scope worker, each after what it needs.
        self.of_worker: list[Resource] = []

    def add(self, entry: HandlerEntry) -> None:
        """Find what a handler needs; raises InvalidSettingError with the chain."""
        start = f"{entry.domain}/{entry.command_type}"
        for need in entry.needs:
            resource = self._follow(need, (start,), ())
            if resource.scope == "command" and not entry.is_async:
                raise InvalidSettingError(
                    f"{_chain((start, str(need)))}: {resource.place} has the scope 'command', "
                    "which only `async def` handlers can have; use one of scope 'worker'"
                )

    def _follow(self, need: Need, chain: tuple[str, ...], above: tuple[Resource, ...]) -> Resource:
        here = (*chain, str(need))
        resource = self._find(need, here)
        if resource in above:
            raise InvalidSettingError(
                f"{_chain((*here, resource.place))}: this resource needs itself; "
                "take one of them apart"
            )
        if above and above[-1].scope == "worker" and resource.scope == "command":
            raise InvalidSettingError(
                f"{_chain(here)}: {above[-1].place} lives as long as the worker and cannot use "
                f"{resource.place}, which ends with each command"
            )
        for inner in resource.needs:
            self._follow(inner, (*here, resource.place), (*above, resource))
        self.found[need] = resource
        if resource.scope == "worker" and resource not in self.of_worker:
            self.of_worker.append(resource)
        return resource

    def _find(self, need: Need, chain: tuple[str, ...]) -> Resource:
        if need.factory is not None:
            fitting = [each for each in self._resources if each.factory is need.factory]
        else:
            fitting = [each for each in self._resources if each.kind == need.kind]
        if not fitting:
            what = getattr(need.kind, "__name__", need.kind)
            known = ", ".join(sorted(_name(each) for each in self._resources)) or "none"
            raise InvalidSettingError(
                f"{_chain(chain)}: there is no resource for {what}; write a function that returns "
                f"it and mark it with @handlers.resource. There are: {known}"
            )
        if len(fitting) > 1:
            places = " and ".join(each.place for each in fitting)
            raise InvalidSettingError(
                f"{_chain(chain)}: {places} make the same type; say which one with "
                "Annotated[…, Use(…)]"
            )
        return fitting[0]


def _chain(parts: tuple[str, ...]) -> str:
    return " -> ".join(parts)


def _name(resource: Resource) -> str:
    return str(getattr(resource.kind, "__name__", resource.kind))
