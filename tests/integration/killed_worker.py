"""A worker with a `def` transactional handler, which a test kills."""

from __future__ import annotations

import asyncio
import os

from commandbus import Command, CommandBus, HandlerContext, Handlers

handlers = Handlers("shop")


@handlers.handle("Work", transactional=True)
def work(command: Command, ctx: HandlerContext) -> None:
    ctx.conn.execute("insert into written values (%s)", (command.command_id,))
    ctx.conn.execute("select pg_sleep(0.01)")


async def main() -> None:
    async with CommandBus.connect(os.environ["SITE_DSN"], handlers=handlers) as bus:
        await bus.run_worker("shop", concurrency=4, vt_seconds=1)


if __name__ == "__main__":
    asyncio.run(main())
