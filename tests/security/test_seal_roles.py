"""The roles of the database and the seals: a worker seals, readers verify, nobody else writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from commandbus.errors import DatabaseError
from tests.conftest import Server
from tests.security.roled import RoledDatabase, roled_database

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(
    server: Server, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RoledDatabase]:
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "keys"))
    with roled_database(server, template) as made:
        yield made


async def test_a_worker_seals_and_a_reader_verifies(database: RoledDatabase) -> None:
    async with (
        database.bus("sender") as sender,
        database.bus("worker") as worker,
        database.bus("operator") as operator,
        database.bus("reader") as reader,
    ):
        await sender.send("shop", "Work", uuid4(), {})
        sealed = await worker.upkeep.seal_audit()
        assert sealed.rows >= 1
        await sender.send("shop", "Work", uuid4(), {})
        assert (await operator.upkeep.seal_audit()).rows == 1
        for who in (reader, operator):
            found = await who.upkeep.verify_audit()
            assert (found.findings, found.rows) == ((), sealed.rows + 1)
            codes = {each.code for each in (await who.upkeep.doctor()).findings}
            assert not {"CHECK_FAILED", "AUDIT_UNPROTECTED"} & codes


async def test_no_role_but_the_owner_can_touch_seals_and_removals(database: RoledDatabase) -> None:
    for role in ("sender", "worker", "operator", "api", "reader"):
        async with database.connect(role) as conn:
            for table in ("audit_seal", "audit_removal", "audit_horizon"):
                for statement in (
                    f"delete from commandbus.command_bus_{table}",
                    f"truncate commandbus.command_bus_{table}",
                    f"alter table commandbus.command_bus_{table} disable trigger user",
                ):
                    with pytest.raises(Exception, match=r"permission denied|must be owner"):
                        await conn.execute(statement.encode())
    for role in ("sender", "api", "reader"):
        async with database.bus(role) as bus:
            with pytest.raises(DatabaseError, match="42501"):
                await bus.upkeep.seal_audit()
