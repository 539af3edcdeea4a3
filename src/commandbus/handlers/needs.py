"""What a function takes beside the command and its context: resources, by their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from commandbus.errors import InvalidSettingError
from commandbus.handlers.signatures import Parameter


@dataclass(frozen=True, slots=True)
class Use:
    """Says which resource a parameter gets, where several have the same type.

    `bank: Annotated[BankClient, Use(test_bank)]` gets what `test_bank` makes.
    """

    factory: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Need:
    """A parameter that gets a resource."""

    name: str
    kind: Any
    factory: Callable[..., Any] | None = None

    def __str__(self) -> str:
        """Its type and its name."""
        return f"{self.name}: {getattr(self.kind, '__name__', self.kind)}"


def need_of(parameter: Parameter, where: str) -> Need:
    """What a parameter needs."""
    kind, use = _used(parameter.hint)
    if use is not None and not callable(use.factory):
        raise InvalidSettingError(f"{where}: Use takes the function of a resource")
    return Need(parameter.name, kind, None if use is None else use.factory)


def is_wanted(parameter: Parameter) -> bool:
    """Whether a parameter gets a resource: it has no default, or says which one it uses."""
    return not parameter.has_default or _used(parameter.hint)[1] is not None


def _used(hint: Any) -> tuple[Any, Use | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, Use)), None)
