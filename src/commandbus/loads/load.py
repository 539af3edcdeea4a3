"""Loader: batches too large for one transaction, committed in checkpoints and resumable (002)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from commandbus.commands.payload import encode_json
from commandbus.commands.preparing import Preparer
from commandbus.database.store import LoadingStore, Store
from commandbus.errors import (
    BatchNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.loads.model import (
    LoadMetadata,
    LoadResult,
    LoadStart,
    NewLoad,
    OnProgress,
    RowFormat,
)
from commandbus.loads.run import LARGEST_SIZE, LoadRun
from commandbus.loads.sources import name_of, open_source
from commandbus.models import BatchCommand
from commandbus.names import check_command_type, check_domain, check_text, check_uuid


class Loader:
    """Loads sources into batches."""

    def __init__(self, store: Store, preparer: Preparer) -> None:
        self._any_store = store
        self._preparer = preparer

    @property
    def _store(self) -> LoadingStore:
        if not isinstance(self._any_store, LoadingStore):
            raise InvalidOperationError(
                "the in-memory store has no loading; test it on the embedded server"
            )
        return self._any_store

    def prepare(
        self,
        domain: str,
        source: object,
        row_format: RowFormat,
        *,
        start: str,
        checkpoint_size: int | None,
        batch_id: UUID | None,
        name: str | None,
        custom_data: dict[str, Any] | None,
        created_by: str | None,
        on_complete_command: BatchCommand | None,
    ) -> NewLoad:
        """Check and encode everything but the rows."""
        check_domain(domain)
        if start not in set(LoadStart):
            raise InvalidSettingError(f"start is {start!r}; use 'sealed' or 'as_it_loads'")
        return NewLoad(
            batch_id=uuid4() if batch_id is None else check_uuid(batch_id, "batch_id"),
            domain=domain,
            source=name_of(source),
            row_format=_checked_format(row_format),
            start=LoadStart(start),
            checkpoint_size=_checked_size(checkpoint_size),
            name=None if name is None else check_text(name, "name", max_length=255),
            custom_data=None
            if custom_data is None
            else encode_json(custom_data, what="custom_data"),
            created_by=None if created_by is None else check_text(created_by, "created_by"),
            on_complete=None
            if on_complete_command is None
            else self._preparer.closing_command(domain, on_complete_command),
        )

    async def load(
        self, new: NewLoad, source: object, on_progress: OnProgress | None
    ) -> LoadResult:
        """Begin a load, or go on with the one that has this batch_id."""
        store = self._store
        async with open_source(source, new.row_format) as reader:
            if await reader.is_at_end():
                raise InvalidInputError(
                    "the source has no rows, and a batch needs at least one command; "
                    "nothing was created"
                )
            await store.begin_load(new)
            load = await self._find(new.domain, new.batch_id)
            return await LoadRun(store, self._preparer, load, reader, on_progress).run()

    async def resume(
        self, domain: str, batch_id: UUID, source: object, on_progress: OnProgress | None
    ) -> LoadResult:
        """Go on after the last checkpoint; the source is given again, from its beginning."""
        load = await self._find(check_domain(domain), check_uuid(batch_id, "batch_id"))
        async with open_source(source, load.row_format) as reader:
            return await LoadRun(self._store, self._preparer, load, reader, on_progress).run()

    async def get(self, domain: str, batch_id: UUID) -> LoadMetadata | None:
        """One load, or None."""
        return await self._store.get_load(check_domain(domain), check_uuid(batch_id, "batch_id"))

    async def _find(self, domain: str, batch_id: UUID) -> LoadMetadata:
        load = await self._store.get_load(domain, batch_id)
        if load is not None:
            return load
        if await self._any_store.get_batch(domain, batch_id) is None:
            raise BatchNotFoundError(domain, batch_id)
        raise InvalidOperationError(
            f"batch {batch_id} was not made by load_batch; load into a new batch"
        )


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
