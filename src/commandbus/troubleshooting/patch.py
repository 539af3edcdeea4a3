"""One change for the payloads of many commands: JSON Merge Patch (RFC 7396), JSON Patch (RFC 6902).

A change is checked as a whole when it is made, so that a mistake in it is found before any command
is read. What depends on a payload is found when it is applied: InvalidPayloadError then says which
operation failed and where, without a value of the payload.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from commandbus.errors import InvalidInputError, InvalidPayloadError
from commandbus.payload import encode_json
from commandbus.privacy.redaction import redact_text
from commandbus.privacy.values import MASK
from commandbus.troubleshooting.patch_work import (
    OperationFailedError,
    PatchWork,
    Path,
    is_secret_path,
    path_of,
)

#: Operations that one JSON Patch may have.
MAX_OPERATIONS = 1_000
#: Characters of a path that a message shows.
MAX_SHOWN_PATH = 120

#: What each operation has beside `op` and `path`.
_MEMBERS = {
    "add": "value",
    "remove": None,
    "replace": "value",
    "move": "from",
    "copy": "from",
    "test": "value",
}


@dataclass(frozen=True, slots=True)
class MergePatch:
    """A JSON Merge Patch: the fields that it has are set, those that are null are removed.

    MergePatch({"currency": "EUR", "note": None})
    """

    document: Mapping[str, Any]

    def __post_init__(self) -> None:
        given: Any = self.document
        if not isinstance(given, Mapping) or not given:
            raise InvalidInputError(
                "a merge patch is a JSON object with the fields to change, for example "
                '{"currency": "EUR"}; null removes a field'
            )
        encode_json(self.document, what="the merge patch")
        _refuse_masks(self.document, "the merge patch")

    def stored(self) -> dict[str, Any]:
        """As a bulk operation keeps it."""
        return {"merge": self.document}

    def written(self) -> Iterator[Path]:
        """The paths that it may change."""
        return _leaves(self.document, ())

    def apply(self, data: Any, marked: Collection[str] = ()) -> Any:
        """The payload with the change; `data` stays as it is. `marked`: keys that are secret."""
        del marked  # a merge moves nothing out of a secret field
        return _merged(data, self.document)


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """A JSON Patch: operations add, remove, replace, move, copy and test, one after the other.

    JsonPatch([{"op": "replace", "path": "/currency", "value": "EUR"}])
    """

    operations: list[dict[str, Any]]

    def __post_init__(self) -> None:
        given: Any = self.operations
        if not isinstance(given, list) or not given:
            raise InvalidInputError(
                "a JSON Patch is an array of operations, for example "
                '[{"op": "replace", "path": "/currency", "value": "EUR"}]'
            )
        if len(self.operations) > MAX_OPERATIONS:
            raise InvalidInputError(
                f"the patch has {len(self.operations):,} operations; at most "
                f"{MAX_OPERATIONS:,} are allowed"
            )
        for number, operation in enumerate(self.operations, 1):
            _check_operation(number, operation)
        encode_json(self.operations, what="the patch")

    def stored(self) -> dict[str, Any]:
        """As a bulk operation keeps it."""
        return {"patch": list(self.operations)}

    def written(self) -> Iterator[Path]:
        """The paths that it may change."""
        for operation in self.operations:
            path = path_of(operation["path"])
            if operation["op"] == "test":
                continue
            if operation["op"] == "move":
                yield path_of(operation["from"])
            if isinstance(operation.get("value"), Mapping):
                yield from _leaves(operation["value"], path)
            else:
                yield path

    def apply(self, data: Any, marked: Collection[str] = ()) -> Any:
        """The payload with the change; `data` stays as it is. `marked`: keys that are secret."""
        work = PatchWork(copy.deepcopy(data), marked)
        for number, operation in enumerate(self.operations, 1):
            try:
                work.do(operation)
            except OperationFailedError as failed:
                shown = redact_text(operation["path"], MAX_SHOWN_PATH)
                raise InvalidPayloadError(
                    f"operation {number} ({operation['op']} {shown!r}): {failed}"
                ) from None
        return work.data


PayloadEdit = MergePatch | JsonPatch


def edit_of(stored: Mapping[str, Any]) -> PayloadEdit:
    """A change as a bulk operation keeps it."""
    return MergePatch(stored["merge"]) if "merge" in stored else JsonPatch(stored["patch"])


def pointer(path: Path) -> str:
    """A path as it is shown and kept: a JSON Pointer, without secrets."""
    text = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)
    return redact_text(text or "/", MAX_SHOWN_PATH)


def secret_paths(edit: PayloadEdit, marked: Collection[str]) -> list[str]:
    """The fields that it writes to and that must not be shown."""
    found = (pointer(path) for path in edit.written() if is_secret_path(path, marked))
    return list(dict.fromkeys(found))


def written_paths(edit: PayloadEdit) -> list[str]:
    """What it writes to, as it is shown."""
    return list(dict.fromkeys(map(pointer, edit.written())))


def tests_values(edit: PayloadEdit) -> bool:
    """Whether what it does depends on values of a payload, and so tells something about them."""
    return isinstance(edit, JsonPatch) and any(each["op"] == "test" for each in edit.operations)


def exact_payload(text: str) -> Any:
    """A payload as Python values. One with a number that those would round is refused."""
    try:
        return json.loads(text, parse_float=_exact_float)
    except InvalidPayloadError:
        raise
    except RecursionError:
        raise InvalidPayloadError("data is nested too deeply to be edited") from None
    except ValueError:
        raise InvalidPayloadError("data has a number that is too long to be edited") from None


def _exact_float(text: str) -> float:
    value = float(text)
    if Decimal(text) != Decimal(repr(value)):
        raise InvalidPayloadError(
            "data has a number with more digits than can be kept when it is edited; cancel the "
            "command, and send the number as text"
        )
    return value


# -- JSON Merge Patch


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path


def _refuse_masks(value: Any, what: str) -> None:
    """A mask in a change would reach the handler as data."""
    if MASK in json.dumps(value, ensure_ascii=False):
        raise InvalidInputError(
            f"{what} contains {MASK}, which stands for a value that was not shown; give the real "
            "value, or leave the field out"
        )


# -- JSON Patch


def _check_operation(number: int, operation: Any) -> None:
    where = f"operation {number} of the patch"
    if not isinstance(operation, Mapping):
        raise InvalidInputError(f"{where} is not a JSON object")
    kind = operation.get("op")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        shown = redact_text(repr(kind), MAX_SHOWN_PATH)
        raise InvalidInputError(f"{where} has op {shown}; use {', '.join(_MEMBERS)}")
    _check_pointer(operation, "path", where)
    member = _MEMBERS[kind]
    if member is not None and member not in operation:
        raise InvalidInputError(f"{where} ({kind}) has no {member!r}")
    if member == "from":
        _check_pointer(operation, "from", where)
        source, target = path_of(operation["from"]), path_of(operation["path"])
        if kind == "move" and len(source) < len(target) and target[: len(source)] == source:
            raise InvalidInputError(f"{where} moves a value into itself")
    elif member == "value":
        _refuse_masks(operation["value"], f"the value of {where}")
    if kind == "remove" and operation["path"] == "":
        raise InvalidInputError(f"{where} removes the whole payload; cancel the commands instead")


def _check_pointer(operation: Mapping[str, Any], member: str, where: str) -> None:
    text = operation.get(member)
    is_pointer = isinstance(text, str) and (text == "" or text.startswith("/"))
    if not is_pointer or re.search(r"~(?![01])", str(text)):
        shown = redact_text(repr(text), MAX_SHOWN_PATH)
        raise InvalidInputError(
            f"{where} has {member} {shown}; write a JSON Pointer such as /items/0/price "
            "(~1 stands for /, ~0 for ~)"
        )
