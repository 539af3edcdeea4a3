"""Park many commands at once, through the SQL functions that a worker would use."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

SEND = """
with sent as (
    select commandbus.send_commands(%(domain)s, jsonb_agg(jsonb_build_object(
        'command_id', gen_random_uuid(), 'type', %(type)s::text,
        'data', jsonb_build_object('n', n))), %(batch)s) as n
      from generate_series(1, %(count)s) n)
select n from sent
"""
#: Their messages differ only in what is normalised.
SETTLE = """
with held as materialized (
    select * from commandbus.receive_commands(%(domain)s, 600, %(count)s, 'parker'))
select commandbus.park_commands(%(domain)s, (select jsonb_agg(jsonb_build_object(
    'command_id', h.command_id, 'msg_id', h.msg_id, 'lease_epoch', h.lease_epoch,
    'reason', 'EXHAUSTED', 'error_type', 'TRANSIENT', 'error_code', %(code)s::text,
    'error_msg', %(message)s || ' ' || h.msg_id || ' of ' || h.command_id)) from held h))
"""


async def park(
    conn: psycopg.AsyncConnection[Any],
    count: int,
    *,
    domain: str = "shop",
    command_type: str = "Work",
    code: str = "DOWN",
    message: str = "no answer to",
    batch: UUID | None = None,
) -> None:
    """Park so many commands, which no worker may have in hand meanwhile; all with one cause."""
    while count > 0:
        params = {
            "domain": domain, "type": command_type, "code": code, "message": message,
            "batch": batch, "count": min(count, 1_000),
        }  # fmt: skip
        await conn.execute(SEND, params)
        await conn.execute(SETTLE, params)
        count -= 1_000


#: Groups whose counter differs from a recount.
MISCOUNTED = """
select count(*) from commandbus.command_bus_failure_group g
  full join (select domain, fingerprint, count(*) as n
               from commandbus.command_bus_troubleshooting group by 1, 2) t
    using (domain, fingerprint)
 where coalesce(g.parked_count, -1) <> coalesce(t.n, 0)
"""
