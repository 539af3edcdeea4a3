"""Nemeses of operation: a disk that runs full, a migration under traffic, a restored dump."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import secrets
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from commandbus import CommandBus, CommandBusError, Settings
from commandbus.embedded import find_binaries
from commandbus.embedded.binaries import binaries_for
from commandbus.embedded.folder import home_directory
from commandbus.upkeep import Severity
from commandbus.wiring import migrate_database
from faults.arena import Arena

DUMP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class FillDisk:
    """Fill the small disk to the last byte, wait, and free it again."""

    rounds: int = 1
    seconds: float = 5.0
    name: str = "fill the disk"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Full, then free; a server that gave up is started again, as its supervisor would."""
        assert arena.server is not None
        assert arena.site.disk is not None
        ballast = arena.site.disk / "ballast"
        for _ in range(self.rounds):
            began = time.monotonic()
            deadline = began + self.seconds
            while time.monotonic() < deadline:
                # Again and again: the server removes old WAL and makes room for more.
                await asyncio.to_thread(_fill, ballast)
                await asyncio.sleep(0.1)
            arena.counts["disk_full"] += 1
            ballast.unlink()
            freed = time.monotonic()
            if not arena.server.is_running:
                arena.counts["server_gave_up"] += 1
                await asyncio.to_thread(arena.server.start)
            await _wait_until_it_answers(arena)
            arena.peak("heal_seconds", time.monotonic() - freed)
            arena.tell_outage(began, time.monotonic())
            await asyncio.sleep(2.0)

    async def heal(self, arena: Arena) -> None:
        """The ballast is gone."""
        assert arena.site.disk is not None
        (arena.site.disk / "ballast").unlink(missing_ok=True)


def _fill(ballast: Path) -> None:
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while os.write(descriptor, bytes(size)):
                    pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)


async def _wait_until_it_answers(arena: Arena) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(psycopg.Error):
            await arena.query("create temporary table probe (n int)")
            return
        assert arena.server is not None
        if not arena.server.is_running:
            arena.counts["server_gave_up"] += 1
            await asyncio.to_thread(arena.server.start)
        await asyncio.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Replace all functions while workers use them, again and again; then dump and restore.

    Releases before this one are not kept, so what is migrated is this release onto itself: every
    function is replaced under the feet of the sessions that have it prepared.
    """

    migrations: int
    pace: tuple[float, float] = (0.5, 1.5)
    name: str = "upgrade"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Migrate under traffic."""
        for _ in range(self.migrations):
            await asyncio.sleep(chance.uniform(*self.pace))
            try:
                await migrate_database(arena.direct_dsn(), Settings())
            except CommandBusError as error:
                arena.counts["failed_migrations"] += 1
                arena.notes.append(f"a migration failed: {error}"[:200])
            else:
                arena.counts["migrations"] += 1
        await self._restore_elsewhere(arena)

    async def _restore_elsewhere(self, arena: Arena) -> None:
        """What a dump taken under traffic holds must pass the doctor after a restore."""
        assert arena.server is not None
        dump = arena.log_folder / "dump.sql"
        account = arena.server.data_folder().account
        binaries = binaries_for(account, find_binaries(), home_directory).bin_directory
        dumped = await asyncio.to_thread(
            account.run, [str(binaries / "pg_dump"), "-d", arena.superuser_dsn()], DUMP_SECONDS
        )
        dump.write_text(dumped.stdout)
        name = f"restored_{secrets.token_hex(3)}"
        async with await psycopg.AsyncConnection.connect(
            arena.superuser_dsn(), autocommit=True
        ) as admin:
            await admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        address = arena.server.superuser_dsn(name)
        restored = await asyncio.to_thread(_run_script, str(binaries / "psql"), address, dump)
        findings = await self._examine(address)
        arena.counts["restore_faults"] += len(findings) + (restored != 0)
        arena.counts["restores"] += 1
        arena.notes.extend(f"the restored database: {finding}" for finding in findings)
        dump.unlink()
        await asyncio.to_thread(arena.server.drop_database, name)

    async def _examine(self, address: str) -> list[str]:
        async with CommandBus.connect(address, settings=Settings(maintenance=False)) as bus:
            found = await bus.upkeep.doctor(full=True)
        return [
            f"{finding.code} {finding.found}"
            for finding in found.findings
            if finding.severity is Severity.ERROR and finding.domain is not None
        ]

    async def heal(self, arena: Arena) -> None:
        """The functions are as they were."""


def _run_script(psql: str, address: str, script: Path) -> int:
    with script.open("rb") as text:
        return subprocess.run(  # noqa: S603  (no shell; a program of the server)
            [psql, "-q", "-v", "ON_ERROR_STOP=1", "-d", address], stdin=text,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        ).returncode  # fmt: skip


#: Each changes what a statement means, how an answer looks, or which plan is taken. What an
#: application's own pool would be refused for is left out: the harness writes with one.
UNUSUAL = {
    "datestyle": "German",
    "intervalstyle": "iso_8601",
    "timezone": "<+03>-03",
    "bytea_output": "escape",
    "search_path": "nowhere",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_deferrable": "on",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "plan_cache_mode": "force_custom_plan",
    "join_collapse_limit": "1",
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_tidscan": "off",
    "enable_nestloop": "off",
}


@dataclass(frozen=True, slots=True)
class UnusualSettings:
    """The defaults of the database become unusual, and every session begins anew with them."""

    rounds: int = 3
    seconds: float = 3.0
    name: str = "unusual settings"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Change all of them, end all sessions, let the load run."""
        async with await psycopg.AsyncConnection.connect(
            arena.superuser_dsn(), autocommit=True, application_name="faults"
        ) as conn:
            name = sql.Identifier(conn.info.dbname)
            for setting, value in UNUSUAL.items():
                await conn.execute(
                    sql.SQL("alter database {} set {} = {}").format(
                        name, sql.Identifier(setting), sql.Literal(value)
                    )
                )
                arena.counts["unusual_settings"] += 1
            for _ in range(self.rounds):
                await conn.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and backend_type = 'client backend'"
                    " and pid <> pg_backend_pid() and application_name <> 'faults'"
                )
                await asyncio.sleep(self.seconds)

    async def heal(self, arena: Arena) -> None:
        """They stay: the drain must work with them too."""


@dataclass(frozen=True, slots=True)
class CountSessions:
    """No fault: watches how many sessions the fleet has while it serves very many domains."""

    domains: int
    seconds: float
    name: str = "count sessions"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """Look four times a second, from the beginning until some time after all are served."""
        async with await psycopg.AsyncConnection.connect(
            arena.superuser_dsn(), autocommit=True, application_name="faults"
        ) as conn:
            looks = round(self.seconds * 4)
            for _ in range(4 * 120):  # their queues have to be made first
                cursor = await conn.execute(
                    "select count(*), (select count(*) from commandbus.command_bus_worker)"
                    " from pg_stat_activity where datname = current_database()"
                    " and backend_type = 'client backend' and application_name <> 'faults'"
                )
                row = await cursor.fetchone()
                arena.peak("sessions", float(row[0] if row else 0))
                arena.counts["domains_served"] = row[1] if row else 0
                looks -= arena.counts["domains_served"] >= self.domains
                if looks <= 0:
                    break
                await asyncio.sleep(0.25)

    async def heal(self, arena: Arena) -> None:
        """Nothing to heal."""
