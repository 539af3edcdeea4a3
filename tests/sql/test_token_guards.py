"""When the next token of a limit is looked for: by its own gate, its own rate, and not twice."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import sent

OTHER = "orders"
LOOK = "select commandbus.look_later(%s, clock_timestamp())"


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def one_waits(db: Session, per: float = 3600, **more: Any) -> None:
    """For the next token: there is one in so many seconds."""
    names = "".join(f", p_{name} => %s" for name in more)
    await db.value(
        "select commandbus.set_limit(%s, 'Debit', p_rate => 1, p_burst => 1, p_per => %s"
        f"{names})",
        db.domain, per, *more.values(),
    )  # fmt: skip
    for _ in range(2):
        await db.send()
    assert len(await db.receive()) == 1
    assert await ready_at(db) is not None


async def ready_at(db: Session) -> datetime | None:
    found: datetime | None = await db.value(
        "select ready_at from commandbus.command_bus_gate where domain = %s", db.domain
    )
    return found


async def is_ready(db: Session, tokens: float | None = None) -> None:
    """Its token should be there."""
    await db.rows(
        "update commandbus.command_bus_gate set ready_at = clock_timestamp(),"
        " tokens = coalesce(%s, tokens) where domain = %s",
        tokens, db.domain,
    )  # fmt: skip


async def test_a_look_is_at_the_gates_of_one_domain(db: Session, other: Session) -> None:
    for each in (other, db):
        await one_waits(each)
    await is_ready(other, 1)
    before = [await ready_at(each) for each in (other, db)]
    await db.value(LOOK, DOMAIN)
    assert [await ready_at(each) for each in (other, db)] == before


async def test_a_look_moves_no_gate_of_that_name_elsewhere(db: Session, other: Session) -> None:
    for each in (other, db):
        await one_waits(each)
    await is_ready(db)
    before = await ready_at(other)
    await db.value(LOOK, DOMAIN)
    assert await ready_at(other) == before


@pytest.mark.parametrize(("ours", "theirs"), [(3600, 7200), (7200, 3600)])
async def test_the_next_look_is_by_the_rate_of_the_domain(
    db: Session, other: Session, ours: float, theirs: float
) -> None:
    await one_waits(other, theirs)
    await one_waits(db, ours, max_running=1)
    await is_ready(db)
    await db.value(LOOK, DOMAIN)
    wait = await db.value(
        "select extract(epoch from ready_at - clock_timestamp()) from commandbus.command_bus_gate"
        " where domain = %s", DOMAIN,
    )  # fmt: skip
    assert round(float(wait), -2) == ours


async def test_a_token_that_is_there_and_waited_for_is_looked_for_until_somebody_has_it(
    db: Session,
) -> None:
    await one_waits(db)
    await is_ready(db, 1)
    await db.value(LOOK, DOMAIN)
    assert await ready_at(db) is not None


async def test_whose_message_another_session_has_is_stepped_over(
    db: Session, session: Open
) -> None:
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 1)", DOMAIN)
    await sent(db, 2)
    await db.receive()
    await db.value("select commandbus.set_limit(%s, 'Debit', p_max_running => 2)", DOMAIN)
    somebody = await session()
    await somebody.rows(f"select from pgmq.q_{DOMAIN}__commands where vt = 'infinity' for update")
    await db.rows("set lock_timeout = '2s'")
    assert await db.receive() == []
    await somebody.conn.rollback()
    assert len(await db.receive()) == 1
