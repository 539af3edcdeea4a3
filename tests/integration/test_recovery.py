"""P8: whatever happens to its connections or to the server, a worker goes on without help."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    DatabaseUnavailableError,
    HandlerContext,
    ReplyOutcome,
    Settings,
)
from commandbus.database.postgres import PostgresStore
from commandbus.embedded import EmbeddedPostgres
from tests.integration.looking import (
    Conn,
    another_bus,
    events,
    lapse,
    look,
    replies,
    send,
    send_some,
    until_count,
    until_queue_is_empty,
    value,
)
from tests.waiting import until, until_status, working


class Runs:
    """Counts how often each command was handled."""

    def __init__(self, bus: CommandBus) -> None:
        self.counts: Counter[UUID] = Counter()
        bus.register_handler("shop", "Work", self.handle)

    async def until_handled(self, number: int) -> None:
        await until(lambda: len(self.counts) >= number, f"{number} handled")

    async def handle(self, command: Command, ctx: HandlerContext) -> None:
        self.counts[command.command_id] += 1


async def count_stale(conn: Conn) -> int:
    return int(
        await value(
            conn,
            "select count(*) from commandbus.command_bus_audit"
            " where event_type = 'STALE_RESULT_REJECTED'",
        )
    )


async def test_commands_flow_on_while_sessions_are_killed(bus: CommandBus, conn: Conn) -> None:
    """F6: all done, none lost, none doubled."""
    kill_all_others = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    )
    number, ids = 600, list[UUID]()
    runs = Runs(bus)
    for _ in range(6):
        ids += await send_some(bus, number // 6)
    # A receive whose answer was cut off leaves a lease that nobody knows of: it has to lapse.
    async with working(bus, "shop", concurrency=8, vt_seconds=5):
        for share in range(1, 6):
            await runs.until_handled(share * number // 8)
            await until(lambda: value(conn, kill_all_others), "sessions to kill")
        await until_count(conn, "COMPLETED", number)

    is_complete = set(runs.counts) == set(ids)
    assert is_complete
    assert max(runs.counts.values()) == 1
    answered = Counter(reply.command_id for reply in await replies(bus))
    assert len(answered) == number
    assert max(answered.values()) == 1
    assert await count_stale(conn) == 0
    await until_queue_is_empty(conn)


async def test_an_idle_worker_whose_sessions_were_killed_hears_the_next_hint(
    dsn: str, conn: Conn
) -> None:
    async with another_bus(dsn) as bus:
        Runs(bus)
        async with working(bus, "shop"):
            for _ in range(3):
                async with conn.transaction():
                    sent = await bus.send("shop", "Work", uuid4(), {}, conn=conn)
                await until_status_on(conn, sent)
                await conn.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                    " and backend_type = 'client backend'"
                )


async def until_status_on(conn: Conn, command_id: UUID) -> None:
    async def is_done() -> bool:
        status = await value(
            conn,
            "select status from commandbus.command_bus_command where command_id = %s",
            command_id,
        )
        return bool(status == "COMPLETED")

    await until(is_done, "a completed command")


@pytest.mark.parametrize("kind", ["complete", "transactional", "send"])
async def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Recorded once, answered once, and not mistaken for a late result."""
    settle = PostgresStore.settle
    repeated: Counter[UUID] = Counter()

    async def settle_and_lose_the_answer(
        self: PostgresStore, domain: str, outcomes: Any
    ) -> set[UUID]:
        lost = await settle(self, domain, outcomes)
        ids = [outcome.lease.command_id for outcome in outcomes]
        repeated.update(ids)
        if any(repeated[command_id] <= 2 for command_id in ids):
            raise DatabaseUnavailableError("the line was cut")
        return lost

    monkeypatch.setattr(PostgresStore, "settle", settle_and_lose_the_answer)

    @bus.handler("shop", "Work", transactional=kind == "transactional")
    async def work(command: Command, ctx: HandlerContext) -> None:
        if kind == "send":
            ctx.send("bank", "Next", uuid4(), {})

    ids = await send_some(bus, 20)
    # With fewer places an end leases the next in its commit, and is repeated without that.
    async with working(bus, "shop", concurrency=10):
        await until_count(conn, "COMPLETED", 20)
        if kind != "transactional":
            await until(lambda: min(repeated[i] for i in ids) >= 3, "two repeats of each")
    assert await count_stale(conn) == 0
    assert len({reply.command_id for reply in await replies(bus)}) == 20
    assert await events(bus, ids[0]) == ["SENT", "RECEIVED", "COMPLETED"]
    sent_on = await value(
        conn, "select count(*) from commandbus.command_bus_command where domain = 'bank'"
    )
    assert sent_on == (20 if kind == "send" else 0)


async def test_a_commit_that_also_leased_and_whose_answer_was_lost_ends_and_loses_nothing(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few places: the end is repeated without a lease, and what was leased unseen lapses."""
    both = PostgresStore.settle_and_receive
    unseen: list[UUID] = []

    async def lose_the_answer(
        self: PostgresStore, domain: str, outcomes: Any, options: Any
    ) -> tuple[set[UUID], list[Any]]:
        found = await both(self, domain, outcomes, options)
        if found[1] and not unseen:
            unseen.extend(lease.command_id for lease in found[1])
            raise DatabaseUnavailableError("the line was cut")
        return found

    monkeypatch.setattr(PostgresStore, "settle_and_receive", lose_the_answer)
    runs = Runs(bus)
    ids = await send_some(bus, 20)
    async with working(bus, "shop", concurrency=2):
        await until(lambda: unseen and len(runs.counts) >= 20 - len(unseen), "all that is seen")
        await until_count(conn, "COMPLETED", 20 - len(unseen))
        await lapse(conn)
        await until_count(conn, "COMPLETED", 20)
    assert runs.counts == Counter(ids)
    assert await count_stale(conn) == 0
    assert len({reply.command_id for reply in await replies(bus)}) == 20


async def test_outcomes_that_gathered_during_an_outage_are_committed_after_it(
    bus: CommandBus,
    conn: Conn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settle, is_away = PostgresStore.settle, True

    async def settle_unless_away(self: PostgresStore, *arguments: Any) -> Any:
        if is_away:
            raise DatabaseUnavailableError("away")
        return await settle(self, *arguments)

    monkeypatch.setattr(PostgresStore, "settle", settle_unless_away)
    runs = Runs(bus)
    await send_some(bus, 50)
    async with working(bus, "shop", concurrency=50):
        await until(lambda: len(runs.counts) == 50, "all handled")
        await until(lambda: "cannot commit outcomes" in caplog.text, "a failed commit")
        await until_count(conn, "IN_PROGRESS", 50)
        is_away = False
        await until_count(conn, "COMPLETED", 50)
    assert max(runs.counts.values()) == 1
    assert len(await replies(bus)) == 50


async def test_a_receive_that_fails_is_repeated(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receive, failures = PostgresStore.receive, 3

    async def receive_at_last(self: PostgresStore, *arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseUnavailableError("away")
        return await receive(self, *arguments, **options)

    monkeypatch.setattr(PostgresStore, "receive", receive_at_last)
    Runs(bus)
    sent = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    assert caplog.text.count("receiver failed") == 3


# -- the server itself


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that this test alone may kill."""
    # Not under tmp_path: as root the server runs as another account, which must get there.
    folder = Path(tempfile.mkdtemp(prefix="cb-restart-"))
    folder.chmod(0o711)
    embedded = EmbeddedPostgres(folder / "data", settings={"fsync": "off"})
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
async def test_a_worker_goes_on_by_itself_after_the_server_was_killed(
    own_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """F3 in small: what ran during the outage is committed after it, and wake-ups work again."""
    dsn = own_server.dsn
    gate, started = asyncio.Event(), asyncio.Event()
    async with CommandBus.connect(dsn, settings=Settings()) as bus:
        runs = Runs(bus)

        @bus.handler("shop", "Through")
        async def through(command: Command, ctx: HandlerContext) -> str:
            started.set()
            await gate.wait()
            return "survived"

        before = await send_some(bus, 100)
        held = await send(bus, "Through")
        async with working(bus, "shop", concurrency=4):
            await asyncio.wait_for(started.wait(), 30)
            await until(lambda: len(runs.counts) == 100, "all handled")
            await _kill(own_server)
            gate.set()
            await until(lambda: "cannot commit outcomes" in caplog.text, "the outage noticed")
            await asyncio.to_thread(own_server.start)
            assert own_server.dsn == dsn
            # Nobody helps: the outcome of the outage is committed, new commands are handled.
            await _until_done(dsn, held)
            after = [await bus.call("shop", "Work", {}) for _ in range(5)]
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
                await until_count(conn, "COMPLETED", len(before) + 1 + len(after))
                assert await count_stale(conn) == 0
        assert {reply.outcome for reply in after} == {ReplyOutcome.SUCCESS}
        answered = Counter(reply.command_id for reply in await replies(bus))
        assert set(answered) == {*before, held}
        assert max(answered.values()) == 1
        assert runs.counts.keys() >= {*before}
        assert max(runs.counts.values()) == 1
        assert (await look(bus, held)).attempts == 1


async def _kill(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.superuser_dsn_for("postgres")) as watcher:
        row = watcher.execute("select current_setting('data_directory')").fetchone()
    assert row is not None
    pid_file = Path(str(row[0])) / "postmaster.pid"
    os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGKILL)
    await until(lambda: not server.is_running, "a dead server")


async def _until_done(dsn: str, command_id: UUID) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await until_status_on(conn, command_id)


async def test_a_handler_that_outlived_its_lease_in_an_outage_is_cancelled_afterwards(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extender could not reach the server, the lease lapsed, the same worker has it again."""
    ids = [BatchCommand("Long", uuid4(), {"n": n}) for n in range(3)]
    started, cancelled = list[int](), list[int]()

    @bus.handler("shop", "Long")
    async def long(command: Command, ctx: HandlerContext) -> int:
        started.append(command.data["n"])
        if ctx.lease_epoch == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(command.data["n"])
        return ctx.lease_epoch

    await bus.send_many("shop", ids)
    async with working(bus, "shop", concurrency=10):
        await until(lambda: len(started) == 3)
        await lapse(conn)
        await until_count(conn, "COMPLETED", 3)
    assert sorted(cancelled) == [0, 1, 2]
    assert sorted(started) == [0, 0, 1, 1, 2, 2]
    assert [reply.data for reply in await replies(bus)] == [2, 2, 2]
