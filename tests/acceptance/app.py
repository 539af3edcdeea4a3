"""The application under test: handlers whose effects are rows, so that they can be counted.

python -m tests.acceptance.app DOMAIN [concurrency=10] [vt_seconds=30]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from commandbus import (
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)

EFFECTS = """
create table if not exists public.effect (
    command_id uuid not null, epoch bigint not null, step text not null, pid int not null,
    at timestamptz not null default clock_timestamp()
);
create table if not exists public.gate (is_open boolean not null);
insert into public.gate values (false);
"""


def register(bus: CommandBus, domain: str, record: Any, gate: Any) -> None:
    """All handlers of the acceptance tests."""
    soon = RetryPolicy(max_attempts=3, backoff_schedule=(0.05, 0.1))

    @bus.handler(domain, "Work", retry_policy=soon)
    async def work(command: Command, ctx: HandlerContext) -> dict[str, Any]:
        await record(command, ctx, "work")
        return {"echo": command.data}

    @bus.handler(domain, "FailTwice", retry_policy=soon)
    async def fail_twice(command: Command, ctx: HandlerContext) -> dict[str, int]:
        await record(command, ctx, "work")
        if ctx.attempt < 3:
            raise TransientCommandError("NOT_YET", f"attempt {ctx.attempt}")
        return {"attempt": ctx.attempt}

    @bus.handler(domain, "FailForGood", retry_policy=soon)
    async def fail_for_good(command: Command, ctx: HandlerContext) -> None:
        await record(command, ctx, "work")
        if not command.data.get("mended") and not os.environ.get("MENDED"):
            raise PermanentCommandError("BROKEN", "this will not pass", {"hint": "mend it"})

    @bus.handler(domain, "FailAlways", retry_policy=soon)
    async def fail_always(command: Command, ctx: HandlerContext) -> None:
        await record(command, ctx, "work")
        raise TransientCommandError("STILL_DOWN", "try again")

    @bus.handler(domain, "Roll", retry_policy=soon)
    async def roll(command: Command, ctx: HandlerContext) -> None:
        if command.data["fate"] == "transient" and ctx.attempt == 1:
            raise TransientCommandError("UNLUCKY", "once")
        if command.data["fate"] == "permanent":
            raise PermanentCommandError("CURSED", "for good")

    @bus.handler(domain, "Poison", retry_policy=soon)
    async def poison(command: Command, ctx: HandlerContext) -> None:
        await record(command, ctx, "start")
        os.kill(os.getpid(), signal.SIGKILL)

    @bus.handler(domain, "Slow", retry_policy=soon)
    async def slow(command: Command, ctx: HandlerContext) -> None:
        await record(command, ctx, "start")
        await gate()
        await record(command, ctx, "end")

    @bus.handler(domain, "SlowWrite", transactional=True, retry_policy=soon)
    async def slow_write(command: Command, ctx: HandlerContext) -> None:
        await record(command, ctx, "start")
        await ctx.conn.execute(
            "insert into public.effect (command_id, epoch, step, pid)"
            " values (%s, %s, 'written', %s)",
            (command.command_id, ctx.lease_epoch, os.getpid()),
        )
        await gate()


async def main() -> None:
    domain, *options = sys.argv[1:]
    async with CommandBus.connect() as bus:
        store = bus._store

        async def record(command: Command, ctx: HandlerContext, step: str) -> None:
            async with store._pool.connection() as conn:  # type: ignore[attr-defined]
                await conn.execute(
                    "insert into public.effect (command_id, epoch, step, pid)"
                    " values (%s, %s, %s, %s)",
                    (command.command_id, ctx.lease_epoch, step, os.getpid()),
                )

        async def gate() -> None:
            """Wait until the test opens the gate: no test depends on how long something takes."""
            while True:
                async with store._pool.connection() as conn:  # type: ignore[attr-defined]
                    cursor = await conn.execute("select is_open from public.gate")
                    if (await cursor.fetchone())[0]:
                        return
                await asyncio.sleep(0.05)

        register(bus, domain, record, gate)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(bus.stop()))
        numbers = {name: int(value) for name, value in (o.split("=") for o in options)}
        print("serving", flush=True)
        await bus.run_worker(domain, **numbers)  # type: ignore[arg-type]


if __name__ == "__main__":
    asyncio.run(main())
