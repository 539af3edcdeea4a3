"""The items of a request: encoded as commands, and checked as far as they alone can tell."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from commandbus.commands.preparing import Preparer
from commandbus.errors import BatchSizeExceededError, InvalidBatchRequestError, InvalidPayloadError
from commandbus.governance.model import Item, ItemError
from commandbus.governance.types import BatchType
from commandbus.models import NewCommand
from commandbus.names import NO_REPLY, new_id
from commandbus.privacy.redaction import redact_text
from commandbus.typed.codec import misfits

#: Errors that one response lists; its text says how many there are.
MAX_ERRORS = 100


def check_items(batch_type: BatchType, items: Any, preparer: Preparer) -> list[NewCommand]:
    """Check shape and size, and encode; raises what is wrong before the database is asked."""
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        raise InvalidBatchRequestError("items must be a list of objects")
    if not items:
        raise InvalidBatchRequestError("a batch needs at least one item; add some")
    if len(items) > batch_type.max_size:
        raise BatchSizeExceededError(len(items), batch_type.max_size)
    domain, command_type = batch_type.domain, batch_type.command_type
    commands: list[NewCommand] = []
    errors: list[ItemError] = []
    for index, item in enumerate(items):
        try:
            # No queue of replies for a governed batch: its ticket tells what became of it.
            # What does not fit the type of the batch is named later, with its place in the item.
            command = preparer.command(
                domain, command_type, new_id(), item, NO_REPLY, None,
                fits=batch_type.payload_type is not None,
            )  # fmt: skip
            commands.append(command)
        except InvalidPayloadError as error:
            errors.append(ItemError(index, "", redact_text(str(error), 200)))
    if errors:
        # Such items were never accepted: no repeat of an earlier request can have them.
        raise refused(errors)
    return commands


def refused(errors: Sequence[ItemError]) -> InvalidBatchRequestError:
    """The error that names the bad items."""
    first = errors[0]
    place = f"item {first.index}" + (f", {first.field}" if first.field else "")
    bad = len({error.index for error in errors})
    more = f" ({bad} items in all)" if bad > 1 else ""
    return InvalidBatchRequestError(
        f"{place}: {first.message}{more}; nothing was created, fix the items and submit again",
        errors[:MAX_ERRORS],
    )


def digest_of(batch_type: BatchType, items: Sequence[Item], reason: str | None) -> bytes:
    """Of the whole body: a repeat of the request has the same."""
    body = {"batch_type": batch_type.name, "items": list(items), "reason": reason}
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()


def fitting_errors(batch_type: BatchType, items: Sequence[Item]) -> list[ItemError]:
    """Items that do not fit the payload type."""
    if batch_type.payload_type is None:
        return []
    return [
        ItemError(index, place, text)
        for index, item in enumerate(items)
        for place, text in misfits(batch_type.payload_type, item)
    ]
