"""Consumer: leases commands for a program that does the work itself, without handlers.

Each command is settled by its own methods, fenced by its lease as the result of a handler is:
after a lapse, what comes late changes nothing. Nothing extends the leases but `extend`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind
from commandbus.database.store import Store
from commandbus.errors import (
    CommandBusError,
    InvalidOperationError,
    InvalidPayloadError,
    LeaseLostError,
)
from commandbus.handler import HandlerEntry, OfLease, check_progress
from commandbus.handlers.registry import HandlerRegistry
from commandbus.loops import Backoff
from commandbus.models import Command, ParkReason
from commandbus.outcomes import Discard, Snooze
from commandbus.payload import encode_json
from commandbus.privacy.redaction import redact_text
from commandbus.retry import MAX_BACKOFF_SECONDS, RetryPolicy
from commandbus.settings import Settings, check_number
from commandbus.worker.lease import redacted_word
from commandbus.worker.options import new_worker_id
from commandbus.worker.outcomes import command_of, failed, failure_of, parked
from commandbus.worker.parts import ABORT_GRACE_SECONDS
from commandbus.worker.receiver import FIRST_POLL_SECONDS, HEAD_SECONDS

_log = logging.getLogger("commandbus.consumer")


@dataclass(eq=False, slots=True)
class LeasedCommand(OfLease):
    """A command that is this consumer's alone until its lease ends, or one of these verbs ends it.

    Each verb raises LeaseLostError, and changes nothing, if the lease is lost. A second verb raises
    InvalidOperationError. After DatabaseUnavailableError the same call may be repeated.
    """

    command: Command
    lease: Lease = field(repr=False)
    _consumer: Consumer = field(repr=False)
    #: completed, retried, failed, parked, released, snoozed, discarded or lost; None: still open.
    ended_as: str | None = None

    async def complete(self, result: Any = None, *, conn: Any = None) -> None:
        """End it as COMPLETED; the reply carries the result.

        With `conn` that is part of the caller's transaction. Make it the last step and commit: the
        server ends a transaction that then stays idle for two seconds. If it is rolled back, the
        command is still leased, and another verb can be called.
        """
        await self._settle(self._consumer.completion(self, result), "completed", conn)

    async def retry(self, error: BaseException, *, delay_seconds: float | None = None) -> None:
        """The attempt failed: the retry policy decides, as it does for a handler.

        Another attempt after its delay, or after `delay_seconds`; parked, or FAILED, if there is no
        attempt left, or the error is one that no retry can fix.
        """
        if delay_seconds is not None:
            check_number(delay_seconds, "delay_seconds", 0, MAX_BACKOFF_SECONDS)
        self.check_open()
        outcome = await self._consumer.failed(self, error)
        if delay_seconds is not None and outcome.kind is OutcomeKind.RETRY:
            outcome = replace(outcome, delay_seconds=float(delay_seconds))
        await self._settle(outcome, "retried")

    async def fail(self, error: BaseException) -> None:
        """End it as FAILED at once, whatever the policy says; the reply says why."""
        self.check_open()
        failure = await self._consumer.failure(self, error)
        await self._settle(Outcome(self.lease, OutcomeKind.FAIL, failure=failure), "failed")

    async def park(self, error: BaseException) -> None:
        """Put it into troubleshooting at once, for an operator."""
        self.check_open()
        failure = await self._consumer.failure(self, error)
        reason = ParkReason.PERMANENT
        outcome = Outcome(self.lease, OutcomeKind.PARK, reason=reason, failure=failure)
        await self._settle(outcome, "parked")

    async def snooze(self, seconds: float, *, reason: str | None = None) -> None:
        """It is too early: due again after `seconds`, and the attempt does not count.

        Beyond `max_snoozes` of the retry policy it is a failed attempt.
        """
        self.check_open()
        outcome = await self._consumer.failed(self, Snooze(seconds, reason))
        await self._settle(outcome, "snoozed")

    async def discard(self, reason: str = "the consumer discarded it") -> None:
        """It is not needed any more: end it as CANCELED at once; the reply says why."""
        self.check_open()
        outcome = await self._consumer.failed(self, Discard(reason))
        await self._settle(outcome, "discarded")

    async def release(self) -> None:
        """Give it back, as if it had never been leased: no attempt is counted."""
        await self._settle(Outcome(self.lease, OutcomeKind.RELEASE), "released")

    async def extend(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now."""
        check_number(seconds, "seconds", 1, 43_200)
        self.check_open()
        await self._consumer.extend(self, seconds)

    async def is_canceled(self) -> bool:
        """Whether somebody asked to cancel it while it is leased; then `release` ends it."""
        self.check_open()
        return bool(await self._consumer.store.cancel_requests(self.lease.domain, [self.lease]))

    async def progress(self, fraction: float, message: str | None = None) -> None:
        """Say how far it has come, from 0 to 1; written at once."""
        check_progress(fraction, message)
        self.check_open()
        await self._consumer.record_progress(self, float(fraction), message)

    def check_open(self) -> None:
        """Raise InvalidOperationError if it was settled before."""
        if self.ended_as is not None:
            raise InvalidOperationError(
                f"command {self.command.command_id} was {self.ended_as} already; a leased command "
                "is settled once"
            )

    async def _settle(self, outcome: Outcome, end: str, conn: Any = None) -> None:
        if await self._consumer.settle([(self, outcome)], end, conn):
            raise lost_lease(self.lease)


@dataclass(eq=False)
class Consumer:
    """Leases commands of one domain."""

    store: Store
    registry: HandlerRegistry
    settings: Settings
    policy: RetryPolicy
    domain: str
    vt_seconds: int
    worker_id: str = field(default_factory=new_worker_id)

    def __post_init__(self) -> None:
        self._open: set[LeasedCommand] = set()
        self._head_at = -HEAD_SECONDS

    async def receive(self, limit: int = 1, *, wait_seconds: float = 0.0) -> list[LeasedCommand]:
        """Lease up to `limit` commands that are due; waits for the first one, at most so long.

        While it waits it looks again and again, at last every `poll_max_seconds`.
        """
        check_number(limit, "limit", 1, 10_000, is_whole=True)
        check_number(wait_seconds, "wait_seconds", 0, 86_400)
        until = time.monotonic() + wait_seconds
        polls = Backoff(FIRST_POLL_SECONDS, self.settings.poll_max_seconds)
        while True:
            found = await self._look(limit)
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            await asyncio.sleep(min(polls.next(), left))

    async def complete_all(
        self, results: Iterable[tuple[LeasedCommand, Any]]
    ) -> list[LeasedCommand]:
        """Complete many in one commit, each with its result; returns those whose lease was lost."""
        group = [(leased, self.completion(leased, result)) for leased, result in results]
        return await self.settle(group, "completed") if group else []

    async def close(self) -> None:
        """Give back what is not settled; if that fails, the leases lapse."""
        outcomes = [Outcome(leased.lease, OutcomeKind.RELEASE) for leased in self._open]
        for leased in self._open:
            leased.ended_as = "released"
        self._open.clear()
        if not outcomes:
            return
        try:
            async with asyncio.timeout(ABORT_GRACE_SECONDS):
                await self.store.settle(self.domain, outcomes)
        except (CommandBusError, TimeoutError) as error:
            _log.warning(
                "%d leases could not be given back, and lapse: %s",
                len(outcomes), redact_text(str(error)),
            )  # fmt: skip

    # -- what leased commands ask for

    def completion(self, leased: LeasedCommand, result: Any) -> Outcome:
        """The outcome of a success; raises InvalidPayloadError if the result cannot be stored."""
        leased.check_open()
        size = self.settings.max_payload_bytes
        encoded = encode_json(result, what="the result", max_bytes=size)
        return Outcome(leased.lease, OutcomeKind.COMPLETE, result=encoded)

    async def failed(self, leased: LeasedCommand, error: BaseException) -> Outcome:
        """The outcome of a failed attempt, as the policy says."""
        return failed(leased.lease, await self._entry(leased.lease), error, self.policy)

    async def failure(self, leased: LeasedCommand, error: BaseException) -> Failure:
        """What is stored of a failure that no retry follows."""
        entry = await self._entry(leased.lease)
        failure = failure_of(leased.lease, entry, error, self.policy)
        return replace(failure, error_type="PERMANENT")

    async def record_progress(
        self, leased: LeasedCommand, fraction: float, message: str | None
    ) -> None:
        """Keep how far a command has come; secrets in the text are masked."""
        entry = await self._entry(leased.lease)
        said = redacted_word((leased.lease, entry, fraction, message))
        await self.store.record_progress(self.domain, [said])

    async def extend(self, leased: LeasedCommand, seconds: float) -> None:
        """Extend one lease, or raise LeaseLostError."""
        if await self.store.extend(self.domain, [leased.lease], seconds):
            self._forget(leased, "lost")
            raise lost_lease(leased.lease)

    async def settle(
        self, group: list[tuple[LeasedCommand, Outcome]], end: str, conn: Any = None
    ) -> list[LeasedCommand]:
        """Commit outcomes; returns those whose lease is lost."""
        begun: list[LeasedCommand] = []
        try:
            for leased, _ in group:
                leased.check_open()
                leased.ended_as = end
                begun.append(leased)
            outcomes = [outcome for _, outcome in group]
            lost = await self.store.settle(self.domain, outcomes, conn=conn)
        except BaseException:
            for leased in begun:
                leased.ended_as = None
            raise
        for leased, _ in group:
            self._forget(leased, "lost" if leased.command.command_id in lost else end)
            if conn is not None and leased.command.command_id not in lost:
                # Whether the caller commits is not known here; a rollback leaves the lease.
                leased.ended_as = None
        return [leased for leased, _ in group if leased.command.command_id in lost]

    # -- inside

    def _forget(self, leased: LeasedCommand, end: str) -> None:
        self._open.discard(leased)
        leased.ended_as = end

    async def _look(self, limit: int) -> list[LeasedCommand]:
        now = time.monotonic()
        from_head = now - self._head_at >= HEAD_SECONDS
        if from_head:
            self._head_at = now
        receiving = asyncio.ensure_future(
            self.store.receive(
                self.domain,
                vt_seconds=self.vt_seconds,
                quantity=limit,
                worker=self.worker_id,
                limits={},
                mark_in_progress=self.settings.mark_in_progress,
                from_head=from_head,
                count_every=None if self.policy.count_lapses == "every" else (),
            )
        )
        try:
            leases = await asyncio.shield(receiving)
        except asyncio.CancelledError:
            # The leases may be on their way: they are given back at the end of the block.
            await self._taken(await receiving)
            raise
        return await self._taken(leases)

    async def _taken(self, leases: list[Lease]) -> list[LeasedCommand]:
        found, unreadable = [], []
        for lease in leases:
            try:
                found.append(LeasedCommand(command_of(lease), lease, self))
            except InvalidPayloadError as error:
                unreadable.append(parked(lease, "PAYLOAD_UNDECODABLE", str(error)))
        self._open.update(found)
        if unreadable:
            await self.store.settle(self.domain, unreadable)
        return found

    async def _entry(self, lease: Lease) -> HandlerEntry:
        """The handler that the command would have, for what its failures must not repeat."""
        marked = await self.store.secret_keys(lease.domain, lease.command_type)
        known = self.registry.find(lease.domain, lease.command_type)
        return HandlerEntry(
            lease.domain, lease.command_type, _no_handler, retry_policy=self.policy,
            is_transactional=False, is_async=False,
            secret_keys=marked if known is None else marked | known.secret_keys,
        )  # fmt: skip


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[Consumer]:
    """A consumer while a block runs; what is not settled then goes back."""
    await consumer.store.ensure_domain(consumer.domain)
    try:
        yield consumer
    finally:
        await consumer.close()


def lost_lease(lease: Lease) -> LeaseLostError:
    """The error of a verb that came too late."""
    return LeaseLostError(
        f"the lease of {lease.command_id} was lost; nothing was changed, and the command is, or "
        "was, with another worker"
    )


def _no_handler(*_: object) -> None:
    """Stands where a handler would be."""
