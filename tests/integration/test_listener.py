"""The listener: wakes whoever subscribed, outlives its connections, and notices a deaf session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from commandbus.database import connections
from commandbus.database.pgmq import notify
from commandbus.database.pgmq.notify import PostgresListener
from tests.integration.looking import Conn, value
from tests.waiting import until


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    async def until_rung(self, more_than: int = 0) -> None:
        await until(lambda: self.rings > more_than, "a wake-up")


def connector(
    dsn: str, made: list[psycopg.AsyncConnection[Any]] | None = None
) -> Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]:
    """How the listener connects; what it got is in `made`."""

    async def connect() -> psycopg.AsyncConnection[Any]:
        conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        if made is not None:
            made.append(conn)
        return conn

    return connect


@asynccontextmanager
async def running(listener: PostgresListener) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()


async def until_listening_on(
    listener: PostgresListener, made: list[psycopg.AsyncConnection[Any]], number: int
) -> None:
    """Wait until the listener listens on its n-th connection."""
    await until(
        lambda: len(made) == number and listener.listening.is_set(), f"session {number} listens"
    )


async def ring(conn: Conn, channel: str) -> None:
    await conn.execute("select pg_notify(%s, '')", (channel,))


async def test_a_listener_with_a_mark_hears_the_marked_channel_and_not_the_plain_one(
    dsn: str, conn: Conn
) -> None:
    bell = Bell()
    listener = PostgresListener(connector(dsn), mark="0abcd_")
    listener.subscribe("commandbus.shop", bell.ring)
    async with running(listener):
        await asyncio.wait_for(listener.listening.wait(), 30)
        await ring(conn, "commandbus.shop")
        await ring(conn, "commandbus.0abcd_shop")
        await bell.until_rung(1)
        assert bell.rings == 2  # one of them at the start
    listener.unsubscribe("commandbus.shop", bell.ring)


async def test_a_notification_wakes_those_who_subscribed_to_its_channel(
    dsn: str, conn: Conn
) -> None:
    shop, also_shop, bank = Bell(), Bell(), Bell()
    listener = PostgresListener(connector(dsn))
    listener.subscribe("commandbus.shop", shop.ring)
    listener.subscribe("commandbus.shop", also_shop.ring)
    listener.subscribe("commandbus.bank", bank.ring)
    async with running(listener):
        await asyncio.wait_for(listener.listening.wait(), 30)
        # Whoever waits looks once after the LISTEN: something may have come before it.
        assert (shop.rings, also_shop.rings, bank.rings) == (1, 1, 1)
        await ring(conn, "commandbus.shop")
        await shop.until_rung(1)
        assert (shop.rings, also_shop.rings, bank.rings) == (2, 2, 1)
        await ring(conn, "commandbus.nobody")
        await ring(conn, "commandbus.bank")
        await bank.until_rung(1)
        assert (shop.rings, also_shop.rings, bank.rings) == (2, 2, 2)
    assert not listener.listening.is_set()


async def test_a_channel_may_be_added_while_listening_and_left_again(dsn: str, conn: Conn) -> None:
    first, second = Bell(), Bell()
    listener = PostgresListener(connector(dsn), probe_seconds=60.0)
    listener.subscribe("one", first.ring)
    async with running(listener):
        await first.until_rung()
        await asyncio.wait_for(listener.listening.wait(), 30)
        listener.subscribe("two", second.ring)
        await second.until_rung()  # at once, not at the next probe
        await ring(conn, "two")
        await second.until_rung(1)
        listener.unsubscribe("two", second.ring)
        await ring(conn, "two")
        await ring(conn, "one")
        await first.until_rung(1)
        assert second.rings == 2
        # A second subscription finds the session listening already.
        listener.subscribe("two", second.ring)
        await ring(conn, "two")
        await second.until_rung(2)


async def test_a_killed_session_is_replaced_and_everyone_is_woken(
    dsn: str, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[psycopg.AsyncConnection[Any]] = []
    bell = Bell()
    listener = PostgresListener(connector(dsn, made))
    listener.subscribe("shop", bell.ring)
    async with running(listener):
        for number in (1, 2, 3):
            await until_listening_on(listener, made, number)
            seen = bell.rings
            pid = made[-1].info.backend_pid
            await conn.execute("select pg_terminate_backend(%s, 5000)", (pid,))
            # What was notified while nobody listened is found by the look after the reconnect.
            await bell.until_rung(seen)
        await until(listener.listening.is_set)
        seen = bell.rings
        await ring(conn, "shop")
        await bell.until_rung(seen)
    assert "listener lost" in caplog.text
    assert all(old.closed for old in made)


async def test_a_server_that_cannot_be_reached_is_tried_again_and_again(
    dsn: str, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    connect = connector(dsn)
    failures: list[Exception] = [
        OSError("no route"),
        psycopg.OperationalError("password=hunter2 is not what the server wants"),
        TimeoutError("too slow"),
    ]

    async def connect_at_last() -> psycopg.AsyncConnection[Any]:
        if failures:
            raise failures.pop(0)
        return await connect()

    bell = Bell()
    listener = PostgresListener(connect_at_last)
    listener.subscribe("shop", bell.ring)
    async with running(listener):
        await bell.until_rung()
        await ring(conn, "shop")
        await bell.until_rung(1)
    assert caplog.text.count("listener lost") == 3
    assert "hunter2" not in caplog.text


async def test_a_probe_leaves_a_healthy_session_alone(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[psycopg.AsyncConnection[Any]] = []
    probes = 0
    probe = PostgresListener._probe

    async def counted(self: PostgresListener, *arguments: Any) -> None:
        nonlocal probes
        await probe(self, *arguments)
        probes += 1

    monkeypatch.setattr(PostgresListener, "_probe", counted)
    bell = Bell()
    listener = PostgresListener(connector(dsn, made), probe_seconds=0.01)
    listener.subscribe("shop", bell.ring)
    async with running(listener):
        await until(lambda: probes >= 5, "five probes")
        seen = bell.rings
        await ring(conn, "shop")
        await bell.until_rung(seen)
        await until(lambda: probes >= 10, "ten probes")
        state = await value(
            conn,
            "select state from pg_stat_activity where pid = %s",
            made[0].info.backend_pid,
        )
    assert len(made) == 1
    assert state != "idle in transaction"
    assert seen == 1


async def test_a_session_that_does_not_listen_is_found_by_the_probe(
    dsn: str, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a pooler in transaction mode: LISTEN succeeds, and nobody listens."""
    made: list[psycopg.AsyncConnection[Any]] = []
    connect = connector(dsn, made)

    async def connect_deaf() -> psycopg.AsyncConnection[Any]:
        session = await connect()
        if len(made) == 1:
            execute = session.execute

            async def forget(query: Any) -> Any:
                await execute(query)
                return await execute("unlisten *")

            session.execute = forget  # type: ignore[method-assign, assignment]
        return session

    bell = Bell()
    listener = PostgresListener(connect_deaf, probe_seconds=0.01)
    listener.subscribe("shop", bell.ring)
    async with running(listener):
        await until_listening_on(listener, made, 2)
        await bell.until_rung(1)
        await ring(conn, "shop")
        await bell.until_rung(2)
    assert "does not listen any more" in caplog.text


async def test_a_session_that_answers_no_probe_is_given_up(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open: the connection looks alive, and nothing comes back."""
    monkeypatch.setattr(notify, "PROBE_TIMEOUT_SECONDS", 0.05)
    made: list[psycopg.AsyncConnection[Any]] = []
    ask = connections.fetch

    async def answers_nothing(session: Any, *query: Any) -> Any:
        if session is made[0]:
            await asyncio.Event().wait()
        return await ask(session, *query)

    monkeypatch.setattr(notify, "fetch", answers_nothing)
    listener = PostgresListener(connector(dsn, made), probe_seconds=0.01)
    listener.subscribe("shop", Bell().ring)
    async with running(listener):
        await until_listening_on(listener, made, 2)


async def test_a_cancelled_listener_ends_even_when_a_channel_was_just_added(dsn: str) -> None:
    """Neither of the two may swallow the other, however close they come."""
    for turns in range(12):
        bell = Bell()
        listener = PostgresListener(connector(dsn), probe_seconds=60.0)
        listener.subscribe("one", bell.ring)
        task = asyncio.create_task(listener.run())
        await asyncio.wait_for(listener.listening.wait(), 30)
        listener.subscribe("two", bell.ring)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done, f"still running when cancelled {turns} turns later"
