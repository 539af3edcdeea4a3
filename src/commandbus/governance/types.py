"""Batch types: an operation that may be submitted, declared once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commandbus.access.model import Caller, Scope
from commandbus.errors import InvalidBatchRequestError, InvalidSettingError
from commandbus.governance.model import Item, ItemError
from commandbus.names import check_command_type, check_domain
from commandbus.privacy.secrets import check_payload_type, secret_keys
from commandbus.settings import check_number

#: Compares all items of a request with what is in the database, on the connection of the
#: submission and inside its transaction. It must not write, commit or roll back, and be quick:
#: other submissions wait for it.
ItemCheck = Callable[[Any, Caller, Sequence[Item]], Awaitable[Sequence[ItemError]]]

#: Says what each item would change, for those who decide: for each item, in their order, a mapping
#: with `before` and `after`, or a text: why that cannot be told. The connection is in a read-only
#: transaction.
ItemPreview = Callable[[Any, Sequence[Item]], Awaitable[Sequence[Mapping[str, Any] | str]]]

#: Children of one batch: a submission is one transaction, and other submissions wait for it.
MAX_SIZE = 10_000

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_PATH = re.compile(r"(/[a-z0-9][a-z0-9._-]*)+\Z")
_OPERATION = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchType:
    """What may be submitted under one name, and how much of it."""

    #: The exact batch_type, for example BATCH_POWER_START.
    name: str
    domain: str
    command_type: str
    #: Items in one request.
    max_size: int
    #: A pydantic model, a dataclass or a TypedDict that each item must fit. None: any JSON object.
    payload_type: type[Any] | None = None
    #: Its commands wait until another user has approved the batch.
    requires_approval: bool = False
    permission: Scope = Scope.SUBMIT
    description: str = ""
    #: A route of its own, for example "/api/v1/vms/batch". None: only the route of all batches.
    path: str | None = None
    #: Where several types share a path: the value of the body's field "operation".
    operation: str | None = None
    #: Dispatches of one child, the first included; a retry beyond that is refused.
    max_attempts: int = 3
    #: One item, for the API's description.
    example: Mapping[str, Any] | None = None
    check: ItemCheck | None = None
    preview: ItemPreview | None = None
    #: Consoles ask those who approve to type the number of items.
    is_dangerous: bool = False

    @property
    def secret_keys(self) -> frozenset[str]:
        """The keys of its payload type that are marked as secret."""
        return frozenset() if self.payload_type is None else secret_keys(self.payload_type)

    def __post_init__(self) -> None:
        if not _NAME.match(str(self.name)):
            raise InvalidSettingError(
                f"batch type {self.name!r} is not well formed: use A-Z, 0-9 and _, a letter first, "
                "at most 64 characters (for example 'BATCH_CREATE')"
            )
        check_domain(self.domain)
        check_command_type(self.command_type)
        check_number(self.max_size, f"max_size of {self.name}", 1, MAX_SIZE, is_whole=True)
        check_number(self.max_attempts, f"max_attempts of {self.name}", 1, 1_000, is_whole=True)
        if self.payload_type is not None:
            check_payload_type(self.payload_type, f"batch type {self.name}")
        if self.path is not None and not _PATH.match(self.path):
            raise InvalidSettingError(
                f"path of {self.name} is {self.path!r}; write it like '/api/v1/vms/batch'"
            )
        if self.operation is not None and (
            self.path is None or not _OPERATION.match(self.operation)
        ):
            raise InvalidSettingError(
                f"operation of {self.name} is {self.operation!r}; use small letters, digits, - and "
                "_, and give it a path"
            )


class BatchTypes:
    """The batch types of a bus, by name."""

    def __init__(self) -> None:
        self._types: dict[str, BatchType] = {}

    def declare(self, batch_type: BatchType) -> None:
        """Add a type; a second one of the same name, or at the same place, is an error."""
        if not isinstance(batch_type, BatchType):
            raise InvalidSettingError(
                f"a batch type is a BatchType(…), not a {type(batch_type).__name__}"
            )
        if batch_type.name in self._types:
            raise InvalidSettingError(
                f"batch type {batch_type.name} is declared already; a name has exactly one meaning"
            )
        for other in self.at(batch_type.path) if batch_type.path is not None else ():
            if other.operation == batch_type.operation or None in {
                other.operation,
                batch_type.operation,
            }:
                raise InvalidSettingError(
                    f"batch types {other.name} and {batch_type.name} share the path "
                    f"{batch_type.path}; give each an operation of its own"
                )
        self._types[batch_type.name] = batch_type

    def get(self, name: str) -> BatchType | None:
        """The type of this name, or None."""
        return self._types.get(name)

    def require(self, name: str) -> BatchType:
        """The type of this name, or InvalidBatchRequestError."""
        found = self.get(name)
        if found is None:
            near = difflib.get_close_matches(str(name), self._types, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "check how it is written"
            raise InvalidBatchRequestError(f"no batch type {str(name)[:64]!r}; {hint}")
        return found

    def all(self) -> list[BatchType]:
        """All types, in the order of their declaration."""
        return list(self._types.values())

    def at(self, path: str) -> list[BatchType]:
        """The types that share this path."""
        return [each for each in self._types.values() if each.path == path]
