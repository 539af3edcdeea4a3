"""LoadRun: one run of a load, from its last checkpoint to its end or to what stops it.

Rows are read, checked and committed chunk by chunk; each chunk is one transaction that the database
knows by its number and its digest. So a chunk may be sent again when it is not known whether it was
committed, and a loader that was killed goes on after the last one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, LiteralString
from uuid import UUID

from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer, refuse_unique_key
from commandbus.database import encoding
from commandbus.database.model import OnBehalf
from commandbus.database.store import Store
from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    DatabaseUnavailableError,
    DomainMovedError,
    DuplicateCommandError,
    GovernedTypeError,
    InvalidInputError,
    InvalidOperationError,
    RepeatedIdError,
    SourceError,
)
from commandbus.flow import SendOptions, options_of, with_defaults
from commandbus.loads.model import (
    LoadMetadata,
    LoadProgress,
    LoadResult,
    LoadStart,
    OnProgress,
)
from commandbus.loads.sources import Reader, to_command
from commandbus.loops import Backoff
from commandbus.middleware.base import Drafts
from commandbus.models import BatchCommand, NewCommand
from commandbus.names import NO_REPLY, replies_queue
from commandbus.privacy.redaction import redact_text

#: A checkpoint's rows: the first size, and the bounds between which it adapts.
FIRST_SIZE, SMALLEST_SIZE, LARGEST_SIZE = 1_000, 100, 10_000
#: How long one commit should take.
TARGET_SECONDS = 0.5
#: A checkpoint also ends here, so that large payloads do not fill the memory.
MAX_CHUNK_BYTES = 8 * 1024 * 1024
#: The largest number of rows that is told to those who look.
MAX_TOTAL = 2**31 - 1
#: How long a step is repeated while the database cannot be reached.
RETRY_SECONDS = 60.0
#: First and longest pause between two such tries.
RETRY_PAUSE_SECONDS = (0.05, 2.0)

_log = logging.getLogger("commandbus.batches")

_LOAD_CHUNK: LiteralString = (
    "select {schema}.load_chunk(%s, %s, %s, %s, cast(%s as jsonb), %s, cast(%s as text))"
)
_LOAD_CHUNK_FOR: LiteralString = (
    "select {schema}.load_chunk_for(%s, %s, %s, %s, cast(%s as jsonb), %s, cast(%s as jsonb))"
)
_NOTE_TOTAL: LiteralString = "select {schema}.note_load_total(%s, %s, %s)"
_SEAL_LOAD: LiteralString = "select {schema}.seal_load(%s, %s, %s, cast(%s as text))"
DISPATCH_LOAD: LiteralString = "select {schema}.dispatch_load(%s, %s, %s)"
_ROW_OF_LOAD: LiteralString = (
    "select coalesce(max(c.sequence_no), 0) from {schema}.command_bus_command c"
    " where c.domain = %s and c.batch_id = %s and c.command_id = %s"
)
_FAIL_LOAD: LiteralString = "select {schema}.fail_load(%s, %s, %s)"


class Pace:
    """How many rows the next commit takes: a fixed number, or what fits the target time."""

    def __init__(self, fixed: int | None) -> None:
        self._is_fixed = fixed is not None
        self.size = fixed or FIRST_SIZE

    def learn(self, rows: int, seconds: float) -> None:
        """A commit of this many rows took this long."""
        if self._is_fixed or rows < self.size:
            return
        factor = min(2.0, max(0.5, TARGET_SECONDS / max(seconds, 0.001)))
        self.size = min(LARGEST_SIZE, max(SMALLEST_SIZE, round(self.size * factor)))


@dataclass(slots=True)
class Chunk:
    """The rows of one checkpoint, checked and encoded, and where in the source each stands."""

    commands: list[NewCommand] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def digest(self) -> bytes:
        """Of what must be the same when these rows are brought again."""
        total = hashlib.sha256()
        for command in self.commands:
            total.update(
                f"{command.command_type} {command.command_id} {len(command.data)} ".encode()
            )
            total.update(command.data)
            if command.flow is not None:
                total.update(repr(sorted(command.flow.digestible().items())).encode())
        return total.digest()

    def explain(self, error: DuplicateCommandError, unit: str) -> SourceError:
        """Say where in the source the duplicate stands."""
        repeat = error.within([command.command_id for command in self.commands])
        if isinstance(repeat, RepeatedIdError):
            first, second, *_ = (self.places[n - 1] for n in repeat.positions[repeat.command_id])
            reason = f"command id {repeat.command_id} stands on {unit} {first:,} already"
            return SourceError(f"{unit} {second:,}: {reason}", second)
        place, command_id = self.place_of(error)
        return SourceError(f"{unit} {place:,}: command id {command_id} was sent before", place)

    def locate(self, error: InvalidInputError, unit: str) -> InvalidInputError:
        """Say where the command stands that the database refused, if it names one."""
        for place, command in zip(self.places, self.commands, strict=True):
            if str(command.command_id) in str(error):
                return SourceError(f"{unit} {place:,}: {error}", place)
        return error

    def place_of(self, error: DuplicateCommandError) -> tuple[int, UUID]:
        """The first row whose id the database refused."""
        ids = set(error.command_ids)
        rows = zip(self.places, self.commands, strict=True)
        return next((at, row.command_id) for at, row in rows if row.command_id in ids)


class LoadRun:
    """One run of a load, until it is complete or something stops it."""

    def __init__(
        self,
        store: Store,
        preparer: Preparer,
        load: LoadMetadata,
        reader: Reader,
        on_progress: OnProgress | None,
    ) -> None:
        self._store = store
        self._gateway = store.gateway
        self._preparer = preparer
        self._defaults = options_of(load.options)
        self._load = load
        self._reader = reader
        self._on_progress = on_progress
        self._pace = Pace(load.checkpoint_size)
        self._rows = load.rows_committed
        self._checkpoints = load.checkpoints_done
        self._is_sealed = load.is_sealed
        self._chunk = Chunk()
        self._drafts: Drafts | None = None
        #: Who loads, for the audit; None: who created the batch.
        self.actor: str | None = None
        #: Rows that are queued per second, at most; None: as fast as they can be.
        self.dispatch_rate: float | None = None
        #: The caller for whom it loads, if it does; governed command types are refused then.
        self.on_behalf: OnBehalf | None = None

    async def run(self) -> LoadResult:
        """Load what is not loaded, seal, dispatch; or say where and why it stopped."""
        await self._catch_up()
        try:
            if not self._is_sealed:
                around = self._preparer.drafting.around(self._load.domain, None, is_many=True)
                with around as self._drafts:
                    await self._load_rows()
            await self._dispatch()
        except (GovernedTypeError, DomainMovedError):
            raise  # the fault of who loads, not of the load; and it goes on where the domain is now
        except CommandBusError as error:
            return await self._stopped(error)
        return LoadResult("success", self._load.batch_id, self._checkpoints, self._rows)

    async def _catch_up(self) -> None:
        """Pass over what is committed, and make sure that it is the same source."""
        load = self._load
        if load.rows_committed:
            passed = await self._reader.skip(load.last_first_row - 1)
            count = load.rows_committed - load.last_first_row + 1
            chunk = Chunk()
            while len(chunk.commands) < count and await self._add_row(chunk, passed):
                pass
            if chunk.digest() != load.last_digest:
                raise InvalidOperationError(
                    f"rows {load.last_first_row:,} to {load.rows_committed:,} of the source are "
                    f"not those that batch {load.batch_id} has; resume with the same rows in the "
                    "same order (ids too, if they are made anew at each reading)"
                )
        if self._is_sealed and not await self._reader.is_at_end():
            raise InvalidOperationError(
                f"the load of batch {load.batch_id} is complete with {self._rows:,} rows, and the "
                "source has more; load those into a new batch"
            )

    async def _load_rows(self) -> None:
        if self._reader.total is not None:
            await self._insist(_NOTE_TOTAL, min(self._reader.total, MAX_TOTAL))
        began, before = time.monotonic(), self._rows
        is_queueing = self._load.start is LoadStart.AS_IT_LOADS
        while await self._next_chunk(self._size(is_queueing=is_queueing)):
            if is_queueing:
                await self._keep_rate(self._rows - before, began)
            await self._commit()
            self._report("loading", self._rows, self._rows - before, began)
        if not self._rows:
            raise SourceError("the source has no rows")
        await self._insist(_SEAL_LOAD, self._rows, self.actor)
        self._is_sealed = True

    def _size(self, *, is_queueing: bool) -> int:
        """How many rows the next step takes; with a rate, what may be queued in a second."""
        if self.dispatch_rate is None or not is_queueing:
            return self._pace.size
        return min(self._pace.size, max(1, int(self.dispatch_rate)))

    async def _keep_rate(self, queued: int, began: float) -> None:
        if self.dispatch_rate is not None:
            due = began + queued / self.dispatch_rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _next_chunk(self, size: int) -> bool:
        self._chunk = Chunk()
        while (
            len(self._chunk.commands) < size
            and self._chunk.size_bytes < MAX_CHUNK_BYTES
            and await self._add_row(self._chunk, self._rows)
        ):
            pass
        return bool(self._chunk.commands)

    async def _add_row(self, chunk: Chunk, rows_before: int) -> bool:
        """Read, check and encode one row; False at the end of the source."""
        raw = await self._reader.read()
        if raw is None:
            return False
        place, content = raw
        number = rows_before + len(chunk.commands) + 1
        chunk.places.append(place)
        try:
            row = to_command(content, self._load.row_format, self._load.batch_id, number)
            domain = self._load.domain
            command = self._preparer.command(
                domain, row.command_type, row.command_id, row.data, row.reply_to,
                row.correlation_id, options=self._options(row),
            )  # fmt: skip
            refuse_unique_key(command.flow)
            command = drafted(domain, command, self._drafts)
        except InvalidInputError as error:
            raise self._reader.error_at(place, error) from error
        chunk.commands.append(command)
        chunk.size_bytes += len(command.data)
        return True

    def _options(self, row: BatchCommand) -> SendOptions | None:
        return with_defaults(row.options, self._defaults) if self._defaults else row.options

    async def _commit(self) -> None:
        chunk, began = self._chunk, time.monotonic()
        commands, digest = encoding.sends(chunk.commands), chunk.digest()
        if self._preparer.marks.untold:
            await self._preparer.marks.tell_if_possible(self._store)
        try:
            checkpoint = (self._checkpoints + 1, self._rows + 1, commands, digest)
            if self.on_behalf is None:
                await self._insist(_LOAD_CHUNK, *checkpoint, self.actor)
            else:
                self._refuse_other_replies()
                who = encoding.on_behalf(self.on_behalf)
                await self._insist(_LOAD_CHUNK_FOR, *checkpoint, who)
        except DuplicateCommandError as error:
            raise await self._refused(error) from error
        except InvalidInputError as error:
            raise chunk.locate(error, self._reader.unit) from error
        self._rows += len(chunk.commands)
        self._checkpoints += 1
        self._pace.learn(len(chunk.commands), time.monotonic() - began)

    def _refuse_other_replies(self) -> None:
        """For a caller: replies go where those of its other commands go, or nowhere.

        Any other queue would be made, may be of a domain that the caller does not reach, and its
        consumers would take what they find there for replies to their own commands.
        """
        domain = self._load.domain
        allowed = {NO_REPLY, replies_queue(domain), self._preparer.reply_queue(domain)}
        for place, command in zip(self._chunk.places, self._chunk.commands, strict=True):
            if command.reply_to not in allowed:
                reason = f"reply_to must be {replies_queue(domain)}, or empty for no reply"
                raise self._reader.error_at(place, reason)

    async def _refused(self, error: DuplicateCommandError) -> SourceError:
        explained = self._chunk.explain(error, self._reader.unit)
        place, command_id = self._chunk.place_of(error)
        params = (self._load.domain, self._load.batch_id, command_id)
        row = await self._gateway.value(_ROW_OF_LOAD, params, domain=self._load.domain)
        if not row or explained.line != place:
            return explained
        # In an earlier checkpoint: the same mistake as in this one, not a command sent before.
        reason = f"command id {command_id} is already that of row {row:,} of this load"
        return self._reader.error_at(place, reason)

    async def _dispatch(self) -> None:
        """Queue what is only stored; of a load that started as it loaded nothing is."""
        load, began = self._load, time.monotonic()
        if load.start is LoadStart.AS_IT_LOADS:
            return
        dispatched = load.rows_dispatched
        while dispatched < self._rows:
            await self._keep_rate(dispatched - load.rows_dispatched, began)
            step, before = time.monotonic(), dispatched
            size = self._size(is_queueing=True)
            dispatched = int(await self._insist(DISPATCH_LOAD, size))
            self._pace.learn(dispatched - before, time.monotonic() - step)
            self._report("dispatching", dispatched, dispatched - load.rows_dispatched, began)

    async def _insist(self, statement: LiteralString, *arguments: Any) -> Any:
        """Run a step, again and again while the database cannot be reached: repeating is safe."""
        params = (self._load.domain, self._load.batch_id, *arguments)
        deadline = time.monotonic() + RETRY_SECONDS
        pauses = Backoff(*RETRY_PAUSE_SECONDS)
        while True:
            try:
                return await self._gateway.value(statement, params, domain=self._load.domain)
            except DatabaseUnavailableError as error:
                if time.monotonic() > deadline:
                    raise
                _log.warning("load of batch %s waits: %s", self._load.batch_id, error)
                await asyncio.sleep(pauses.next())

    async def _stopped(self, error: CommandBusError) -> LoadResult:
        text = redact_text(str(error))
        # The database may be what failed; the caller is told in any case.
        with suppress(CommandBusError):
            params = (self._load.domain, self._load.batch_id, text)
            await self._gateway.rows(_FAIL_LOAD, params, domain=self._load.domain)
        total = self._reader.total
        return LoadResult(
            "partial_success",
            self._load.batch_id,
            self._checkpoints,
            self._rows,
            failed_checkpoint=None if self._is_sealed else self._checkpoints + 1,
            tasks_failed=len(self._chunk.places) if total is None else max(total - self._rows, 0),
            recovery_possible=not isinstance(error, BatchNotFoundError | InvalidOperationError),
            error=text,
            line=error.line if isinstance(error, SourceError) else None,
        )

    def _report(
        self, stage: Literal["loading", "dispatching"], rows: int, done: int, began: float
    ) -> None:
        if self._on_progress is None:
            return
        total = self._reader.total if stage == "loading" else self._rows
        per_second = done / max(time.monotonic() - began, 1e-6)
        left = None if total is None else max(total - rows, 0) / per_second
        try:
            self._on_progress(LoadProgress(stage, rows, self._checkpoints, per_second, total, left))
        except Exception as error:  # noqa: BLE001  (an observer must not stop the load)
            _log.warning(
                "on_progress failed: %s: %s", type(error).__name__, redact_text(str(error))
            )
