"""Workers: those that this process runs, started and stopped together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from commandbus.commands.sending import Preparer
from commandbus.database.store import Store
from commandbus.handler import HandlerRegistry
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings
from commandbus.worker.worker import Worker, WorkerOptions


@dataclass(slots=True)
class Workers:
    """The workers of one bus."""

    store: Store
    registry: HandlerRegistry
    settings: Settings
    default_policy: RetryPolicy
    preparer: Preparer
    running: set[Worker] = field(default_factory=set)

    async def run(self, options: WorkerOptions) -> None:
        """Run one worker until it is stopped."""
        worker = Worker(
            self.store,
            self.registry,
            options,
            settings=self.settings,
            default_policy=self.default_policy,
            prepare=self.preparer.command,
        )
        self.running.add(worker)
        try:
            await worker.run()
        finally:
            self.running.discard(worker)

    async def stop(self) -> None:
        """Stop all of them gracefully, and wait until they have ended."""
        workers = list(self.running)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*(worker.finished.wait() for worker in workers))
