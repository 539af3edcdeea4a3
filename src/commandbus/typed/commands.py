"""Typed commands: a class that says which command its instances are.

    @command("payments", "DebitAccount")
    @dataclass
    class DebitAccount(Returns[Debited]):
        account: UUID
        amount: Decimal

The mark is on the class itself: there is no list of all commands that an import would fill.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from commandbus.errors import (
    CommandFailedError,
    InvalidInputError,
    InvalidResultError,
    InvalidSettingError,
)
from commandbus.models import BatchCommand, Reply, ReplyOutcome
from commandbus.names import check_command_type, check_domain, new_id
from commandbus.privacy.secrets import is_model
from commandbus.typed.codec import codec_of
from commandbus.typed.problems import MisfitError

_MARK = "__commandbus_command__"
#: Problems of a result that one error tells.
_MAX_TOLD = 5
#: Classes whose results are remembered.
_MAX_KNOWN = 1_000

Result_co = TypeVar("Result_co", covariant=True)
Class = TypeVar("Class", bound=type)


class Returns(Generic[Result_co]):
    """A base of command classes: `Returns[Debited]` says what `call` gives back."""

    __slots__ = ()


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    def model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...


class _Struct(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


#: What may be sent as it is, as far as a type checker can tell: a text or a dict is none of it.
#: Whether its class has the mark is seen when it is sent.
TypedCommand = Returns[Any] | _Dataclass | _Model | _Struct


class CommandName(NamedTuple):
    """Which command the instances of a class are."""

    domain: str
    command_type: str


def command(domain: str, command_type: str) -> Callable[[Class], Class]:
    """Let the instances of a class be sent as commands of this type.

    For dataclasses, pydantic models and msgspec Structs; above `@dataclass`, not below. A subclass
    is another command, and needs a mark of its own.
    """
    name = CommandName(check_domain(domain), check_command_type(command_type))

    def decorate(kind: Class) -> Class:
        if not is_model(kind) or _is_typed_dict(kind):
            raise InvalidSettingError(
                f"@command is on {kind.__qualname__}; use it on a dataclass "
                "(@command above @dataclass), a pydantic model or a msgspec Struct"
            )
        setattr(kind, _MARK, name)
        return kind

    return decorate


def _is_typed_dict(kind: type) -> bool:
    # Its values are dicts, which do not know their class.
    return hasattr(kind, "__required_keys__")


def name_on(kind: Any) -> CommandName | None:
    """Which command a class is, or None: the mark of a base does not count."""
    found: CommandName | None = vars(kind).get(_MARK) if isinstance(kind, type) else None
    return found


def name_of_class(kind: type) -> CommandName:
    """Which command a class is; raises InvalidSettingError if it does not say."""
    found = name_on(kind)
    if found is None:
        shown = getattr(kind, "__qualname__", repr(kind))
        raise InvalidSettingError(
            f"{shown} is no command; write @command(domain, command_type) above the class"
        )
    return found


@lru_cache(maxsize=_MAX_KNOWN)
def declared_result(kind: Any) -> Any:
    """What a command class returns, from its base `Returns[…]`; None: it does not say."""
    if name_on(kind) is None:
        return None
    for owner in kind.__mro__:
        for base in vars(owner).get("__orig_bases__", ()):
            if get_origin(base) is Returns:
                return _resolved(get_args(base)[0], owner)
    return None


def _resolved(hint: Any, owner: type) -> Any:
    """A type, if it is or has a text: `Returns["Debited"]` for a class further down."""
    if isinstance(hint, TypeVar):
        return Any
    known = getattr(sys.modules.get(owner.__module__), "__dict__", {})
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={"result": hint}), known, include_extras=True
        )["result"]
    except (NameError, TypeError) as error:
        raise InvalidSettingError(
            f"the type that {owner.__qualname__} returns is not known: {error}"
        ) from None


# -- sending


def spelled_out(
    given: Any, command_type: str | None, command_id: UUID | None, data: Any
) -> tuple[str, str, UUID, Any]:
    """Domain, type, id and data of what was given in place of a domain."""
    name = name_on(type(given))
    if name is None:
        raise _no_command(given)
    if command_type is not None or data is not None:
        raise InvalidInputError(
            f"a {type(given).__qualname__} brings its command type and its data; leave them out"
        )
    return name.domain, name.command_type, new_id() if command_id is None else command_id, given


def _no_command(given: Any) -> InvalidInputError:
    if isinstance(given, type) and is_model(given):
        return InvalidInputError(
            f"{given.__qualname__} is a class; send an instance: {given.__qualname__}(…)"
        )
    if is_model(type(given)):
        return InvalidInputError(
            f"{type(given).__qualname__} is no command; write @command(domain, command_type) above "
            "the class, or send domain, type, id and data"
        )
    check_domain(given)  # raises: only a text is one
    return InvalidInputError("a command needs a domain")


def as_batch_command(domain: str, given: Any) -> BatchCommand:
    """One of several commands, from an instance of a command class of this domain."""
    name = name_on(type(given))
    if name is None:
        raise InvalidInputError(
            "commands are BatchCommand(command_type, command_id, data) or instances of classes "
            f"with @command, not {type(given).__name__}"
        )
    if name.domain != domain:
        raise InvalidInputError(
            f"{type(given).__qualname__} is a command of the domain {name.domain!r}, and is sent "
            f"to {domain!r}"
        )
    return BatchCommand(name.command_type, new_id(), given)


# -- what comes back


def result_of(kind: type, reply: Reply) -> Any:
    """The result of a call as a value of the declared type, or an error if there is none."""
    what = f"{reply.domain}/{reply.type} {reply.command_id}"
    if reply.outcome is not ReplyOutcome.SUCCESS:
        why = reply.error
        reason = "" if why is None else ": ".join(filter(None, (why.code, why.message)))
        raise CommandFailedError(
            f"{what} ended as {reply.outcome.value}{': ' if reason else ''}{reason}", reply
        )
    declared = declared_result(kind)
    if declared is None:
        return reply.data
    codec = codec_of(declared)
    try:
        return reply.data if codec.read is None else codec.read(reply.data)
    except MisfitError as error:
        told = "; ".join(each.line for each in error.problems[:_MAX_TOLD])
        raise InvalidResultError(
            f"{what} has completed, and its result is not a {codec.name}: {told}"
        ) from None
