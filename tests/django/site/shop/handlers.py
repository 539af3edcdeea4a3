"""What the shop does with commands."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import connection, transaction
from shop.models import Order

from commandbus import Command, HandlerContext, Handlers, PermanentCommandError, RetryPolicy, Snooze

handlers = Handlers("shop", retry_policy=RetryPolicy(max_attempts=3, backoff_schedule=(60.0,)))
#: What hooks of on_commit have done.
told: list[str] = []


@handlers.handle("Pay", transactional=True)
def pay(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """An order is paid in the very commit that completes the command."""
    number = command.data["number"]
    order, _ = Order.objects.get_or_create(number=number)
    order.paid += 1
    order.save()
    transaction.on_commit(partial(told.append, number))
    if command.data.get("fails_at", 0) >= ctx.attempt:
        raise RuntimeError("the bank is closed")
    if command.data.get("breaks"):
        connection.cursor().execute("select 1 / 0")
    return {"paid": order.paid}


@handlers.handle("Note")
def note(command: Command, ctx: HandlerContext) -> None:
    """Not transactional: what it writes stays, whatever comes after it."""
    Order.objects.create(number=command.data["number"])
    if command.data.get("is_wrong"):
        raise PermanentCommandError("WRONG", "there is no such note")


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
