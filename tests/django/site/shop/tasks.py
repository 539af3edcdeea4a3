"""Tasks of the shop, as Django writes them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from commandbus.django.task_api import task
from shop.models import Order

entered, let_go = threading.Event(), threading.Event()


@task
def add(first: int, second: int = 0) -> int:
    """Adds."""
    return first + second


@task(queue_name="mail", priority=70, takes_context=True)
def attempts(context: Any) -> int:
    """Fails at first."""
    if context.attempt < 2:
        raise LookupError("not yet")
    return int(context.attempt)


@task
async def aadd(first: int) -> int:
    """On the event loop."""
    return first + 1


@task
def fails() -> None:
    """Always."""
    raise ValueError("no good")


@task(backend="together", queue_name="together")
def writes(number: str, *, is_wrong: bool = False) -> None:
    """Its row and its end are one commit."""
    Order.objects.create(number=number)
    if is_wrong:
        raise ValueError("after all")


@task(backend="once")
def hangs() -> None:
    """Goes on until it is let go, and then says that all is well."""
    entered.set()
    let_go.wait(30)


@task(backend="once")
async def ahangs() -> None:
    """The same on the event loop."""
    await asyncio.sleep(30)


@task
def returns_rubbish() -> object:
    """What JSON cannot hold."""
    return object()


def no_task() -> None:
    """A plain function."""
