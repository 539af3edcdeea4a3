"""Binding: what a worker calls for a handler.

A handler of a Command and a context is called as it is. Around any other there is one function,
made at registration: it decodes the payload, adds resources, and encodes the result.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Union, get_args, get_origin

from commandbus.errors import HandlerError, InvalidSettingError
from commandbus.handler import Handler, HandlerContext, UnfitError
from commandbus.handlers.drafts import name_of
from commandbus.handlers.needs import Need, is_wanted, need_of
from commandbus.handlers.signatures import (
    Parameter,
    Signature,
    is_context,
    is_protocol,
    signature_of,
)
from commandbus.models import Command
from commandbus.privacy.secrets import check_payload_type, is_model
from commandbus.typed.codec import Codec, codec_of
from commandbus.typed.commands import declared_result, name_on
from commandbus.typed.problems import MisfitError, Problem
from commandbus.typed.reading import bare

#: Problems of one payload that a parked command tells.
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Binding:
    """A handler as a worker calls it, and what was read from its signature."""

    call: Handler
    payload_type: type | None = None
    codec: Codec | None = None
    needs: tuple[Need, ...] = ()


def bind(
    handler: Handler,
    name: str,
    *,
    payload_type: type | None,
    is_async: bool,
    names: Mapping[str, Any],
) -> Binding:
    """Read the signature of a handler; raises InvalidSettingError if it cannot be called."""
    if payload_type is not None:
        check_payload_type(payload_type, name)
    # A built-in function that does not say what it takes is called with both.
    signature = signature_of(handler, name, names) or Signature((), None, takes_more=True)
    gets, kind = _payload(signature, name, handler, payload_type)
    has_context, rest = _arguments(signature, handler, name, is_typed=gets != "command")
    contexts = tuple(each.name for each in rest if each.hint is HandlerContext)
    needs = tuple(
        need_of(each, name) for each in rest if each.name not in contexts and is_wanted(each)
    )
    codec = None if kind is None else _codec(kind, f"payload_type of {name}")
    result = _result(signature.returns, name, declared_result(kind))
    if codec is None and result is None and not needs and not contexts and has_context:
        return Binding(handler)
    arguments = _arguments_maker(codec, gets, has_context=has_context)
    call = _call(handler, arguments, (contexts, needs), result, is_async=is_async)
    return Binding(call, kind, codec, needs)


def _payload(
    signature: Signature, name: str, handler: Handler, payload_type: type | None
) -> tuple[str, type | None]:
    """What the first parameter gets, and the type of the payload."""
    positional = signature.positional
    hint = bare(positional[0].hint) if positional and positional[0].hint is not None else None
    if get_origin(hint) is Command:
        (inner,) = get_args(hint)
        kind = payload_type or (inner if is_model(inner) else None)
        if kind is None and not _is_open(inner):
            check_payload_type(inner, name)
        return ("command" if kind is None else "typed command"), kind
    if _is_command(hint):
        return "command", payload_type
    if payload_type is None and not is_model(hint):
        raise InvalidSettingError(
            f"the first parameter of {name}, {name_of(handler)}, is a {hint!r}; use Command, "
            "Command[…], or the type of its payload: a dataclass, a TypedDict, a pydantic model "
            "or a msgspec Struct"
        )
    if payload_type is not None and name_on(payload_type) and is_model(hint):
        _check_takes(payload_type, hint, name, handler)
    return "payload", payload_type or hint


def _check_takes(payload_type: type, hint: Any, name: str, handler: Handler) -> None:
    if not (isinstance(hint, type) and issubclass(payload_type, hint)):
        raise InvalidSettingError(
            f"the first parameter of {name}, {name_of(handler)}, is a {hint!r}, and the command is "
            f"a {payload_type.__qualname__}"
        )


def _is_command(hint: Any) -> bool:
    """Whether a parameter takes the command as it came."""
    if hint is None or hint in {Any, object, Command} or isinstance(hint, TypeVar):
        return True
    if get_origin(hint) in {Union, types.UnionType}:
        return any(_is_command(each) for each in get_args(hint) if each is not type(None))
    return is_protocol(hint)


def _is_open(hint: Any) -> bool:
    return hint is Any or get_origin(hint) is dict or hint is dict


def _arguments(
    signature: Signature, handler: Handler, name: str, *, is_typed: bool
) -> tuple[bool, list[Parameter]]:
    """Whether the second argument is the context, and the parameters that get none of the two."""
    positional = signature.positional
    if len(positional) > 1:
        has_context = is_context(positional[1].hint)
    else:  # a handler that knows its payload may do without the context
        has_context = signature.takes_more or not is_typed
    used = positional[: 2 if has_context else 1]
    rest = [each for each in signature.parameters if each not in used]
    is_short = len(used) < 1 + has_context and not signature.takes_more
    if is_short or any(
        not each.has_default
        and (each.hint is None or not each.is_named or _is_bound_late(each.hint))
        for each in rest
    ):
        shown = inspect.signature(handler, follow_wrapped=False)
        raise InvalidSettingError(
            f"the handler of {name}, {name_of(handler)}{shown}, must accept two arguments by "
            "position, (command, context), and resources by the types of further parameters"
        )
    return has_context, rest


def _is_bound_late(hint: Any) -> bool:
    """Whether the command is asked for at another place than the first: a method without self."""
    return hint is Command or get_origin(hint) is Command


def _codec(kind: Any, what: str) -> Codec:
    try:
        return codec_of(kind)
    except InvalidSettingError as error:
        raise InvalidSettingError(f"{what}: {error}") from None


def _result(hint: Any, name: str, declared: Any) -> Codec | None:
    """How the result is checked and encoded, if its type is declared, or one of models."""
    if declared is not None:  # callers rely on it
        return _codec(declared, f"the result of {name}")
    hint = _without_errors(bare(hint))
    if hint is None or not _has_model(hint):
        return None
    return _codec(hint, f"the result of {name}")


def _without_errors(hint: Any) -> Any:
    """A handler may also return a failure, as if it were raised."""
    if get_origin(hint) not in {Union, types.UnionType}:
        return hint
    kept = [
        each
        for each in get_args(hint)
        if not (isinstance(each, type) and issubclass(each, BaseException))
    ]
    return Union[tuple(kept)] if kept else None  # noqa: UP007  (made of what is found)


def _has_model(hint: Any) -> bool:
    return is_model(hint) or any(_has_model(bare(each)) for each in get_args(hint))


# -- the call

_Arguments = Callable[[Command[Any], HandlerContext], tuple[Any, ...]]


def _arguments_maker(codec: Codec | None, gets: str, *, has_context: bool) -> _Arguments:
    """A function that makes what the handler is called with by position."""
    read, type_name = (None, "") if codec is None else (codec.read, codec.name)

    def first(command: Command[Any]) -> Any:
        if read is None:
            return command
        try:
            found = read(command.data)
        except MisfitError as error:
            raise _unfit("PAYLOAD_INVALID", f"data is not a {type_name}", error) from None
        if gets == "command":
            return command
        return found if gets == "payload" else replace(command, data=found)

    if has_context:
        return lambda command, ctx: (first(command), ctx)
    return lambda command, _: (first(command),)


def _call(
    handler: Handler,
    arguments: _Arguments,
    named: tuple[tuple[str, ...], tuple[Need, ...]],
    result: Codec | None,
    *,
    is_async: bool,
) -> Handler:
    contexts, needs = named

    async def call(command: Command[Any], ctx: HandlerContext) -> Any:
        values = dict.fromkeys(contexts, ctx) if contexts else {}
        given = arguments(command, ctx)
        if needs:
            found = await ctx._resources.call(handler, given, values, needs, ctx)
        else:
            found = await handler(*given, **values)
        return found if result is None else _written(result, found)

    def call_in_thread(command: Command[Any], ctx: HandlerContext) -> Any:
        values = dict.fromkeys(contexts, ctx) if contexts else {}
        if needs:
            values |= ctx._resources.ready(needs)
        found = handler(*arguments(command, ctx), **values)
        if result is None:
            return found
        return _later(result, found) if inspect.isawaitable(found) else _written(result, found)

    return _like(handler, call if is_async else call_in_thread)


def _written(result: Codec, found: Any) -> Any:
    if isinstance(found, HandlerError):
        return found
    try:
        return result.result(found)
    except MisfitError as error:
        text = f"the handler's result is not a {result.name}"
        raise _unfit("INVALID_RESULT", text, error) from None
    except (TypeError, ValueError, AttributeError) as error:
        # The text of a model's error has values in it.
        text = f"the handler's result cannot be encoded: {type(error).__name__}"
        raise UnfitError("INVALID_RESULT", text) from None


async def _later(result: Codec, found: Any) -> Any:
    return _written(result, await found)


def _unfit(code: str, text: str, error: MisfitError) -> UnfitError:
    """An error that parks the command: places and what is wrong there, never values."""
    listed: list[Problem] = error.problems[:MAX_PROBLEMS]
    told = "; ".join(each.line for each in listed[:5])
    details = {"problems": [{"place": place, "message": message} for place, message, _ in listed]}
    return UnfitError(code, f"{text}: {told}", details)


def _like(handler: Handler, call: Handler) -> Handler:
    """The call under the name and the module of the handler, for stacks and messages."""
    functools.update_wrapper(call, handler)
    # What an object has as attributes is its own.
    vars(call).clear()
    vars(call)["__wrapped__"] = handler
    return call
