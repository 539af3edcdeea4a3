"""A handler that is written down, before a bus takes it: data, which nothing was checked of yet."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commandbus.errors import HandlerAlreadyRegisteredError
from commandbus.handler import Handler, HandlerOptions
from commandbus.middleware.base import Middleware
from commandbus.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class HandlerDraft:
    """One handler and how it wants to be run."""

    domain: str
    command_type: str
    handler: Handler
    options: HandlerOptions
    #: Where it was written, for error messages.
    place: str
    #: The variables around it where it was written, for the types of its parameters.
    names: Mapping[str, Any] = field(default_factory=dict)

    def inside(
        self, retry_policy: RetryPolicy | None, middleware: Sequence[Middleware]
    ) -> HandlerDraft:
        """The same in a group of handlers: its middleware is around, its policy is the default."""
        options = self.options.copy()
        if options.get("retry_policy") is None:
            options["retry_policy"] = retry_policy
        options["middleware"] = (*middleware, *options.get("middleware", ()))
        return replace(self, options=options)


#: Gives the handler of a command type, or None if there is none.
Finder = Callable[[str], HandlerDraft | None]


def already_registered(draft: HandlerDraft, earlier: str) -> HandlerAlreadyRegisteredError:
    """The error for a second handler of the same type; names both places."""
    return HandlerAlreadyRegisteredError(
        f"{draft.domain}/{draft.command_type} already has a handler, {earlier}; "
        f"{draft.place} would be another, and a command type has exactly one"
    )


def name_of(handler: object) -> str:
    """The name of a handler, for error messages."""
    return getattr(handler, "__qualname__", repr(handler))


def place_of(handler: object) -> str:
    """The name of a handler, and the line where it was written, as far as that is known."""
    function = inspect.unwrap(handler) if callable(handler) else handler
    code = getattr(function, "__code__", None)
    if code is None:
        return name_of(handler)
    return f"{name_of(handler)} ({code.co_filename.rpartition(os.sep)[2]}:{code.co_firstlineno})"
