"""Models of pydantic and Structs of msgspec, known by what they can do.

Nothing is imported for them: a program that has such a class has its library.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import Secrets, text_of, texts_in
from commandbus.typed.problems import (
    MAX_PROBLEMS,
    MisfitError,
    Problem,
    misfit,
    problem,
    shown,
)

_MAX_TEXT = 200


def is_foreign(kind: Any) -> bool:
    """Whether a class is a model or a Struct."""
    return hasattr(kind, "model_fields") or hasattr(kind, "__struct_fields__")


def foreign_reader(kind: Any, *, is_closed: bool) -> Callable[[Any], Any]:
    """How data becomes a model or a Struct."""
    if hasattr(kind, "model_fields"):
        return _model_reader(kind, is_closed=is_closed)
    return _struct_reader(kind, is_closed=is_closed)


def foreign_plain(value: Any, plain: Callable[[Any], Any]) -> Any:
    """A model or a Struct as plain values."""
    if not hasattr(type(value), "model_fields"):
        return plain(sys.modules["msgspec"].to_builtins(value, str_keys=True))
    written = value.model_dump(mode="json", by_alias=True)
    return _with_secrets(written, value.model_dump(by_alias=True), plain)


def _with_secrets(written: Any, real: Any, plain: Callable[[Any], Any]) -> Any:
    """What a model writes as JSON has asterisks for its secrets, which would be lost."""
    if hasattr(real, "get_secret_value"):
        if not isinstance(written, str) or written.strip("*"):
            return written  # the model has a way of its own to write it
        secret = real.get_secret_value()
        return secret.decode() if isinstance(secret, bytes) else plain(secret)
    if isinstance(real, Mapping) and isinstance(written, dict) and len(real) == len(written):
        pairs = zip(written.items(), real.values(), strict=True)
        return {key: _with_secrets(each, other, plain) for (key, each), other in pairs}
    if isinstance(real, set | frozenset) and any(hasattr(one, "get_secret_value") for one in real):
        return [_with_secrets("", one, plain) for one in real]
    if isinstance(real, list | tuple) and isinstance(written, list) and len(real) == len(written):
        return [_with_secrets(*pair, plain) for pair in zip(written, real, strict=True)]
    return written


# -- pydantic

#: What is said of a dataclass too, in the same words.
_SAID = {"missing": "is missing", "extra_forbidden": "is not one of its fields"}


def _model_reader(kind: Any, *, is_closed: bool) -> Callable[[Any], Any]:
    validate: Callable[..., Any] = kind.model_validate
    options = _extra(kind, is_closed=is_closed)

    def read(data: Any) -> Any:
        try:
            return validate(data, **options)
        except ValueError as error:
            return _again_as_json(kind, data, options, error)

    return read


def _again_as_json(kind: Any, data: Any, options: Mapping[str, Any], error: ValueError) -> Any:
    # A strict field takes a UUID or a time as text from JSON only, and this was JSON.
    if callable(validate := getattr(kind, "model_validate_json", None)):
        try:
            return validate(sys.modules["pydantic_core"].to_json(data), **options)
        except (ValueError, KeyError):
            pass
    raise MisfitError(_refusals(error, data)) from None


def _extra(kind: Any, *, is_closed: bool) -> dict[str, Any]:
    """What becomes of fields that the model does not have, if that is not its own business."""
    if "extra" not in inspect.signature(kind.model_validate).parameters:
        return {}
    says = {_config(each).get("extra") for each in _models_in(kind, set())}
    if "allow" in says:
        return {}
    if is_closed:
        return {"extra": "forbid"}
    # A newer sender must not park commands at an older worker.
    return {"extra": "ignore"} if "forbid" in says else {}


def _config(kind: Any) -> Mapping[str, Any]:
    return getattr(kind, "model_config", None) or {}


def _models_in(hint: Any, seen: set[Any]) -> Iterator[Any]:
    """The models that a hint is made of, at any depth."""
    for part in get_args(hint):
        yield from _models_in(part, seen)
    if isinstance(hint, type) and hasattr(hint, "model_fields") and hint not in seen:
        seen.add(hint)
        yield hint
        for spec in hint.model_fields.values():
            yield from _models_in(getattr(spec, "annotation", None), seen)


def _refusals(error: ValueError, data: Any) -> list[Problem]:
    # Its text has the values; what it lists has places and reasons.
    listed: Any = getattr(error, "errors", None)
    if not callable(listed):
        return [misfit(type(error).__name__).problems[0]]
    # A validator of the application's own may well quote what it was given.
    given = Secrets(texts_in(data, is_secret=True), min_length=3)
    return [_refusal(each, given) for each in listed()[:MAX_PROBLEMS]]


def _refusal(error: Mapping[str, Any], given: Secrets) -> Problem:
    place = redact_text(".".join(map(text_of, error.get("loc", ()))), _MAX_TEXT)
    kind = text_of(error.get("type", "wrong"))
    text = redact_text(text_of(error.get("msg", kind)), _MAX_TEXT, secrets=given)
    said = f"{place} {_SAID[kind]}" if kind in _SAID else f"{place}: {kind}"
    return Problem(place, text, redact_text(said, _MAX_TEXT))


# -- msgspec


def _struct_reader(kind: Any, *, is_closed: bool) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        msgspec = sys.modules["msgspec"]
        try:
            found = msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            raise MisfitError([_complaint(str(error), data)]) from None
        if is_closed and (unknown := list(_unknown(kind, data, ""))):
            raise MisfitError(unknown)
        return found

    return read


def _complaint(text: str, data: Any) -> Problem:
    """Msgspec tells the first problem, and its place behind it: `Expected int - at `$.amount``."""
    message, _, path = text.partition(" - at `")
    given = Secrets(texts_in(data, is_secret=True), min_length=3)
    place = redact_text(path.rstrip("`").removeprefix("$").lstrip("."), _MAX_TEXT)
    shown_text = redact_text(message, _MAX_TEXT, secrets=given)
    return Problem(place, shown_text, f"{place}: {shown_text}" if place else shown_text)


def _unknown(hint: Any, data: Any, place: str) -> Iterator[Problem]:
    """Fields that no Struct has; a Struct ignores them."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        structs = [each for each in args if hasattr(each, "__struct_fields__")]
        if len(structs) == 1:  # which of several it is, msgspec knows
            yield from _unknown(structs[0], data, place)
    elif origin is list and isinstance(data, list):
        for number, each in enumerate(data):
            yield from _unknown(args[0], each, f"{place}{number}.")
    elif hasattr(hint, "__struct_fields__") and isinstance(data, Mapping):
        names: Collection[str] = hint.__struct_encode_fields__
        tag = hint.__struct_config__.tag_field
        for name in sorted(shown(key) for key in data if key not in names and key != tag):
            yield problem(f"{place}{name}", "is not one of its fields")
        hints = get_type_hints(hint)
        for field, name in zip(hint.__struct_fields__, names, strict=True):
            if name in data:
                yield from _unknown(hints[field], data[name], f"{place}{name}.")
