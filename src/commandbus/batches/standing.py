"""How a batch stands: what holds it open, how fast it goes, what went wrong in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from commandbus.batches.actions import BatchWait, waits_for
from commandbus.batches.model import progress_of
from commandbus.models import BatchMetadata
from commandbus.wording import span

if TYPE_CHECKING:
    from commandbus.loads.model import LoadMetadata

#: `unqueued` is counted up to this number.
COUNTED = 10_000
#: Seconds that the present rate is taken from.
RECENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BatchError:
    """What went wrong under one error code."""

    code: str | None
    parked: int
    failed: int
    sample_command_id: UUID
    sample_message: str | None


@dataclass(frozen=True, slots=True)
class BatchErrors:
    """What failed or is parked of a batch, by code, most first."""

    codes: tuple[BatchError, ...]
    #: Whether all that failed or is parked is in it. Otherwise: of the first 100,000 commands, and
    #: at most 10,000 failed ones.
    is_complete: bool


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is known of a batch beside its counters."""

    #: It waits for an approval.
    is_undecided: bool = False
    #: Nothing more can be added to it by its load.
    is_sealed: bool = True
    #: Commands that are stored and not in a queue yet; more than COUNTED: that many, or more.
    unqueued: int = 0
    #: Workers of its domain that were heard of in the last minute.
    workers: int = 0
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class BatchEnding:
    """What happens when a batch closes."""

    #: Of the command that is sent then; None: none is.
    domain: str | None = None
    command_type: str | None = None
    #: Known before it is sent, and another one after each closing.
    command_id: UUID | None = None
    #: Whether it was, and is still known.
    is_sent: bool = False
    #: Whether a process has a callback for it, which is called if that process still runs.
    notifies: bool = False
    #: Whether it was submitted as a governed batch: its ticket has the same id.
    is_governed: bool = False


@dataclass(frozen=True, slots=True)
class BatchPace:
    """How fast a batch goes. All are None if they cannot be told."""

    #: Of about the last minute, from what the caller has seen; 0.0: nothing ended in it.
    recent_per_second: float | None
    #: Since its first command was begun.
    overall_per_second: float | None
    #: When it will be done: between these two.
    seconds_left_low: float | None
    seconds_left_high: float | None


def batch_sentence(
    batch: BatchMetadata, facts: BatchFacts, now: datetime, load: LoadMetadata | None = None
) -> str:
    """What holds a batch open, or how it ended."""
    if batch.completed_at is not None:
        ago = span((now - batch.completed_at).total_seconds())
        took = span((batch.completed_at - batch.created_at).total_seconds())
        return f"ended {ago} ago, {took} after it was created: {_counts(batch)}"
    open_count, parked = progress_of(batch, now).open, batch.in_troubleshooting_count
    if facts.is_undecided:
        return f"waits for an approval, for {span((now - batch.created_at).total_seconds())}"
    wait = waits_for(batch, load)
    if wait is BatchWait.FAILED_LOAD:
        return "its load stopped: resume, seal or cancel it"
    if wait is BatchWait.LOAD or not facts.is_sealed:
        return "it is still being loaded, so it cannot end yet"
    if wait is BatchWait.OPERATOR:
        return f"waits for {parked:,} {_decisions(parked)} of an operator; all else has ended"
    text = f"{open_count:,} to do"
    if parked:
        text += f", and {parked:,} wait for an operator"
    if facts.unqueued:
        many = f"more than {COUNTED:,}" if facts.unqueued > COUNTED else f"{facts.unqueued:,}"
        return f"{text}; {many} are not in the queue yet"
    if facts.is_paused:
        return f"{text}; its domain is paused"
    if facts.workers == 0:
        return f"{text}; no worker of {batch.domain} was heard of in the last minute: start one"
    return f"{text}; {facts.workers:,} {'worker is' if facts.workers == 1 else 'workers are'} there"


def pace_of(
    batch: BatchMetadata, now: datetime, earlier: Sequence[tuple[datetime, int]] = ()
) -> BatchPace:
    """The rates of a batch, and when it will be done.

    `earlier`: when the caller looked before, oldest first, and how many commands had ended by then.
    The database keeps no history of counters, so without it only the rate since the start is known.
    """
    progress = progress_of(batch, now)
    overall = progress.per_second
    recent = _recent(progress.ended, now, earlier)
    rates = [rate for rate in (recent, overall) if rate]
    if progress.has_ended or recent == 0.0 or not rates:
        return BatchPace(recent, overall, None, None)
    left = (progress.open / max(rates), progress.open / min(rates))
    return BatchPace(recent, overall, *left)


def _recent(ended: int, now: datetime, earlier: Sequence[tuple[datetime, int]]) -> float | None:
    for moment, count in earlier:
        seconds = (now - moment).total_seconds()
        if 1.0 <= seconds <= RECENT_SECONDS + 5:
            # A retry opens what had ended: then there is nothing to measure from.
            return max(ended - count, 0) / seconds
    return None


def _counts(batch: BatchMetadata) -> str:
    parts = [f"{batch.completed_count:,} completed"]
    if batch.failed_count:
        parts.append(f"{batch.failed_count:,} failed")
    if batch.canceled_count:
        parts.append(f"{batch.canceled_count:,} canceled")
    return ", ".join(parts)


def _decisions(number: int) -> str:
    return "decision" if number == 1 else "decisions"
