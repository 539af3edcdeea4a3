"""How long the pages of the console take with very many commands: `make console-bars`.

CONSOLE_ROWS says how many: so many commands, as many messages in one queue and as many events. A
page that makes PostgreSQL scan one of those tables fails. CONSOLE_DATA names a folder that keeps
what was built for the next time; with `build` as the only argument nothing is measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import psycopg
from psycopg.rows import dict_row

from commandbus import CommandBus, Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.http import HttpSettings, create_app
from commandbus.wiring import migrate_database
from tests.console.browser import eyes
from tests.console.browser.chromium import missing
from tests.console.world import EVERYTHING, be_patient
from tests.http_server import served
from tests.http_world import NamedCallers, caller
from tests.sql.helpers import Session
from tests.sql.very_many import ROWS, build, scanned

#: Looks at each page, after three that warm it.
LOOKS = 40
#: The name of a page, its address, and the most milliseconds at the 95th percentile.
PAGES = [
    ("overview", "/", 100),
    ("commands, newest", "/commands", 100),
    ("commands of a domain", "/commands?domain=d0", 100),
    ("commands that completed", "/commands?status=COMPLETED", 100),
    ("commands, a walk of 100,000", "/commands?status=CANCELED", 400),
    ("one command", "/commands/d1/{command}", 60),
    ("causes", "/troubleshooting", 60),
    ("one cause", "/troubleshooting/d2/groups/f299", 60),
    ("bulk operations", "/bulk", 100),
    ("batches", "/batches", 100),
    ("loads", "/loads", 100),
    ("approvals", "/approvals", 100),
    ("workers", "/workers", 100),
    ("one domain", "/domains/d0", 100),
    ("audit, people", "/audit", 100),
    ("audit, everything", "/audit?machine=1", 100),
]


#: While the data is built; PostgreSQL is started again without them to be measured.
BUILDING = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off",
    "max_wal_size": "4GB", "shared_buffers": "512MB",
}  # fmt: skip


async def fill(dsn: str) -> None:
    """What is looked at."""
    await migrate_database(dsn, Settings())
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        began = time.monotonic()
        await build(Session(conn), ROWS)
        print(f"{ROWS:,} commands, messages and events, built in {time.monotonic() - began:.0f} s")


async def measure(dsn: str) -> int:
    """Print what each page takes; returns how many are too slow or scan a table."""
    bad = 0
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        CommandBus.connect(dsn, settings=Settings(pool_size=1)) as bus,
    ):
        db = Session(conn)
        row = await db.rows("select md5('1')::uuid as id")
        command = UUID(str(row[0]["id"]))
        app = create_app(
            bus, auth=NamedCallers(person=caller(*EVERYTHING)), console=True,
            settings=HttpSettings(max_user_requests=1_000_000),
        )  # fmt: skip
        be_patient(app)
        headers = {"Authorization": "Bearer person", "Accept": "text/html"}
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=120
        ) as client:
            for name, path, most in PAGES:
                bad += await _look(bus, db, client, name, path.format(command=command), most)
    return bad


async def _look(bus: CommandBus, db: Session, client: Any, name: str, path: str, most: int) -> int:
    before, taken = await scanned(db), []
    answer: Any = None
    for number in range(LOOKS + 3):
        began = time.perf_counter()
        answer = await client.get(f"/console{path}")
        if number >= 3:
            taken.append((time.perf_counter() - began) * 1000)
    # The one connection of the pages tells what it did at its next statement.
    gateway: Any = bus._store.gateway
    await gateway.rows("select pg_stat_force_next_flush()", ())
    after = await scanned(db)
    scans = [table for table in after if after[table] != before[table]]
    assert answer is not None
    taken.sort()
    p95 = taken[int(len(taken) * 0.95) - 1]
    verdict = "" if p95 <= most else f"  slower than {most} ms"
    verdict += f"  scans {', '.join(scans)}" if scans else ""
    verdict += "" if answer.status_code == 200 else f"  answers {answer.status_code}"
    size = len(answer.content) / 1024
    print(f"  {name:30} {taken[len(taken) // 2]:7.1f} {p95:7.1f} ms {size:6.1f} kB{verdict}")
    return bool(verdict)


def looked_at(dsn: str) -> bool:
    """In a browser that has nothing of the console; whether it was quick."""
    if reason := missing():
        print(f"not looked at in a browser: {reason}")
        return True
    with served(dsn, settings=HttpSettings(port=0, max_user_requests=1_000_000)) as service:
        return eyes.first_views(service.url, service.token, ("/", "/commands"))


def main() -> None:
    kept = os.environ.get("CONSOLE_DATA")
    data = Path(kept or tempfile.mkdtemp(prefix="commandbus-bars-"))
    data.mkdir(exist_ok=True)
    data.chmod(0o755)  # the server of an administrator has an account of its own
    built = data / f"built-{ROWS}"
    try:
        if not built.exists():
            with EmbeddedPostgres(data / "postgres", settings=BUILDING) as database:
                asyncio.run(fill(database.dsn))
            built.touch()
        if sys.argv[1:] == ["build"]:
            return
        with EmbeddedPostgres(data / "postgres") as database:
            print("page, median, 95th percentile, size")
            slow = asyncio.run(measure(database.dsn))
            sys.exit(1 if slow or not looked_at(database.dsn) else 0)
    finally:
        if not kept:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
