"""A primary whose synchronous standby stands still: commits hang, and the server answers."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus, DatabaseUnavailableError, Settings
from commandbus.database import deadlines
from commandbus.wiring import migrate_database
from faults.servers import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("frozen")]

DEADLINE = 1.0
SENDERS = 10
#: So many deadlines the standby stands still.
ROUNDS = 15


@pytest.fixture
def pair() -> Iterator[Pair]:
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = base / f"commandbus-standby-{secrets.token_hex(4)}"
    made = Pair(folder, is_synchronous=True)
    made.start()
    yield made
    if made.standby is not None:
        made.standby.thaw()
    made.remove()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_commits_that_hang_do_not_use_up_the_connections_of_a_server_that_answers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_left_at", {})
    database = pair.primary.create_database()
    address = pair.primary.dsn(database)
    settings = Settings(deadline_seconds=DEADLINE, pool_size=SENDERS, maintenance=False)
    await migrate_database(address, settings)
    assert pair.standby is not None
    async with CommandBus.connect(address, settings=settings) as bus:
        await bus.send("shop", "Debit", uuid4(), {})
        gateway = bus._store.gateway
        await gateway.rows("create table {schema}.written as select 1 as n")
        end = time.monotonic() + ROUNDS * DEADLINE

        async def send_on() -> None:
            while time.monotonic() < end:
                try:
                    # Not a send: those of one moment are one commit.
                    await gateway.rows("insert into {schema}.written values (1) returning n")
                except DatabaseUnavailableError:
                    continue

        pair.standby.freeze()
        sending = [asyncio.create_task(send_on()) for _ in range(SENDERS)]
        await asyncio.sleep(end - time.monotonic())
        with psycopg.connect(pair.primary.superuser_dsn(), autocommit=True) as admin:
            row = admin.execute(
                "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
            ).fetchone()
        # After 1, 2, 4 and 8 deadlines five each, beside the connections that wait now. Without a
        # limit it is each connection after each deadline.
        assert row is not None
        assert row[0] <= SENDERS + 4 * deadlines.LEFT_AT_ONCE
        pair.standby.thaw()
        await asyncio.wait_for(asyncio.gather(*sending), 60)
        await bus.send("shop", "Debit", uuid4(), {}, retry_for=60)
