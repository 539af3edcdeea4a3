"""Sessions and codes of the console in SQL: allowed, refused, and harmless when asked for twice."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

from tests.sql.helpers import Session

TOKEN = uuid4().hex
IDLE = timedelta(minutes=30)


async def begin(db: Session, ends: str = "null", longest: str = "12 hours") -> tuple[UUID, bytes]:
    session, secret = uuid4(), uuid4().bytes * 2
    await db.rows(
        f"select commandbus.begin_console_session(%s, %s, %s, 'ada', '{longest}', {ends},"
        ' \'{"address": "10.0.0.1"}\')',
        session, secret, TOKEN,
    )  # fmt: skip
    return session, secret


async def use(db: Session, secret: bytes, *, is_used: bool = True) -> list[UUID]:
    rows = await db.rows(
        "select session_id from commandbus.use_console_session(%s, %s, %s)", secret, IDLE, is_used
    )
    return [row["session_id"] for row in rows]


async def events(db: Session, session: UUID) -> list[str]:
    rows = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        session,
    )
    return [row["event_type"] for row in rows]


async def test_a_session_is_found_by_its_secret_until_it_is_over(db: Session) -> None:
    session, secret = await begin(db)
    over, old_secret = await begin(db, ends="now() - interval '1 second'")

    assert await use(db, secret) == [session]
    assert await use(db, b"?" * 32) == []
    assert await use(db, old_secret) == []
    assert await events(db, over) == ["CONSOLE_SIGNED_IN"]


async def test_an_idle_session_is_over_and_asking_does_not_bring_it_back(db: Session) -> None:
    session, secret = await begin(db)
    await db.rows(
        "update commandbus.command_bus_console_session"
        " set last_seen_at = now() - interval '31 minutes' where session_id = %s",
        session,
    )

    assert await use(db, secret) == []
    assert await use(db, secret, is_used=False) == []


async def test_a_look_is_no_use(db: Session) -> None:
    session, secret = await begin(db)
    seen = (
        "select clock_timestamp() - last_seen_at > interval '1 minute'"
        " from commandbus.command_bus_console_session where session_id = %s"
    )
    await db.rows(
        "update commandbus.command_bus_console_session"
        " set last_seen_at = now() - interval '5 minutes' where session_id = %s",
        session,
    )

    await use(db, secret, is_used=False)
    assert await db.value(seen, session)
    await use(db, secret)
    assert not await db.value(seen, session)


async def test_a_session_is_ended_once_and_by_its_user(db: Session) -> None:
    session, secret = await begin(db)
    end = "select commandbus.end_console_session(%s, %s, 'x', '{}')"

    assert not await db.value(end, session, "bob")
    assert await use(db, secret)
    assert await db.value(end, session, "ada")
    assert not await db.value(end, session, None)
    assert await use(db, secret) == []
    assert await events(db, session) == ["CONSOLE_SIGNED_IN", "CONSOLE_SIGNED_OUT"]


async def test_old_sessions_are_removed_by_new_ones(db: Session) -> None:
    old, _ = await begin(db, ends="now() - interval '31 days'")
    young, _ = await begin(db, ends="now() - interval '29 days'")
    await begin(db)
    rows = await db.rows("select session_id from commandbus.command_bus_console_session")
    left = {row["session_id"] for row in rows}

    assert old not in left
    assert young in left


async def test_a_code_is_used_once_and_only_in_its_time(db: Session) -> None:
    make = "select commandbus.create_console_code(%s, %s, %s::interval)"
    take = "select commandbus.use_console_code(%s)"
    await db.rows(make, b"a" * 32, TOKEN, "1 minute")
    await db.rows(make, b"b" * 32, TOKEN, "-1 second")

    assert await db.value(take, b"a" * 32) == TOKEN
    assert await db.value(take, b"a" * 32) is None
    assert await db.value(take, b"b" * 32) is None
