"""What a worker that empties a queue has to wait for."""

from __future__ import annotations

import pytest

from commandbus import CommandBus
from commandbus.errors import DomainPausedError
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import complete, limit, sent
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


async def test_what_waits_for_a_token_is_left_because_it_comes_by_itself(db: Session) -> None:
    await limit(db, rate=1, per=3600, burst=1)
    await sent(db, 3)
    (held,) = await db.receive()
    assert await left(db, include_delayed=False) == "due"
    await complete(db, held)
    assert await left(db, include_delayed=False) == "due"


async def test_what_waits_at_a_full_limit_is_left_once_it_has_room(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 2)
    (held,) = await db.receive()
    assert await db.receive() == []
    assert await left(db) is None
    await complete(db, held)
    assert await left(db) == "due"


async def test_what_is_paused_without_an_end_is_not_left(db: Session) -> None:
    await sent(db, 1)
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    assert await db.receive() == []
    assert await left(db) is None


async def test_a_worker_under_a_rate_ends_when_all_is_done(db: Session, bus: CommandBus) -> None:
    done: list[object] = []
    bus.register_handler(DOMAIN, "Debit", lambda command, ctx: done.append(command.command_id))
    await bus.limits.set(DOMAIN, "Debit", rate=20, burst=1)
    ids = await sent(db, 5)
    await bus.run_worker(DOMAIN, until_empty=True)
    assert sorted(map(str, done)) == sorted(map(str, ids))
