"""Bulk operations: `bus.bulk`. One decision for many parked commands, frozen, paced, resumable."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

from commandbus.commands.payload import encode_json
from commandbus.database.store import Store
from commandbus.errors import (
    BulkOperationNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.names import (
    check_command_type,
    check_domain,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.paging import check_page
from commandbus.privacy.redaction import redact_text
from commandbus.settings import check_number
from commandbus.store.bulk import BulkStore
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkOperation,
    BulkOutcome,
    BulkPreview,
    BulkStatus,
    BulkVerb,
    NewBulk,
)

#: Items that one transaction acts on at most.
CHUNK = 500
#: Ids that one operation may be given one by one.
MAX_IDS = 10_000
#: Commands per second that a rate may ask for.
RATE_RANGE = (0.0001, 1_000_000)

Word = TypeVar("Word", BulkVerb, BulkStatus, BulkOutcome)
BulkProgress = Callable[[BulkOperation], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class BulkArguments:
    """What the verb needs: a reason to cancel, a result to complete, how to count attempts."""

    reason: str | None = None
    result_data: Any = None
    reset_attempts: bool = True


class BulkOperations:
    """Starts, runs, stops and shows bulk operations."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
        *,
        max_result_bytes: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plain_store = store
        self._groups = groups
        self._max_result_bytes = max_result_bytes
        self._sleep = sleep
        self._executor = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"

    @property
    def store(self) -> BulkStore:
        """The store, if it can do this."""
        if not isinstance(self._plain_store, BulkStore):
            raise InvalidOperationError(
                "the in-memory store has no bulk operations; test them on the embedded server"
            )
        return self._plain_store

    async def preview(self, chosen: BulkFilter) -> BulkPreview:
        """What matches now, counted."""
        store = self.store
        chosen = await self._checked(chosen)
        found = await store.preview_bulk(chosen.domain, chosen.conditions())
        return BulkPreview(chosen.domain, sum(match.matched for match in found), tuple(found))

    async def start(
        self,
        verb: BulkVerb,
        chosen: BulkFilter,
        *,
        reason: str | None = None,
        result_data: Any = None,
        reset_attempts: bool = True,
        rate: float | None = None,
        operator: str | None = None,
        operation_id: UUID | None = None,
        everything: bool = False,
    ) -> BulkOperation:
        """Decide for many parked commands: "retry", "cancel" (with a reason) or "complete".

        What matches now is frozen. Workers of the domain then act on it, or `run` does, at
        `rate` commands per second. With an `operation_id` of your own a repeat is the same
        operation; so is a start while the same decision on the same filter still runs.
        A filter that matches nothing is refused, and one that matches all there is, unless
        `everything` says that it is meant.
        """
        store = self.store
        asked = _check_verb(verb)
        bulk = NewBulk(
            operation_id=uuid4() if operation_id is None else check_uuid(operation_id),
            domain="",
            verb=asked,
            conditions=b"{}",
            arguments=self._arguments(asked, BulkArguments(reason, result_data, reset_attempts)),
            rate=_check_rate(rate),
            actor=check_operator(operator),
            everything=everything,
        )
        chosen = await self._checked(chosen)
        conditions = encode_json(chosen.conditions(), what="filter", max_bytes=1_000_000)
        bulk = replace(bulk, domain=chosen.domain, conditions=conditions)
        return await self.require(await store.start_bulk(bulk))

    async def run(
        self, operation_id: UUID, *, on_progress: BulkProgress | None = None
    ) -> BulkOperation:
        """Act on it here, until it is finished or stopped. Others may act on it too."""
        store = self.store
        operation = await self.require(operation_id)
        while operation.status is BulkStatus.RUNNING:
            step = await store.run_bulk_chunk(
                operation.operation_id, limit=CHUNK, executor=self._executor
            )
            if step.acted or step.status is not BulkStatus.RUNNING:
                operation = await self.require(operation_id)
                if on_progress is not None:
                    told = on_progress(operation)
                    if inspect.isawaitable(told):
                        await told
            if step.wait_seconds > 0:
                # Not longer at once: whoever stops it should not wait for a slow rate.
                await self._sleep(min(step.wait_seconds, 1.0))
        return operation

    async def stop(self, operation_id: UUID, *, operator: str | None = None) -> BulkOperation:
        """Act on no further item."""
        wanted = check_uuid(operation_id, "operation_id")
        await self.store.stop_bulk(wanted, actor=check_operator(operator))
        return await self.require(wanted)

    async def resume(
        self, operation_id: UUID, *, rate: float | None = None, operator: str | None = None
    ) -> BulkOperation:
        """Go on where it was left."""
        wanted = check_uuid(operation_id, "operation_id")
        await self.store.resume_bulk(wanted, actor=check_operator(operator), rate=_check_rate(rate))
        return await self.require(wanted)

    async def get(self, operation_id: UUID) -> BulkOperation | None:
        """One operation, or None."""
        return await self.store.get_bulk(check_uuid(operation_id, "operation_id"))

    async def require(self, operation_id: UUID) -> BulkOperation:
        """One operation; raises if there is none."""
        found = await self.get(operation_id)
        if found is None:
            raise BulkOperationNotFoundError(check_uuid(operation_id, "operation_id"))
        return found

    async def operations(
        self, domain: str | None, *, status: str | None, limit: int, before: UUID | None
    ) -> list[BulkOperation]:
        """Operations, newest first."""
        if domain is not None:
            check_domain(domain)
        check_page(limit)
        return await self.store.list_bulks(
            domain,
            status=None if status is None else _check_word(BulkStatus, status, "status"),
            limit=limit,
            before=None if before is None else check_uuid(before, "before"),
        )

    async def items(
        self, operation_id: UUID, *, outcome: str | None, after: int, limit: int
    ) -> list[BulkItem]:
        """Items of an operation, in their order."""
        check_page(limit, after)
        wanted = (await self.require(operation_id)).operation_id
        return await self.store.list_bulk_items(
            wanted,
            outcome=None if outcome is None else _check_word(BulkOutcome, outcome, "outcome"),
            after=after,
            limit=limit,
        )

    async def _checked(self, chosen: BulkFilter) -> BulkFilter:
        """The filter, its parts checked and the group's name whole."""
        if not isinstance(chosen, BulkFilter):
            raise InvalidInputError("say which commands with a BulkFilter")
        check_domain(chosen.domain)
        if chosen.command_type is not None:
            check_command_type(chosen.command_type)
        if chosen.error_code is not None:
            check_text(chosen.error_code, "error_code")
        for name in ("parked_after", "parked_before"):
            moment = getattr(chosen, name)
            if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo):
                raise InvalidSettingError(f"{name} must be a datetime, with a time zone")
        if chosen.batch_id is not None:
            chosen = replace(chosen, batch_id=check_uuid(chosen.batch_id, "batch_id"))
        if chosen.command_ids is not None:
            ids = tuple(check_uuid(command_id) for command_id in chosen.command_ids)
            if not 1 <= len(ids) <= MAX_IDS:
                raise InvalidInputError(f"give from 1 to {MAX_IDS:,} ids, or a filter")
            chosen = replace(chosen, command_ids=ids)
        if chosen.group is not None:
            found = await self._groups.find(chosen.domain, chosen.group)
            chosen = replace(chosen, group=found.fingerprint)
        return chosen

    def _arguments(self, verb: BulkVerb, given: BulkArguments) -> bytes:
        if verb is not BulkVerb.CANCEL and given.reason is not None:
            raise InvalidInputError(f"a {verb} has no reason; only a cancel has")
        if verb is not BulkVerb.COMPLETE and given.result_data is not None:
            raise InvalidInputError(f"a {verb} has no result; only a complete has")
        values: dict[str, Any] = {"reset_attempts": given.reset_attempts}
        if verb is BulkVerb.CANCEL:
            values = {"reason": redact_text(check_text(given.reason, "reason"))}
        elif verb is BulkVerb.COMPLETE:
            values = {"result": given.result_data}
        return encode_json(values, what="result_data", max_bytes=self._max_result_bytes + 100)


def _check_verb(verb: str) -> BulkVerb:
    return _check_word(BulkVerb, verb, "verb")


def _check_word(words: type[Word], given: str, what: str) -> Word:
    try:
        return words(given)
    except ValueError:
        names = ", ".join(words)
        raise InvalidSettingError(f"no {what} {given!r}; use one of {names}") from None


def _check_rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    check_number(rate, "rate", *RATE_RANGE)
    return float(rate)
