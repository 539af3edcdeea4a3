"""When a process has to look again for pauses that end: soon if one does, else in its own time."""

from __future__ import annotations

from tests.sql.helpers import DOMAIN, Session


async def next_look(db: Session) -> float | None:
    seconds = await db.value("select commandbus.keep_pauses()")
    return None if seconds is None else float(seconds)


async def test_nothing_is_said_of_the_next_look_while_no_pause_has_an_end(db: Session) -> None:
    assert await next_look(db) is None
    await db.send()
    await db.value("select commandbus.pause_domain(%s, 'why')", DOMAIN)
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    assert await next_look(db) is None


async def test_the_next_look_is_at_the_first_end_of_a_pause(db: Session) -> None:
    await db.send()
    await db.value("select commandbus.pause_domain(%s, 'why', now() + interval '1 hour')", DOMAIN)
    first = await next_look(db)
    assert first is not None
    assert 3_500 < first <= 3_600
    await db.value(
        "select commandbus.pause_type(%s, 'Debit', 'why', now() + interval '10 minutes')", DOMAIN
    )
    second = await next_look(db)
    assert second is not None
    assert 500 < second <= 600
