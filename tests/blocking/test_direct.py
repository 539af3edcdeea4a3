"""Sends and cancels on the caller's own connection: in its thread, without loop and pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from commandbus import BatchCommand, BlockingBus, CommandStatus, DuplicateCommandError, Settings
from commandbus.errors import (
    InvalidInputError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
)

DOMAIN = "direct"
Begin = Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def looking(dsn: str) -> Iterator[BlockingBus]:
    """An ordinary bus, which has made the domain."""
    with BlockingBus.connect(dsn) as bus:
        bus.send(DOMAIN, "First", uuid4(), {})
        yield bus


@pytest.fixture
def bus(dsn: str, looking: BlockingBus) -> Iterator[BlockingBus]:
    bus = BlockingBus.connect(dsn)
    yield bus
    bus.close()


@pytest.fixture(params=["psycopg", "connection", "session"])
def begin(request: pytest.FixtureRequest, dsn: str) -> Iterator[Begin]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    kinds: dict[str, Begin] = {
        "psycopg": lambda: psycopg.connect(dsn),
        "connection": engine.connect,
        "session": lambda: Session(engine),
    }
    yield kinds[request.param]
    engine.dispose()


def is_opened(bus: BlockingBus) -> bool:
    return bus._bridge._bus is not None


def test_its_verbs_join_the_transaction_of_the_caller_and_open_nothing(
    bus: BlockingBus, looking: BlockingBus, begin: Begin
) -> None:
    kept, lost, many = uuid4(), uuid4(), [uuid4() for _ in range(3)]
    with begin() as conn:
        bus.send(DOMAIN, "Debit", lost, {}, conn=conn)
        conn.rollback()
        bus.send(DOMAIN, "Debit", kept, {"name": "Zoë"}, conn=conn)
        report = bus.send_many(
            DOMAIN, [BatchCommand("Debit", each, {}) for each in [*many, kept]],
            on_duplicate="skip", conn=conn,
        )  # fmt: skip
        assert (report.sent, report.skipped) == (many, [kept])
        assert looking.get_command(DOMAIN, kept) is None
        conn.commit()
        assert bus.cancel(DOMAIN, many[0], "not needed", conn=conn) == "canceled"
        conn.commit()
        with pytest.raises(DuplicateCommandError):
            bus.send(DOMAIN, "Debit", kept, {}, conn=conn)

    assert looking.get_command(DOMAIN, lost) is None
    assert looking.search.payload(DOMAIN, kept) == {"name": "Zoë"}
    found = looking.get_command(DOMAIN, many[0])
    assert found is not None
    assert found.status is CommandStatus.CANCELED
    assert not is_opened(bus)


def test_a_connection_that_commits_each_statement_is_refused(bus: BlockingBus, dsn: str) -> None:
    with (
        psycopg.connect(dsn, autocommit=True) as conn,
        pytest.raises(InvalidInputError, match="commits each statement"),
    ):
        bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)


@pytest.mark.parametrize("options", [{"priority": 1}, {"ordering_key": "a"}], ids=str)
def test_what_would_lock_others_out_is_done_apart(
    bus: BlockingBus, looking: BlockingBus, dsn: str, options: dict[str, Any]
) -> None:
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn) as other:
        bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn, **options)
        bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn, **options)
        other.execute("set lock_timeout = '5s'")
        looking.send(DOMAIN, "Debit", uuid4(), {}, conn=other, priority=1)  # waits for nobody
    assert is_opened(bus)


def test_the_first_command_of_a_domain_does_not_leave_its_queues_to_the_transaction(
    bus: BlockingBus, looking: BlockingBus, dsn: str
) -> None:
    with psycopg.connect(dsn) as conn:
        bus.send("fresh", "Debit", uuid4(), {}, conn=conn)
        conn.rollback()
    assert looking.upkeep.figures.knows_domain("fresh")


def test_a_database_that_does_not_fit_says_so_and_the_transaction_goes_on(
    looking: BlockingBus, dsn: str
) -> None:
    wrong = BlockingBus.connect(dsn, settings=Settings(command_id_scope="global"))
    missing = BlockingBus.connect(dsn, settings=Settings(schema="elsewhere"))
    with psycopg.connect(dsn) as conn:
        with pytest.raises(InvalidSettingError, match="command_id_scope"):
            wrong.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
        missing.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)  # is set up, as any call does
        row = conn.execute("select count(*) from elsewhere.command_bus_command").fetchone()
        assert row == (1,)
    missing.close()


def test_it_knows_the_handlers_that_were_registered_meanwhile(bus: BlockingBus, dsn: str) -> None:
    @dataclass
    class Debit:
        amount: int

    def debit(command: Debit) -> None: ...

    with psycopg.connect(dsn) as conn:
        bus.send(DOMAIN, "Debit", uuid4(), {"amount": "much"}, conn=conn)
        bus.register_handler(DOMAIN, "Debit", debit, payload_type=Debit)
        with pytest.raises(InvalidPayloadError, match="amount"):
            bus.send(DOMAIN, "Debit", uuid4(), {"amount": "much"}, conn=conn)
        bus.send(DOMAIN, "Debit", uuid4(), {"amount": 5}, conn=conn)


def test_a_bus_that_measures_counts_what_is_sent_on_a_connection_too(
    bus: BlockingBus, dsn: str
) -> None:
    monitor = bus.monitor()
    with psycopg.connect(dsn) as conn:
        bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
    assert "Debit" in monitor.metrics.text().decode()


def test_it_is_refused_on_an_event_loop_and_after_the_end(bus: BlockingBus, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:

        async def send() -> None:
            bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)

        with pytest.raises(InvalidOperationError, match="running event loop"):
            asyncio.run(send())
        bus.close()
        with pytest.raises(InvalidOperationError, match="closed"):
            bus.send(DOMAIN, "Debit", uuid4(), {}, conn=conn)
        assert conn.execute("select 1").fetchone() == (1,)


def test_a_call_within_a_call_keeps_to_its_own_connection(dsn: str, looking: BlockingBus) -> None:
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        bus = BlockingBus.connect(dsn)

        def commands() -> Iterator[BatchCommand]:
            yield BatchCommand("Debit", uuid4(), {})
            bus.send(DOMAIN, "Debit", uuid4(), {}, conn=other)
            yield BatchCommand("Debit", uuid4(), {})

        bus.send_many(DOMAIN, commands(), conn=one)
        other.rollback()
        count = "select count(*) from commandbus.command_bus_command where command_type = 'Debit'"
        assert one.execute(count).fetchone() == (2,)
