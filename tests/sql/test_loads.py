"""Loads, called for in plain SQL: who may go on with one, and what a sealed one does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_lock_order import COMMANDS, locks_in_order
from tests.sql.test_twins_apart import OTHER, hold_all_rows

CHUNK = "select commandbus.load_chunk(%s, %s, %s, %s, %s, %s)"
DISPATCH = "select commandbus.dispatch_load(%s, %s, 100)"


async def begun(db: Session, start: str = "sealed") -> UUID:
    batch_id = uuid4()
    await db.value(
        "select commandbus.begin_load(%s, %s, 'rows.csv', '{}', %s)", db.domain, batch_id, start
    )
    return batch_id


async def chunk(
    db: Session, batch_id: UUID, ids: Sequence[UUID], number: int = 1, first: int = 1,
    digest: bytes = b"rows", domain: str | None = None,
) -> str:  # fmt: skip
    commands = Jsonb([{"command_id": str(i), "type": "Debit"} for i in ids])
    return str(
        await db.value(CHUNK, domain or db.domain, batch_id, number, first, commands, digest)
    )


async def sealed(db: Session, ids: Sequence[UUID]) -> UUID:
    batch_id = await begun(db)
    await chunk(db, batch_id, ids)
    await db.value("select commandbus.seal_load(%s, %s, %s)", db.domain, batch_id, len(ids))
    return batch_id


async def refused(db: Session, query: str, *params: object) -> str:
    with pytest.raises(psycopg.Error) as info:
        await db.value(f"select commandbus.{query}", *params)
    return str(info.value.sqlstate)


async def test_a_load_is_gone_on_with_in_its_own_domain(db: Session) -> None:
    batch_id = await begun(db)
    assert await refused(db, "lock_load(%s, %s)", OTHER, batch_id) == "CB004"
    await db.value("select commandbus.fail_load(%s, %s, 'x')", OTHER, batch_id)
    assert await db.value("select status from commandbus.command_bus_load") == "loading"
    await db.value("select commandbus.fail_load(%s, %s, 'x')", DOMAIN, batch_id)
    assert await db.value("select status from commandbus.command_bus_load") == "failed"


async def test_of_two_loaders_the_second_waits_and_finds_the_rows(
    db: Session, session: Open
) -> None:
    batch_id, ids = await begun(db), [uuid4()]
    first, second = await session(), await session()
    assert await chunk(first, batch_id, ids) == "committed"
    task = asyncio.create_task(chunk(second, batch_id, ids))
    await db.until_blocked(second)
    await first.conn.commit()
    assert await task == "repeated"
    await second.conn.commit()


async def test_a_sealed_load_takes_nothing_more_and_does_not_fail(db: Session) -> None:
    batch_id = await sealed(db, [uuid4()])
    more = Jsonb([{"command_id": str(uuid4()), "type": "Debit"}])
    query = "load_chunk(%s, %s, %s, %s, %s, %s)"
    assert await refused(db, query, DOMAIN, batch_id, 2, 2, more, b"more") == "CB003"
    assert await refused(db, query, DOMAIN, batch_id, 1, 1, more, b"more") == "CB003"
    await db.value("select commandbus.fail_load(%s, %s, 'x')", DOMAIN, batch_id)
    assert await db.value("select status from commandbus.command_bus_load") == "sealed"
    await db.value("select commandbus.seal_load(%s, %s, 1)", DOMAIN, batch_id)


async def test_a_load_that_is_not_sealed_is_not_dispatched(db: Session) -> None:
    batch_id = await begun(db)
    await chunk(db, batch_id, [uuid4()])
    assert await refused(db, "dispatch_load(%s, %s, 100)", DOMAIN, batch_id) == "CB003"


@pytest.mark.parametrize("start", ["sealed", "as_it_loads"])
async def test_a_chunk_with_a_known_id_is_refused(db: Session, start: str) -> None:
    known = await db.send()
    batch_id = await begun(db, start)
    commands = Jsonb([{"command_id": str(i), "type": "Debit"} for i in known])
    query = "load_chunk(%s, %s, 1, 1, %s, 'x')"
    assert await refused(db, query, DOMAIN, batch_id, commands) == "CB001"


async def test_a_dispatch_locks_the_commands_of_its_rows(db: Session, session: Open) -> None:
    ids = sorted((uuid4() for _ in range(3)), reverse=True)
    batch_id = await sealed(db, ids)
    await locks_in_order(
        db, session, COMMANDS, ids, lambda s: s.rows(DISPATCH, DOMAIN, batch_id), is_late=True
    )
    assert len(await db.queued()) == 3


async def test_a_dispatch_does_not_wait_for_the_twin_in_another_domain(
    db: Session, session: Open
) -> None:
    ids = [uuid4()]
    db.domain = OTHER
    await sealed(db, ids)
    db.domain = DOMAIN
    batch_id = await sealed(db, ids)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    await db.rows(DISPATCH, DOMAIN, batch_id)
    assert len(await db.queued()) == 1
