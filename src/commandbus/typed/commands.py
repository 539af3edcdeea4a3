"""Typed commands: a class that says where it is sent, and what comes back.

@command("payments", "DebitAccount")
@dataclass
class DebitAccount(Returns[Debited]):
account: UUID
amount: int
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

from commandbus.errors import InvalidInputError, InvalidPayloadError
from commandbus.names import check_command_type, check_domain
from commandbus.privacy.secrets import is_model
from commandbus.typed.codec import codec_of
from commandbus.typed.problems import MisfitError
from commandbus.typed.writing import plain

Result_co = TypeVar("Result_co", covariant=True)
Kind = TypeVar("Kind", bound=type)

_MARK = "__commandbus_command__"


class Returns(Generic[Result_co]):
    """A base of typed commands: the type of what their handler returns."""

    __slots__ = ()


class CommandName(NamedTuple):
    """Where a typed command is sent."""

    domain: str
    command_type: str


def command(domain: str, command_type: str) -> Callable[[Kind], Kind]:
    """Say of a dataclass, a pydantic model or a msgspec Struct which command its values are."""
    name = CommandName(check_domain(domain), check_command_type(command_type))

    def decorate(kind: Kind) -> Kind:
        if hasattr(kind, "__required_keys__"):
            raise InvalidInputError(
                f"{kind.__name__} is a TypedDict, whose values are plain dicts and do not know "
                "which command they are; use a dataclass, or payload_type= of the handler"
            )
        setattr(kind, _MARK, name)
        return kind

    return decorate


def command_name(kind: Any) -> CommandName:
    """Where values of this class are sent; raises InvalidInputError if it does not say."""
    # Of the class itself: what is derived from a command is another one.
    name: CommandName | None = vars(kind).get(_MARK) if isinstance(kind, type) else None
    if name is None:
        shown = kind.__name__ if isinstance(kind, type) else repr(kind)
        raise InvalidInputError(
            f"{shown} is no typed command; mark its class with @command(domain, command_type), or "
            "send(domain, command_type, command_id, data)"
        )
    if not is_model(kind):
        raise InvalidInputError(
            f"{kind.__name__} has no fields to send; make it a dataclass, a pydantic model or a "
            "msgspec Struct"
        )
    return name


def result_type(kind: Any) -> Any:
    """What the handler of a typed command returns; None: it does not say."""
    for base in getattr(kind, "__mro__", ()):
        for origin in vars(base).get("__orig_bases__", ()):
            if get_origin(origin) is Returns:
                (found,) = get_args(origin)
                return None if isinstance(found, TypeVar) else found
    return None


def written(value: Any, *, is_checked: bool) -> Any:
    """A model as plain JSON; raises InvalidPayloadError, without its values, if it does not fit."""
    kind: Any = type(value)
    if not is_model(kind):
        return value
    try:
        data = plain(value)
    except Exception as error:  # noqa: BLE001  (whatever a model raises)
        # The text of a model's error has values in it.
        raise InvalidPayloadError(
            f"the {kind.__name__} cannot be encoded: {type(error).__name__}"
        ) from None
    if is_checked:
        codec_of(kind).check(data)
    return data


def returned(kind: Any, data: Any) -> Any:
    """What a call gives back: the result as its declared type."""
    declared = result_type(kind)
    if declared is None:
        return data
    codec = codec_of(declared)
    try:
        return data if codec.read is None else codec.read(data)
    except MisfitError as error:
        told = "; ".join(each.line for each in error.problems[:5])
        raise InvalidPayloadError(
            f"the result of {kind.__name__} is not a {codec.name}: {told}"
        ) from None
