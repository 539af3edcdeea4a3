"""From a finished run to its facts: the logs of all processes, and the database after the drain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from faults.facts import (
    Batch,
    Change,
    Claim,
    Death,
    Effect,
    Event,
    Facts,
    Finish,
    Outage,
    Phases,
    Row,
    Send,
    Start,
)
from faults.facts_flow import FlowFacts, Rate
from faults.logs import read_logs

CHANGES = """
select seq, extract(epoch from at)::float8, command_id::text, old_status, new_status,
       coalesce(old_epoch, 0), coalesce(new_epoch, 0), old_holder, new_holder,
       extract(epoch from held_until)::float8, ordering_key, key_seq
  from faults.change order by seq
"""
EVENTS = """
select audit_id, extract(epoch from ts)::float8, command_id::text, event_type
  from commandbus.command_bus_audit order by audit_id
"""
ROWS = """
select command_id::text, command_type, status, attempts, max_attempts, lease_epoch, leased_by,
       msg_id, dispatch_status, reply_queue <> '', coalesce(limit_key, ordering_key)
  from commandbus.command_bus_command
"""
EFFECTS = """
select command_id::text, epoch, false from faults.effect
union all select command_id::text, epoch, true from faults.written
"""
BATCHES = """
select b.batch_id::text,
       array[b.total_count, b.completed_count, b.failed_count, b.canceled_count,
             b.in_troubleshooting_count],
       array[r.total, r.completed, r.failed, r.canceled, r.parked], b.completed_at is not null,
       (select count(*) from commandbus.command_bus_audit a
         where a.command_id = b.batch_id and a.event_type = 'BATCH_COMPLETED'),
       (select count(*) from commandbus.command_bus_audit a
         where a.command_id = b.batch_id and a.event_type = 'BATCH_REOPENED')
  from commandbus.command_bus_batch b
 cross join lateral commandbus.recount_batch(b.batch_id) r
"""
TIMES = """
select command_id::text, extract(epoch from deliver_at)::float8,
       extract(epoch from expires_at)::float8
  from commandbus.command_bus_command where num_nonnulls(deliver_at, expires_at) > 0
"""
RATES = """
select command_type, rate / per_seconds, burst, by_key from commandbus.command_bus_flow_rule
 where rate is not null
"""
QUEUES = "select queue_name from pgmq.meta order by 1"


def collect(
    dsn: str, log_folder: Path, batch_samples: list[int], phases: Phases, flow: FlowFacts
) -> Facts:
    """All facts of a run, in one snapshot of its database."""
    facts = Facts(batch_samples=batch_samples, phases=phases, flow=flow)
    _read_logs(facts, log_folder)
    with psycopg.connect(dsn, row_factory=tuple_row) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        facts.changes.extend(Change(*row) for row in conn.execute(CHANGES))
        facts.events.extend(Event(*row) for row in conn.execute(EVENTS))
        facts.rows.extend(Row(*row) for row in conn.execute(ROWS))
        facts.effects.extend(Effect(*row) for row in conn.execute(EFFECTS))
        for name, counters, recount, *rest in conn.execute(BATCHES):
            facts.batches.append(Batch(name, tuple(counters), tuple(recount), *rest))
        for name, due, expires in conn.execute(TIMES):
            flow.due_at.update({} if due is None else {name: due})
            flow.expires_at.update({} if expires is None else {name: expires})
        flow.rates.extend(Rate(*row) for row in conn.execute(RATES))
        [left] = conn.execute("select count(*) from commandbus.command_bus_slot").fetchall()
        flow.places_left = left[0]
        for (queue,) in conn.execute(QUEUES).fetchall():
            _read_queue(facts, conn, queue)
    return facts


def _read_queue(facts: Facts, conn: psycopg.Connection[Any], queue: str) -> None:
    table = sql.Identifier("pgmq", f"q_{queue}")
    query = sql.SQL(
        "select msg_id, commandbus.message_command_id(message)::text from {} order by msg_id"
    ).format(table)
    found = conn.execute(query).fetchall()
    if queue.endswith("__commands"):
        facts.messages.extend(found)
    else:
        facts.replies.extend(command_id for _, command_id in found if command_id)


def _read_logs(facts: Facts, folder: Path) -> None:
    for line in read_logs(folder):
        pid, at = line["pid"], line["at"]
        match line["event"]:
            case "send":
                facts.sends.extend(Send(name, line["outcome"], at) for name in line["ids"])
            case "invoke":
                # Whatever comes of it: until an answer is there, nobody knows.
                facts.sends.extend(Send(name, "unknown", at) for name in line["ids"])
            case "claim":
                facts.claims.extend(Claim(name, epoch, pid, at) for name, epoch in line["leases"])
            case "start":
                facts.starts.append(Start(line["command_id"], line["epoch"], pid, at))
            case "finish":
                facts.finishes.extend(
                    Finish(name, epoch, pid, at, verdict)
                    for name, epoch, verdict in line["results"]
                )
            case "death":
                facts.deaths.append(Death(pid, at, line["kind"]))
            case "outage":
                facts.outages.append(Outage(line["began"], line["ready"]))
            case _:
                pass  # for people who read the log


def claim_milliseconds(folder: Path) -> list[float]:
    """How long each successful receive took, as its worker saw it."""
    return [line["took"] * 1000 for line in read_logs(folder) if line["event"] == "claim"]
