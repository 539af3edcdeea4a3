"""What a handler or a resource takes and gives, read from its signature."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, ForwardRef, Protocol, get_args, get_origin

from commandbus.errors import InvalidSettingError
from commandbus.handler import HandlerContext
from commandbus.handlers.drafts import name_of
from commandbus.models import Command

_EMPTY = inspect.Parameter.empty
_BY_POSITION = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
#: Names that are often imported for types only.
_OURS = {"Command": Command, "HandlerContext": HandlerContext, "Any": Any}
_STREAMS = {Iterator, Generator, AsyncIterator, AsyncGenerator}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its type as far as it is annotated, how it is passed."""

    name: str
    #: None: it has no annotation.
    hint: Any
    is_positional: bool
    is_named: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and gives."""

    parameters: tuple[Parameter, ...]
    #: None: not annotated.
    returns: Any
    #: Whether it has `*args`.
    takes_more: bool = False

    @property
    def positional(self) -> list[Parameter]:
        """Those that may be passed by position."""
        return [each for each in self.parameters if each.is_positional]


def signature_of(
    function: Callable[..., Any], where: str, names: Mapping[str, Any]
) -> Signature | None:
    """Read a signature, or None if the function does not say what it takes.

    `names`: those of the function around it, which `local_names` finds while that runs.
    """
    try:
        # Not that of a function which a decorator wraps: the decorator is what is called.
        found = inspect.signature(function, follow_wrapped=False)
        if hasattr(function, "__wrapped__") and _hands_on(found):
            found = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a built-in function
    found_names = _Names(function, where, names)
    parameters = tuple(
        Parameter(
            each.name,
            found_names.of(each.annotation, each.name),
            each.kind in _BY_POSITION,
            each.kind is not inspect.Parameter.POSITIONAL_ONLY,
            each.default is not _EMPTY,
        )
        for each in found.parameters.values()
        if each.kind not in _VARIABLE
    )
    returns = found_names.of(found.return_annotation, "return", is_needed=False)
    kinds = {each.kind for each in found.parameters.values()}
    return Signature(parameters, returns, inspect.Parameter.VAR_POSITIONAL in kinds)


def _hands_on(found: inspect.Signature) -> bool:
    """Whether it is a decorator's `(*args, …)`, which hands on what it is given."""
    kinds = [each.kind for each in found.parameters.values()]
    return bool(kinds) and kinds[0] is inspect.Parameter.VAR_POSITIONAL


def yielded(hint: Any) -> Any:
    """What a generator gives: `AsyncIterator[Session]` gives a Session."""
    return get_args(hint)[0] if get_origin(hint) in _STREAMS else hint


def is_context(hint: Any) -> bool:
    """Whether a parameter takes the context of a handler."""
    if hint is None or hint is Any:
        return True
    if not isinstance(hint, type):
        return False
    return issubclass(HandlerContext, hint) or is_protocol(hint)


def is_protocol(hint: Any) -> bool:
    """Whether a class says only what something can do."""
    return bool(getattr(hint, "_is_protocol", False)) and hint is not Protocol


class _Names:
    """Finds what annotations mean that are written as text."""

    def __init__(self, function: Callable[..., Any], where: str, names: Mapping[str, Any]) -> None:
        self._where = where
        self._name = name_of(function)
        inner = _inmost(function)
        self._globals: dict[str, Any] = getattr(inner, "__globals__", {})
        self._locals = {**_OURS, **names, **_enclosed(inner)}

    def of(self, annotation: Any, name: str, *, is_needed: bool = True) -> Any:
        if annotation is _EMPTY:
            return None
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            return self._found(annotation)
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            if not is_needed:
                return None
            raise InvalidSettingError(
                f"{self._where}: the type of {name} in {self._name}, {annotation!r}, is not known "
                f"({error}); import it where the handler is written, not for type checkers only"
            ) from None

    def _found(self, text: str) -> Any:
        try:
            return eval(text, self._globals)  # noqa: S307  (the program's own text)
        except NameError:
            return eval(text, self._globals, self._locals)  # noqa: S307


def local_names(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of the function that this one is written in, if that runs right now."""
    around, dot, _ = getattr(_inmost(function), "__qualname__", "").rpartition(".<locals>.")
    frame: FrameType | None = sys._getframe() if dot else None
    while frame is not None and frame.f_code.co_qualname != around:
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def _inmost(function: Callable[..., Any]) -> Any:
    """The function that somebody wrote: without decorators, partial arguments and its object."""
    inner: Any = inspect.unwrap(function)
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    if not hasattr(inner, "__globals__") and not inspect.ismethod(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004  (an object that is called)
    return inspect.unwrap(getattr(inner, "__func__", inner))


def _enclosed(function: Any) -> dict[str, Any]:
    """The variables of the functions around this one that it uses."""
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found
