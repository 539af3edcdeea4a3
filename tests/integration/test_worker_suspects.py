"""Suspects: a command whose leases ended without a word twice runs alone, so that blame is just."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from commandbus import Command, CommandBus, CommandStatus, HandlerContext, RetryPolicy
from commandbus.worker import executor
from tests.integration.looking import (
    Conn,
    events,
    lapse,
    look,
    rows,
    send,
    send_some,
    take_over,
    until_count,
)
from tests.waiting import until, until_status, working


async def make_suspects(bus: CommandBus, conn: Conn, number: int = 1) -> list[UUID]:
    """Commands that two workers received, one after the other, and were heard of no more."""
    ids = await send_some(bus, number, "Suspect")
    for ghost in ("ghost", "another"):
        assert len(await take_over(conn, ghost)) == number
        await lapse(conn)
    return ids


async def has_started_alone(conn: Conn, command_id: UUID) -> bool:
    return (True,) in await rows(
        conn,
        "select started_alone from commandbus.command_bus_command where command_id = %s",
        command_id,
    )


class Floor:
    """Who runs, and who ran beside whom."""

    def __init__(self) -> None:
        self.running: set[UUID] = set()
        self.started: list[UUID] = []
        self.beside: dict[UUID, set[UUID]] = {}
        self.gate = asyncio.Event()

    async def until_started(self, number: int) -> None:
        await until(lambda: len(self.started) == number, f"start {number}")

    async def handle(self, command: Command, ctx: HandlerContext) -> None:
        mine = command.command_id
        self.started.append(mine)
        self.beside[mine] = set(self.running)
        for other in self.running:
            self.beside[other].add(mine)
        self.running.add(mine)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.running.discard(mine)


async def test_a_suspect_runs_alone_and_the_others_wait(bus: CommandBus, conn: Conn) -> None:
    floor = Floor()
    bus.register_handler("shop", "Suspect", floor.handle)
    bus.register_handler("shop", "Work", floor.handle)
    (suspect,) = await make_suspects(bus, conn)
    others = await send_some(bus, 20)

    async with working(bus, "shop", concurrency=4):
        await until(lambda: floor.started, "the suspect")
        assert floor.started == [suspect]
        assert await has_started_alone(conn, suspect)
        others.append(await send(bus))
        floor.gate.set()
        await until_count(conn, "COMPLETED", 22)

    assert floor.beside[suspect] == set()
    row = await look(bus, suspect)
    assert (row.attempts, row.lease_epoch) == (1, 3)
    assert await events(bus, suspect) == [
        "SENT", *["RECEIVED", "LEASE_EXPIRED"] * 2, "RECEIVED", "COMPLETED",
    ]  # fmt: skip


async def test_what_lapsed_once_runs_beside_the_others(bus: CommandBus, conn: Conn) -> None:
    floor = Floor()
    bus.register_handler("shop", "Work", floor.handle)
    await send_some(bus, 3)
    assert len(await take_over(conn, "ghost")) == 3
    await lapse(conn)
    async with working(bus, "shop", concurrency=4):
        await floor.until_started(3)
        floor.gate.set()
        await until_count(conn, "COMPLETED", 3)


@pytest.mark.parametrize("is_of_the_bus", [True, False])
async def test_a_command_that_hangs_runs_twice_if_its_policy_counts_every_lapse(
    dsn: str, conn: Conn, is_of_the_bus: bool
) -> None:
    policy, floor = RetryPolicy(max_attempts=2, count_lapses="every"), Floor()
    async with CommandBus.connect(dsn, retry_policy=policy if is_of_the_bus else None) as bus:
        bus.register_handler(
            "shop", "Work", floor.handle, retry_policy=None if is_of_the_bus else policy
        )
        hung = await send(bus)
        assert len(await take_over(conn, "ghost")) == 1
        await lapse(conn)
        async with working(bus, "shop"):
            await floor.until_started(1)
            await lapse(conn)
            row = await until_status(bus, "shop", hung, CommandStatus.IN_TROUBLESHOOTING_QUEUE)
            floor.gate.set()

    assert floor.started == [hung]  # the other run is that of the ghost
    assert (row.attempts, row.last_error_code) == (2, "LEASE_EXPIRED")


async def test_suspects_run_one_by_one(bus: CommandBus, conn: Conn) -> None:
    floor = Floor()
    floor.gate.set()
    bus.register_handler("shop", "Suspect", floor.handle)
    bus.register_handler("shop", "Work", floor.handle)
    suspects = await make_suspects(bus, conn, 5)
    await send_some(bus, 20)

    async with working(bus, "shop", concurrency=4):
        await until_count(conn, "COMPLETED", 25)

    assert [floor.beside[suspect] for suspect in suspects] == [set()] * 5


async def test_a_suspect_that_lapses_again_is_blamed(bus: CommandBus, conn: Conn) -> None:
    """C13: known to have run alone, so the attempt counts; at the last one it is parked."""
    floor = Floor()
    bus.register_handler("shop", "Suspect", floor.handle)
    (suspect,) = await make_suspects(bus, conn)

    for attempt in (1, 2, 3):
        worker = asyncio.create_task(bus.run_worker("shop"))
        await floor.until_started(attempt)
        assert await has_started_alone(conn, suspect)
        assert (await look(bus, suspect)).attempts == attempt
        # As if the process had died: the handler never ends, the lease lapses, ...
        await conn.execute(
            "update commandbus.command_bus_command set lease_epoch = lease_epoch + 1"
        )
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        # ... and nobody gave it back.
        await lapse(conn)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", suspect, CommandStatus.IN_TROUBLESHOOTING_QUEUE)
    assert (row.last_error_code, row.attempts) == ("LEASE_EXPIRED", 3)
    assert len(floor.started) == 3


async def test_a_suspect_runs_beside_others_when_they_take_too_long(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SUSPECT_PATIENCE_SECONDS", 0.05)
    floor = Floor()
    bus.register_handler("shop", "Suspect", floor.handle)
    bus.register_handler("shop", "Work", floor.handle)

    async with working(bus, "shop", concurrency=2):
        slow = await send(bus)
        await until(lambda: floor.started, "the slow one")
        (suspect,) = await send_suspect_to_busy_worker(bus, conn)
        await until(lambda: suspect in floor.running, "the suspect beside the slow one")
        assert floor.beside[suspect] == {slow}
        # Not alone, so it cannot be blamed.
        assert not await has_started_alone(conn, suspect)
        floor.gate.set()
        await until_count(conn, "COMPLETED", 2)


async def send_suspect_to_busy_worker(bus: CommandBus, conn: Conn) -> list[UUID]:
    async with conn.transaction():
        # Unseen by the worker until it is a suspect.
        sent = await bus.send("shop", "Suspect", _fixed(), {}, conn=conn)
        for ghost in ("ghost", "another"):
            taken = await take_over(conn, ghost)
            assert [command_id for command_id, _, _ in taken] == [sent]
            await conn.execute(
                "update pgmq.q_shop__commands set vt = clock_timestamp() where msg_id = %s",
                (taken[0][1],),
            )
    return [sent]


def _fixed() -> UUID:
    return UUID(int=77)


async def test_a_long_suspect_keeps_the_others_waiting_only_for_a_while(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SUSPECT_PATIENCE_SECONDS", 0.05)
    floor = Floor()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    bus.register_handler("shop", "Suspect", floor.handle)
    first, second = await make_suspects(bus, conn, 2)
    await send_some(bus, 20)

    async with working(bus, "shop", concurrency=4):
        await until_count(conn, "COMPLETED", 20)
        assert floor.running == {first, second}
        floor.gate.set()
        await until_count(conn, "COMPLETED", 22)
