"""Loads: `bus.loads`. Batches too large for one transaction, in checkpoints that resume."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, LiteralString, Unpack
from uuid import UUID

from commandbus.batches.callbacks import Completions
from commandbus.batches.cancels import cancel_all
from commandbus.batches.model import BatchOptions
from commandbus.batches.preparing import new_batch
from commandbus.commands.preparing import Preparer, refuse_unique_key
from commandbus.database import encoding
from commandbus.database.model import OnBehalf
from commandbus.database.store import Store
from commandbus.errors import (
    BatchNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.flow import SendOptions, check_flow
from commandbus.loads.listing import LoadOverview, page_loads
from commandbus.loads.model import (
    LoadMetadata,
    LoadResult,
    LoadStart,
    LoadStatus,
    OnProgress,
    RowFormat,
)
from commandbus.loads.run import DISPATCH_LOAD, LARGEST_SIZE, LoadRun
from commandbus.loads.sources import name_of, open_source
from commandbus.meta import check_meta
from commandbus.models import EVERYTHING, BatchCommand, BatchCompletionCallback, Viewer
from commandbus.names import (
    check_choice,
    check_command_type,
    check_domain,
    check_operator,
    check_uuid,
)
from commandbus.paging import Page
from commandbus.settings import check_number

_BEGIN_LOAD: LiteralString = (
    "select {schema}.begin_load(%s, %s, %s, cast(%s as jsonb), %s, cast(%s as int), %s,"
    " cast(%s as jsonb), %s, cast(%s as jsonb), %s, %s, cast(%s as jsonb))"
)
_SEAL_LOAD: LiteralString = "select {schema}.seal_load(%s, %s, null, %s)"
_LOADS: LiteralString = (
    "select l.batch_id, l.domain, l.source, l.row_format, l.start_mode, l.status,"
    " l.checkpoint_size, l.rows_committed, l.checkpoints_done, l.rows_dispatched, l.last_error,"
    " l.created_at, l.updated_at, coalesce(c.first_row, 1), c.digest, l.delimiter, l.options"
    " from {schema}.command_bus_load l left join {schema}.command_bus_load_checkpoint c"
    " on c.batch_id = l.batch_id and c.checkpoint_no = l.checkpoints_done"
)
_CREATED_BY: LiteralString = (
    "select b.created_by from {schema}.command_bus_batch b where b.domain = %s and b.batch_id = %s"
)
_GET_LOAD: LiteralString = _LOADS + " where l.domain = %s and l.batch_id = %s"
_INTERRUPTED_LOADS: LiteralString = _LOADS + (
    " where (l.status = 'loading' or l.status = 'sealed' and l.rows_dispatched < l.rows_committed)"
    " and l.updated_at < clock_timestamp() - make_interval(secs => cast(%s as float8))"
    " and l.domain <> all({schema}.domains_on_the_way())"
    " order by l.updated_at"
)

#: Rows per second that a dispatch_rate may ask for. Not less: workers go on with a load that has
#: not moved for some minutes.
DISPATCH_RATE_RANGE = (0.01, 1_000_000)
#: Rows that one transaction of `dispatch_rest` queues.
DISPATCH_LIMIT = 1_000


class Loads:
    """Loads sources into batches. Needs PostgreSQL."""

    def __init__(self, store: Store, preparer: Preparer, completions: Completions) -> None:
        self._store = store
        self._preparer = preparer
        self._completions = completions

    async def load(  # noqa: PLR0913  (what a batch is, what a row is, how to load)
        self,
        domain: str,
        source: object,
        *,
        command_type: str | None = None,
        id_column: str | None = None,
        type_column: str | None = None,
        delimiter: str | None = None,
        start: LoadStart = LoadStart.SEALED,
        checkpoint_size: int | None = None,
        dispatch_rate: float | None = None,
        batch_id: UUID | None = None,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
        created_by: str | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | None = None,
        on_progress: OnProgress | None = None,
        actor: str | None = None,
        **send_options: Unpack[SendOptions],
    ) -> LoadResult:
        """Create a batch of any size from a source, in checkpoints, in little memory.

        `source`: a path (.jsonl, .ndjson, .json, .csv, .tsv, also with .gz; .parquet and .arrow
        with pyarrow), a binary file of JSON, a pyarrow table, an iterable or an async iterable of
        BatchCommand or dicts. All but lists and async iterables are read in a thread. A row is an
        object with `command_type`, `data` and perhaps `command_id`; or, given `command_type` or
        `type_column`, it is the data itself. A row without an id gets one from the batch_id and
        its position. `delimiter` separates the columns of a CSV file; None: its header tells.

        `start`: sealed (workers see nothing until the whole source is in, so that a bad row
        half-way has started nothing) or as_it_loads (they begin with the first checkpoint). Either
        way the batch does not end before everything is in. `checkpoint_size`: rows per commit;
        None begins with 1,000 and aims at half a second. `dispatch_rate`: rows per second that are
        queued, at most, by this call; if its process ends, who goes on queues the rest at once.

        A bad row, a duplicate id, a source that fails: the result is partial_success with the line
        and the reason, nothing of its checkpoint was created, earlier ones stay. Fix it and call
        `resume`. Give a `batch_id` of your own, and after a crash the same call goes on
        after the last checkpoint. `actor`: who sends, for the audit; by default `created_by`.
        `send_options` are those of `send`, for rows that do not have their own; a delay counts from
        the checkpoint of its row. `resume` knows them.
        """
        flow, meta = check_flow(send_options), check_meta(send_options.get("meta"))
        refuse_unique_key(flow)
        _checked_rate(dispatch_rate)
        defaults = {
            **({} if flow is None else flow.digestible()),
            **({} if meta is None else {"meta": meta}),
        }
        options = BatchOptions(
            name=name,
            custom_data=custom_data,
            created_by=created_by,
            on_complete=on_complete,
            on_complete_command=on_complete_command,
            actor=actor,
        )
        batch = new_batch(self._preparer, domain, options, batch_id)
        row_format = _checked_format(RowFormat(command_type, id_column, type_column, delimiter))
        how = (check_choice(LoadStart, start, "start").value, _checked_size(checkpoint_size))
        async with open_source(source, row_format) as reader:
            if await reader.is_at_end():
                raise InvalidInputError(
                    "the source has no rows, and a batch needs at least one command; "
                    "nothing was created"
                )
            gateway, columns = self._store.gateway, asdict(row_format)
            # Not among the columns, where a worker of version 0.1.0 would not know it.
            del columns["delimiter"]
            params = (domain, batch.batch_id, name_of(source), encoding.dump(columns), *how)
            await gateway.ensure_domain(domain)
            with self._completions.announced(batch, on_complete):
                # Creates the batch, or finds that it is there, begun in the same way.
                await gateway.rows(
                    _BEGIN_LOAD,
                    (
                        *params, *encoding.batch(batch), delimiter,
                        encoding.dump(defaults) if defaults else None,
                    ),
                    domain=domain,
                )  # fmt: skip
            load = await self.require(domain, batch.batch_id)
            run = LoadRun(self._store, self._preparer, load, reader, on_progress)
            run.actor = batch.actor
            run.dispatch_rate = _checked_rate(dispatch_rate)
            return await run.run()

    async def resume(
        self,
        domain: str,
        batch_id: UUID,
        source: object,
        *,
        dispatch_rate: float | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_progress: OnProgress | None = None,
        actor: str | None = None,
        on_behalf: OnBehalf | None = None,
    ) -> LoadResult:
        """Go on with a load after its last checkpoint; `source` is the same, from its beginning.

        Rows that are committed are passed over, the last checkpoint's are compared. A load that is
        complete is left as it is; one that was canceled is refused. `on_complete` is for a process
        that did not begin the load: a callback lives as long as its process. `actor`: who sends,
        for the audit. `on_behalf` (`bus.governance.on_behalf_of`): for a caller, to whom governed
        command types are refused.
        """
        _checked_rate(dispatch_rate)
        load = await self.require(domain, batch_id)
        if load.status is LoadStatus.CANCELED:
            raise InvalidOperationError(
                f"the load of batch {load.batch_id} was canceled after {load.rows_committed:,} "
                f"rows ({load.last_error}); load the source into a new batch"
            )
        async with open_source(source, load.row_format) as reader:
            if on_complete is not None:
                self._completions.register(domain, load.batch_id, on_complete)
            run = LoadRun(self._store, self._preparer, load, reader, on_progress)
            run.actor = check_operator(actor) if on_behalf is None else on_behalf.user_id
            run.dispatch_rate = _checked_rate(dispatch_rate)
            run.on_behalf = on_behalf
            return await run.run()

    async def seal(
        self, domain: str, batch_id: UUID, *, operator: str | None = None
    ) -> LoadMetadata:
        """Take what was loaded for the whole: the batch ends once that has ended.

        Without rows it ends at once. What is stored is queued, here; if this process ends
        meanwhile, a worker goes on. A process that still loads stops at its next checkpoint. A
        second seal changes nothing; a load that was canceled is refused.
        """
        wanted = (await self.require(domain, batch_id)).batch_id
        params = (domain, wanted, check_operator(operator))
        await self._store.gateway.patient.rows(_SEAL_LOAD, params, domain=domain)
        await dispatch_rest(self._store, await self.require(domain, wanted))
        return await self.require(domain, wanted)

    async def cancel(
        self, domain: str, batch_id: UUID, reason: str, *, operator: str | None = None
    ) -> int:
        """Cancel what no worker has, and load nothing more; returns how many commands.

        `bus.batches.cancel` does the same with any batch. A process that still loads stops at its
        next checkpoint. A load that is complete stays so: its open commands are canceled.
        """
        wanted = (await self.require(domain, batch_id)).batch_id
        return (await cancel_all(self._store, domain, wanted, reason, operator)).canceled

    async def get(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        """How far a load is, from any process; None if there is no such load."""
        params = (check_domain(domain), check_uuid(batch_id, "batch_id"))
        return await self._store.gateway.row(_GET_LOAD, params, into=_load_of, domain=domain)

    async def page(
        self,
        *,
        domains: Collection[str] | None = None,
        status: LoadStatus | None = None,
        is_open: bool = False,
        viewer: Viewer = EVERYTHING,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[LoadOverview]:
        """Loads of all domains or of those that are named, newest first.

        With `is_open` those that are not done: they load, have stopped, or are not all queued.
        """
        return await page_loads(
            self._store.gateway, domains, status, viewer,
            is_open=is_open, limit=limit, cursor=cursor,
        )  # fmt: skip

    async def created_by(self, domain: str, batch_id: UUID) -> str | None:
        """Who began a load, if that was said; raises if there is no such load."""
        wanted = (await self.require(domain, batch_id)).batch_id
        found: str | None = await self._store.gateway.value(_CREATED_BY, (domain, wanted))
        return found

    async def require(self, domain: str, batch_id: UUID) -> LoadMetadata:
        """One load; raises if there is no such batch, or if it is not a load."""
        load = await self.get(domain, batch_id)
        if load is not None:
            return load
        wanted = check_uuid(batch_id, "batch_id")
        if await self._store.get_batch(domain, wanted) is None:
            raise BatchNotFoundError(domain, wanted)
        raise InvalidOperationError(
            f"batch {wanted} was not made by `bus.loads.load`; load into a new batch"
        )


async def interrupted_loads(store: Store, idle_seconds: float) -> list[LoadMetadata]:
    """Loads that are not done and that no process has continued for this long.

    Loading the same source again resumes one, `seal` and `cancel` end one. A sealed one is all in
    the database: `dispatch_rest` needs no source.
    """
    return await store.gateway.rows(_INTERRUPTED_LOADS, (idle_seconds,), into=_load_of)


async def dispatch_rest(store: Store, load: LoadMetadata) -> None:
    """Queue the rows of a sealed load that are not queued yet."""
    params = (load.domain, load.batch_id, DISPATCH_LIMIT)
    rows = load.rows_dispatched
    while rows < load.rows_committed:
        rows = await store.gateway.value(DISPATCH_LOAD, params, domain=load.domain)


def _load_of(*row: Any) -> LoadMetadata:
    words = (RowFormat(**row[3], delimiter=row[15]), LoadStart(row[4]), LoadStatus(row[5]))
    values: Any = (*row[:3], *words, *row[6:15], row[16])
    return LoadMetadata(*values)


def _checked_rate(rate: float | None) -> float | None:
    if rate is not None:
        check_number(rate, "dispatch_rate (rows per second)", *DISPATCH_RATE_RANGE)
    return rate


def _checked_size(size: int | None) -> int | None:
    if size is not None and (type(size) is not int or not 1 <= size <= LARGEST_SIZE):
        raise InvalidSettingError(
            f"checkpoint_size is {size!r}; use a whole number from 1 to {LARGEST_SIZE:,}, or None "
            "to let it adapt"
        )
    return size


def _checked_format(row_format: RowFormat) -> RowFormat:
    if row_format.command_type is not None:
        check_command_type(row_format.command_type)
        if row_format.type_column is not None:
            raise InvalidSettingError("give command_type or type_column, not both")
    elif row_format.id_column is not None and row_format.type_column is None:
        raise InvalidSettingError(
            "id_column needs command_type or type_column; without them a row names its own "
            "command_id"
        )
    return row_format
