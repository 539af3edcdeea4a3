"""python -m benchmarks.contention [--seconds N]: what sessions wait for, by their number and group.

Each session receives a group and completes it, again and again, in a procedure on the server: no
client is in the way. What they wait for is read from pg_stat_activity every 20 ms, so the shares
are of the time of all sessions. One server, one domain: docs/scaling.md says what follows.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.flow_lab import commands, send
from benchmarks.server import Server

CLIENTS = (16, 48, 96)
GROUPS = (1, 10, 100, 250)
SAMPLE_SECONDS = 0.02
#: Commands that the fastest of all cells could need, for each second.
PER_SECOND = {1: 4_000, 10: 12_000, 100: 22_000, 250: 22_000}
#: Waits that are named, and the least share that is.
NAMED, LEAST = 3, 0.02

WORK_OFF = """
create or replace procedure public.work_off(p_group int, p_seconds float8, p_worker text, inout p_done bigint)
language plpgsql as $$
declare
    v_until timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
    v_items jsonb;
begin
    while clock_timestamp() < v_until loop
        select jsonb_agg(jsonb_build_object(
                   'command_id', r.command_id, 'msg_id', r.msg_id, 'lease_epoch', r.lease_epoch))
          into v_items
          from commandbus.receive_commands('bench', 60, p_group, p_worker) r;
        commit;
        exit when v_items is null;
        perform commandbus.complete_commands('bench', v_items);
        commit;
        p_done := p_done + jsonb_array_length(v_items);
    end loop;
end $$;
"""  # noqa: E501
WAITS = """
select coalesce(wait_event_type || ':' || wait_event, 'on a processor or ready to run')
  from pg_stat_activity where datname = current_database() and state = 'active'
   and application_name = 'bench'
"""


@dataclass(frozen=True)
class Found:
    """One cell of the table."""

    clients: int
    group: int
    rate: float
    server_us: float
    waits: Counter[str]

    def row(self) -> str:
        """As Markdown."""
        total = self.waits.total() or 1
        named = [
            f"{name} {count / total:.0%}"
            for name, count in self.waits.most_common(NAMED)
            if count / total >= LEAST
        ]
        return (
            f"| {self.clients} | {self.group} | {self.rate:,.0f}/s | {self.server_us:.0f} µs |"
            f" {', '.join(named)} |"
        )


def work_off(dsn: str, group: int, seconds: float, gate: threading.Barrier) -> int:
    """One session."""
    with psycopg.connect(dsn, autocommit=True, application_name="bench") as conn:
        # Its plans are made before the time runs.
        conn.execute("call public.work_off(%s, 0, 'bench', 0)", (group,))
        gate.wait()
        row = conn.execute("call public.work_off(%s, %s, 'bench', 0)", (group, seconds)).fetchone()
        return 0 if row is None else int(row[0])


def measured(server: Server, dsn: str, clients: int, group: int, seconds: float) -> Found:
    """That many sessions at once, for that long."""
    gate = threading.Barrier(clients + 1)
    done: list[int] = []
    waits: Counter[str] = Counter()

    def session() -> None:
        done.append(work_off(dsn, group, seconds, gate))

    threads = [threading.Thread(target=session) for _ in range(clients)]
    with psycopg.connect(dsn, autocommit=True) as look:
        for thread in threads:
            thread.start()
        gate.wait()
        began, spent = time.monotonic(), server.cpu_seconds()
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() - began < seconds:
                waits.update(row[0] for row in look.execute(WAITS).fetchall())
            time.sleep(SAMPLE_SECONDS)
        took, spent = time.monotonic() - began, server.cpu_seconds() - spent
    return Found(clients, group, sum(done) / took, spent / max(1, sum(done)) * 1e6, waits)


def left(dsn: str) -> int:
    """Messages in the queue."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row: Any = conn.execute("select count(*) from pgmq.q_bench__commands").fetchone()
        conn.execute(WORK_OFF)
        return int(row[0])


async def run(seconds: float, groups: Sequence[int]) -> None:
    """All cells, one after the other, on one database."""
    print("| sessions | group | commands/s | server CPU a command | of the sessions' time |")
    print("| --- | --- | --- | --- | --- |")
    with Server.opened() as server, server.database() as dsn:
        await send(dsn, list(commands(100)))
        for group in groups:
            for clients in CLIENTS:
                wanted = int(PER_SECOND[group] * seconds) + clients * group * 2
                await send(dsn, list(commands(max(0, wanted - left(dsn)))))
                server.checkpoint()
                found = await asyncio.to_thread(measured, server, dsn, clients, group, seconds)
                print(found.row(), flush=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contention")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell (4)")
    parser.add_argument(
        "--groups", default=",".join(map(str, GROUPS)), help="sizes, with commas (1,10,100,250)"
    )
    options = parser.parse_args()
    groups = [int(text) for text in options.groups.split(",")]
    asyncio.run(run(options.seconds, groups))


if __name__ == "__main__":
    main()
