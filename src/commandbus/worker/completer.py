"""Completer: writes outcomes in groups, without making a single one wait.

While a commit is in flight, outcomes gather; when it returns, all that gathered goes next. At low
load each goes at once, at high load the groups grow by themselves. There is no linger timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind
from commandbus.database.store import ReceiveOptions
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidInputError,
    InvalidOperationError,
)
from commandbus.loops import Backoff, is_being_cancelled
from commandbus.models import ParkReason
from commandbus.privacy.redaction import redact_text
from commandbus.worker.totals import Totals

#: Outcomes in one commit; beyond this a longer group gains little and holds its locks longer.
MAX_GROUP = 1_000
#: What the database says of what a handler has sent, whenever it is asked.
REFUSALS = (DuplicateCommandError, InvalidInputError, InvalidOperationError)

_log = logging.getLogger("commandbus.completer")


class Settles(Protocol):
    """Where outcomes are written."""

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        """Write them; returns the commands whose lease is lost."""

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
    ) -> tuple[set[UUID], list[Lease]]:
        """The same, and what was leased in the places that they have given back."""


class Refills(Protocol):
    """Who leases commands in the places that others give back."""

    def refill(self, *, is_limited: bool) -> ReceiveOptions | None:
        """What to lease now; None: nothing. Whether those that end have limits decides it too."""

    def refilled(self, options: ReceiveOptions, leases: Sequence[Lease], asked_at: float) -> None:
        """That was leased; nothing, if it failed."""


@dataclass(eq=False)
class Completer:
    """Takes one Outcome for each lease and hands them to the store in groups."""

    store: Settles
    domain: str
    on_settled: Callable[[Sequence[Lease]], None]
    #: What was committed, for the next heartbeat.
    totals: Totals = field(default_factory=Totals)
    #: Set where places are to be filled in the commit that gives them back.
    refills: Refills | None = None

    def __post_init__(self) -> None:
        self._pending: deque[Outcome] = deque()
        self._work = asyncio.Event()
        self._in_flight = 0
        self._settled = asyncio.Event()
        self._settled.set()
        #: How many go into one commit; less than MAX_GROUP after one that took too long.
        self._most = MAX_GROUP

    @property
    def backlog(self) -> int:
        """Outcomes that are not committed yet."""
        return len(self._pending) + self._in_flight

    @property
    def will_refill(self) -> bool:
        """Whether the next commit is one that may lease commands, if there are few places."""
        return bool(self._pending) and not any(
            each.lease.is_limited or each.lease.batch_id for each in self._pending
        )

    def put(self, outcome: Outcome) -> None:
        """Take an outcome; it is committed soon."""
        self._pending.append(outcome)
        self._work.set()
        self._settled.clear()

    async def run(self) -> None:
        """Commit until cancelled.

        One commit at a time: a second one would wait for the first at the row of their batch, and
        without a batch it gains nothing either (ADR 0015).
        """
        # The pool of connections may lose a cancel, if it comes with a connection.
        while not is_being_cancelled():
            await self._flush()

    async def drained(self) -> None:
        """Wait until everything is committed."""
        await self._settled.wait()

    async def _flush(self) -> None:
        await self._work.wait()
        # Let whatever is ready in this turn of the event loop join the group.
        await asyncio.sleep(0)
        group = [
            self._pending.popleft() for _ in range(min(len(self._pending), self._most, MAX_GROUP))
        ]
        if not self._pending:
            self._work.clear()
        self._in_flight = len(group)
        try:
            await self._commit(group, self.refills)
        finally:
            self._in_flight = 0
            if not self._pending:
                self._settled.set()

    async def _commit(self, group: list[Outcome], refills: Refills | None = None) -> None:
        # Repeating is safe: an outcome that was recorded before moves nothing (its lease is over).
        # What has failed is repeated without a receive, which may be what it has failed of.
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                options = _refill(refills, group) if refills else None
                if refills and options:
                    lost = await self._settle_and_receive(group, refills, options)
                else:
                    lost = await self.store.settle(self.domain, group)
            except DatabaseUnavailableError as error:
                if error.took_long and len(group) > 1:
                    await self._commit_in_halves(group, error)
                    return
                pause = backoff.next()
                _log.warning("cannot commit outcomes, next try in %.2f s: %s", pause, error)
                await asyncio.sleep(pause)
                refills = None
                continue
            except CommandBusError as error:
                await self._commit_one_by_one(group, error)
                return
            if len(group) >= self._most:
                self._most = min(MAX_GROUP, self._most + max(1, self._most // 8))
            self.totals.add(group, lost)
            for command_id in lost:
                _log.warning("the result of %s came after its lease: ignored", command_id)
            self.on_settled([outcome.lease for outcome in group])
            return

    async def _settle_and_receive(
        self, group: list[Outcome], refills: Refills, options: ReceiveOptions
    ) -> set[UUID]:
        leases: list[Lease] = []
        asked_at = time.monotonic()
        try:
            lost, leases = await self.store.settle_and_receive(self.domain, group, options)
        finally:
            refills.refilled(options, leases, asked_at)
        return lost

    async def _commit_in_halves(
        self, group: list[Outcome], error: DatabaseUnavailableError
    ) -> None:
        # The same again would take as long again. Later groups grow slowly: each that is too large
        # costs all of its time.
        half = len(group) // 2
        self._most = half
        _log.warning("%d outcomes took too long, next %d of them: %s", len(group), half, error)
        await self._commit(group[:half])
        await self._commit(group[half:])

    async def _commit_one_by_one(self, group: list[Outcome], error: CommandBusError) -> None:
        if len(group) > 1:
            for outcome in group:
                await self._commit([outcome])
            return
        outcome = group[0]
        if isinstance(error, REFUSALS) and outcome.sends:
            await self._commit([_refused_send(outcome, error)])
            return
        # Nothing of it was written. The lease will lapse, and the command is delivered again.
        _log.error(
            "the outcome of %s could not be recorded: %s",
            outcome.lease.command_id, redact_text(str(error)),
        )  # fmt: skip
        self.on_settled([outcome.lease])


def _refill(refills: Refills, group: Sequence[Outcome]) -> ReceiveOptions | None:
    # All of a domain with limits say so: the first one is enough.
    is_limited = group[0].lease.is_limited
    if not is_limited and any(each.lease.batch_id for each in group):
        return None  # such a commit may wait for the row of the batch, and leases nothing
    return refills.refill(is_limited=is_limited)


def _refused_send(outcome: Outcome, error: CommandBusError) -> Outcome:
    """The handler succeeded but sent what cannot be sent: a person has to look at it.

    Run again it would be refused again, with all that it does besides.
    """
    said = redact_text(str(error))
    failure = Failure("PERMANENT", "SEND_REFUSED", said)
    if isinstance(error, DuplicateCommandError):
        failure = Failure("PERMANENT", "DUPLICATE_COMMAND", said)
    return replace(
        outcome,
        kind=OutcomeKind.PARK,
        reason=ParkReason.PERMANENT,
        failure=failure,
        sends=(),
    )
