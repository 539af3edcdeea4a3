"""The verbs of document 002 as CommandBus shows them: dispatch, relay, recovery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commandbus.batches.batch import BatchOptions
from commandbus.batches.dispatch import Coordination, DispatchResult
from commandbus.batches.relay import Relay
from commandbus.models import BatchCommand, BatchCompletionCallback
from commandbus.names import check_domain
from commandbus.settings import Settings
from commandbus.store.dispatching import MessageQueue, RecoveryReport
from commandbus.worker.maintenance import recover_dispatch


class DispatchVerbs:
    """Part of CommandBus."""

    _coordination: Coordination
    _settings: Settings

    async def dispatch_batch(  # noqa: PLR0913  (what create_batch takes, and how to dispatch it)
        self,
        domain: str,
        commands: Sequence[BatchCommand],
        *,
        mode: str = "two_phase",
        dispatch_rate: float | None = None,
        queue: MessageQueue | None = None,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | None = None,
        created_by: str | None = None,
        max_attempts: int | None = None,
    ) -> DispatchResult:
        """Create a batch in one of document 002's patterns, and say how it went.

        `mode`: "inline" (one transaction, as create_batch), "two_phase" (rows first, then
        messages, in groups) or "optimistic" (the same, marked queued beforehand). `dispatch_rate`:
        commands per second, queued by this call, which takes so long; if its process ends, recovery
        goes on at that rate. `queue`: a RemoteQueue in another database, whose messages `relay`
        brings back.

        Raises only if nothing was stored. What is stored and not queued is queued by recovery,
        which workers run by themselves.
        """
        options = BatchOptions(
            name, custom_data, on_complete, on_complete_command, created_by, max_attempts
        )
        return await self._coordination.dispatch(
            domain, commands, options, mode=mode, dispatch_rate=dispatch_rate, queue=queue
        )

    async def relay(self, domain: str, queue: MessageQueue, *, drain: bool = False) -> int:
        """Queue here, exactly once, what arrives in a queue in another database.

        Runs until cancelled; with `drain` until that queue is empty. Returns how many commands it
        queued. Any number may run at the same time.
        """
        relay = Relay(self._coordination.store, queue, check_domain(domain))
        if drain:
            return await relay.drain()
        await relay.run()
        return 0

    async def recover_dispatch(
        self, domain: str, *, grace_seconds: float | None = None
    ) -> RecoveryReport:
        """Queue what was stored and not queued, now; workers do it by themselves every few minutes.

        `grace_seconds`: how long a dispatching process must have been silent to be taken for gone.
        """
        grace = self._settings.dispatch_grace_seconds if grace_seconds is None else grace_seconds
        return await recover_dispatch(self._coordination.store, check_domain(domain), grace)
