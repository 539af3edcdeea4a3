"""What built-in middleware does for a command that nobody records, counted in calls of Python."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from uuid import uuid4

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from commandbus import BatchCommand, Command, HandlerContext
from commandbus.middleware import Middleware
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.middleware.sentry import Sentry
from commandbus.testing import fake_bus, run_until_idle

ROOT = Path(__file__).parents[2]
#: So many that what is done once for a worker does not count.
COMMANDS = 300
#: Where the calls are that middleware adds to an attempt: in ours, and in the SDKs.
PLACES = ("/commandbus/middleware/", "/opentelemetry/", "/sentry_sdk/")


async def calls_of(middleware: list[Middleware]) -> Counter[str]:
    """The functions that were called for each command, by their names."""
    bus = fake_bus(middleware=middleware)

    async def work(command: Command, ctx: HandlerContext) -> None:
        """Nothing."""

    bus.register_handler("shop", "Work", work)
    await bus.send_many("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(COMMANDS)])
    found = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and any(each in frame.f_code.co_filename for each in PLACES):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        await run_until_idle(bus)
    finally:
        sys.setprofile(None)
        await bus.close()
    return Counter({name: round(number / COMMANDS) for name, number in found.items()})


async def counted() -> list[dict[str, int]]:
    """Without any middleware, and with both, where one trace in none is recorded."""
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0))
    both = await calls_of([OpenTelemetry(tracer_provider=provider), Sentry()])
    return [dict(await calls_of([])), {name: each for name, each in both.items() if each}]


def test_a_command_that_nobody_records_costs_few_calls() -> None:
    # In a process of its own: what other tests set up in the SDKs makes calls too.
    found = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, check=True, cwd=ROOT
    )
    none, calls = json.loads(found.stdout)
    assert none == {}
    assert calls["OpenTelemetry.enter"] == calls["Sentry.enter"] == 1
    assert sum(calls.values()) <= 9, calls


if __name__ == "__main__":
    print(json.dumps(asyncio.run(counted())))
