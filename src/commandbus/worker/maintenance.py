"""Maintenance: chores that some worker must do, and one is enough.

Every worker asks for each chore from time to time; the database gives it to one of them, and not
again before its time. A chore that fails is logged and comes round again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import LiteralString
from uuid import uuid4

from commandbus.batches.recovery import recover_dispatch
from commandbus.database.store import Store
from commandbus.handler import HandlerRegistry
from commandbus.loads.load import dispatch_rest, interrupted_loads
from commandbus.loops import Loop
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings
from commandbus.troubleshooting.bulk_edit import Editor
from commandbus.troubleshooting.bulk_run import BulkExecutor
from commandbus.troubleshooting.model import BulkStatus
from commandbus.upkeep.retention import Retention

#: How often an idle worker looks for a bulk operation to go on with, in seconds.
BULK_POLL_SECONDS = 5.0
#: A load that was not continued for this many seconds is reported.
LOAD_IDLE_SECONDS = 300.0
#: Seconds that one turn of pruning may take; the other chores wait meanwhile.
PRUNE_SECONDS = 20.0

_CLAIM_CHORE: LiteralString = (
    "select {schema}.claim_chore(%s, make_interval(secs => cast(%s as float8)))"
)
_PRUNE_WORKERS: LiteralString = "select {schema}.prune_workers()"


def maintenance_of(
    store: Store, registry: HandlerRegistry, domain: str, settings: Settings
) -> list[Loop]:
    """What a worker of this domain runs beside its work."""
    if not settings.maintenance or not store.has_gateway:
        return []  # in memory there is nothing to look after
    editor = Editor(store, registry, max_bytes=settings.max_payload_bytes)
    executor = BulkExecutor(store, editor, f"worker:{uuid4()}")
    return [Maintenance(store, domain, settings), BulkRunner(executor, domain)]


class Maintenance(Loop):
    """Does the chores that this process is given."""

    name = "maintenance"

    def __init__(self, store: Store, domain: str, settings: Settings) -> None:
        super().__init__()
        self._store = store
        self._gateway = store.gateway
        self._domain = domain
        self._settings = settings
        self._retention = Retention(store)
        self._chores: dict[str, Callable[[], Awaitable[None]]] = {
            f"recover dispatch of {domain}": self._recover,
            "look after interrupted loads": self._look_after_loads,
            "prune workers": self._prune_workers,
            "prune old rows": self._prune_old,
        }

    async def step(self) -> float | None:
        """Ask for each chore, and do what is given."""
        every = self._settings.maintenance_interval_seconds
        for name, chore in self._chores.items():
            if await self._gateway.value(_CLAIM_CHORE, (name, every)):
                await self._do(name, chore)
        # Asked for more often than due, so that a chore whose process ended is soon taken over.
        return every / 5

    async def _do(self, name: str, chore: Callable[[], Awaitable[None]]) -> None:
        try:
            await chore()
        except Exception as error:  # noqa: BLE001  (one chore must not keep the others from their turn)
            self._log.warning(
                "%s failed, and comes round again: %s: %s",
                name, type(error).__name__, redact_text(str(error)),
            )  # fmt: skip

    async def _recover(self) -> None:
        report = await recover_dispatch(
            self._store,
            self._domain,
            self._settings.dispatch_grace_seconds,
            self._settings.unconfirmed_after_seconds,
        )
        if report.unconfirmed:
            self._log.warning(
                "%d commands of %s were accepted by a queue in another database and did not come "
                "back; they are queued here", report.unconfirmed, self._domain,
            )  # fmt: skip
        if report.queued or report.failed:
            self._log.info(
                "recovery of %s: %d queued, %d failed, %d given up",
                self._domain, report.queued, report.failed, report.given_up,
            )  # fmt: skip
        if report.overdue:
            self._log.warning(
                "%d commands of %s waited more than 30 minutes to be queued; look at "
                "commandbus.v_pending_retry", report.overdue, self._domain,
            )  # fmt: skip
        if report.given_up:
            self._log.error(
                "%d commands of %s could not be queued and are FAILED: Max queue retries exceeded",
                report.given_up, self._domain,
            )  # fmt: skip

    async def _look_after_loads(self) -> None:
        for load in await interrupted_loads(self._store, LOAD_IDLE_SECONDS):
            if load.is_sealed:
                await dispatch_rest(self._store, load)
                self._log.info(
                    "load %s of %s was complete but not all queued when its process ended; now "
                    "it is", load.batch_id, load.domain,
                )  # fmt: skip
                continue
            self._log.warning(
                "load %s of %s (%s) stopped after %d rows; load the same source again to resume it",
                load.batch_id, load.domain, load.source, load.rows_committed,
            )  # fmt: skip

    async def _prune_workers(self) -> None:
        pruned = await self._gateway.value(_PRUNE_WORKERS)
        if pruned:
            self._log.info("%d workers that vanished were taken off the list", pruned)

    async def _prune_old(self) -> None:
        """By the rules of the whole database; without rules there is nothing to do."""
        for result in await self._retention.prune(operator="maintenance", seconds=PRUNE_SECONDS):
            if any(result.pruned.values()):
                removed = ", ".join(f"{n:,} {what}" for what, n in result.pruned.items() if n)
                self._log.info("retention of %s removed %s", result.domain, removed)


class BulkRunner(Loop):
    """Goes on with the bulk operations of a domain, one chunk at a time.

    No chore is claimed for it: an operation that another process works on is left alone, and if two
    take the same one, the database lets one act at a time and keeps to the rate.
    """

    name = "bulk"

    def __init__(self, executor: BulkExecutor, domain: str) -> None:
        super().__init__()
        self._executor = executor
        self._domain = domain

    async def step(self) -> float | None:
        """Act on the next items of one operation, if there is one."""
        operation_id = await self._executor.next_operation(self._domain)
        if operation_id is None:
            return BULK_POLL_SECONDS
        step = await self._executor.run_chunk(operation_id)
        if step.status is BulkStatus.FINISHED:
            self._log.info("bulk operation %s of %s is finished", operation_id, self._domain)
        return min(step.wait_seconds, BULK_POLL_SECONDS) or None
