"""What every public operation should do, as a dictionary would: the model of the state machine.

It knows nothing of SQL, and no time but "due" and "not due". Each verb changes the model and
returns what the store should answer, or raises the class of error that it should raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DuplicateCommandError,
    InvalidOperationError,
    PayloadLostError,
)

OPEN = ("PENDING", "IN_PROGRESS")
ENDED = ("COMPLETED", "CANCELED", "FAILED")
PARKED = "IN_TROUBLESHOOTING_QUEUE"
MOST_LAPSES = 10
#: In the order in which settle_commands takes them.
KINDS = (
    "complete", "retry", "retry later", "fail", "release", "snooze", "snooze later", "discard",
    "park",
)  # fmt: skip
MOST_QUEUE_ATTEMPTS = 3


class Refusal(Exception):  # noqa: N818  (the model's word, not an error)
    """The store should refuse, with this class of error."""

    def __init__(self, kind: type[CommandBusError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass
class Command:
    """One row, and its message."""

    name: int
    batch: int | None
    max_attempts: int
    status: str = "PENDING"
    epoch: int = 0
    attempts: int = 0
    lapses: int = 0
    snoozes: int = 0
    #: Its cancel was requested while a worker had it.
    is_marked: bool = False
    is_alone: bool = False
    is_leased: bool = False
    dispatch: str = "queued"
    queue_attempts: int = 0
    #: Whether it has, or had, a message; whether one is in the queue now, and may be read.
    has_msg: bool = True
    is_queued: bool = True
    is_due: bool = True
    #: Where its payload is when it is in no queue.
    is_stored: bool = False
    is_archived: bool = False
    #: How often it was parked: a bulk operation means one of them.
    parks: int = 0
    version: int = 0

    def shown(self) -> tuple[Any, ...]:
        return (
            self.status, self.epoch, self.attempts, self.max_attempts, self.lapses, self.is_alone,
            self.is_leased, self.dispatch, self.has_msg, self.batch, self.snoozes,
            self.is_marked,
        )  # fmt: skip


@dataclass
class Batch:
    """The counters of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    canceled: int = 0
    tsq: int = 0
    status: str = "PENDING"
    is_closed: bool = False
    closings: int = 0
    is_marked: bool = False

    def shown(self) -> tuple[Any, ...]:
        return (
            self.total, self.completed, self.failed, self.canceled, self.tsq, self.status,
            self.is_closed, self.closings, self.is_marked,
        )  # fmt: skip


@dataclass
class Bulk:
    """What a bulk operation froze: commands, and which parking of each."""

    verb: str
    items: list[tuple[int, int]]


@dataclass
class Lease:
    """What a worker remembers."""

    name: int
    epoch: int


def _waits(c: Command) -> bool:
    return c.status == "PENDING" and not c.is_leased


def _class(status: str) -> str:
    names = {PARKED: "tsq", "COMPLETED": "completed", "CANCELED": "canceled", "FAILED": "failed"}
    return names.get(status, "open")


@dataclass
class Expected:
    """A domain, as it should be."""

    commands: dict[int, Command] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    events: dict[str, list[str]] = field(default_factory=dict)
    replies: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: Messages that nobody waits for, by command.
    strays: Counter[int] = field(default_factory=Counter)
    bulk: Bulk | None = None

    # -- small parts

    def _tell(self, name: int | str, *events: str) -> None:
        self.events.setdefault(str(name), []).extend(events)

    def _move(self, c: Command, status: str) -> None:
        """The status, and the counters of the batch."""
        before, c.status = _class(c.status), status
        after = _class(status)
        if c.batch is None or before == after:
            return
        b = self.batches[c.batch]
        for kind, step in ((before, -1), (after, 1)):
            if kind != "open":
                setattr(b, kind, getattr(b, kind) + step)

    def _close(self, numbers: Iterable[int | None]) -> None:
        """After a transaction: batches that are done are closed, others open again."""
        for number in sorted({n for n in numbers if n is not None}):
            b = self.batches[number]
            is_done = b.completed + b.failed + b.canceled == b.total
            if is_done and not b.is_closed:
                b.is_closed = True
                b.closings += 1
                is_bad = b.failed + b.canceled > 0
                b.status = "COMPLETED_WITH_FAILURES" if is_bad else "COMPLETED"
                self._tell(f"batch {number}", "BATCH_COMPLETED")
            elif not is_done and b.is_closed:
                b.is_closed, b.status = False, "IN_PROGRESS"
                self._tell(f"batch {number}", "BATCH_REOPENED")

    def _end(self, c: Command, status: str, outcome: str) -> None:
        self._move(c, status)
        self.replies[c.name, outcome] += 1

    def _give_back(self, c: Command) -> None:
        c.is_leased = c.is_alone = False

    def _archive(self, c: Command) -> None:
        c.is_archived |= c.is_queued
        c.is_queued = False

    # -- sending

    def send(
        self, names: Sequence[int], batch: int | None, attempts: int, *, creates: bool = False,
        stored: bool = False,
    ) -> None:  # fmt: skip
        if batch is not None and batch not in self.batches and not creates:
            raise Refusal(BatchNotFoundError)
        if len(set(names)) < len(names) or any(name in self.commands for name in names):
            raise Refusal(DuplicateCommandError)
        if creates:
            assert batch is not None
            self.batches[batch] = Batch(total=len(names))
        elif batch is not None:
            if self.batches[batch].is_closed:
                raise Refusal(InvalidOperationError)
            self.batches[batch].total += len(names)
        for name in names:
            c = Command(name, batch, attempts)
            if stored:
                c.dispatch, c.has_msg, c.is_queued, c.is_stored = (
                    "pending_queue",
                    False,
                    False,
                    True,
                )
            self.commands[name] = c
            self._tell(name, "SENT")

    def stray(self, name: int) -> None:
        self.strays[name] += 1

    # -- workers

    def due(self) -> list[Command]:
        return [c for c in self.commands.values() if c.is_queued and c.is_due]

    def is_spent(self, c: Command, limit: int | None) -> bool:
        more = 1 if not c.is_leased or c.is_alone else 0
        return c.attempts + more > (limit or c.max_attempts) or abs(c.lapses) >= MOST_LAPSES

    def receive(
        self, taken: Sequence[Command], limit: int | None, marks: bool
    ) -> list[tuple[int, int, int, bool]]:
        """These messages are read; returns (name, epoch, attempt, is_suspect) of the leases."""
        leases = []
        begun: set[int] = set()
        for c in taken:
            if c.is_marked or self.is_spent(c, limit):
                continue
            c.max_attempts = limit or c.max_attempts
            c.attempts += 1 if not c.is_leased or c.is_alone else 0
            c.lapses = abs(c.lapses) + 1 if c.is_leased else c.lapses
            c.epoch += 1
            c.is_leased, c.is_alone, c.is_due = True, False, False
            c.status = "IN_PROGRESS" if marks else "PENDING"
            self._tell(c.name, *(["LEASE_EXPIRED"] if c.lapses > 0 else []), "RECEIVED")
            if c.batch is not None and self.batches[c.batch].status == "PENDING":
                begun.add(c.batch)
            leases.append((c.name, c.epoch, c.attempts, abs(c.lapses) > 1))
        for number in begun:
            self.batches[number].status = "IN_PROGRESS"
            self._tell(f"batch {number}", "BATCH_STARTED")
        spent = [c for c in taken if c.name not in {lease[0] for lease in leases}]
        for c in spent:
            c.max_attempts = limit or c.max_attempts
            c.epoch += 1
            if c.is_marked:
                self._tell(c.name, "LEASE_EXPIRED")
                self._cancel_leased(c)
            else:
                self._park(c)
        self._close(c.batch for c in spent)
        return leases

    def drop_strays(self) -> None:
        """A message that nobody waits for is archived when it is read."""
        self.strays.clear()

    def _park(self, c: Command) -> None:
        self._give_back(c)
        c.lapses, c.is_alone = 0, False
        c.parks += 1
        self._archive(c)
        self._move(c, PARKED)
        self._tell(c.name, "FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE")

    def holds(self, lease: Lease) -> Command | None:
        """The command, if this lease is still the one that holds it."""
        c = self.commands.get(lease.name)
        return c if c is not None and c.epoch == lease.epoch and c.is_leased else None

    def settle(self, outcomes: Sequence[tuple[Lease, str]]) -> set[int]:
        """Returns whose lease is lost. Events of a group come kind by kind."""
        stale: set[int] = set()
        moved: list[Command] = []
        for kind in KINDS:
            for lease, verb in outcomes:
                if verb != kind:
                    continue
                c = self.holds(lease)
                if c is not None:
                    self._settle(c, verb)
                    moved.append(c)
                elif (row := self.commands.get(lease.name)) is not None and not (
                    row.epoch == lease.epoch and not row.is_leased
                ):
                    stale.add(lease.name)
                    self._tell(lease.name, "STALE_RESULT_REJECTED")
        self._close(c.batch for c in moved)
        return stale

    def _cancel_leased(self, c: Command) -> None:
        """In place of what would start a marked command again."""
        self._give_back(c)
        c.lapses, c.is_alone = 0, False
        self._archive(c)
        self._end(c, "CANCELED", "CANCELED")
        self._tell(c.name, "CANCELED")

    def _settle(self, c: Command, verb: str) -> None:
        if c.is_marked and verb.split(maxsplit=1)[0] in {"retry", "snooze", "release"}:
            self._cancel_leased(c)
            return
        match verb:
            case "complete":
                self._give_back(c)
                c.lapses = 0
                c.is_queued = False  # deleted, not archived
                self._end(c, "COMPLETED", "SUCCESS")
                self._tell(c.name, "COMPLETED")
            case "retry" | "retry later":
                self._give_back(c)
                c.lapses, c.status, c.is_due = 0, "PENDING", verb == "retry"
                self._tell(c.name, "FAILED")
            case "fail":
                self._give_back(c)
                c.lapses = 0
                self._archive(c)
                self._end(c, "FAILED", "FAILED")
                self._tell(c.name, "FAILED", "GIVEN_UP")
            case "release":
                self._give_back(c)
                c.lapses, c.attempts = -abs(c.lapses), max(c.attempts - 1, 0)
                c.status, c.is_due = "PENDING", True
                self._tell(c.name, "RELEASED")
            case "snooze" | "snooze later":
                self._give_back(c)
                c.lapses, c.attempts = 0, max(c.attempts - 1, 0)
                c.snoozes += 1
                c.status, c.is_due = "PENDING", verb == "snooze"
                self._tell(c.name, "SNOOZED")
            case "discard":
                self._give_back(c)
                c.lapses = 0
                self._archive(c)
                self._end(c, "CANCELED", "CANCELED")
                self._tell(c.name, "DISCARDED")
            case _:
                self._park(c)

    def confirm(self, lease: Lease) -> bool:
        c = self.holds(lease)
        if c is not None:
            c.is_alone = True
        return c is not None

    def extend(self, leases: Sequence[Lease]) -> set[int]:
        for lease in leases:
            if (c := self.holds(lease)) is not None:
                c.is_due = False
        return {lease.name for lease in leases if self.holds(lease) is None}

    def lapse(self) -> None:
        for c in self.commands.values():
            c.is_due |= c.is_queued

    # -- operators

    def _check(self, names: Sequence[int], may: Callable[[Command], bool]) -> list[Command]:
        for name in sorted(names):
            if name not in self.commands:
                raise Refusal(CommandNotFoundError)
            if not may(self.commands[name]):
                raise Refusal(InvalidOperationError)
        return [self.commands[name] for name in dict.fromkeys(names)]

    def _requeue(self, chosen: Sequence[Command], resets: bool) -> None:
        if any(not (c.is_archived or c.is_stored) for c in chosen):
            raise Refusal(PayloadLostError)
        for c in chosen:
            b = None if c.batch is None else self.batches[c.batch]
            if b is not None and b.is_closed and b.is_marked:
                raise Refusal(InvalidOperationError)
        for c in chosen:
            self._move(c, "PENDING")
            c.lapses, c.dispatch = 0, "queued"
            c.attempts = 0 if resets else min(c.attempts, c.max_attempts - 1)
            c.snoozes = 0 if resets else c.snoozes
            c.is_marked = False
            c.has_msg = c.is_queued = c.is_due = True
            # its payload is in the archive under the old message's number, and so out of reach
            c.is_archived = False
            self._tell(c.name, "OPERATOR_RETRY")
        self._close(c.batch for c in chosen)

    def operate(self, verb: str, names: Sequence[int], resets: bool = True) -> None:
        match verb:
            case "retry":
                self._requeue(self._check(names, lambda c: c.status == PARKED), resets)
            case "cancel":
                self._cancel(
                    self._check(names, lambda c: c.status == "PENDING" and not c.is_leased)
                )
            case _:
                self._resolve(verb, self._check(names, lambda c: c.status == PARKED))

    def _resolve(self, verb: str, chosen: Sequence[Command]) -> None:
        is_cancel = verb == "operator cancel"
        for c in chosen:
            self._end(c, "CANCELED" if is_cancel else "COMPLETED",
                      "CANCELED" if is_cancel else "SUCCESS")  # fmt: skip
            self._tell(c.name, "OPERATOR_CANCEL" if is_cancel else "OPERATOR_COMPLETE")
        self._close(c.batch for c in chosen)

    def _cancel(self, chosen: Sequence[Command]) -> int:
        for c in chosen:
            if not c.has_msg:
                c.is_stored = False
                c.dispatch = c.dispatch if c.dispatch == "queued" else "failed"
            self._archive(c)
            self._end(c, "CANCELED", "CANCELED")
            self._tell(c.name, "CANCELED")
        self._close(c.batch for c in chosen)
        return len(chosen)

    def request(self, names: Sequence[int]) -> set[int]:
        """Cancel what waits, and mark what a worker has; returns the latter."""
        chosen = self._check(names, lambda c: c.status in OPEN and (c.is_leased or _waits(c)))
        self._cancel([c for c in chosen if not c.is_leased])
        return self._mark([c for c in chosen if c.is_leased])

    def request_batch(self, batch: int) -> int:
        found = [c for c in self._members(batch) if c.is_leased and not c.is_marked]
        return len(self._mark(found))

    def _mark(self, chosen: Sequence[Command]) -> set[int]:
        for c in chosen:
            if not c.is_marked:
                c.is_marked = True
                self._tell(c.name, "CANCEL_REQUESTED")
        return {c.name for c in chosen}

    def note(self, name: int) -> None:
        if name not in self.commands:
            raise Refusal(CommandNotFoundError)
        self._tell(name, "NOTE")

    def _members(self, batch: int) -> list[Command]:
        if batch not in self.batches:
            raise Refusal(BatchNotFoundError)
        return [c for c in self.commands.values() if c.batch == batch]

    def cancel_batch(self, batch: int) -> int:
        waiting = [c for c in self._members(batch) if c.status == "PENDING" and not c.is_leased]
        return self._cancel(waiting)

    def retry_batch(self, batch: int) -> int:
        failed = [c for c in self._members(batch) if c.status in {PARKED, "FAILED"}]
        self._requeue(failed, resets=True)
        return len(failed)

    def start_bulk(self, verb: str) -> None:
        parked = [c for c in self.commands.values() if c.status == PARKED]
        if not parked:
            raise Refusal(InvalidOperationError)
        self.bulk = Bulk(verb, [(c.name, c.parks) for c in parked])

    def run_bulk(self) -> tuple[int, int]:
        """(done, skipped)."""
        assert self.bulk is not None
        found = [(self.commands.get(name), parks) for name, parks in self.bulk.items]
        ready = [
            c for c, parks in found if c is not None and c.status == PARKED and c.parks == parks
        ]
        if self.bulk.verb == "retry":
            self._requeue(ready, resets=True)
        else:
            self._resolve(
                "operator cancel" if self.bulk.verb == "cancel" else "operator complete", ready
            )
        skipped = len(self.bulk.items) - len(ready)
        self.bulk = None
        return len(ready), skipped

    # -- stored commands

    def queue_stored(self, names: Sequence[int]) -> int:
        stored = [
            c
            for name in set(names)
            if (c := self.commands.get(name)) is not None
            and c.status == "PENDING"
            and not c.has_msg
            and c.dispatch in {"pending_queue", "pending_retry", "queued"}
        ]
        for c in stored:
            c.has_msg = c.is_queued = c.is_due = True
            c.dispatch, c.is_stored = "queued", False
        return len(stored)

    def fail_dispatch(self, names: Sequence[int]) -> int:
        given_up = []
        for name in set(names):
            c = self.commands.get(name)
            if c is None or c.status != "PENDING" or c.has_msg:
                continue
            c.queue_attempts += 1
            if c.queue_attempts < MOST_QUEUE_ATTEMPTS:
                c.dispatch = "pending_retry"
                continue
            c.dispatch = "failed"
            self._end(c, "FAILED", "FAILED")
            self._tell(c.name, "FAILED", "GIVEN_UP")
            given_up.append(c)
        self._close(c.batch for c in given_up)
        return len(given_up)

    # -- retention

    def prune_commands(self) -> int:
        gone = [c.name for c in self.commands.values() if c.batch is None and c.status in ENDED]
        for name in gone:
            del self.commands[name]
        return len(gone)

    def prune_batches(self) -> int:
        """What was marked goes, what has ended is marked; returns how many batches went."""
        gone = [number for number, b in self.batches.items() if b.is_marked]
        for number in gone:
            for c in self._members(number):
                del self.commands[c.name]
            del self.batches[number]
        for b in self.batches.values():
            b.is_marked |= b.is_closed
        return len(gone)

    def prune_archives(self) -> None:
        for c in self.commands.values():
            if c.status in ENDED:
                c.is_archived = False
