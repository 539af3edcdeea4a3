"""Workers that are killed: `python killing.py TIMES`. Prints what is left, as JSON.

One process has everything imported and forks each worker, so that a start takes milliseconds.
Handlers write into a pipe when they begin and when they end, so a kill can be known to have come
while one was in its transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config")

import django

django.setup()

from django.db import connections  # noqa: E402
from shop import handlers  # noqa: E402
from shop.models import Order  # noqa: E402

from commandbus import CommandBus, new_id  # noqa: E402
from commandbus.django import bus  # noqa: E402
from commandbus.django.conf import configuration  # noqa: E402
from commandbus.django.discovery import gathered  # noqa: E402
from commandbus.django.hygiene import prepare_worker  # noqa: E402
from commandbus.django.migrating import dsn_of  # noqa: E402
from commandbus.django.models import Command  # noqa: E402

COMMANDS_PER_KILL = 6
#: More than a worker needs to its first handler.
PATIENCE = 60


async def work(*, until_empty: bool) -> None:
    prepare_worker()
    settings = configuration().bus_settings
    async with CommandBus.connect(dsn_of("default"), settings=settings, handlers=gathered()) as own:
        await own.run_worker(
            "shop",
            concurrency=4,
            vt_seconds=1,
            until_empty=until_empty,
            include_delayed=until_empty,
        )


def fork(*, until_empty: bool) -> int:
    connections.close_all()
    child = os.fork()
    if not child:
        try:
            asyncio.run(work(until_empty=until_empty))
        finally:
            os._exit(0)
    return child


def killed_in_a_handler() -> bool:
    """Start a worker, and kill it a moment after a handler began; whether one was cut off."""
    ear, handlers.mouth = os.pipe()
    child = fork(until_empty=False)
    os.close(handlers.mouth)
    heard = b""
    if select.select([ear], [], [], PATIENCE)[0]:
        heard = os.read(ear, 1_000)
        time.sleep(random.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        raise SystemExit("the worker had ended before it was killed")
    while more := os.read(ear, 1_000):
        heard += more
    os.close(ear)
    return heard.count(b"+") > heard.count(b"-")


def main(times: int) -> None:
    random.seed(times)
    started = time.monotonic()
    in_handlers = 0
    for number in range(times):
        for _ in range(COMMANDS_PER_KILL):
            bus.send("shop", "Pay", new_id(), {"number": f"{number % 5}", "seconds": 0.02})
        in_handlers += killed_in_a_handler()
    handlers.mouth = None
    while Command.objects.exclude(status="COMPLETED").exists():
        os.waitpid(fork(until_empty=True), 0)
        if time.monotonic() - started > 10 * times + 60:
            break
    print(
        json.dumps(
            {
                "kills": times,
                "kills_in_handlers": in_handlers,
                "attempts": sum(each.attempts for each in Command.objects.all()),
                "sent": times * COMMANDS_PER_KILL,
                "completed": Command.objects.filter(status="COMPLETED").count(),
                "paid": sum(order.paid for order in Order.objects.all()),
            }
        )
    )
    connections.close_all()


if __name__ == "__main__":
    main(int(sys.argv[1]))
