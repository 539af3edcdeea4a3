"""Behind PgBouncer in transaction mode, on a database with unusual defaults."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus import CommandBus, CommandStatus
from faults.servers import free_port
from tests.waiting import until, until_status, working

DOMAIN = "payments"
PAYLOAD = {"name": "Zoë €", "emoji": "🙂"}
PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

UNUSUAL = (
    "datestyle = 'SQL, DMY'", "client_encoding = 'LATIN1'", "standard_conforming_strings = off",
    "default_transaction_isolation = 'serializable'", "default_transaction_read_only = on",
    "search_path = nowhere", "intervalstyle = iso_8601", "enable_tidscan = off",
)  # fmt: skip


@pytest.fixture
def pooled_dsn(dsn: str) -> Iterator[str]:
    if PROGRAM is None:
        pytest.skip("there is no pgbouncer here")
    parts = conninfo_to_dict(dsn)
    name, port = parts["dbname"], free_port()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for setting in UNUSUAL:
            conn.execute(f"alter database {name} set {setting}".encode())
    home = Path(tempfile.mkdtemp(prefix="commandbus-pooler-"))
    (home / "pgbouncer.ini").write_text(
        f"[databases]\n{name} = host={parts['host']} port={parts['port']} dbname={name} "
        f"user={parts['user']} password={parts.get('password', '')}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n"
    )
    options: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        account = pwd.getpwuid(Path(str(parts["host"])).stat().st_uid)
        for path in (home, home / "pgbouncer.ini"):
            os.chown(path, account.pw_uid, account.pw_gid)
        options = {"user": account.pw_uid, "group": account.pw_gid}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, str(home / "pgbouncer.ini")], stdout=log, stderr=log, **options
        )
    yield make_conninfo(
        "", host="127.0.0.1", port=port, user=parts["user"], dbname=name, sslmode="disable"
    )
    process.terminate()
    process.wait()
    shutil.rmtree(home, ignore_errors=True)


async def test_unusual_defaults_do_not_matter_behind_a_pooler(pooled_dsn: str, dsn: str) -> None:
    async def answers() -> bool:
        try:
            conn = await psycopg.AsyncConnection.connect(pooled_dsn)
        except psycopg.OperationalError:
            return False
        await conn.close()
        return True

    await until(answers, "an answer of the pooler")
    # Without it, a database that begins transactions read-only is taken for one that only reads.
    address = make_conninfo(pooled_dsn, target_session_attrs="any")
    async with CommandBus.connect(address) as bus:
        seen: list[Any] = []

        @bus.handler(DOMAIN, "Debit")
        async def debit(command: Any, ctx: Any) -> None:
            seen.append(command.data)

        async with working(bus, DOMAIN, use_notify=False):
            sent = [await bus.send(DOMAIN, "Debit", uuid4(), PAYLOAD) for _ in range(20)]
            for command_id in sent:
                await until_status(bus, DOMAIN, command_id, CommandStatus.COMPLETED)
        assert seen == [PAYLOAD] * 20
