"""Listings of loads: which are open, how far and how fast, why one stopped, how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString
from uuid import UUID

from commandbus.loads.model import LoadStart, LoadStatus
from commandbus.models import Viewer
from commandbus.names import check_choice_or_none, check_domain
from commandbus.paging import Page, check_page, page_of, position_of, read_key

if TYPE_CHECKING:
    from commandbus.database.gateway import Statements

#: A load that was not continued for this many seconds is interrupted.
IDLE_SECONDS = 300.0
#: What a source is called that is no file: nobody can open it by its name.
_NO_FILES = frozenset({"stdin", "list", "tuple", "generator", "async_generator", "Table", "dict"})

# Of the last checkpoints: when they were, and how fast they came; the oldest tells the beginning.
_COLUMNS: LiteralString = (
    "select l.batch_id, l.domain, l.source, l.start_mode, l.status, l.rows_committed, l.rows_total,"
    " l.rows_dispatched, l.checkpoints_done, k.rate, l.last_error, l.created_at, k.last_at,"
    " cast(extract(epoch from clock_timestamp() - l.updated_at) as float8),"
    " b.name, b.created_by, b.status"
    " from {schema}.command_bus_load l"
    " join {schema}.command_bus_batch b on b.batch_id = l.batch_id"
    " left join lateral (select max(c.committed_at) as last_at, cast((sum(c.row_count)"
    "       - (array_agg(c.row_count order by c.checkpoint_no))[1])"
    "       / nullif(extract(epoch from max(c.committed_at) - min(c.committed_at)), 0) as float8)"
    "       as rate"
    "   from (select c.checkpoint_no, c.row_count, c.committed_at"
    "           from {schema}.command_bus_load_checkpoint c where c.batch_id = l.batch_id"
    "          order by c.checkpoint_no desc limit 6) c) k on true"
    " where "
)
_REST: LiteralString = (
    "(cast(%s as text[]) is null or l.domain = any(cast(%s as text[])))"
    " and (cast(%s as text) is null or l.status = %s)"
    " and (cast(%s as timestamptz) is null or (l.created_at, l.batch_id) < (%s, %s))"
    " and {schema}.visible_batch(%s, l.batch_id)"
    " order by l.created_at desc, l.batch_id desc limit %s"
)
_ALL: LiteralString = _COLUMNS + _REST
_OPEN: LiteralString = (
    _COLUMNS + "(l.status in ('loading', 'failed')"
    " or l.status = 'sealed' and l.rows_dispatched < l.rows_committed) and " + _REST
)


@dataclass(frozen=True, slots=True)
class LoadOverview:
    """How far a load is, for people."""

    batch_id: UUID
    domain: str
    #: What its source was called.
    source: str
    start: LoadStart
    status: LoadStatus
    #: Rows that are in the database.
    rows_committed: int
    #: Rows of the source; None: it has no length, or a version that did not tell it began the load.
    rows_total: int | None
    #: Rows that are queued.
    rows_dispatched: int
    checkpoints_done: int
    #: Rows per second over its last checkpoints; None: there are fewer than two.
    rate: float | None
    #: Why it stopped, with the line if it was one.
    error: str | None
    created_at: datetime
    checkpoint_at: datetime | None
    #: Since anything of it was changed.
    idle_seconds: float
    name: str | None
    created_by: str | None
    #: Of its batch.
    batch_status: str

    @property
    def is_open(self) -> bool:
        """It is not done: rows may come, or are not queued yet."""
        return self.status in {LoadStatus.LOADING, LoadStatus.FAILED} or (
            self.status is LoadStatus.SEALED and self.rows_dispatched < self.rows_committed
        )

    @property
    def rows_expected(self) -> int | None:
        """Of how many rows those are that are in, while it is not complete; None: not known."""
        return None if self.status is LoadStatus.SEALED else self.rows_total

    @property
    def is_interrupted(self) -> bool:
        """It stopped at an error, or no process went on with it for five minutes."""
        return self.is_open and (
            self.status is LoadStatus.FAILED or self.idle_seconds > IDLE_SECONDS
        )

    @property
    def resume_command(self) -> str | None:
        """What to type to go on with it; None: that is not possible, or not needed."""
        if self.status not in {LoadStatus.LOADING, LoadStatus.FAILED}:
            return None
        source = "SOURCE" if self.source in _NO_FILES else self.source
        words = ["commandbus", "batch", "resume", self.domain, str(self.batch_id), source]
        return shlex.join(words)


async def page_loads(
    statements: Statements,
    domains: Collection[str] | None,
    status: LoadStatus | None,
    viewer: Viewer,
    *,
    is_open: bool,
    limit: int,
    cursor: str | None,
) -> Page[LoadOverview]:
    """Loads, newest first; with `is_open` those that are not done."""
    check_page(limit)
    state = check_choice_or_none(LoadStatus, status, "status")
    wanted = None if domains is None else sorted(check_domain(each) for each in domains)
    bound = ("loads", wanted, state, is_open, viewer.owner)
    at, batch_id = position_of(cursor, bound, read_key) or (None, None)
    params = (wanted, wanted, state, state, at, at, batch_id, viewer.owner, limit + 1)
    text = _OPEN if is_open else _ALL
    found = await statements.rows(text, params, into=_view_of)
    return page_of(found, limit, bound, lambda last: [last.created_at, last.batch_id])


def _view_of(*row: object) -> LoadOverview:
    values = list(row)
    values[3], values[4] = LoadStart(str(row[3])), LoadStatus(str(row[4]))
    return LoadOverview(*values)  # type: ignore[arg-type]
