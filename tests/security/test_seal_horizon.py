"""What can be sealed, and when: no honest row may ever look like a forged one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from commandbus import CommandBus
from tests.security.sealed import Conn, codes, write

AUDIT = "commandbus.command_bus_audit"
SEQUENCE = "commandbus.command_bus_audit_audit_id_seq"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "keys"))
    monkeypatch.setattr("commandbus.upkeep.sealing.WAIT_SECONDS", 0.2)


@pytest.fixture
async def begin(dsn: str) -> AsyncIterator[Callable[[], Awaitable[Conn]]]:
    """Opens further sessions, each in a transaction of its own."""
    async with AsyncExitStack() as stack:

        async def open_session() -> Conn:
            conn = await psycopg.AsyncConnection.connect(dsn)
            stack.push_async_callback(conn.close)
            return conn

        yield open_session


Begin = Callable[[], Awaitable[Conn]]


async def test_a_long_transaction_with_an_early_id_is_waited_for_and_no_forgery(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    await write(conn, 3)
    slow = await begin()
    await write(slow, 1)  # event 4
    await write(conn, 5)  # events 5 to 9 are committed long before it

    waiting = await bus.upkeep.seal_audit()
    assert (waiting.rows, len(waiting.waits_for)) == (0, 1)
    assert waiting.waits_since is not None
    await slow.commit()
    await write(conn, 1)

    assert (await bus.upkeep.seal_audit()).rows == 10
    assert await codes(bus) == {}


async def test_what_was_safe_before_a_long_transaction_began_is_sealed_meanwhile(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    first = await begin()
    await write(first, 1)
    await write(conn, 3)
    assert (await bus.upkeep.seal_audit()).rows == 0
    second = await begin()
    await write(second, 1)  # event 5: above what the first run looked at
    await first.commit()

    assert (await bus.upkeep.seal_audit()).rows == 4
    await second.rollback()
    result = await bus.upkeep.seal_audit()
    assert (result.rows, result.sealed_to) == (0, 5)
    assert await codes(bus) == {}


async def test_a_number_that_is_taken_and_used_later_in_its_transaction_is_waited_for(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    # It has no transaction id until it inserts, so that no snapshot shows it.
    slow = await begin()
    await slow.execute("savepoint early")
    await slow.execute("select nextval(%s)", (SEQUENCE,))
    await slow.execute("rollback to savepoint early")  # it keeps the lock of the sequence
    await write(conn, 3)
    assert len((await bus.upkeep.seal_audit()).waits_for) == 1
    await slow.execute(
        f"insert into {AUDIT} (audit_id, domain, command_id, event_type)"
        " values (1, 'shop', gen_random_uuid(), 'SENT')".encode()
    )
    await slow.commit()

    assert (await bus.upkeep.seal_audit()).rows == 4
    assert await codes(bus) == {}


async def test_a_prepared_transaction_is_waited_for(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    ((allowed,),) = await (await conn.execute("show max_prepared_transactions")).fetchall()
    if allowed == "0":
        pytest.skip("this server allows no prepared transactions")
    slow = await begin()
    await write(slow, 1)
    await slow.execute("prepare transaction 'later'")
    await write(conn, 3)
    assert (await bus.upkeep.seal_audit()).rows == 0
    await conn.execute("commit prepared 'later'")

    assert (await bus.upkeep.seal_audit()).rows == 4


async def test_readers_and_backups_are_not_waited_for(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    await write(conn, 3)
    reader = await begin()
    await reader.execute("set transaction isolation level repeatable read")
    await reader.execute(f"select count(*) from {AUDIT}".encode())
    await reader.execute(f"select last_value from {SEQUENCE}".encode())

    assert (await bus.upkeep.seal_audit()).rows == 3


async def test_rolled_back_numbers_are_gaps_and_no_alarm(bus: CommandBus, conn: Conn) -> None:
    for _ in range(3):
        await write(conn, 2)
        async with conn.transaction(force_rollback=True):
            await write(conn, 5)
    await bus.upkeep.seal_audit()

    found = await bus.upkeep.verify_audit()
    assert (found.findings, found.rows, found.sealed_to) == ((), 6, 21)


async def test_a_sequence_that_gives_many_numbers_at_once_is_refused_and_told(
    bus: CommandBus, conn: Conn
) -> None:
    await write(conn, 3)
    await conn.execute(f"alter sequence {SEQUENCE} cache 20".encode())
    with pytest.raises(Exception, match="cache of 20"):
        await bus.upkeep.seal_audit()

    found = {each.code: each.examples for each in (await bus.upkeep.doctor()).findings}
    assert "cache of 20" in found["AUDIT_SEQUENCE"][0]


async def test_an_id_above_the_sequence_is_told(bus: CommandBus, conn: Conn) -> None:
    await write(conn, 3)
    await conn.execute(
        f"insert into {AUDIT} (audit_id, domain, command_id, event_type)"
        " values (900, 'shop', gen_random_uuid(), 'SENT')".encode()
    )

    found = {each.code: each.examples for each in (await bus.upkeep.doctor()).findings}
    assert found["AUDIT_SEQUENCE"] == ("event 900 is above the last number 3",)


async def test_the_doctor_tells_what_is_not_sealed_and_what_sealing_waits_for(
    bus: CommandBus, conn: Conn, begin: Begin
) -> None:
    await write(conn, 1)
    await bus.upkeep.seal_audit()
    await write(conn, 2, age="2 hours")
    slow = await begin()
    await write(slow, 1)
    await bus.upkeep.seal_audit()
    await conn.execute(
        "update commandbus.command_bus_audit_horizon set noted_at = noted_at - interval '1 hour'"
    )

    found = {each.code: each for each in (await bus.upkeep.doctor()).findings}
    assert "event 2 of" in found["AUDIT_UNSEALED"].examples[0]
    assert f"session {slow.info.backend_pid}" in found["SEAL_WAITS"].examples[0]
    assert {found[code].severity for code in ("AUDIT_UNSEALED", "SEAL_WAITS")} == {
        "warning", "notice",
    }  # fmt: skip
    await slow.rollback()
    await bus.upkeep.seal_audit()
    found = {each.code: each for each in (await bus.upkeep.doctor()).findings}
    assert not {"AUDIT_UNSEALED", "SEAL_WAITS"} & set(found)


async def test_history_is_sealed_from_its_start_in_steps(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 100)
    await write(conn, 1_000, age="400 days")

    steps: list[int] = []
    result = await bus.upkeep.seal_audit(progress=lambda each: steps.append(each.rows))

    assert steps == list(range(100, 1_001, 100))
    assert result.seals == 10
    # what is older than the first seal could not be sealed in time, and is not told as late
    assert (await bus.upkeep.verify_audit()).findings == ()
    assert not (await bus.upkeep.seal_audit(seconds=0)).seals


async def test_writers_sealers_and_verifiers_at_once_raise_no_alarm(
    bus: CommandBus, conn: Conn, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.upkeep.sealing.CHUNK", 40)
    monkeypatch.setattr("commandbus.upkeep.sealing.WAIT_SECONDS", 0.05)
    await write(conn, 50, age="2 days", domain="old")
    await conn.execute("select commandbus.ensure_domain('old')")
    await conn.execute("select commandbus.set_retention(null, 'audit', '12 hours')")
    await bus.upkeep.seal_audit()
    is_over = asyncio.Event()
    written = 0

    async def writer(number: int) -> None:
        nonlocal written
        session = await begin()
        for turn in range(25):
            await write(session, 1 + (turn + number) % 3)
            await asyncio.sleep(0.001 * ((turn * number) % 7))
            await write(session, 1, age="2 days", domain="old")
            if turn % 4 == 3:
                await session.rollback()
            else:
                await session.commit()
                written += 2 + (turn + number) % 3

    async def repeat(act: Callable[[], Awaitable[object]]) -> None:
        while not is_over.is_set():
            await act()

    async def verify() -> None:
        found = await bus.upkeep.verify_audit()
        assert found.is_intact, found.places

    async def prune() -> None:
        await conn.execute("select commandbus.prune_audit('old', now() - interval '1 day', 30)")
        await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for act in (bus.upkeep.seal_audit, bus.upkeep.seal_audit, verify, prune):
            group.create_task(repeat(act))
        async with asyncio.TaskGroup() as writers:
            for number in range(4):
                writers.create_task(writer(number))
        is_over.set()
    await bus.upkeep.seal_audit()
    found = await bus.upkeep.verify_audit()
    assert found.is_intact
    assert found.unsealed == 0
    assert found.removed > 0
