"""Maintenance: chores that some worker must do, and one is enough.

Every worker asks for each chore from time to time; the database gives it to one of them, and not
again before its time. A chore that fails is logged and comes round again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, LiteralString
from uuid import UUID, uuid4

import orjson

from commandbus.batches.recovery import recover_dispatch
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidInputError, InvalidOperationError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.loads.load import dispatch_rest, interrupted_loads
from commandbus.loops import Loop
from commandbus.privacy.redaction import redact_text
from commandbus.schedules.keepers import keepers_of
from commandbus.settings import Settings
from commandbus.troubleshooting.bulk_edit import Editor
from commandbus.troubleshooting.bulk_run import BulkExecutor
from commandbus.troubleshooting.model import BulkStatus
from commandbus.upkeep.retention import Retention
from commandbus.worker.tending import Tending

if TYPE_CHECKING:
    from commandbus.upkeep.sealing import Sealing

#: How often an idle worker looks for a bulk operation to go on with, in seconds.
BULK_POLL_SECONDS = 5.0
#: Bulk operations of different domains that one process acts on at once.
BULK_AT_ONCE = 4
#: A load that was not continued for this many seconds is reported.
LOAD_IDLE_SECONDS = 300.0
#: Seconds that one turn of pruning may take; the other chores wait meanwhile.
PRUNE_SECONDS = 20.0
#: The same of sealing the audit.
SEAL_SECONDS = 60.0
#: The audit is sealed at least this often, in seconds, however rare the other chores are.
SEAL_EVERY_SECONDS = 1_800.0
#: A worker seals first after this many seconds: one that starts often finds much to do.
SEAL_DELAY_SECONDS = 30.0
#: Unique keys that are looked at in one statement, and statements in one turn.
KEYS_AT_ONCE, KEY_TURNS = 1_000, 100
#: Batches, and edits, that expire in one turn.
EXPIRED_AT_ONCE = 1_000

_CLAIM_CHORES: LiteralString = (
    "select c.name from unnest(cast(%s as text[])) c(name)"
    " where {schema}.claim_chore(c.name, make_interval(secs => cast(%s as float8)))"
)
_NOTE_CHORE: LiteralString = "select {schema}.note_chore(%s, cast(%s as jsonb), %s)"
_NEXT_BULKS: LiteralString = (
    "select d.name, {schema}.next_bulk(d.name, %s, p_can_edit => true)"
    " from unnest(cast(%s as text[])) d(name)"
)
_SWEEP_PROGRESS: LiteralString = "select {schema}.sweep_progress()"
_PRUNE_WORKERS: LiteralString = "select {schema}.prune_workers()"
_PRUNE_KEYS: LiteralString = "select {schema}.prune_unique(%s)"
_EXPIRED: LiteralString = "select * from {schema}.expired_decisions(%s)"
_EXPIRE_TICKET: LiteralString = "select {schema}.expire_ticket(%s, %s)"
_EXPIRE_EDIT: LiteralString = "select {schema}.expire_edit(%s, %s)"

Domains = Callable[[], Collection[str]]
#: What a chore did, for those who look at it: by domain, or under EVERYWHERE.
Told = dict[str, str]
EVERYWHERE = "*"


def maintenance_of(
    store: Store, registry: HandlerRegistry, domains: Domains, settings: Settings
) -> list[Loop]:
    """What the workers of these domains run beside their work, once for all of them."""
    if not settings.maintenance or not store.has_gateway:
        return []  # in memory there is nothing to look after
    name = f"worker:{uuid4()}"
    editor = Editor(store, registry, max_bytes=settings.max_payload_bytes)
    runner = BulkRunner(store, BulkExecutor(store, editor, name), name, domains)
    tending = Tending(store, settings)
    return [Maintenance(store, domains, settings), tending, runner, *keepers_of(store, domains)]


class Maintenance(Loop):
    """Does the chores that this process is given."""

    name = "maintenance"

    def __init__(self, store: Store, domains: Domains, settings: Settings) -> None:
        super().__init__()
        self._store = store
        self._gateway = store.gateway.patient
        self._domains = domains
        self._settings = settings
        self._retention = Retention(store)
        self._sealing: Sealing | None = None
        self._last_refusal = ""
        self._has_begun = False

    async def step(self) -> float | None:
        """Ask for each chore, and do what is given."""
        every = self._settings.maintenance_interval_seconds
        seal_every = min(every, SEAL_EVERY_SECONDS)
        await self._do_given(self._chores(), every)
        if not self._has_begun:
            self._has_begun = True
            return min(seal_every / 5, SEAL_DELAY_SECONDS)
        if self._settings.seal_audit:
            await self._do_given({"seal the audit": self._seal}, seal_every)
        # Asked for more often than due, so that a chore whose process ended is soon taken over.
        return seal_every / 5

    async def _do_given(
        self, chores: dict[str, Callable[[], Awaitable[Told]]], every: float
    ) -> None:
        for (name,) in await self._gateway.rows(_CLAIM_CHORES, (list(chores), every)):
            await self._do(name, chores[name])

    def _chores(self) -> dict[str, Callable[[], Awaitable[Told]]]:
        recovery = {
            f"recover dispatch of {domain}": partial(self._recover, domain)
            for domain in self._domains()
        }
        return recovery | {
            "look after interrupted loads": self._look_after_loads,
            "prune workers": self._prune_workers,
            "prune unique keys": self._prune_keys,
            "sweep progress": self._sweep_progress,
            "prune old rows": self._prune_old,
            "expire what nobody decided": self._expire,
        }

    async def _do(self, name: str, chore: Callable[[], Awaitable[Told]]) -> None:
        try:
            told = await chore()
        except Exception as error:  # noqa: BLE001  (one chore must not keep the others from their turn)
            self._log.warning(
                "%s failed, and comes round again: %s: %s",
                name, type(error).__name__, redact_text(str(error)),
            )  # fmt: skip
            # Not its text, which may be about a domain that not everybody may see.
            failure = {EVERYWHERE: f"{type(error).__name__}; the log of its process says more"}
            await self._note(name, failure, has_failed=True)
        else:
            await self._note(name, told)

    async def _note(self, name: str, told: Told, *, has_failed: bool = False) -> None:
        """For those who look; a chore is as good without."""
        with suppress(CommandBusError):
            await self._gateway.value(_NOTE_CHORE, (name, orjson.dumps(told).decode(), has_failed))

    async def _recover(self, domain: str) -> Told:
        report = await recover_dispatch(
            self._store,
            domain,
            self._settings.dispatch_grace_seconds,
            self._settings.unconfirmed_after_seconds,
        )
        if report.unconfirmed:
            self._log.warning(
                "%d commands of %s were accepted by a queue in another database and did not come "
                "back; they are queued here", report.unconfirmed, domain,
            )  # fmt: skip
        if report.queued or report.failed:
            self._log.info(
                "recovery of %s: %d queued, %d failed, %d given up",
                domain, report.queued, report.failed, report.given_up,
            )  # fmt: skip
        if report.overdue:
            self._log.warning(
                "%d commands of %s waited more than 30 minutes to be queued; look at "
                "commandbus.v_pending_retry", report.overdue, domain,
            )  # fmt: skip
        if report.given_up:
            self._log.error(
                "%d commands of %s could not be queued and are FAILED: Max queue retries exceeded",
                report.given_up, domain,
            )  # fmt: skip
        counts = {
            "queued": report.queued, "will be tried again": report.failed,
            "given up": report.given_up, "brought back": report.unconfirmed,
        }  # fmt: skip
        return _told({domain: Counter(counts)})

    async def _look_after_loads(self) -> Told:
        found: dict[str, Counter[str]] = {}
        for load in await interrupted_loads(self._store, LOAD_IDLE_SECONDS):
            if load.is_sealed:
                await dispatch_rest(self._store, load)
                self._log.info(
                    "load %s of %s was complete but not all queued when its process ended; now "
                    "it is", load.batch_id, load.domain,
                )  # fmt: skip
                found.setdefault(load.domain, Counter())["queued to its end"] += 1
                continue
            found.setdefault(load.domain, Counter())["stopped half-way"] += 1
            self._log.warning(
                "load %s of %s (%s) stopped after %d rows; load the same source again to resume it",
                load.batch_id, load.domain, load.source, load.rows_committed,
            )  # fmt: skip
        return _told(found)

    async def _prune_workers(self) -> Told:
        pruned = await self._gateway.value(_PRUNE_WORKERS)
        if pruned:
            self._log.info("%d workers that vanished were taken off the list", pruned)
        return _told({EVERYWHERE: Counter({"that vanished taken off the list": pruned or 0})})

    async def _prune_keys(self) -> Told:
        """Those that nobody holds any more."""
        removed = 0
        for _ in range(KEY_TURNS):
            gone = await self._gateway.value(_PRUNE_KEYS, (KEYS_AT_ONCE,))
            removed += gone
            if gone < KEYS_AT_ONCE:
                break
        return _told({EVERYWHERE: Counter({"removed": removed})})

    async def _sweep_progress(self) -> Told:
        await self._gateway.value(_SWEEP_PROGRESS)
        return {}

    async def _seal(self) -> Told:
        """Close what was written to the audit; a process without the key leaves it to others."""
        if self._sealing is None:
            from commandbus.upkeep.sealing import Sealing  # noqa: PLC0415  (not at the start)

            self._sealing = Sealing(self._store)
        try:
            result = await self._sealing.seal_audit(seconds=SEAL_SECONDS)
        except (InvalidOperationError, InvalidInputError) as error:
            # The same at every turn until a person acts: said once.
            if str(error) != self._last_refusal:
                self._last_refusal = str(error)
                self._log.warning("the audit is not sealed by this process: %s", error)
            return {EVERYWHERE: "not sealed by this process; its log says why"}
        self._last_refusal = ""
        if not result.is_done:
            self._log.info("sealed %d events of the audit; more wait", result.rows)
        return _told({EVERYWHERE: Counter({"events sealed": result.rows})})

    async def _expire(self) -> Told:
        """Governed batches, and edits of their children, that waited too long for a decision.

        In any domain: a batch may wait in one that no worker serves. Each in a transaction of its
        own, because the commands of a second batch must not be locked after the first batch.
        """
        expired: dict[str, Counter[str]] = {}
        for domain, batch_id, command_id in await self._gateway.rows(_EXPIRED, (EXPIRED_AT_ONCE,)):
            if command_id is None:
                done = await self._gateway.value(_EXPIRE_TICKET, (domain, batch_id), domain=domain)
                what = f"batch {batch_id}"
            else:
                done = await self._gateway.value(_EXPIRE_EDIT, (domain, command_id), domain=domain)
                what = f"the edit of command {command_id}"
            if done:
                self._log.info("%s of %s has expired: nobody decided in time", what, domain)
                expired.setdefault(domain, Counter())["expired"] += 1
        return _told(expired)

    async def _prune_old(self) -> Told:
        """By the rules of the whole database; without rules there is nothing to do."""
        gone: dict[str, Counter[str]] = {}
        for result in await self._retention.prune(operator="maintenance", seconds=PRUNE_SECONDS):
            if any(result.pruned.values()):
                removed = ", ".join(f"{n:,} {what}" for what, n in result.pruned.items() if n)
                self._log.info("retention of %s removed %s", result.domain, removed)
            gone.setdefault(result.domain, Counter()).update(result.pruned)
        return _told(gone)


def _told(counts: Mapping[str, Counter[str]]) -> Told:
    """What was counted, as a line for each domain; without a line there was nothing to do."""
    lines = {
        domain: ", ".join(f"{number:,} {what}" for what, number in found.items() if number)
        for domain, found in counts.items()
    }
    return {domain: line for domain, line in lines.items() if line}


class BulkRunner(Loop):
    """Goes on with the bulk operations of some domains, one chunk of each at a time.

    No chore is claimed for it: an operation that another process works on is left alone, and if two
    take the same one, the database lets one act at a time and keeps to the rate.
    """

    name = "bulk"

    def __init__(self, store: Store, executor: BulkExecutor, name: str, domains: Domains) -> None:
        super().__init__()
        self._gateway = store.gateway
        self._executor = executor
        self._executor_name = name
        self._domains = domains
        self._places = asyncio.Semaphore(BULK_AT_ONCE)

    async def step(self) -> float | None:
        """Act on the next items of one operation of each domain, if there is one."""
        params = (self._executor_name, sorted(self._domains()))
        found = [row for row in await self._gateway.rows(_NEXT_BULKS, params) if row[1] is not None]
        waits = await asyncio.gather(*(self._act(*row) for row in found))
        return min([BULK_POLL_SECONDS, *waits]) or None

    async def _act(self, domain: str, operation_id: UUID) -> float:
        async with self._places:
            step = await self._executor.run_chunk(operation_id)
        if step.status is BulkStatus.FINISHED:
            self._log.info("bulk operation %s of %s is finished", operation_id, domain)
        return step.wait_seconds
