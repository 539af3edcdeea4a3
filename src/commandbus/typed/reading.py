"""Decoding JSON into dataclasses and TypedDicts: the same whatever else is installed.

A type is looked at once, and becomes a function of the data. `None` stands for "as it is".
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from commandbus.errors import InvalidSettingError
from commandbus.typed.foreign import foreign_reader, is_foreign
from commandbus.typed.problems import MisfitError, Problem, misfit, problem, shown

Reader = Callable[[Any], Any]

SUPPORTED = (
    "use str, int, float, bool, None, Any, Literal, an Enum, UUID, date, datetime, time, Decimal, "
    "list, tuple, set, dict with text keys, unions, dataclasses, TypedDicts, pydantic models or "
    "msgspec Structs"
)


def reader_of(hint: Any, *, is_closed: bool) -> Reader | None:
    """How data becomes a value of this type; raises InvalidSettingError if that is not known.

    `is_closed`: fields that the type does not have are refused, else they are ignored.
    """
    return _Reading(is_closed).of(hint)


class _Reading:
    def __init__(self, is_closed: bool) -> None:
        self._is_closed = is_closed
        #: Types that are being looked at, or were: a type may contain itself.
        self._known: dict[Any, Reader] = {}

    def of(self, hint: Any) -> Reader | None:
        hint = bare(hint)
        if hint in {Any, object}:
            return None
        if hint in _SCALARS:
            return _SCALARS[hint]
        if isinstance(hint, type) and is_foreign(hint):
            return foreign_reader(hint, is_closed=self._is_closed)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _enum(hint)
        if dataclasses.is_dataclass(hint) or hasattr(hint, "__required_keys__"):
            return self._record(hint)
        return self._generic(hint, get_origin(hint) or hint, get_args(hint))

    def _generic(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Reader:
        if origin is Literal:
            return _literal(args)
        if origin in {Union, types.UnionType}:
            return self._union(args)
        if origin in {list, Sequence}:
            return _list(self.of(args[0]) if args else None, list)
        if origin in {set, frozenset}:
            return _list(self.of(args[0]) if args else None, origin)
        if origin is tuple:
            if not args or args[-1] is Ellipsis:
                return _list(self.of(args[0]) if args else None, tuple)
            return _tuple([self.of(each) for each in args])
        if origin in {dict, Mapping}:
            if args and bare(args[0]) is not str:
                raise InvalidSettingError(f"{hint} has keys that are no text; {SUPPORTED}")
            return _dict(self.of(args[1]) if args else None)
        raise InvalidSettingError(f"{_name(hint)} cannot be read from JSON; {SUPPORTED}")

    def _union(self, args: tuple[Any, ...]) -> Reader:
        others = [self.of(each) for each in args if each is not type(None)]
        if type(None) not in args:
            return _first(others)
        read = others[0] if len(others) == 1 else _first(others)
        if read is None:
            return lambda value: value
        return lambda value: None if value is None else read(value)

    def _record(self, kind: Any) -> Reader:
        if kind in self._known:
            return lambda value: self._known[kind](value)  # noqa: PLW0108  (not known yet)
        self._known[kind] = _unread
        hints = hints_of(kind)
        needed = required_of(kind)
        names = _names_of(kind, hints)
        fields = tuple(
            (name, self._field(kind, name, hints[name]), name in needed) for name in names
        )
        make: Any = kind if dataclasses.is_dataclass(kind) else None
        self._known[kind] = read = _record(kind, fields, make, self._is_closed)
        return read

    def _field(self, kind: Any, name: str, hint: Any) -> Reader | None:
        try:
            return self.of(hint)
        except InvalidSettingError as error:
            raise InvalidSettingError(f"{_name(kind)}.{name}: {error}") from None


def bare(hint: Any) -> Any:
    """A hint without what only marks it."""
    while True:
        if get_origin(hint) in {Annotated, Required, NotRequired}:
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):  # NewType
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # `type Amount = int`
            hint = hint.__value__
        elif hint is None:
            return type(None)
        else:
            return hint


def hints_of(kind: Any) -> dict[str, Any]:
    """The fields of a type and their types."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidSettingError(
            f"{_name(kind)} has a field whose type is not known: {error}"
        ) from None


def required_of(kind: Any) -> set[str]:
    """The fields that must be there."""
    if dataclasses.is_dataclass(kind):
        return {
            spec.name
            for spec in dataclasses.fields(kind)
            if spec.init
            and spec.default is dataclasses.MISSING
            and spec.default_factory is dataclasses.MISSING
        }
    # `NotRequired` in a postponed annotation is not yet known to the class itself.
    hints = hints_of(kind)
    listed: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    return {name for name in listed if get_origin(hints[name]) is not NotRequired}


def _names_of(kind: Any, hints: Mapping[str, Any]) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return list(hints)
    # An InitVar, which has no field, would be needed and never be sent back.
    marked = [name for name in hints if isinstance(hints[name], dataclasses.InitVar)]
    if marked:
        raise InvalidSettingError(f"{_name(kind)}.{marked[0]} is an InitVar; use a field")
    return [spec.name for spec in dataclasses.fields(kind) if spec.init]


def _record(
    kind: Any,
    fields: tuple[tuple[str, Reader | None, bool], ...],
    make: Callable[..., Any] | None,
    is_closed: bool,
) -> Reader:
    names = {name for name, _, _ in fields}

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise misfit("must be an object")
        values: dict[str, Any] = {}
        problems: list[Problem] = []
        missing: list[Problem] = []
        for name, reader, is_needed in fields:
            if name not in data:
                if is_needed:
                    missing.append(problem(name, "is missing"))
            elif reader is None:
                values[name] = data[name]
            else:
                try:
                    values[name] = reader(data[name])
                except MisfitError as error:
                    problems += error.inside(name)
        if is_closed and not data.keys() <= names:
            unknown = sorted(map(shown, data.keys() - names))
            missing += [problem(name, "is not one of its fields") for name in unknown]
        if missing or problems:
            raise MisfitError(missing + problems)
        if make is None:
            return values
        try:
            return make(**values)
        except Exception as error:  # noqa: BLE001  (whatever a __post_init__ raises)
            # Its text may quote what it was given.
            raise misfit(f"was refused by {_name(kind)}: {type(error).__name__}") from None

    return read


def _unread(_: Any) -> Any:
    raise misfit("has a type that contains itself and nothing else")


def _exactly(kind: type, message: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise misfit(message)

    return read


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:  # a float may be written without a point; true is no number
        return float(value)
    raise misfit("must be a number")


def _from_text(convert: Callable[[str], Any], message: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is str:
            try:
                return convert(value)
            except ValueError:
                pass
        raise misfit(message)

    return read


def _decimal(value: Any) -> Decimal:
    if type(value) in {str, int, float}:
        try:
            found = Decimal(str(value))
        except InvalidOperation:
            pass
        else:
            if found.is_finite():
                return found
    raise misfit("must be a decimal number")


def _enum(kind: type[enum.Enum]) -> Reader:
    def read(value: Any) -> enum.Enum:
        try:
            found = kind(value)
        except (ValueError, TypeError):
            found = None
        if found is None or _is_other_kind(value, found.value):
            raise misfit(f"must be a value of {kind.__name__}")
        return found

    return read


def _is_other_kind(value: Any, wanted: Any) -> bool:
    """For Python true equals 1; in JSON they are two things."""
    return value == wanted and (type(value) is bool) != (type(wanted) is bool)


def _literal(allowed: tuple[Any, ...]) -> Reader:
    listed = ", ".join(repr(each) for each in allowed)

    def read(value: Any) -> Any:
        for each in allowed:
            if type(value) is type(each) and value == each:  # true is not 1
                return each
            if not isinstance(each, enum.Enum) or _is_other_kind(value, each.value):
                continue
            if value == each.value:
                return each
        raise misfit(f"must be one of {listed}")

    return read


def _first(readers: list[Reader | None]) -> Reader:
    def read(value: Any) -> Any:
        errors = []
        for reader in readers:
            if reader is None:
                return value
            try:
                return reader(value)
            except MisfitError as error:
                errors.append(error)
        # That which got furthest says most: the one with places, if there is one.
        deep = [error for error in errors if any(each.place for each in error.problems)]
        if len(deep) == 1:
            raise deep[0]
        raise misfit(" or ".join(dict.fromkeys(each.problems[0].message for each in errors)))

    return read


def _list(reader: Reader | None, make: Callable[[list[Any]], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise misfit("must be a list")
        found = list(value) if reader is None else _each(reader, enumerate(value))
        try:
            return found if make is list else make(found)
        except TypeError:
            raise misfit("must have parts that can be in a set") from None

    return read


def _each(reader: Reader, parts: Any) -> list[Any]:
    found: list[Any] = []
    problems: list[Problem] = []
    for number, part in parts:
        try:
            found.append(reader(part))
        except MisfitError as error:
            problems += error.inside(number)
    if problems:
        raise MisfitError(problems)
    return found


def _tuple(readers: list[Reader | None]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise misfit(f"must be a list of {len(readers)}")
        found = []
        for number, (reader, part) in enumerate(zip(readers, value, strict=True)):
            try:
                found.append(part if reader is None else reader(part))
            except MisfitError as error:
                raise MisfitError(error.inside(number)) from None
        return tuple(found)

    return read


def _dict(reader: Reader | None) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise misfit("must be an object")
        if reader is None:
            return dict(value)
        keys = list(value)
        parts = _each(reader, ((shown(key), value[key]) for key in keys))
        return dict(zip(keys, parts, strict=True))

    return read


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


_SCALARS: dict[Any, Reader] = {
    str: _exactly(str, "must be text"),
    int: _exactly(int, "must be a whole number"),
    bool: _exactly(bool, "must be true or false"),
    type(None): _exactly(type(None), "must be null"),
    float: _float,
    Decimal: _decimal,
    UUID: _from_text(UUID, "must be a UUID"),
    date: _from_text(date.fromisoformat, "must be a date, as 2026-01-31"),
    datetime: _from_text(datetime.fromisoformat, "must be a time, as 2026-01-31T12:00:00Z"),
    time: _from_text(time.fromisoformat, "must be a time of day, as 12:00:00"),
}
