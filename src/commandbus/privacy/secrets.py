"""Marks on the type of a payload: which of its fields are secret, and whether data fits it.

    @dataclass
    class Payment:
        amount: int
        iban: Annotated[str, Secret]
        pin: str = field(default="", metadata={"secret": True})

A pydantic model may mark with `Annotated[…, Secret]` too, or use its own SecretStr. Nothing is
imported for that: a model is known by what it can do.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from commandbus.errors import InvalidPayloadError, InvalidSettingError
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.sensitive import normalised
from commandbus.privacy.values import Secrets, text_of, texts_in


class Secret:
    """A mark: `Annotated[str, Secret]` is never shown in logs, audit, errors or listings."""


#: Types of pydantic that say the same.
_SECRET_TYPES = {"SecretStr", "SecretBytes", "Secret"}
#: Problems of one payload that are listed.
MAX_PROBLEMS = 100
_PLAIN = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def secret_keys(payload_type: type) -> frozenset[str]:
    """The keys, anywhere in such a payload, whose values are secret."""
    return frozenset(normalised(key) for key in _marked_keys(payload_type, set()))


def check_payload_type(payload_type: Any, where: str) -> None:
    """Refuse what is neither a dataclass, a TypedDict nor a pydantic model."""
    if isinstance(payload_type, type) and _is_model(payload_type):
        try:
            get_type_hints(payload_type, include_extras=True)
        except (NameError, TypeError) as error:
            raise InvalidSettingError(
                f"payload_type of {where} has a field whose type is not known: {error}"
            ) from None
        return
    raise InvalidSettingError(
        f"payload_type of {where} is {payload_type!r}; use a dataclass, a TypedDict or a pydantic "
        "model"
    )


def check_fits(payload_type: type, data: Mapping[str, Any]) -> None:
    """Raise InvalidPayloadError, without a value of the payload, if data does not fit its type."""
    found = [short for _, short, _ in _problems(payload_type, data)]
    if found:
        raise InvalidPayloadError(f"data is not a {payload_type.__name__}: {'; '.join(found[:5])}")


def misfits(payload_type: type, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where data does not fit its type, and what is wrong there; never with a value of it."""
    return [(place, text) for place, _, text in _problems(payload_type, data)]


def _problems(payload_type: type, data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Place, short text, long text of each."""
    validate: Callable[[Any], Any] | None = getattr(payload_type, "model_validate", None)
    if validate is None:
        return [(place, text, text) for place, text in _misfits(payload_type, data)]
    try:
        validate(dict(data))
    except ValueError as error:
        # Its text has the values; what it lists has places and reasons.
        listed: Any = getattr(error, "errors", None)
        if not callable(listed):
            return [("", type(error).__name__, type(error).__name__)]
        # A validator of the application's own may well quote what it was given.
        given = Secrets(texts_in(data, is_secret=True), min_length=3)
        return [_refusal(e, given) for e in listed()[:MAX_PROBLEMS]]
    return []


def _refusal(error: Mapping[str, Any], given: Secrets) -> tuple[str, str, str]:
    place = redact_text(".".join(map(text_of, error.get("loc", ()))), 200)
    kind = text_of(error.get("type", "wrong"))
    text = redact_text(text_of(error.get("msg", kind)), 200, secrets=given)
    return place, redact_text(f"{place}: {kind}", 200), text


def _misfits(payload_type: type, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(payload_type, include_extras=True)
    for name in sorted(_required(payload_type) - set(data)):
        yield name, f"{name} is missing"
    for name in sorted(set(data) - set(hints)):
        place = redact_text(name, 60)
        yield place, f"{place} is not one of its fields"
    for name, hint in hints.items():
        plain = _bare(hint)
        if name in data and plain in _PLAIN:
            # A float may be written without a point; true is no number.
            wanted = (int, float) if plain is float else plain
            is_right = isinstance(data[name], wanted) and (
                plain is bool or not isinstance(data[name], bool)
            )
            if not is_right:
                yield name, f"{name} must be {_PLAIN[plain]}"


def _required(payload_type: type) -> set[str]:
    if dataclasses.is_dataclass(payload_type):
        return {
            spec.name
            for spec in dataclasses.fields(payload_type)
            if spec.init
            and spec.default is dataclasses.MISSING
            and spec.default_factory is dataclasses.MISSING
        }
    # `NotRequired` in a postponed annotation is not yet known to the class itself.
    hints = get_type_hints(payload_type, include_extras=True)
    listed: frozenset[str] = getattr(payload_type, "__required_keys__", frozenset())
    return {name for name in listed if get_origin(hints[name]) is not NotRequired}


def _is_model(kind: Any) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "model_fields")
        or hasattr(kind, "__required_keys__")
    )


def _marked_keys(kind: Any, seen: set[Any]) -> Iterator[str]:
    if not _is_model(kind) or kind in seen:
        return
    seen.add(kind)
    specs = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    marked = {spec.name for spec in specs if spec.metadata.get("secret")}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in marked or _is_marked(hint):
            yield from (name, *_aliases(kind, name))
        for inner in _kinds_in(hint):
            yield from _marked_keys(inner, seen)


def _is_marked(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        _, *extras = get_args(hint)
        if any(extra is Secret or isinstance(extra, Secret) for extra in extras):
            return True
    return any(
        getattr(kind, "__name__", "") in _SECRET_TYPES
        and str(getattr(kind, "__module__", "")).startswith("pydantic")
        for kind in _kinds_in(hint)
    ) or any(_is_marked(part) for part in get_args(hint) if get_origin(part) is Annotated)


def _aliases(kind: Any, name: str) -> Iterator[str]:
    # A pydantic field may stand under another name in the payload.
    spec = (getattr(kind, "model_fields", None) or {}).get(name)
    for attribute in ("alias", "validation_alias", "serialization_alias"):
        alias = getattr(spec, attribute, None)
        if isinstance(alias, str):
            yield alias


def _bare(hint: Any) -> Any:
    while get_origin(hint) in {Annotated, Required, NotRequired}:
        hint = get_args(hint)[0]
    return hint


def _kinds_in(hint: Any) -> Iterator[Any]:
    """The classes that a hint is made of: `list[Item] | None` has Item in it."""
    hint = _bare(hint)
    origin = get_origin(hint)
    if origin is None:
        yield hint
    elif origin in {Union, types.UnionType} or isinstance(origin, type):
        for part in get_args(hint):
            yield from _kinds_in(part)
