"""Real worker processes for acceptance tests, and what they run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.waiting import until


@dataclass
class WorkerProcess:
    """One `python -m tests.acceptance.app` that serves a domain."""

    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def worker_process(
    dsn: str, domain: str = "shop", **options: object
) -> AsyncIterator[WorkerProcess]:
    """Start a worker process and wait until it serves; kill it at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.acceptance.app", domain,
        *(f"{name}={value}" for name, value in options.items()),
        env={**os.environ, "COMMANDBUS_DSN": dsn},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    stdout = process.stdout
    try:

        async def is_serving() -> bool:
            return b"serving" in await stdout.readline()

        await until(is_serving, "a worker process that serves")
        yield WorkerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # Read what is left: a closed pipe is a clean transport.
        await stdout.read()
