"""A process that dispatches a batch and kills itself at a named moment.

python -m tests.acceptance.dispatching MODE COUNT STEP [REMOTE_DSN]

STEP is `verb:before` or `verb:after`, with a number for the n-th call (`queue_pending:after:2`), or
`never`. The verbs are SQL functions, and `send` of the remote queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from commandbus import BatchCommand, CommandBus
from commandbus.batches import DispatchMode
from commandbus.database.pgmq import RemoteQueue
from tests.intercepting import Ask, intercept


def kill_at(bus: CommandBus, queue: Any, verb: str, moment: str, call: int) -> None:
    """SIGKILL this very process before or after the n-th call of a verb."""
    calls = 0

    async def deadly(ask: Ask) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await ask()
        if calls == call and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    if verb != "send":
        intercept(pytest.MonkeyPatch(), bus, verb, lambda _, ask: deadly(ask))
        return
    real = queue.publish
    queue.publish = lambda *args: deadly(partial(real, *args))


async def main() -> None:
    mode, count, step, *remote_dsn = sys.argv[1:]
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(CommandBus.connect())
        queue = None
        if remote_dsn:
            queue = await stack.enter_async_context(RemoteQueue.connect(remote_dsn[0]))
        if step != "never":
            verb, moment, *call = step.split(":")
            kill_at(bus, queue, verb, moment, int(call[0]) if call else 1)
        work = [BatchCommand("Work", uuid4(), {"n": n}) for n in range(int(count))]
        await bus.batches.dispatch("shop", work, mode=DispatchMode(mode), queue=queue)


if __name__ == "__main__":
    asyncio.run(main())
