"""Loads whose process ended: found, and queued to their end where the database has all of them."""

from __future__ import annotations

from typing import LiteralString

from commandbus.database.store import Store
from commandbus.loads.model import InterruptedLoad
from commandbus.loads.run import DISPATCH_LOAD

#: Rows that one transaction queues.
DISPATCH_LIMIT = 1_000

_INTERRUPTED_LOADS: LiteralString = (
    "select l.batch_id, l.domain, l.source, l.rows_committed, l.updated_at, l.status = 'sealed'"
    " from {schema}.command_bus_load l where (l.status = 'loading'"
    " or l.status = 'sealed' and l.rows_dispatched < l.rows_committed) and l.updated_at"
    " < clock_timestamp() - make_interval(secs => cast(%s as float8)) order by l.updated_at"
)


async def interrupted_loads(store: Store, idle_seconds: float) -> list[InterruptedLoad]:
    """Loads that are not done and that no process has continued for this long."""
    return await store.gateway.rows(_INTERRUPTED_LOADS, (idle_seconds,), into=InterruptedLoad)


async def dispatch_rest(store: Store, load: InterruptedLoad) -> None:
    """Queue the rows of a sealed load that are not queued yet."""
    params = (load.domain, load.batch_id, DISPATCH_LIMIT)
    rows = 0
    while rows < load.rows_committed:
        rows = await store.gateway.value(DISPATCH_LOAD, params, domain=load.domain)
