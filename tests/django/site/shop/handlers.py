"""What the shop does with commands."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from django.db import DataError, connection, connections, transaction
from django.db.models import F

from commandbus import (
    Command,
    HandlerContext,
    Handlers,
    PermanentCommandError,
    RetryPolicy,
    Secret,
    Snooze,
)
from commandbus.handlers.drafts import HandlerDraft
from shop.models import Order
from shop.tenants import tenant

handlers = Handlers("shop", retry_policy=RetryPolicy(max_attempts=3, backoff_schedule=(60.0,)))
#: What hooks of on_commit have done.
told: list[str] = []
#: What was opened, and closed.
seen: list[str] = []
of_thread = threading.local()
#: A pipe that hears when the handler Pay begins and ends, if somebody listens.
mouth: int | None = None


@handlers.handle("Pay", transactional=True)
def pay(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """An order is paid in the very commit that completes the command."""
    number = command.data["number"]
    _say(b"+")
    order, _ = Order.objects.get_or_create(number=number)
    Order.objects.filter(pk=order.pk).update(paid=F("paid") + 1)
    order.refresh_from_db()
    transaction.on_commit(partial(told.append, number))
    if command.data.get("fails_at", 0) >= ctx.attempt:
        raise RuntimeError("the bank is closed")
    if command.data.get("breaks"):
        connection.cursor().execute("select 1 / 0")
    if command.data.get("loses_lease"):
        _take_the_lease(command)
    if command.data.get("loses_connection") and not ctx.snoozes:
        _end(connection)
    if command.data.get("reads_only") and not ctx.snoozes:
        _read_only("set transaction read only")
    time.sleep(command.data.get("seconds", 0))
    _say(b"-")
    return {"paid": order.paid}


def _read_only(how: str) -> None:
    """As if the server had become one that only reads, with its connections kept."""
    connection.cursor().execute(how)
    Order.objects.create(number="never")


@handlers.handle("Note")
def note(command: Command, ctx: HandlerContext) -> None:
    """Not transactional: what it writes stays, whatever comes after it."""
    Order.objects.create(number=command.data["number"])
    if command.data.get("is_wrong"):
        raise PermanentCommandError("WRONG", "there is no such note")
    if command.data.get("loses_connection") and not ctx.snoozes:
        Order.objects.filter(number=command.data["number"]).delete()
        _end(connection)
    if command.data.get("reads_only") and not ctx.snoozes:
        Order.objects.filter(number=command.data["number"]).delete()
        _read_only("set default_transaction_read_only = on")


@dataclass
class Transfer:
    iban: Annotated[str, Secret]
    number: str


@handlers.handle("Transfer", retry_policy=RetryPolicy(max_attempts=1))
def transfer(payload: Transfer) -> None:
    """Repeats a secret, of which only its mark says that it is one, in each text that there is."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("select %s::int", [payload.iban])  # the database repeats it
    except DataError as error:
        raise RuntimeError(f"refused {payload.iban}") from error


@handlers.handle("Forward")
def forward(command: Command, ctx: HandlerContext) -> None:
    """Sends another command."""
    from commandbus import new_id

    ctx.send("shop", "Pay", new_id(), {"number": command.data["number"]})


@handlers.handle("Count")
async def count(command: Command, ctx: HandlerContext) -> dict[str, int]:
    """An async handler that asks the database."""
    return {"orders": await Order.objects.acount()}


@handlers.handle("Later")
def later(command: Command, ctx: HandlerContext) -> str:
    """Not at the first time."""
    if ctx.snoozes < command.data["times"]:
        raise Snooze(3600)
    return "now"


class Bank:
    """Opened once for a worker."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Visit:
    """Opened for each command."""


@handlers.resource
def bank() -> Iterator[Bank]:
    seen.append("bank opens")
    yield Bank()
    seen.append("bank closes")


@handlers.resource(scope="command")
async def visit(bank: Bank, ctx: HandlerContext) -> AsyncIterator[Visit]:
    seen.append(f"visit opens {await Order.objects.acount()}")
    yield Visit()
    seen.append("visit closes")


@handlers.on_thread_start
def begin() -> None:
    of_thread.is_begun = True
    seen.append("thread begins")


@handlers.on_thread_end
def end() -> None:
    """As many do; in a test it must not be the connection of the test."""
    connections.close_all()
    seen.append("thread ends")


@handlers.handle("Deposit", transactional=True)
def deposit(command: Command, ctx: HandlerContext, bank: Bank) -> dict[str, Any]:
    """A handler in a thread, with what its worker has opened."""
    Order.objects.create(number=command.data["number"])
    return {"bank": type(bank).__name__, "is_begun": of_thread.is_begun}


@handlers.handle("Visit")
async def pay_a_visit(
    command: Command, ctx: HandlerContext, visit: Visit, bank: Bank
) -> dict[str, Any]:
    """An async handler, with what was opened for its command as well."""
    return {"visit": type(visit).__name__, "bank": type(bank).__name__}


@handlers.handle("Whose", transactional=True)
def whose(command: Command, ctx: HandlerContext) -> list[str]:
    """The tenant, as Python knows it and as the database does."""
    if command.data.get("is_wrong"):
        raise ValueError("nobody's")
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('shop.tenant', true)")
        return [tenant.get(), cursor.fetchone()[0]]


@handlers.handle("Stop")
def stop(command: Command, ctx: HandlerContext) -> None:
    """Asks an iterator once too often."""
    next(iter([]))


@handlers.handle("AsyncWhose")
async def async_whose(command: Command, ctx: HandlerContext) -> str:
    """The same of an async handler."""
    return tenant.get()


def _found(name: str) -> HandlerDraft | None:
    if not name.startswith("Named"):
        return None
    return HandlerDraft("named", name, _write, {"transactional": True}, "shop.handlers")


def _write(command: Command, ctx: HandlerContext) -> str:
    Order.objects.create(number=command.command_type)
    return command.command_type


handlers.find_by_name("named", _found)


def _say(what: bytes) -> None:
    if mouth is not None:
        os.write(mouth, what)


def _take_the_lease(command: Command) -> None:
    """As if the lease had lapsed and another worker had the command now."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(
                "update commandbus.command_bus_command set lease_epoch = lease_epoch + 1"
                " where command_id = %s",
                [command.command_id],
            )
    finally:
        other.close()


def _end(wrapper: Any) -> None:
    """As if the server had ended the connection, while the handler works on it."""
    with wrapper.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")
