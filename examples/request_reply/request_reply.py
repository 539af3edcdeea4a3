"""Send a command and wait for its answer; and what happens when there is none."""

import asyncio
import os

from commandbus import (
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    ReplyTimeoutError,
    RetryPolicy,
)
from commandbus.embedded import EmbeddedPostgres

DSN = os.environ.get("COMMANDBUS_DSN") or EmbeddedPostgres().start()


async def quote(command: Command, _: HandlerContext) -> dict[str, int]:
    if command.data["weight"] > 100:
        raise PermanentCommandError("TOO_HEAVY", "no vehicle carries that")
    return {"price": 5 + 2 * command.data["weight"]}


async def main() -> None:
    async with CommandBus.connect(DSN) as bus:
        # A caller waits: better a FAILED reply than a command that waits for an operator.
        policy = RetryPolicy(when_exhausted="fail")
        bus.register_handler("freight", "Quote", quote, retry_policy=policy)
        worker = asyncio.create_task(bus.run_worker("freight"))

        reply = await bus.call("freight", "Quote", {"weight": 10}, timeout=10)
        print(reply.outcome, reply.data)

        reply = await bus.call("freight", "Quote", {"weight": 500}, timeout=10)
        print(reply.outcome, reply.error and reply.error.code)

        await bus.stop()
        await worker
        try:
            await bus.call("freight", "Quote", {"weight": 1}, timeout=0.2)
        except ReplyTimeoutError:
            print("no worker, no answer; the command still waits in the queue")


asyncio.run(main())
