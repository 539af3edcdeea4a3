"""Pause and delay, as workers live through them."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, Command, CommandBus, CommandStatus, HandlerContext
from commandbus.schedules import timekeeper
from commandbus.worker import executor as executor_module
from tests.integration.looking import Conn, events, look, send, send_some, value
from tests.waiting import until, until_status, working

COMPLETED = CommandStatus.COMPLETED
UNSTARTED = "select count(*) from commandbus.command_bus_command where leased_by is not null"


def are_idle(bus: CommandBus, number: int) -> bool:
    parts = [worker._parts for worker in bus._workers.running]
    return len(parts) == number and all(part and part.receiver.is_idle for part in parts)


class Holding:
    """Handlers that go on until they are let go."""

    def __init__(self, bus: CommandBus) -> None:
        self.begun: list[UUID] = []
        self.go = asyncio.Event()

        @bus.handler("shop", "Work")
        async def work(command: Command, ctx: HandlerContext) -> None:
            self.begun.append(command.command_id)
            await self.go.wait()


@pytest.mark.parametrize("use_notify", [True, False])
async def test_what_was_leased_and_not_started_is_back_within_two_seconds(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch, use_notify: bool
) -> None:
    monkeypatch.setattr(executor_module.Executor, "_prefetch", lambda self: 20)
    holding = Holding(bus)
    sent = await send_some(bus, 12)
    async with working(bus, "shop", concurrency=2, use_notify=use_notify):

        async def leased() -> int:
            return int(await value(conn, UNSTARTED))

        async def all_are() -> bool:
            return await leased() == 12

        await until(all_are, "leases ahead")
        await bus.pause("shop", reason="the shelves are moved", operator="ann")
        began = time.monotonic()

        async def given_back() -> bool:
            return await leased() == 2

        await until(given_back, "leases given back")
        assert time.monotonic() - began < 2.0
        # What runs goes on, and ends.
        assert len(holding.begun) == 2
        running = list(holding.begun)
        holding.go.set()
        for command_id in running:
            await until_status(bus, "shop", command_id, COMPLETED)
        waiting = next(each for each in sent if each not in running)
        assert (await events(bus, waiting))[-1] == "RELEASED"
        assert (await look(bus, waiting)).attempts == 0
        assert len(holding.begun) == 2
        assert await bus.resume("shop", operator="bob")
        for command_id in sent:
            await until_status(bus, "shop", command_id, COMPLETED)


async def test_a_pause_ends_by_itself_and_an_idle_worker_goes_on_then(bus: CommandBus) -> None:
    holding = Holding(bus)
    holding.go.set()
    await bus._store.ensure_domain("shop")
    async with working(bus, "shop"):
        await bus.pause("shop", reason="a moment", until=timedelta(seconds=1))
        began = time.monotonic()
        sent = await send(bus)
        await until_status(bus, "shop", sent, COMPLETED)
        assert 0.9 < time.monotonic() - began < 3.0


async def test_a_worker_that_starts_says_that_its_domain_is_paused(
    bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    Holding(bus).go.set()
    await bus._store.ensure_domain("shop")
    await bus.pause("shop", reason="the shelves are moved", operator="ann")
    with caplog.at_level(logging.WARNING, "commandbus.worker"):
        async with working(bus, "shop"):
            pass
    (line,) = [r.getMessage() for r in caplog.records if "paused" in r.getMessage()]
    assert line.startswith("shop is paused since ")
    assert line.endswith("by ann: the shelves are moved")


async def test_a_consumer_of_a_paused_domain_gets_nothing_and_settles_what_it_has(
    bus: CommandBus,
) -> None:
    await send_some(bus, 2)
    async with bus.consumer("shop") as consumer:
        (held,) = await consumer.receive(1)
        await bus.pause("shop", reason="why")
        assert await consumer.receive(1) == []
        await held.extend(60)
        await held.complete()
        await bus.resume("shop")
        (other,) = await consumer.receive(1, wait_seconds=10)
        await other.complete()


async def test_paused_domains_are_not_looked_at_again_and_again(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands are due, and nobody asks for them more often than an idle worker does."""
    Holding(bus).go.set()
    bus.register_handler("other", "Work", _nothing)
    for domain in ("shop", "other"):
        await bus.send(domain, "Work", uuid4(), {})
        await bus.pause(domain, reason="why")
    asked = 0
    receive = type(bus._store).receive

    async def counted(*args: object, **options: object) -> object:
        nonlocal asked
        asked += 1
        return await receive(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(bus._store), "receive", counted)
    async with working(bus, "shop"), working(bus, "other"):
        await until(lambda: are_idle(bus, 2))
        before = asked
        looks = 0
        due_in = type(bus._store).due_in

        async def looked(*args: object) -> object:
            nonlocal looks
            looks += 1
            return await due_in(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(type(bus._store), "due_in", looked)
        await until(lambda: looks >= 3, "looks of idle workers")
        assert asked - before <= 2


async def _nothing(command: Command, ctx: HandlerContext) -> None:
    pass


def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chores of time come round at once."""
    for name in ("LOOK_SECONDS", "ASK_SECONDS"):
        monkeypatch.setattr(timekeeper, name, 0.05)
    monkeypatch.setattr(timekeeper, "EVERY_SECONDS", 0.01)


async def resumed_at(bus: CommandBus) -> datetime | None:
    found = await bus.search.audit(domain="shop", event_types=["RESUMED"])  # type: ignore[list-item]
    return found.items[0].ts if found.items else None


@pytest.mark.parametrize("kind", [None, "Work"])
async def test_a_process_without_workers_ends_what_is_over_by_time(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    """A service does no more than this while it serves."""
    soon(monkeypatch)
    sent = await bus.send("shop", "Work", uuid4(), {}, expires_in=0.2)
    await bus.pause("shop", type=kind, reason="why", until=timedelta(seconds=0.3))
    async with bus.schedules.firing():
        await until_status(bus, "shop", sent, CommandStatus.CANCELED)

        async def is_resumed() -> bool:
            return await resumed_at(bus) is not None

        await until(is_resumed, "the line in the audit")
    assert await bus.resume("shop", type=kind) is False


async def test_the_end_of_a_pause_that_is_known_is_written_when_it_comes(bus: CommandBus) -> None:
    await bus._store.ensure_domain("shop")
    end = datetime.now(UTC) + timedelta(seconds=1.2)
    await bus.pause("shop", reason="why", until=end)
    async with bus.schedules.firing():

        async def is_resumed() -> bool:
            return await resumed_at(bus) is not None

        await until(is_resumed, "the line in the audit")
    written = await resumed_at(bus)
    assert written is not None
    assert timedelta(0) <= written - end < timedelta(seconds=0.7)  # its next look is at 2 s


@pytest.mark.parametrize("others", [0, 3])
async def test_an_idle_worker_starts_a_delayed_command_when_it_is_due(
    bus: CommandBus, others: int
) -> None:
    """Well before the next poll, also in a process with many domains."""
    late: list[float] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        late.append(
            (datetime.now(UTC) - datetime.fromisoformat(command.data["due"])).total_seconds()
        )

    names = [f"idle{n}" for n in range(others)]
    for name in names:
        bus.register_handler(name, "Work", _nothing)
    tasks = [asyncio.create_task(bus.run_worker(name)) for name in ("shop", *names)]
    try:
        await until(lambda: are_idle(bus, len(tasks)))
        for delay in (0.05, 0.3, 0.7, 1.4):
            due = datetime.now(UTC) + timedelta(seconds=delay)
            sent = await bus.send("shop", "Work", uuid4(), {"due": due.isoformat()}, delay=delay)
            await until_status(bus, "shop", sent, COMPLETED)
    finally:
        await bus.stop()
        await asyncio.gather(*tasks)
    assert min(late) >= 0
    assert sorted(late)[1] < 0.15, late  # the machine may be busy


async def test_the_chore_ends_what_expired_and_what_was_paused_for_a_time(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon(monkeypatch)
    bus.register_handler("other", "Work", _nothing)
    sent = await bus.send("shop", "Work", uuid4(), {}, expires_in=0.2)
    await bus.pause("shop", reason="why", until=timedelta(seconds=0.3))
    async with working(bus, "other"):  # a worker of any domain does it
        found = await until_status(bus, "shop", sent, CommandStatus.CANCELED)
        assert found.attempts == 0

        async def resumed() -> bool:
            found = await bus.search.audit(domain="shop", event_types=["RESUMED"])  # type: ignore[list-item]
            return bool(found.items)

        await until(resumed, "the line in the audit")
    (reply,) = [each async for each in bus.replies("shop", wait=False)]
    assert (reply.outcome, reply.error and reply.error.code) == ("CANCELED", "EXPIRED")


async def test_a_running_command_outlives_its_expiry_and_its_retry_does_not(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commandbus import RetryPolicy, TransientCommandError

    attempts = 0

    @bus.handler("shop", "Work", retry_policy=RetryPolicy(max_attempts=5, backoff_schedule=[0.1]))
    async def work(command: Command, ctx: HandlerContext) -> None:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(1.1)
        raise TransientCommandError("BUSY", "later")

    sent = await bus.send("shop", "Work", uuid4(), {}, expires_in=1.0)
    async with working(bus, "shop"):
        await until_status(bus, "shop", sent, CommandStatus.CANCELED)
    assert attempts == 1
    assert (await events(bus, sent))[-1] == "EXPIRED"


async def test_children_of_a_batch_may_start_later_and_so_may_what_follows_it(
    bus: CommandBus,
) -> None:
    ran: list[str] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        ran.append(command.data["name"])

    batch = await bus.create_batch(
        "shop",
        [
            BatchCommand("Work", uuid4(), {"name": "later"}, delay=2),
            BatchCommand("Work", uuid4(), {"name": "now"}),
            BatchCommand("Work", uuid4(), {"name": "never"}, delay=600, expires_in=900),
        ],
        on_complete_command=BatchCommand("Work", uuid4(), {"name": "end"}, delay=0.2),
    )
    (never,) = [
        c.command_id for c in await bus.list_batch_commands("shop", batch) if c.deliver_at
        and c.expires_at
    ]  # fmt: skip
    async with working(bus, "shop"):
        await until(lambda: ran == ["now", "later"], "both")
        await bus.cancel("shop", never, "not needed")
        await until(lambda: ran == ["now", "later", "end"], "the end")
    found = await bus.get_batch("shop", batch)
    assert found is not None
    assert (found.completed_count, found.canceled_count) == (2, 1)
