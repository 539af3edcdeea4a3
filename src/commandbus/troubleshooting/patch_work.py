"""How a JSON Patch changes one payload: operation by operation, on a copy."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from commandbus.payload import MAX_PAYLOAD_BYTES
from commandbus.privacy.redaction import is_hidden
from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.values import secret_values

Path = tuple[str, ...]

_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")


class OperationFailedError(Exception):
    """An operation that does not suit a payload."""


def path_of(text: str) -> Path:
    """The parts of a JSON Pointer."""
    parts = text.split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def is_secret_path(path: Path, marked: Collection[str]) -> bool:
    """Whether it leads through a key whose value must not be shown."""
    return any(is_sensitive_key(part, marked) for part in path)


def secret_part(path: Path, marked: Collection[str]) -> Path | None:
    """The path of the secret value that a path leads to or into; None if it leads to none."""
    for number, part in enumerate(path, 1):
        if is_sensitive_key(part, marked):
            return path[:number]
    return None


class PatchWork:
    """A payload that is being changed; it is a copy of its own."""

    def __init__(self, data: Any, marked: Collection[str]) -> None:
        self.data = data
        self._marked = marked
        # Of the payload as it was: an operation may take a secret out of it, and test its copy.
        self._secrets = secret_values(data, marked)
        # A few copies of a whole payload into itself would fill the memory.
        self._bytes_left = MAX_PAYLOAD_BYTES

    def do(self, operation: Mapping[str, Any]) -> None:
        """Apply one operation."""
        verbs: dict[str, Callable[[Path, Mapping[str, Any]], None]] = {
            "add": lambda path, given: self._add(path, copy.deepcopy(given["value"])),
            "remove": lambda path, _: self._remove(path),
            "replace": self._replace,
            "move": self._move,
            "copy": self._copy,
            "test": self._test,
        }
        path = path_of(operation["path"])
        self._stay_outside(path, 1 if operation["op"] == "add" else 0)
        if "from" in operation and operation["op"] in {"move", "copy"}:
            self._stay_outside(path_of(operation["from"]), 0)
        verbs[operation["op"]](path, operation)

    def _replace(self, path: Path, operation: Mapping[str, Any]) -> None:
        value = copy.deepcopy(operation["value"])
        if path:
            holder, key = self._place(path)
            holder[key] = value
        else:
            self.data = value

    def _move(self, path: Path, operation: Mapping[str, Any]) -> None:
        source = path_of(operation["from"])
        value = self._at(source)
        self._keep_secret(source, path)
        if source != path:
            self._remove(source)
            self._add(path, value)

    def _copy(self, path: Path, operation: Mapping[str, Any]) -> None:
        source = path_of(operation["from"])
        value = self._at(source)
        self._keep_secret(source, path)
        try:
            self._bytes_left -= len(orjson.dumps(value))
        except TypeError:
            raise OperationFailedError("the payload would be nested too deeply") from None
        if self._bytes_left < 0:
            raise OperationFailedError("the copies together are larger than a payload may be")
        self._add(path, copy.deepcopy(value))

    def _test(self, path: Path, operation: Mapping[str, Any]) -> None:
        # Its outcome would tell whether a guess is right.
        if is_secret_path(path, self._marked):
            raise OperationFailedError("a secret value cannot be tested")
        value = self._at(path)
        if is_hidden(value, self._marked, self._secrets):
            raise OperationFailedError("a secret value cannot be tested")
        if not _is_same(value, operation["value"]):
            raise OperationFailedError("the value there is another one")

    def _stay_outside(self, path: Path, most: int) -> None:
        """Refuse a path into a secret value: whether there is something would tell what it is.
        Only to set a field of it is allowed, which does the same whether it is there or not.
        """
        whole = secret_part(path, self._marked)
        if whole is not None and len(path) > len(whole) + most:
            raise OperationFailedError("it leads into a secret value; replace that as a whole")

    def _keep_secret(self, source: Path, target: Path) -> None:
        if is_secret_path(source, self._marked) and not is_secret_path(target, self._marked):
            raise OperationFailedError("a secret value cannot be put where it would be shown")

    def _add(self, path: Path, value: Any) -> None:
        if not path:
            self.data = value
            return
        holder = self._at(path[:-1])
        if isinstance(holder, dict):
            holder[path[-1]] = value
        elif isinstance(holder, list):
            if path[-1] != "-" and is_secret_path(path, self._marked):
                raise OperationFailedError("it leads into a secret value; replace that as a whole")
            at = len(holder) if path[-1] == "-" else _index(path[-1], len(holder) + 1)
            holder.insert(at, value)
        else:
            raise OperationFailedError("what should contain it is no object and no array")

    def _remove(self, path: Path) -> None:
        # Never the whole payload: a patch that says so is refused when it is made.
        holder, key = self._place(path)
        del holder[key]

    def _at(self, path: Path) -> Any:
        value = self.data
        for part in path:
            value = value[_key(value, part)]
        return value

    def _place(self, path: Path) -> tuple[Any, Any]:
        """What contains the value at a path, and the key of the value there."""
        holder = self._at(path[:-1])
        return holder, _key(holder, path[-1])


def _key(holder: Any, part: str) -> Any:
    if isinstance(holder, dict) and part in holder:
        return part
    if isinstance(holder, list):
        return _index(part, len(holder))
    raise OperationFailedError("there is nothing at this path")


def _index(part: str, size: int) -> int:
    if not _INDEX.match(part) or int(part) >= size:
        raise OperationFailedError("there is no such place in the array")
    return int(part)


def _is_same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
