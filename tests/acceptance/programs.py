"""The program `commandbus`, run from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import PATIENCE, until


@dataclass
class Program:
    """A running `commandbus`, with what it has printed so far."""

    process: asyncio.subprocess.Process
    printed: str = ""
    logged: str = ""
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    async def _read(self, stream: asyncio.StreamReader, name: str) -> None:
        while line := await stream.readline():
            setattr(self, name, getattr(self, name) + line.decode())

    def listen(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.readers = [
            asyncio.create_task(self._read(self.process.stdout, "printed")),
            asyncio.create_task(self._read(self.process.stderr, "logged")),
        ]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def until_logged(self, text: str) -> None:
        await until(lambda: text in self.logged, f"{text!r} in the log: {self.logged}")

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        await asyncio.gather(*self.readers)
        return code


@asynccontextmanager
async def program(
    folder: Path, *arguments: str, dsn: str | None = None, **settings: str
) -> AsyncIterator[Program]:
    """Run `commandbus …` in a folder; it does not outlive the test."""
    environment = {name: value for name, value in os.environ.items() if name != "COMMANDBUS_DSN"}
    environment |= {f"COMMANDBUS_{name.upper()}": value for name, value in settings.items()}
    if dsn is not None:
        environment["COMMANDBUS_DSN"] = dsn
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "commandbus", *arguments,
        cwd=folder, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    running = Program(process)
    running.listen()
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()
