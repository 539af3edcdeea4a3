"""A command leaves nothing for the garbage collector: that once took a third of a worker's time."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from commandbus import BatchCommand, Command, CommandBus, HandlerContext
from commandbus.middleware import Middleware
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.middleware.sentry import Sentry
from commandbus.testing import fake_bus, run_until_idle

COMMANDS = 50
#: What the parts of one attempt are called.
OURS = ("Run", "Task", "Lease", "HandlerContext", "Call", "LazyScope", "DroppedSpan", "Outcome")


@pytest.fixture
def kept() -> Iterator[None]:
    """What the collector finds is kept, to be looked at."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def built_in() -> list[Middleware]:
    return [OpenTelemetry(tracer_provider=TracerProvider(sampler=ALWAYS_OFF)), Sentry()]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("has_middleware", [False, True])
async def test_no_part_of_an_attempt_waits_for_the_garbage_collector(has_middleware: bool) -> None:
    bus: CommandBus = fake_bus(middleware=built_in() if has_middleware else [])
    handled = 0

    async def work(command: Command, ctx: HandlerContext) -> None:
        nonlocal handled
        handled += 1

    bus.register_handler("shop", "Work", work)
    await bus.send_many("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(COMMANDS)])
    await run_until_idle(bus)
    await bus.close()
    gc.collect()
    assert handled == COMMANDS
    found = Counter(name_of(each) for each in gc.garbage)
    # A worker and its own tasks end once.
    assert {name: found[name] for name in OURS if found[name] >= COMMANDS // 2} == {}


def name_of(each: Any) -> str:
    return type(each).__name__.removeprefix("Metered")
