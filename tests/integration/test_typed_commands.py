"""Typed commands and resources on PostgreSQL: each kind of handler, and a sender's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from commandbus import (
    BlockingBus,
    CommandBus,
    CommandFailedError,
    Fail,
    HandlerContext,
    Handlers,
    InvalidPayloadError,
    Returns,
    command,
)
from tests.waiting import working


@dataclass
class Debited:
    left: Decimal
    bank: str


@command("payments", "Debit")
@dataclass
class Debit(Returns[Debited]):
    amount: Decimal


@command("payments", "DebitInThread")
@dataclass
class DebitInThread(Returns[Debited]):
    amount: Decimal


@command("payments", "DebitAndNote")
@dataclass
class DebitAndNote(Returns[Debited]):
    amount: Decimal


@command("payments", "DebitAndNoteInThread")
@dataclass
class DebitAndNoteInThread(Returns[Debited]):
    amount: Decimal


class Bank:
    name = "north"


def left(amount: Decimal, bank: Bank) -> Debited:
    if amount > 100:
        raise Fail("NO_FUNDS", "the account is empty")
    return Debited(100 - amount, bank.name)


handlers = Handlers("payments")


@handlers.resource
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@handlers.handle(Debit)
async def debit(command: Debit, ctx: HandlerContext, bank: Bank) -> Debited:
    return left(command.amount, bank)


@handlers.handle(DebitInThread)
def debit_in_thread(command: DebitInThread, bank: Bank) -> Debited:
    return left(command.amount, bank)


@handlers.handle(DebitAndNote, transactional=True)
async def debit_and_note(command: DebitAndNote, ctx: HandlerContext, bank: Bank) -> Debited:
    await ctx.conn.execute("insert into public.note values ('async')")
    return left(command.amount, bank)


@handlers.handle(DebitAndNoteInThread, transactional=True)
def debit_and_note_in_thread(
    command: DebitAndNoteInThread, ctx: HandlerContext, bank: Bank
) -> Debited:
    ctx.conn.execute("insert into public.note values ('thread')")
    return left(command.amount, bank)


@pytest.fixture
async def paying(bus: CommandBus, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[CommandBus]:
    await conn.execute("create table public.note (text text)")
    bus.include(handlers)
    async with working(bus, "payments"):
        yield bus


async def notes(conn: psycopg.AsyncConnection[Any]) -> list[str]:
    found = await (await conn.execute("select text from public.note order by text")).fetchall()
    return [text for (text,) in found]


async def test_each_kind_of_handler_gets_its_payload_and_its_resource_and_answers_a_call(
    paying: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    expected = Debited(Decimal(95), "north")
    for each in (Debit, DebitInThread, DebitAndNote, DebitAndNoteInThread):
        assert await paying.call(each(Decimal(5))) == expected, each
    assert await notes(conn) == ["async", "thread"]


async def test_a_call_that_fails_raises_and_leaves_nothing_of_its_transaction(
    paying: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    for each in (Debit, DebitInThread, DebitAndNote, DebitAndNoteInThread):
        with pytest.raises(CommandFailedError, match="NO_FUNDS"):
            await paying.call(each(Decimal(500)))
    assert await notes(conn) == []


async def test_an_instance_joins_the_transaction_of_its_sender(bus: CommandBus, dsn: str) -> None:
    await bus.send(Debit(Decimal(1)))  # makes the queues
    async with await psycopg.AsyncConnection.connect(dsn) as own:
        lost = await bus.send(Debit(Decimal(5)), conn=own)
        await own.rollback()
        kept = await bus.send(Debit(Decimal(5)), conn=own)
        with pytest.raises(InvalidPayloadError, match="amount must be a decimal"):
            await bus.send(Debit("much"), conn=own)  # type: ignore[arg-type]
        # The transaction was not touched by what was refused: it still commits.
        await own.commit()
    assert await bus.get_command("payments", lost) is None
    assert await bus.get_command("payments", kept) is not None


def test_a_blocking_bus_sends_an_instance_on_a_plain_connection(dsn: str) -> None:
    with BlockingBus.connect(dsn) as bus, psycopg.connect(dsn) as own:
        bus.send(Debit(Decimal(1)))  # makes the queues
        lost = bus.send(Debit(Decimal(5)), conn=own)
        own.rollback()
        bus.send_many("payments", [Debit(Decimal(5))], conn=own)
        kept = bus.send(Debit(Decimal(5)), conn=own)
        own.commit()
        assert bus.get_command("payments", lost) is None
        assert bus.get_command("payments", kept) is not None


def test_a_blocking_bus_sends_and_calls_instances(dsn: str) -> None:
    app = Handlers("payments")

    @app.handle(Debit)
    def debit(command: Debit) -> Debited:
        return left(command.amount, Bank())

    with BlockingBus.connect(dsn, handlers=app) as bus:
        sent = bus.send(Debit(Decimal(5)))
        batch = bus.create_batch("payments", [Debit(Decimal(1)), Debit(Decimal(2))])
        assert len(bus.send_many("payments", [Debit(Decimal(3))])) == 1
        bus.run_worker("payments", until_empty=True)
        found = bus.get_command("payments", sent)
        assert found is not None
        assert found.status == "COMPLETED"
        ended = bus.get_batch("payments", batch)
        assert ended is not None
        assert ended.completed_count == 2
