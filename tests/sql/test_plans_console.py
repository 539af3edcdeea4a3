"""What people look at reads a page of very many rows, and scans no table that grows."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from uuid import UUID

import pytest

from tests.sql.helpers import Session
from tests.sql.very_many import ROWS, build, scanned

SEARCH = (
    "select s.place from commandbus.search_commands(%s, %s, %s, null, cast(%s as uuid), null, null,"
    " null, %s, null, null, 51, 100000, %s) s"
)
PEOPLE = (
    "select p.audit_id from commandbus.list_people(cast(%s as text[]), %s, cast(%s as text[]),"
    " cast(%s as timestamptz), null, null, 51, 100000, %s, false) p"
)
AUDIT = (
    "select a.audit_id from commandbus.list_audit(%s, null, null, %s, cast(%s as text[]), null,"
    " null, null, true, 51) a"
)
LOADS = (
    "select l.batch_id from commandbus.command_bus_load l where (l.status in ('loading', 'failed')"
    " or l.status = 'sealed' and l.rows_dispatched < l.rows_committed)"
    " and commandbus.visible_batch(null, l.batch_id)"
    " order by l.created_at desc, l.batch_id desc limit 51"
)
#: In a queue as large as any, with nothing by which the reply could be found but its moment.
REPLY = "select * from commandbus.find_reply('d0.commands', 'd0', cast(%s as uuid), now())"
#: Of a command that is there, of `build`.
ID = str(UUID(hashlib.md5(b"1", usedforsecurity=False).hexdigest()))
#: Name, statement, arguments, and the most seconds it may take at the 95th percentile.
READS: list[tuple[str, str, tuple[Any, ...], float]] = [
    ("overview", "select * from commandbus.domain_overview()", (), 0.1),
    ("rates", "select * from commandbus.domain_rates()", (), 0.1),
    ("metrics", "select * from commandbus.domain_figures()", (), 0.4),
    ("trends", "select * from commandbus.group_trends(null)", (), 0.1),
    ("newest", SEARCH, (None, None, None, None, None, None), 0.1),
    ("of a domain", SEARCH, ("d0", None, None, None, None, None), 0.1),
    ("by a viewer", SEARCH, ("d0", None, None, None, None, "u"), 0.1),
    ("parked", SEARCH, (None, None, "IN_TROUBLESHOOTING_QUEUE", None, None, None), 0.1),
    ("completed", SEARCH, (None, None, "COMPLETED", None, None, None), 0.1),
    ("by correlation", SEARCH, (None, None, None, str(UUID(int=7)), None, None), 0.1),
    ("rare status", SEARCH, (None, None, "CANCELED", None, None, None), 0.4),
    ("rare type", SEARCH, ("d0", "None", None, None, None, None), 0.4),
    ("rare code", SEARCH, (None, None, None, None, "NONE", None), 0.4),
    ("people", PEOPLE, (None, None, None, None, None), 0.1),
    ("one person", PEOPLE, (None, "ann", None, None, None), 0.1),
    ("nobody", PEOPLE, (None, "nobody", None, None, None), 0.4),
    ("people since", PEOPLE, (["d0"], None, ["NOTE"], "2026-01-01T00:00:00Z", "u"), 0.4),
    ("audit", AUDIT, (None, None, None), 0.1),
    ("an id", "select * from commandbus.find_id(%s, null, null)", (str(UUID(int=7)),), 0.06),
    ("a reply", REPLY, (str(UUID(int=7)),), 0.1),
    ("payloads before", "select * from commandbus.former_payloads('d1', %s)", (ID,), 0.06),
    ("what is beside a command", "select * from commandbus.command_facts('d1', %s)", (ID,), 0.06),
    ("seals", "select * from commandbus.seal_state()", (), 0.06),
    ("open loads", LOADS, (), 0.06),
]


async def test_no_read_of_the_console_scans_a_table_that_grows(db: Session) -> None:
    await build(db, 20_000)
    for name, query, values, _ in READS:
        before = await scanned(db)
        await db.rows(query, *values)
        assert await scanned(db) == before, name


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_reads_of_the_console_take_milliseconds_however_much_there_is(db: Session) -> None:
    await build(db, ROWS)
    times: dict[str, float] = {}
    for name, query, values, most in READS:
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            await db.rows(query, *values)
            taken.append(time.perf_counter() - began)
        taken.sort()
        times[name] = taken[18]
        # The bar is for a quiet machine; a loaded one gets three times as long, at the median.
        assert taken[10] < 3 * most, (name, taken)
    print(f"\n{ROWS:,} commands, messages and events; p95 in ms:")
    print("\n".join(f"  {name:15} {seconds * 1000:8.1f}" for name, seconds in times.items()))
