"""Parts of the audit while commands come back to life, and while a domain moves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

from commandbus import CommandBus
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_audit_parts import as_old, filled, parts, small_parts, tend, trail, write

__all__ = ["small_parts"]

DROP = "select o_did from commandbus.drop_audit_parts()"
RETRY = "select commandbus.retry_batch(%s, %s)"
TEND = "select o_did from commandbus.tend_audit('ada')"
FREEZE = "select commandbus.freeze_table(%s, 'commandbus.command_bus_audit', '')"
WRITES = (
    "select count(*) from pg_locks where pid = %s and mode in ('RowShareLock', 'RowExclusiveLock')"
    " and relation = 'commandbus.command_bus_command'::regclass"
)
ICE = "select t::text as t from commandbus.tables_with_ice(%s) t"


async def failed_and_old(db: Session, bus: CommandBus) -> tuple[UUID, UUID]:
    """A batch with a command that failed long ago, in a part that is to go."""
    await tend(db)
    batch = await db.batch()
    held = await db.put("FAILED", batch)
    await as_old(db)
    await db.rows(
        "update commandbus.command_bus_batch set completed_at = now() - interval '40 days'"
    )
    await filled(db)
    await bus.upkeep.set_retention("audit", timedelta(days=30))
    return batch, held.command_id


async def test_a_retry_that_was_first_keeps_the_trail(
    db: Session, session: Open, bus: CommandBus
) -> None:
    batch, command = await failed_and_old(db, bus)
    before = await trail(db, command)
    retrier = await session()
    await retrier.value("select commandbus.retry_batch(%s, %s, null, 0)", DOMAIN, batch)  # begins
    assert await bus.upkeep.tend_audit() == []
    assert await retrier.value(RETRY, DOMAIN, batch) == 1
    await retrier.conn.commit()

    assert await bus.upkeep.tend_audit()

    assert await trail(db, command) > before


async def test_a_retry_waits_for_a_drop_before_it_locks_a_row(
    db: Session, session: Open, bus: CommandBus
) -> None:
    batch, command = await failed_and_old(db, bus)
    dropper, retrier = await session(), await session()
    assert await dropper.value(DROP)
    task = asyncio.create_task(retrier.value(RETRY, DOMAIN, batch))
    await db.until_blocked(retrier)
    assert await db.value(WRITES, retrier.conn.info.backend_pid) == 0
    await dropper.conn.commit()

    assert await task == 1
    await retrier.conn.commit()
    assert await db.events(command) == ["OPERATOR_RETRY"]


async def test_a_domain_that_moves_keeps_its_events(db: Session, bus: CommandBus) -> None:
    await filled(db)
    await db.rows("select commandbus.ensure_domain('ledger')")
    await write(db, 2, domain="ledger")
    await filled(db)
    await bus.upkeep.set_retention("audit", timedelta(days=30))
    await db.rows(
        "insert into commandbus.command_bus_move"
        " (move_id, domain, is_leaving, from_shard, to_shard)"
        " values (%s, 'ledger', true, 'one', 'two')",
        uuid4(),
    )

    assert await bus.upkeep.tend_audit()

    of_ledger = "select count(*) from commandbus.command_bus_audit where domain = 'ledger'"
    assert await db.value(of_ledger) == 2


async def test_a_frozen_domain_is_frozen_in_parts_that_come_later_and_thaws_everywhere(
    db: Session,
) -> None:
    await db.rows(FREEZE, DOMAIN)
    await tend(db)
    await write(db, 10 * 20, domain="ledger")
    await tend(db)
    assert len(await parts(db)) > 2
    frozen = await db.rows(
        "select count(distinct t.tgrelid) as n from pg_trigger t"
        " where t.tgname = commandbus.frozen_name(%s) || '_w'",
        DOMAIN,
    )
    assert frozen[0]["n"] == len(await parts(db)) + 1

    for row in await db.rows(ICE, DOMAIN):
        await db.rows("select commandbus.thaw_table(%s, %s::regclass)", DOMAIN, row["t"])

    assert await db.rows(ICE, DOMAIN) == []
    assert await db.value("select count(*) from pg_trigger where tgname ~ '_frozen_'") == 0


async def test_a_session_tends_nothing_while_another_one_does(db: Session, session: Open) -> None:
    first, second = await session(), await session()
    assert await first.value(TEND) is not None

    assert await second.value(TEND) is None

    await first.conn.commit()
    await second.conn.commit()
    assert await tend(db) == []
