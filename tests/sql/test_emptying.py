"""What a worker that empties a queue has to wait for."""

from __future__ import annotations

import pytest

from commandbus import CommandBus
from commandbus.errors import DomainPausedError
from tests.sql.helpers import DOMAIN, Session
from tests.waiting import until

LEFT = "select commandbus.what_is_left(%s, %s)"
PAUSE = (
    "insert into commandbus.command_bus_flow (domain, paused_at, paused_until)"
    " values (%s, now(), %s)"
)


async def left(db: Session, *, include_delayed: bool = True) -> str | None:
    return await db.value(LEFT, db.domain, include_delayed)


async def test_a_pause_goes_before_everything_else_until_it_is_over(db: Session) -> None:
    await db.send()
    await db.rows(PAUSE, DOMAIN, None)
    assert await left(db) == await left(db, include_delayed=False) == "paused"
    await db.rows("update commandbus.command_bus_flow set paused_until = now() + interval '1 hour'")
    assert await left(db) == "paused"
    await db.rows("update commandbus.command_bus_flow set paused_until = now() - interval '1 hour'")
    assert await left(db) == "due"
    await db.rows("update commandbus.command_bus_flow set paused_at = null, paused_until = null")
    assert await left(db) == "due"


async def test_what_waits_without_a_time_or_is_no_command_is_not_left(db: Session) -> None:
    await db.send(delay_seconds=600)
    assert await left(db) == "delayed"
    await db.rows("update pgmq.q_payments__commands set vt = 'infinity'")
    assert await left(db) is None
    await db.rows("select pgmq.send('payments__commands', '{\"no\": \"command\"}', 600)")
    assert await left(db) is None


async def test_a_worker_of_a_paused_domain_ends_at_once(db: Session, bus: CommandBus) -> None:
    (waiting,) = await db.send()
    await db.rows(PAUSE, DOMAIN, None)
    with pytest.raises(DomainPausedError, match="paused"):
        await bus.run_worker(DOMAIN, until_empty=True)
    assert await db.status(waiting) == "PENDING"
    assert not bus._workers.running
    await until(lambda: bus._workers.shared._users == 0, "an end")
