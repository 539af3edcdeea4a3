"""Bulk operations: `bus.bulk`. One decision for many parked commands, frozen, paced, resumable."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID, uuid4

from commandbus.database import encoding
from commandbus.database.model import OnBehalf
from commandbus.database.store import Store
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import (
    check_choice,
    check_command_type,
    check_domain,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.payload import encode_json
from commandbus.privacy.reasons import check_reason
from commandbus.privacy.redaction import redact_text
from commandbus.settings import check_number
from commandbus.troubleshooting.bulk_edit import Editor
from commandbus.troubleshooting.bulk_reads import BulkReads
from commandbus.troubleshooting.bulk_run import BulkExecutor
from commandbus.troubleshooting.groups import Groups
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkMatch,
    BulkOperation,
    BulkPreview,
    BulkSample,
    BulkStatus,
    BulkVerb,
    EditPreview,
)
from commandbus.troubleshooting.patch import JsonPatch, MergePatch, PayloadEdit, pointer

#: Ids that one operation may be given one by one.
MAX_IDS = 10_000
#: Bytes of a filter as JSON; MAX_IDS ids fit in.
MAX_FILTER_BYTES = 1_000_000
#: Commands that a preview of an edit looks at, and those that it shows.
MAX_PREVIEWED = 10_000
MAX_EXAMPLES = 100
#: Paths of an edit that are kept to be shown.
MAX_PATHS = 20
#: Bytes around an edit: the paths that it writes to.
MAX_EDIT_EXTRA = 8_192
#: Commands per second that a rate may ask for.
RATE_RANGE = (0.0001, 1_000_000)
#: Seconds that an operation may wait before its first item.
MAX_START_AFTER = 3_600

BulkProgress = Callable[[BulkOperation], Awaitable[None] | None]

_PREVIEW: LiteralString = (
    "select * from {schema}.preview_bulk(%s, cast(%s as jsonb), cast(%s as text))"
)
_START: LiteralString = (
    "select {schema}.start_bulk(%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb),"
    " cast(%s as float8), %s, %s, cast(%s as bigint), cast(%s as int),"
    " make_interval(secs => cast(%s as float8)))"
)
_START_FOR: LiteralString = (
    "select {schema}.start_bulk_for(%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb),"
    " cast(%s as float8), %s, cast(%s as bigint), cast(%s as jsonb), cast(%s as int),"
    " make_interval(secs => cast(%s as float8)))"
)
_MATCHED: LiteralString = (
    "select m.command_id from {schema}.bulk_matches(%s, cast(%s as jsonb)) m"
    " order by m.parked_at, m.command_id limit %s"
)
_SAMPLES: LiteralString = (
    "select c.command_id, c.command_type, m.fingerprint, m.parked_at, c.attempts,"
    " c.last_error_code, c.last_error_msg, c.correlation_id, c.batch_id"
    " from (select * from {schema}.bulk_matches(%s, cast(%s as jsonb), cast(%s as text)) m"
    " order by m.parked_at, m.command_id limit %s) m"
    " join {schema}.command_bus_command c on c.domain = %s and c.command_id = m.command_id"
    " order by m.parked_at, m.command_id"
)
_STOP: LiteralString = "select {schema}.stop_bulk(%s, %s)"
_RESUME: LiteralString = "select {schema}.resume_bulk(%s, %s, cast(%s as float8), %s)"


class BulkOperations(BulkReads):
    """Starts, runs, stops and shows bulk operations."""

    def __init__(
        self,
        store: Store,
        *,
        max_result_bytes: int,
        registry: HandlerRegistry | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(store)
        self._groups = Groups(store)
        self._max_result_bytes = max_result_bytes
        self._sleep = sleep
        handlers = HandlerRegistry() if registry is None else registry
        self._editor = Editor(store, handlers, max_bytes=max_result_bytes)
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._executor = BulkExecutor(store, self._editor, name)

    async def preview(
        self, chosen: BulkFilter, *, samples: int = 0, viewer: Viewer = EVERYTHING
    ) -> BulkPreview:
        """What matches now, counted by failure group, most first; `total` is for `expected_total`.

        `samples`: how many of the commands it shows, those that are parked longest.
        """
        check_number(samples, "samples", 0, MAX_EXAMPLES, is_whole=True)
        chosen = await self._checked(chosen, viewer)
        domain, conditions = chosen.domain, _encoded(chosen)
        gateway, asked = self._store.gateway.patient, (domain, conditions, viewer.owner)
        found = await gateway.rows(_PREVIEW, asked, into=BulkMatch, domain=domain)
        shown: list[BulkSample] = []
        if samples and found:
            params = (*asked, samples, domain)
            shown = await gateway.rows(_SAMPLES, params, into=BulkSample, domain=domain)
        total = sum(match.matched for match in found)
        return BulkPreview(domain, total, tuple(found), tuple(shown))

    async def preview_edit(
        self, chosen: BulkFilter, edit: PayloadEdit, *, examples: int = 10
    ) -> EditPreview:
        """What an edit would change, secrets masked: counts, and the first commands. No change yet.

        It looks at the first MAX_PREVIEWED of what matches. `examples`: how many it shows.
        """
        _check_edit(edit)
        check_number(examples, "examples", 0, MAX_EXAMPLES, is_whole=True)
        matched = await self.preview(chosen)
        params = (chosen.domain, _encoded(await self._checked(chosen)), MAX_PREVIEWED)
        rows = await self._store.gateway.patient.rows(_MATCHED, params, domain=chosen.domain)
        return await self._editor.preview(
            chosen.domain, matched.total, [row[0] for row in rows], edit, examples
        )

    async def start(  # noqa: PLR0913  (each is a part of the decision)
        self,
        verb: BulkVerb,
        chosen: BulkFilter,
        *,
        edit: PayloadEdit | None = None,
        reason: str | None = None,
        result_data: Any = None,
        reset_attempts: bool = True,
        rate: float | None = None,
        operator: str | None = None,
        operation_id: UUID | None = None,
        everything: bool = False,
        expected_total: int | None = None,
        limit: int | None = None,
        start_after: float | None = None,
        on_behalf: OnBehalf | None = None,
    ) -> BulkOperation:
        """Decide for many parked commands: "retry", "cancel" or "complete".

        `reason`: why, kept with the operation and in the audit; a cancel needs one, and its replies
        have it.

        A retry with an `edit` (MergePatch or JsonPatch) changes each payload before it is sent
        again. Commands that it cannot be applied to stay parked, as failed items with the reason;
        look at `preview_edit` first.

        What matches now is frozen. Workers of the domain then act on it, or `run` does, at
        `rate` commands per second. With an `operation_id` of your own a repeat is the same
        operation; so is a start while the same decision on the same filter still runs.
        A filter that matches nothing is refused, and one that matches everything parked in the
        domain, unless `everything` confirms it. With `expected_total`, the total of a preview, a
        start that would freeze another number of commands is refused. `limit` freezes only that
        many, those that are parked longest: to try a decision on a few first. `start_after`:
        seconds in which nothing is done yet, so that `stop` undoes all of it. `on_behalf`
        (`bus.governance.on_behalf_of`): for a caller, to whom an edit of governed command types is
        refused, if no governed batch has the commands.
        """
        asked = check_choice(BulkVerb, verb, "verb")
        arguments = self._arguments(asked, reason, result_data, reset_attempts, edit)
        wanted = uuid4() if operation_id is None else check_uuid(operation_id, "operation_id")
        pace, actor = _check_rate(rate), check_operator(operator)
        if expected_total is not None:
            check_number(expected_total, "expected_total", 0, 2**63 - 1, is_whole=True)
        if limit is not None:
            check_number(limit, "limit", 1, 2**31 - 1, is_whole=True)
        if start_after is not None:
            check_number(start_after, "start_after", 0, MAX_START_AFTER)
        chosen = await self._checked(chosen)
        what: tuple[Any, ...] = (wanted, chosen.domain, asked, _encoded(chosen), arguments, pace)
        if edit is None or on_behalf is None:
            statement, params = _START, (*what, actor, everything, expected_total)
        else:
            who = encoding.on_behalf(on_behalf)
            statement, params = _START_FOR, (*what, everything, expected_total, who)
        params = (*params, limit, start_after)
        return await self.require(
            await self._store.gateway.patient.value(statement, params, domain=chosen.domain)
        )

    async def run(
        self, operation_id: UUID, *, on_progress: BulkProgress | None = None
    ) -> BulkOperation:
        """Act on it here, until it is finished or stopped. Others may act on it too."""
        operation = await self.require(operation_id)
        while operation.is_running:
            step = await self._executor.run_chunk(operation.operation_id)
            if step.acted or step.status is not BulkStatus.RUNNING:
                operation = await self.require(operation_id)
                if on_progress is not None:
                    told = on_progress(operation)
                    if inspect.isawaitable(told):
                        await told
            if step.wait_seconds > 0:
                # At most a second at once, so that a stop is noticed soon also at a slow rate.
                await self._sleep(min(step.wait_seconds, 1.0))
        return operation

    async def stop(self, operation_id: UUID, *, operator: str | None = None) -> BulkOperation:
        """Act on no further item; an operation that is finished is refused.

        What is done stays done. Within `start_after` nothing is done yet.
        """
        wanted = check_uuid(operation_id, "operation_id")
        await self._store.gateway.rows(_STOP, (wanted, check_operator(operator)))
        return await self.require(wanted)

    async def resume(
        self,
        operation_id: UUID,
        *,
        rate: float | None = None,
        reason: str | None = None,
        operator: str | None = None,
    ) -> BulkOperation:
        """Go on where it was left, at another rate if one is given."""
        wanted = check_uuid(operation_id, "operation_id")
        params = (wanted, check_operator(operator), _check_rate(rate), check_reason(reason))
        await self._store.gateway.rows(_RESUME, params)
        return await self.require(wanted)

    async def _checked(self, chosen: BulkFilter, viewer: Viewer = EVERYTHING) -> BulkFilter:
        """The filter, its parts checked and the group's fingerprint complete."""
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
        if chosen.failed_of is not None:
            of = (await self.require(chosen.failed_of, viewer=viewer)).operation_id
            chosen = replace(chosen, failed_of=of)
        if chosen.command_ids is not None:
            ids = tuple(check_uuid(command_id) for command_id in chosen.command_ids)
            if not 1 <= len(ids) <= MAX_IDS:
                raise InvalidInputError(f"give from 1 to {MAX_IDS:,} ids, or a filter")
            chosen = replace(chosen, command_ids=ids)
        if chosen.group is not None:
            found = await self._groups.require_group(chosen.group, chosen.domain, viewer=viewer)
            chosen = replace(chosen, group=found.fingerprint)
        return chosen

    def _arguments(
        self,
        verb: BulkVerb,
        reason: str | None,
        result_data: Any,
        reset_attempts: bool,
        edit: PayloadEdit | None,
    ) -> str:
        if verb is not BulkVerb.COMPLETE and result_data is not None:
            raise InvalidInputError(f"a {verb} has no result; only a complete has")
        if verb is not BulkVerb.RETRY and edit is not None:
            raise InvalidInputError(f"a {verb} has no edit; only a retry has")
        values: dict[str, Any] = {"reset_attempts": reset_attempts}
        if edit is not None:
            _check_edit(edit)
            paths = list(dict.fromkeys(map(pointer, edit.written())))[:MAX_PATHS]
            values["edit"] = {**edit.stored(), "paths": paths}
        if verb is BulkVerb.CANCEL:
            values = {}
        elif verb is BulkVerb.COMPLETE:
            values = {"result": result_data}
        if reason is not None or verb is BulkVerb.CANCEL:
            values["reason"] = redact_text(check_text(reason, "reason"))
        # Bytes; the result, or the edit with its paths, is inside a small document.
        extra = 100 if edit is None else MAX_EDIT_EXTRA
        limit = self._max_result_bytes + extra + len(str(values.get("reason", "")).encode()) * 6
        what = "result_data" if edit is None else "edit"
        return encode_json(values, what=what, max_bytes=limit).decode()


def _check_edit(edit: Any) -> None:
    if not isinstance(edit, MergePatch | JsonPatch):
        raise InvalidInputError("an edit is a MergePatch or a JsonPatch")


def _encoded(chosen: BulkFilter) -> str:
    return encode_json(chosen.conditions(), what="filter", max_bytes=MAX_FILTER_BYTES).decode()


def _check_rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    check_number(rate, "rate", *RATE_RANGE)
    return float(rate)
