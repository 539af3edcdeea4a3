"""The verbs of coordination and recovery on PostgreSQL; part of PostgresStore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.connections import Row
from commandbus.models import NewBatch, NewCommand
from commandbus.settings import Settings
from commandbus.store.dispatching import CreationMetric, InterruptedLoad, RecoveryReport


class PostgresDispatch(ABC):
    """Implements commandbus.store.dispatching.DispatchStore."""

    _settings: Settings

    @abstractmethod
    async def _call(self, verb: str, params: Row, *, domain: str = "") -> list[Row]: ...

    @abstractmethod
    async def ensure_domain(self, domain: str) -> None: ...

    async def hold_batch(
        self,
        batch: NewBatch,
        commands: Sequence[NewCommand],
        *,
        pattern: str,
        dispatch_rate: float | None,
        queue: str | None,
    ) -> None:
        await self.ensure_domain(batch.domain)
        params = (
            batch.domain, batch.batch_id, encoding.sends(commands), batch.name,
            None if batch.custom_data is None else batch.custom_data.decode(),
            batch.created_by,
            None if batch.on_complete is None else batch.on_complete.decode(),
            batch.notifies, pattern, dispatch_rate, queue,
        )  # fmt: skip
        await self._call("create_stored_batch", params, domain=batch.domain)

    async def queue_stored(self, domain: str, command_ids: Sequence[UUID]) -> int:
        rows = await self._call("queue_stored", (domain, list(command_ids)), domain=domain)
        return int(rows[0][0])

    async def stored_messages(
        self, domain: str, command_ids: Sequence[UUID]
    ) -> list[tuple[UUID, str]]:
        rows = await self._call("stored_messages", (domain, list(command_ids)), domain=domain)
        return [(command_id, envelope) for command_id, envelope in rows]

    async def mark_dispatched(self, domain: str, command_ids: Sequence[UUID]) -> int:
        rows = await self._call("mark_dispatched", (domain, list(command_ids)), domain=domain)
        return int(rows[0][0])

    async def mark_dispatch_failed(
        self, domain: str, command_ids: Sequence[UUID], error: str
    ) -> int:
        params = (domain, list(command_ids), error, self._settings.max_queue_attempts)
        rows = await self._call("mark_dispatch_failed", params, domain=domain)
        return int(rows[0][0])

    async def adopt_messages(self, domain: str, envelopes: Sequence[str]) -> list[str]:
        document = "[" + ",".join(envelopes) + "]"
        rows = await self._call("adopt_messages", (domain, document), domain=domain)
        return [verdict for (verdict,) in rows]

    async def dispatch_heartbeat(self, batch_id: UUID) -> None:
        await self._call("dispatch_heartbeat", (batch_id,))

    async def finish_dispatch(self, batch_id: UUID, metric: CreationMetric) -> None:
        await self._call("finish_dispatch", (batch_id, encoding.dump(asdict(metric))))

    async def recover_dispatch(
        self, domain: str, *, grace_seconds: float, limit: int
    ) -> RecoveryReport:
        settings = self._settings
        params = (
            domain, grace_seconds, limit, settings.max_queue_attempts, settings.queue_batch_size,
        )  # fmt: skip
        rows = await self._call("recover_dispatch", params, domain=domain)
        return RecoveryReport(*rows[0])

    async def claim_chore(self, name: str, every_seconds: float) -> bool:
        return bool((await self._call("claim_chore", (name, every_seconds)))[0][0])

    async def interrupted_loads(self, idle_seconds: float) -> list[InterruptedLoad]:
        rows = await self._call("interrupted_loads", (idle_seconds,))
        return [InterruptedLoad(*row) for row in rows]

    async def prune_workers(self) -> int:
        return int((await self._call("prune_workers", ()))[0][0])
