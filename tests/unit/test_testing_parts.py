"""The parts of commandbus.testing: transactions in memory, the clock, the store, the surface."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest

import commandbus.testing
from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    DuplicateCommandError,
    HandlerContext,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    LeaseLostError,
    RetryPolicy,
    Settings,
    TransientCommandError,
)
from commandbus.testing import FakeClock, InMemoryStore, fake_bus, run_until_idle, sent, store_of
from tests.conformance.worlds import DOMAIN, MemoryWorld, done, new, new_batch


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def fake(clock: FakeClock) -> CommandBus:
    return fake_bus(clock=clock)


# -- transactions


async def test_a_transactional_handler_sends_on_its_connection(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Debit", transactional=True)
    async def debit(command: Command, ctx: HandlerContext) -> None:
        await fake.send("shipping", "Ship", uuid4(), {"attempt": ctx.attempt}, conn=ctx.conn)
        if ctx.attempt == 1:
            raise TransientCommandError("BUSY", "later")

    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})
    await run_until_idle(fake, DOMAIN, skip_waits=True)

    found = await fake.get_command(DOMAIN, command_id)
    assert found is not None
    assert found.status is CommandStatus.COMPLETED
    assert [command.data for command in sent(fake, "shipping")] == [{"attempt": 2}]


async def test_a_lease_that_is_lost_before_the_commit_undoes_the_transaction() -> None:
    world = MemoryWorld()
    [lease] = await world.send_and_receive(new())
    other = new()

    with pytest.raises(LeaseLostError):  # noqa: PT012  (the block is the transaction)
        async with world.store.transaction() as transaction:
            await world.store.send("shipping", [other], conn=transaction.conn)
            assert await transaction.settle(DOMAIN, [done(lease)]) == set()
            await world.lapse()
            await world.receive()

    assert await world.status(lease.command_id) is CommandStatus.IN_PROGRESS
    assert await world.store.get_command("shipping", other.command_id) is None


async def test_a_connection_is_of_no_use_after_its_transaction(fake: CommandBus) -> None:
    async with store_of(fake).transaction() as transaction:
        pass

    with pytest.raises(InvalidOperationError, match="has ended"):
        await fake.send(DOMAIN, "Debit", uuid4(), {}, conn=transaction.conn)


async def test_a_connection_of_something_else_is_taken_at_its_word(fake: CommandBus) -> None:
    await fake.send(DOMAIN, "Debit", uuid4(), {}, conn=object())

    assert len(sent(fake, DOMAIN)) == 1


@pytest.mark.parametrize("verb", ["execute", "cursor", "transaction"])
async def test_sql_on_the_connection_of_a_handler_says_at_once_that_it_needs_postgresql(
    fake: CommandBus, verb: str
) -> None:
    @fake.handler(DOMAIN, "Debit", transactional=True)
    async def debit(command: Command, ctx: HandlerContext) -> None:
        await fake.send("shipping", "Ship", uuid4(), {}, conn=ctx.conn)
        await getattr(ctx.conn, verb)("update account set balance = 0")

    command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})
    await run_until_idle(fake, DOMAIN)

    [item] = await fake.list_troubleshooting(DOMAIN)
    assert (item.command_id, item.attempts) == (command_id, 1)
    assert item.last_error_code == "NEEDS_POSTGRESQL"
    with pytest.raises(InvalidOperationError) as refused:
        await fake.batches.page(DOMAIN)
    assert item.last_error_msg == f"conn.{verb}: {refused.value}"
    assert "the embedded server" in str(refused.value)
    assert sent(fake, "shipping") == []


# -- the parts


def test_the_bus_takes_what_a_command_bus_takes() -> None:
    settings = Settings(replies="none", command_id_scope="global")
    fake = fake_bus(settings=settings, retry_policy=RetryPolicy(max_attempts=9))

    async def scenario() -> None:
        command_id = await fake.send(DOMAIN, "Debit", uuid4(), {})
        found = await fake.get_command(DOMAIN, command_id)
        assert found is not None
        assert (found.max_attempts, found.reply_queue) == (9, "")
        with pytest.raises(DuplicateCommandError):
            await fake.send("shipping", "Ship", command_id, {})

    asyncio.run(scenario())


def test_only_a_fake_bus_has_an_in_memory_store() -> None:
    class Pool:
        """No pool at all."""

    with pytest.raises(InvalidSettingError, match="fake_bus"):
        store_of(CommandBus(pool=Pool()))


async def test_commands_can_join_a_batch(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Debit", lambda command, ctx: None)
    batch_id = await fake.create_batch(
        DOMAIN, [BatchCommand("Debit", uuid4(), {})], name="payday", custom_data={"month": 1}
    )
    await fake.send(DOMAIN, "Debit", uuid4(), {}, batch_id=batch_id)
    await run_until_idle(fake, DOMAIN)

    batch = await fake.get_batch(DOMAIN, batch_id)

    assert batch is not None
    assert (batch.name, batch.custom_data) == ("payday", {"month": 1})
    assert (batch.status, batch.completed_count) == ("COMPLETED", 2)
    with pytest.raises(InvalidNameError):
        await store_of(fake).create_batch(new_batch(domain="Not A Domain"), [])


def test_a_clock_moves_only_when_it_is_told_to(clock: FakeClock) -> None:
    first, second = clock.now(), clock.now()
    assert second - first == timedelta(microseconds=1)
    clock.advance(60)
    assert timedelta(seconds=60) <= clock.now() - second < timedelta(seconds=61)
    clock.advance_to(first)
    assert clock.now() > second
    clock.advance_to(first + timedelta(days=1))
    assert clock.now() == first + timedelta(days=1, microseconds=1)


def test_a_clock_shows_utc_and_refuses_nonsense(clock: FakeClock) -> None:
    east = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert FakeClock(east).now().isoformat() == "2026-01-01T10:00:00.000001+00:00"
    assert abs(FakeClock().now() - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(InvalidSettingError):
        FakeClock(datetime(2026, 1, 1))  # noqa: DTZ001  (that is the point)
    with pytest.raises(InvalidSettingError):
        clock.advance(-1)


def test_the_public_names_are_there_and_no_more() -> None:
    assert sorted(commandbus.testing.__all__) == commandbus.testing.__all__
    for name in commandbus.testing.__all__:
        assert hasattr(commandbus.testing, name)


def test_no_driver_is_needed() -> None:
    code = (
        "import sys; import commandbus.testing as t; t.fake_bus(); "
        "sys.exit('psycopg' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_store_can_be_given_to_a_bus_by_hand() -> None:
    fake = CommandBus(store=InMemoryStore())

    assert sent(store_of(fake), DOMAIN) == []
