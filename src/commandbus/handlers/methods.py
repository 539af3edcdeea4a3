"""Handlers that are methods: an object brings what they share, and we construct nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, Unpack

from commandbus.errors import InvalidSettingError
from commandbus.handler import HandlerOptions
from commandbus.typed.commands import TypedCommand

_MARK = "__commandbus_handles__"

Method = TypeVar("Method", bound=Callable[..., Any])


def handles(
    command_type: str | type[TypedCommand], **options: Unpack[HandlerOptions]
) -> Callable[[Method], Method]:
    """Mark a method as the handler of a command type; `Handlers.add` takes it with its object."""

    def decorate(method: Method) -> Method:
        setattr(method, _MARK, (command_type, options))
        return method

    return decorate


def marked_methods(
    instance: object,
) -> Iterator[tuple[str | type[TypedCommand], HandlerOptions, Callable[..., Any]]]:
    """The marked methods of an object, in the order of its class."""
    if inspect.isclass(instance):
        raise InvalidSettingError(
            f"add takes an object, not the class {instance.__name__}; construct it: "
            f"add({instance.__name__}(…))"
        )
    names = dict.fromkeys(name for kind in reversed(type(instance).__mro__) for name in vars(kind))
    found = False
    for name in names:
        # Not by getattr on the object first: that would run its properties.
        mark = getattr(inspect.getattr_static(type(instance), name), _MARK, None)
        if mark is not None:
            found = True
            yield (*mark, getattr(instance, name))
    if not found:
        raise InvalidSettingError(
            f"{type(instance).__name__} has no method that is marked with @handles(…)"
        )
