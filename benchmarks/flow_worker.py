"""python -m benchmarks.flow_worker JSON: a worker process for `benchmarks.flow`, until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from commandbus import Command, CommandBus, HandlerContext, Settings


async def main() -> None:
    config = json.loads(sys.argv[1])
    async with CommandBus.connect(config["dsn"], settings=Settings()) as bus:

        async def work(command: Command, ctx: HandlerContext) -> None:
            await asyncio.sleep(config.get("ms", 0) / 1000)

        for name in ("Work", "Other"):
            bus.register_handler("bench", name, work)
        loop = asyncio.get_running_loop()
        stops: set[asyncio.Future[None]] = set()
        loop.add_signal_handler(
            signal.SIGTERM, lambda: stops.add(asyncio.ensure_future(bus.stop()))
        )
        await bus.run_worker(
            "bench",
            concurrency=config.get("concurrency", 10),
            vt_seconds=config.get("vt_seconds", 30),
        )


if __name__ == "__main__":
    asyncio.run(main())
