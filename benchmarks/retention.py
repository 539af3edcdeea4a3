"""python -m benchmarks.retention: history that goes by the rules, on a server of its own.

    python -m benchmarks.retention drop --rows 10000000          # a month of audit, at once
    python -m benchmarks.retention flat --minutes 10 --rate 500  # a drain with rules of a minute

`drop` puts events of commands that are gone into the audit and times each step of its upkeep.
`flat` sends at a fixed rate; a worker parks, fails and cancels some; nobody reads the replies.
Every ten seconds it looks at the sizes of the tables, and in the end says whether they grew.
COMMANDBUS_PG_BIN names another PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    Fail,
    HandlerContext,
    PermanentCommandError,
    Settings,
    new_id,
)
from commandbus.embedded import EmbeddedPostgres

DOMAIN = "bench"
KINDS = ("commands", "audit", "archives", "replies")
#: Seconds from one look to the next.
LOOK_SECONDS = 10.0
#: Parked commands are canceled by an operator after this many seconds, but for some that stay.
PARKED_SECONDS = 30.0
STAY_PARKED = 50
#: Of a hundred commands, those that are canceled, parked and failed.
CANCELED, PARKED, FAILED = 2, 3, 2
#: A table is flat if it is on average at most so much larger in the last third than in the one
#: before, or by these bytes. Its largest sizes say little: parts go as a whole, so it is a saw.
GROWTH, SPARE_BYTES = 1.08, 2_000_000

_FILL = """
insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)
select 'bench', uuidv7(interval '-40 days' + n * interval '1 ms'),
       (array['SENT', 'RECEIVED', 'COMPLETED'])[n %% 3 + 1],
       now() - interval '40 days' + n * interval '1 ms'
  from generate_series(1, %s) n
"""
_SIZES = """
select (select sum(pg_total_relation_size(t.relid))
          from pg_partition_tree('commandbus.command_bus_audit') t),
       (select count(*) from pg_inherits i
         where i.inhparent = 'commandbus.command_bus_audit'::regclass),
       pg_total_relation_size('commandbus.command_bus_command'),
       (select coalesce(sum(pg_total_relation_size(t.relid)),
                        pg_total_relation_size('pgmq.a_bench__commands'))
          from pg_partition_tree('pgmq.a_bench__commands') t),
       (select count(*) from pg_inherits i
         where i.inhparent = 'pgmq.a_bench__commands'::regclass),
       pg_total_relation_size('pgmq.q_bench__replies'),
       pg_total_relation_size('pgmq.q_bench__commands'),
       pg_database_size(current_database()),
       (select count(*) from commandbus.command_bus_command)
"""
_DUE = """
select c.command_id from commandbus.command_bus_troubleshooting t
  join commandbus.command_bus_command c using (domain, command_id)
 where t.domain = 'bench' and t.parked_at < now() - make_interval(secs => %s)
 order by t.parked_at offset %s limit 500
"""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the tables at one moment."""

    seconds: float
    audit: int
    audit_parts: int
    commands: int
    archive: int
    archive_parts: int
    replies: int
    queue: int
    database: int
    rows: int


@contextmanager
def database() -> Iterator[tuple[str, str]]:
    """A server that nobody else uses, removed afterwards: its address, and that of its master."""
    # Not in a folder that only we may enter: started by root, the server runs as somebody else.
    folder = Path(tempfile.gettempdir()) / f"commandbus-retention-{secrets.token_hex(4)}"
    try:
        with EmbeddedPostgres(folder) as server:
            yield server.dsn, server.superuser_dsn_for("postgres")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def drop(dsn: str, master: str, rows: int) -> bool:
    """Whether all of it was gone in less than a second."""
    async with (
        CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):
        await conn.execute("select commandbus.ensure_domain('bench')")
        begun = time.perf_counter()
        # More than are to go: the last part is not full.
        chunk, written = 500_000, rows + 1_000_000
        for done in range(0, written, chunk):
            await conn.execute(_FILL.encode(), (min(chunk, written - done),))
            await steps(conn)
        await conn.execute("vacuum analyze commandbus.command_bus_audit")
        await steps(conn)
        # As in a month: nothing of it waits to be written.
        async with await psycopg.AsyncConnection.connect(master, autocommit=True) as server:
            await server.execute("checkpoint")
        print(
            f"{rows:,} events written and their parts counted, {time.perf_counter() - begun:.0f} s"
        )
        await bus.upkeep.set_retention("audit", timedelta(days=30))
        spent, gone = 0.0, 0
        for did, events, seconds, in_commit in await steps(conn):
            print(
                f"{seconds:8.3f} s, {in_commit:.3f} of them for the commit  {did}"
                + (f": {events:,} events" if events else "")
            )
            spent += seconds
            gone += events or 0
    print(f"{gone:,} events gone in {spent:.3f} s; the bar is one second")
    return gone >= rows and spent < 1.0


async def steps(conn: psycopg.AsyncConnection[Any]) -> list[tuple[str, int | None, float, float]]:
    """All steps of the upkeep of the audit, and how long each took, with its commit."""
    found = []
    while True:
        begun = time.perf_counter()
        async with conn.transaction():
            cursor = await conn.execute("select o_did, o_events from commandbus.tend_audit()")
            row = await cursor.fetchone()
            done = time.perf_counter()
        assert row is not None
        now = time.perf_counter()
        found.append((row[0] or "nothing more", row[1], now - begun, now - done))
        if row[0] is None:
            return found


class Drain:
    """Commands at a fixed rate, and what becomes of them."""

    def __init__(self, bus: CommandBus, rate: int, seconds: float) -> None:
        self._bus = bus
        self._rate = rate
        self._seconds = seconds
        self.begun = time.monotonic()
        self.sent = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.begun + self._seconds

    async def send(self) -> None:
        """A group each tenth of a second; some of it is canceled before it is due."""
        while not self.is_over:
            due = int((time.monotonic() - self.begun) * self._rate) - self.sent
            ids = [new_id() for _ in range(due)]
            unwanted = [n for n in range(due) if (self.sent + n) % 100 < CANCELED]
            group = [
                BatchCommand(
                    "Work", command_id, {"n": (self.sent + n) % 100, "note": "x" * 200},
                    delay=60.0 if n in unwanted else None,
                )
                for n, command_id in enumerate(ids)
            ]  # fmt: skip
            if group:
                await self._bus.send_many(DOMAIN, group)
                self.sent += due
                for n in unwanted:
                    await self._bus.cancel(DOMAIN, ids[n], "not wanted")
            await asyncio.sleep(0.1)

    async def decide(self, dsn: str) -> None:
        """An operator cancels what was parked for a while; some stay, as they do everywhere."""
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            while not self.is_over:
                cursor = await conn.execute(_DUE.encode(), (PARKED_SECONDS, STAY_PARKED))
                for (command_id,) in await cursor.fetchall():
                    await self._bus.operator_cancel(DOMAIN, command_id, "given up")
                await asyncio.sleep(1.0)

    async def look(self, dsn: str) -> list[Sizes]:
        """Sizes of the tables from time to time."""
        found: list[Sizes] = []
        print(
            "time       audit (parts)   commands (rows)   archive (parts)   replies   queue   all"
        )
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            while not self.is_over:
                await asyncio.sleep(
                    max(0.0, self.begun + (len(found) + 1) * LOOK_SECONDS - time.monotonic())
                )
                row = await (await conn.execute(_SIZES.encode())).fetchone()
                assert row is not None
                each = Sizes(time.monotonic() - self.begun, *(int(n) for n in row))
                found.append(each)
                print(
                    f"{each.seconds:5.0f} s {_mb(each.audit)} ({each.audit_parts:3}) "
                    f"{_mb(each.commands)} ({each.rows:9,}) {_mb(each.archive)} "
                    f"({each.archive_parts:3}) {_mb(each.replies)} {_mb(each.queue)} "
                    f"{_mb(each.database)}",
                    flush=True,
                )
        return found


async def flat(dsn: str, seconds: float, rate: int) -> bool:
    """Whether no table grew once the first rows had outlived the rules."""
    settings = Settings(maintenance_interval_seconds=5.0, seal_audit=False)
    async with CommandBus.connect(dsn, settings=settings) as bus:
        await bus.send(DOMAIN, "Work", new_id(), {"n": 99})
        for kind in KINDS:
            await bus.upkeep.set_retention(kind, timedelta(minutes=1))
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            # What comes in half a minute, and in ten seconds: a short rule wants small parts.
            for name, each in {"audit_part_rows": 90, "archive_part_rows": 10}.items():
                params = (name, str(max(1000, each * rate)))
                await conn.execute("select commandbus.change_setting(%s, %s)", params)

        @bus.handler(DOMAIN, "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            if command.data["n"] < CANCELED + PARKED:
                raise PermanentCommandError("NO_ACCOUNT", "no such account")
            if command.data["n"] < CANCELED + PARKED + FAILED:
                raise Fail("REFUSED", "refused")

        worker = asyncio.create_task(bus.run_worker(DOMAIN, concurrency=50))
        drain = Drain(bus, rate, seconds)
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(drain.look(dsn))
            group.create_task(drain.send())
            group.create_task(drain.decide(dsn))
        await bus.stop()
        await worker
        found = looking.result()
        findings = sorted({f.code for f in (await bus.upkeep.doctor()).findings})
    print(f"{drain.sent:,} commands sent; the doctor finds {findings or 'nothing'}")
    third = len(found) // 3
    is_flat = True
    for name in ("audit", "commands", "archive", "replies", "queue", "database"):
        sizes = [getattr(each, name) for each in found]
        before = statistics.mean(sizes[third : 2 * third])
        after = statistics.mean(sizes[2 * third :])
        grew = after > before * GROWTH and after > before + SPARE_BYTES
        is_flat = is_flat and not grew
        print(
            f"{name}: {_mb(before)} on average in the middle third, {_mb(after)} in the last, "
            f"{_mb(max(sizes))} at most: " + ("GROWS" if grew else "flat")
        )
    return is_flat


def _mb(size: float) -> str:
    return f"{size / 1e6:7.1f} MB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two; the exit code says whether its bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retention", description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("drop").add_argument("--rows", type=int, default=10_000_000)
    steady = what.add_parser("flat")
    steady.add_argument("--minutes", type=float, default=10.0)
    steady.add_argument("--rate", type=int, default=500, help="commands a second")
    given = parser.parse_args(arguments)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    with database() as (dsn, master):
        if given.what == "drop":
            is_met = asyncio.run(drop(dsn, master, given.rows))
        else:
            is_met = asyncio.run(flat(dsn, given.minutes * 60, given.rate))
    print("the bar is met" if is_met else "the bar is MISSED")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
