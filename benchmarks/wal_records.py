"""What a command writes to the log, by table, index and kind of record.

    python -m benchmarks.wal_records --commands 20000

Sends N commands, drains them with one worker, and reads the log with pg_walinspect.
"""

from __future__ import annotations

import argparse
import asyncio
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.adapters.base import PAYLOAD
from benchmarks.adapters.commandbus import new_commands
from benchmarks.server import Server
from commandbus import Command, CommandBus, HandlerContext

#: Records of fewer bytes a command are left out.
SMALLEST = 5.0
RECORDS = """
select coalesce(k.relname, '?'), b.resource_manager || ' ' || b.record_type,
       count(*) / %(commands)s::float8, sum(b.record_length) / %(commands)s::float8 as bytes
  from pg_get_wal_block_info(%(begin)s, %(end)s) b
  left join pg_class k on pg_relation_filenode(k.oid) = b.relfilenode
 where b.block_id = 0 group by 1, 2 order by bytes desc
"""


async def measured(server: Server, conninfo: str, commands: int) -> tuple[str, str, str]:
    """Where the log stood before the send, after it, and after the drain."""
    done = asyncio.Event()
    left = commands

    async def work(command: Command, context: HandlerContext) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with CommandBus.connect(conninfo) as bus:
        await bus.send("setup", "Work", uuid4(), PAYLOAD)  # the first use creates queues
        await bus.send("bench", "Work", uuid4(), PAYLOAD)
        left += 1
        server.checkpoint()
        begin = server.wal_position()
        await bus.send_many("bench", new_commands(commands))
        sent = server.wal_position()
        bus.register_handler("bench", "Work", work)
        worker = asyncio.create_task(bus.run_worker("bench", concurrency=400))
        await done.wait()
        await bus.stop()
        await worker
        return begin, sent, server.wal_position()


def show(server: Server, conninfo: str, title: str, begin: str, end: str, commands: int) -> None:
    """Print the records of a stretch of the log."""
    database = str(conninfo_to_dict(conninfo)["dbname"])
    with psycopg.connect(server.superuser_dsn(database), autocommit=True) as conn:
        conn.execute("create extension if not exists pg_walinspect")
        values = {"begin": begin, "end": end, "commands": commands}
        total = conn.execute(
            "select (%(end)s::pg_lsn - %(begin)s::pg_lsn) / %(commands)s::float8", values
        ).fetchone()
        assert total is not None
        print(f"\n{title}: {total[0]:,.0f} bytes a command")
        for relation, record, number, size in conn.execute(RECORDS, values):
            if size >= SMALLEST:
                print(f"  {relation:40} {record:24} {number:5.2f} x  {size:5.0f} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wal_records", description=__doc__)
    parser.add_argument("--commands", type=int, default=20_000)
    commands = parser.parse_args().commands
    with Server.opened() as server, server.database() as conninfo:
        begin, sent, end = asyncio.run(measured(server, conninfo, commands))
        show(server, conninfo, "sending", begin, sent, commands)
        show(server, conninfo, "draining", sent, end, commands)


if __name__ == "__main__":
    main()
