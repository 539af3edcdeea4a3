"""Marks on the type of a payload: which of its fields are secret.

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
from collections.abc import Iterator
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

from commandbus.errors import InvalidSettingError
from commandbus.privacy.sensitive import normalised


class Secret:
    """A mark: `Annotated[str, Secret]` is never shown in logs, audit, errors or listings."""


#: Types of pydantic that say the same.
_SECRET_TYPES = {"SecretStr", "SecretBytes", "Secret"}


def secret_keys(payload_type: type) -> frozenset[str]:
    """The keys, anywhere in such a payload, whose values are secret."""
    return frozenset(normalised(key) for key in _marked_keys(payload_type, set()))


def check_payload_type(payload_type: Any, where: str) -> None:
    """Refuse what is neither a dataclass, a TypedDict, a pydantic model nor a Struct."""
    if isinstance(payload_type, type) and is_model(payload_type):
        try:
            get_type_hints(payload_type, include_extras=True)
        except (NameError, TypeError) as error:
            raise InvalidSettingError(
                f"payload_type of {where} has a field whose type is not known: {error}"
            ) from None
        return
    raise InvalidSettingError(
        f"payload_type of {where} is {payload_type!r}; use a dataclass, a TypedDict, a pydantic "
        "model or a msgspec Struct"
    )


def is_model(kind: Any) -> bool:
    """Whether it is a dataclass, a TypedDict, a pydantic model or a Struct: a type with fields."""
    return (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "model_fields")
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__required_keys__")
    )


def _marked_keys(kind: Any, seen: set[Any]) -> Iterator[str]:
    if not is_model(kind) or kind in seen:
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
