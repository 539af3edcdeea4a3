"""Very many commands, messages, events and parked commands, for those who look at them.

Set by set, and with the indexes made at the end: a random key costs a page each otherwise.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.sql.helpers import Session

#: Commands, events and messages of the long tests; CONSOLE_ROWS asks for more.
ROWS = int(os.environ.get("CONSOLE_ROWS", "1000000"))
#: So many rows in one statement: it keeps a note of each row until it ends.
AT_ONCE = 1_000_000
TABLES = (
    "commandbus.command_bus_command", "commandbus.command_bus_audit",
    "commandbus.command_bus_troubleshooting", "pgmq.q_d0__commands",
)  # fmt: skip
#: Each takes the first number, the last one, and how many there will be in all.
FILLS = (
    "insert into commandbus.command_bus_command (domain, queue_name, command_id, command_type,"
    " status, max_attempts, reply_queue, correlation_id, created_at)"
    " select 'd' || n %% 3, 'q', md5(n::text)::uuid, 'T' || n %% 20, 'COMPLETED', 3, '',"
    " md5('c' || n / 3)::uuid, now() - (%(all)s - n) * interval '1 second'"
    " from generate_series(%(first)s::int, %(last)s) n",
    "insert into pgmq.q_d0__commands (vt, message) select case when n %% 10 = 0 then"
    " now() + interval '1 hour' else now() - interval '1 minute' end, '{}'"
    " from generate_series(%(first)s::int, %(last)s) n",
    "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, actor)"
    " select 'd' || n %% 3, md5(n::text)::uuid,"
    " case when n %% 100 = 0 then 'NOTE' when n %% 2 = 0 then 'SENT' else 'COMPLETED' end,"
    " now() - (%(all)s - n) * interval '1 second',"
    " case when n %% 100 = 0 then 'u' || n %% 7 when n %% 2 = 0 then 'sender' end"
    " from generate_series(%(first)s::int, %(last)s) n",
    "insert into commandbus.command_bus_troubleshooting (domain, command_id, command_type,"
    " reason, parked_at, fingerprint) select 'd' || n %% 3, md5(n::text)::uuid, 'T', 'PERMANENT',"
    " now() - n * interval '1 second', 'f' || n %% 300"
    " from generate_series((%(first)s::int + 4) / 5, %(last)s::int / 5) n",
)  # fmt: skip
FEW = (
    "insert into commandbus.command_bus_failure_group (domain, fingerprint, command_type,"
    " message, sample_command_id, parked_count, total_seen, first_seen, last_seen)"
    " select 'd' || n % 3, 'f' || n, 'T', 'm', gen_random_uuid(), 1, 1, now(), now()"
    " from generate_series(1, 300) n",
    "insert into commandbus.command_bus_batch (batch_id, domain, created_at)"
    " select md5('b' || n)::uuid, 'd0', now() - n * interval '1 minute'"
    " from generate_series(1, 10000) n",
    "insert into commandbus.command_bus_load (batch_id, domain, source, row_format, start_mode,"
    " status, created_at) select b.batch_id, b.domain, 's', '{}', 'sealed', 'sealed',"
    " b.created_at from commandbus.command_bus_batch b",
    "select commandbus.sample_domains()",
)
INDEXES = (
    "select i.indexrelid::regclass::text as name, pg_get_indexdef(i.indexrelid) as sql"
    " from pg_index i where i.indrelid::regclass::text = any(%s) and not exists"
    " (select 1 from pg_constraint c where c.conindid = i.indexrelid)"
)


async def build(db: Session, count: int) -> None:
    """So many commands in three domains, as many messages in one queue, as many events."""
    for domain in ("d0", "d1", "d2"):
        await db.rows("select commandbus.ensure_domain(%s)", domain)
    async with without_indexes(db, TABLES):
        for first in range(1, count + 1, AT_ONCE):
            await fill(db, first, min(first + AT_ONCE - 1, count), count)
    await finish(db)


async def fill(db: Session, first: int, last: int, count: int) -> None:
    """The commands from the first number to the last, with all that belongs to them."""
    for statement in FILLS:
        cursor = db.conn.cursor()
        await cursor.execute(statement.encode(), {"first": first, "last": last, "all": count})


async def finish(db: Session) -> None:
    """What there are few of, and the figures that the planner goes by."""
    for statement in FEW:
        await db.rows(statement)
    for table in (*TABLES, "commandbus.command_bus_batch", "commandbus.command_bus_load"):
        await db.rows(f"vacuum analyze {table}")


@asynccontextmanager
async def without_indexes(db: Session, tables: Sequence[str]) -> AsyncIterator[None]:
    """Their indexes are gone meanwhile, but for those of constraints, and made again at the end."""
    indexes = await db.rows(INDEXES, list(tables))
    for index in indexes:
        await db.rows(f"drop index {index['name']}")
    yield
    await db.rows("set maintenance_work_mem = '512MB'")
    for index in indexes:
        await db.rows(index["sql"])


async def scanned(db: Session) -> dict[str, int]:
    """Sequential scans of what may have millions of rows, this session included."""
    await db.value("select pg_stat_force_next_flush()")
    rows = await db.rows(
        "select relname, coalesce(seq_scan, 0) as scans from pg_stat_user_tables where relname in"
        " ('command_bus_command', 'command_bus_audit', 'command_bus_troubleshooting',"
        " 'command_bus_batch', 'command_bus_load', 'q_d0__commands')"
    )
    return {row["relname"]: row["scans"] for row in rows}
