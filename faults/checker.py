"""The checker: does the history of a run keep what the bus promises?

One function for each invariant, pure over `Facts`, all after healing and drain. Each yields what
is wrong as (subject, words). docs/guarantees.md says which promise each of them stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from faults.checker_flow import (
    keys_go_on,
    keys_keep_their_order,
    limits_hold,
    pauses_hold,
    rates_hold,
    the_doctor_finds_nothing,
    ticks_are_accounted_for,
    times_are_kept,
)
from faults.facts import ENDED, OPEN, PARKED, Change, Event, Facts, grouped

Wrong = Iterator[tuple[str, str]]

#: Between the clock readings of two functions in one commit.
CLOCK_TOLERANCE_SECONDS = 0.05

#: What each event of the audit needs, and makes of it; None: leaves it as it is.
STEPS: dict[str, tuple[frozenset[str | None], str | None]] = {
    "SENT": (frozenset({None}), "PENDING"),
    "RECEIVED": (OPEN, "IN_PROGRESS"),
    "LEASE_EXPIRED": (OPEN, None),
    "FAILED": (OPEN, "PENDING"),
    "RELEASED": (OPEN, "PENDING"),
    "SNOOZED": (OPEN, "PENDING"),
    "DISCARDED": (OPEN, "CANCELED"),
    "COMPLETED": (frozenset({"IN_PROGRESS"}), "COMPLETED"),
    "MOVED_TO_TROUBLESHOOTING_QUEUE": (frozenset({"PENDING"}), PARKED),
    "GIVEN_UP": (frozenset({"PENDING"}), "FAILED"),
    "CANCELED": (OPEN, "CANCELED"),
    "EXPIRED": (OPEN, "CANCELED"),
    "OPERATOR_RETRY": (frozenset({PARKED, "FAILED"}), "PENDING"),
    "OPERATOR_CANCEL": (frozenset({PARKED}), "CANCELED"),
    "OPERATOR_COMPLETE": (frozenset({PARKED}), "COMPLETED"),
}
ENDS = frozenset({
    "COMPLETED", "CANCELED", "DISCARDED", "EXPIRED", "GIVEN_UP", "OPERATOR_CANCEL",
    "OPERATOR_COMPLETE",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    invariant: str
    subject: str
    message: str


def check(facts: Facts, invariants: tuple[str, ...] = ()) -> list[Violation]:
    """Everything that is wrong, by invariant; without names all of them are checked."""
    return [
        Violation(name, subject, message)
        for name in invariants or tuple(INVARIANTS)
        for subject, message in INVARIANTS[name](facts)
    ]


def _sent_ok_is_settled(facts: Facts) -> Wrong:
    """I1: what was sent and acknowledged has ended, or waits for a person."""
    status = {row.command_id: row.status for row in facts.rows}
    for command_id in {send.command_id for send in facts.sends if send.outcome == "ok"}:
        found = status.get(command_id)
        if found is None:
            yield command_id, "was acknowledged and is gone"
        elif found not in ENDED and found != PARKED:
            yield command_id, f"was acknowledged and is still {found} after the drain"


def _nothing_comes_from_nowhere(facts: Facts) -> Wrong:
    """I2: every command was sent by somebody."""
    sent = {send.command_id for send in facts.sends if send.outcome in {"ok", "unknown"}}
    for row in facts.rows:
        if row.command_id not in sent:
            yield row.command_id, "exists, but nobody sent it"


def _ends_once(facts: Facts) -> Wrong:
    """I3: one accepted finish; only an operator's retry opens the way to another."""
    for command_id, changes in grouped(facts.changes, _command).items():
        for change in changes:
            is_reopened = change.old_status == "FAILED" and change.new_status == "PENDING"
            if change.old_status in ENDED and not is_reopened:
                yield command_id, f"was {change.old_status} and was then changed again"
    for command_id, events in grouped(facts.events, _command).items():
        ends = sum(event.kind in ENDS for event in events)
        reopenings = sum(event.kind == "OPERATOR_RETRY" for event in events)
        if ends > 1 + reopenings:
            yield command_id, f"ended {ends} times"


def _leases_do_not_overlap(facts: Facts) -> Wrong:
    """I4: nobody takes a lease that still runs."""
    for change in facts.changes:
        if not change.is_takeover or change.held_until is None:
            continue
        if change.at < change.held_until - CLOCK_TOLERANCE_SECONDS:
            early = change.held_until - change.at
            yield change.command_id, f"epoch {change.new_epoch} was leased {early:.3f} s too early"


def _epochs_grow(facts: Facts) -> Wrong:
    """I5: each lease has a larger epoch than the one before, and one holder."""
    for command_id, changes in grouped(facts.changes, _command).items():
        for change in changes:
            if change.new_epoch < change.old_epoch:
                yield command_id, f"its epoch fell from {change.old_epoch} to {change.new_epoch}"
            is_new_holder = change.new_holder is not None and change.new_holder != change.old_holder
            if is_new_holder and change.new_epoch <= change.old_epoch:
                yield command_id, f"epoch {change.new_epoch} was given out twice"
    for (command_id, epoch), claims in grouped(
        facts.claims, lambda claim: (claim.command_id, claim.epoch)
    ).items():
        if len({claim.pid for claim in claims}) > 1:
            yield command_id, f"two workers hold epoch {epoch}"


def _runs_are_explained(facts: Facts) -> Wrong:
    """I6: done means that a handler did it, and a further run has its reason."""
    for command_id, _, not_allowed in extra_runs(facts):
        if not_allowed:
            yield command_id, f"{not_allowed} more runs than lapses, failures and operators explain"
    for (command_id, epoch), starts in grouped(
        facts.starts, lambda start: (start.command_id, start.epoch)
    ).items():
        if len(starts) > 1:
            yield command_id, f"was started {len(starts)} times under epoch {epoch}"
    effects = grouped(facts.effects, lambda effect: effect.command_id)
    last_end = {
        command_id: [event.kind for event in events if event.kind in ENDS][-1:]
        for command_id, events in grouped(facts.events, _command).items()
    }
    for row in facts.rows:
        found = effects.get(row.command_id, [])
        is_done_by_handler = last_end.get(row.command_id) == ["COMPLETED"]
        if is_done_by_handler and not found:
            yield row.command_id, "is COMPLETED without any effect"
        written = sum(effect.is_transactional for effect in found)
        if written > 1 or (written and not is_done_by_handler):
            yield row.command_id, f"a transactional handler wrote {written} times, {row.status}"


def _stale_results_change_nothing(facts: Facts) -> Wrong:
    """I7: an accepted result carries the epoch of the lease that it ended."""
    ended = {
        (change.command_id, change.old_epoch)
        for change in facts.changes
        if change.old_holder is not None and change.new_holder is None
    }
    newest = {row.command_id: row.epoch for row in facts.rows}
    for finish in facts.finishes:
        if finish.verdict == "accepted" and (finish.command_id, finish.epoch) not in ended:
            yield (
                finish.command_id,
                f"a result of epoch {finish.epoch} was accepted from worker {finish.pid}, but it "
                f"ended no lease of that epoch (now {newest.get(finish.command_id)})",
            )


def _batches_are_counted(facts: Facts) -> Wrong:
    """I8: the counters of a batch are what a recount gives, at every look."""
    for number, mismatches in enumerate(facts.batch_samples):
        if mismatches:
            yield f"sample {number}", f"{mismatches} batches differ from a recount"
    for batch in facts.batches:
        if batch.counters != batch.recount:
            yield batch.batch_id, f"says {batch.counters}, a recount gives {batch.recount}"


def _batches_end_once(facts: Facts) -> Wrong:
    """I9: a batch is reported as complete once for each time that it was open."""
    for batch in facts.batches:
        if batch.completions != batch.reopenings + batch.is_closed:
            yield (
                batch.batch_id,
                f"{batch.completions} completions, {batch.reopenings} reopenings, "
                f"{'closed' if batch.is_closed else 'open'}",
            )


def _one_reply_each(facts: Facts) -> Wrong:
    """I10: one reply for each end."""
    replies = Counter(facts.replies)
    ends = Counter(event.command_id for event in facts.events if event.kind in ENDS)
    for row in facts.rows:
        wanted = ends[row.command_id] if row.wants_reply else 0
        if replies[row.command_id] != wanted:
            yield row.command_id, f"{replies[row.command_id]} replies for {wanted} ends"
    for command_id in replies.keys() - {row.command_id for row in facts.rows}:
        yield command_id, "has a reply but is no command"


def _no_orphans(facts: Facts) -> Wrong:
    """I11: a message for each open command, and an open command for each message."""
    rows = {row.command_id: row for row in facts.rows}
    queued = {command_id: msg_id for msg_id, command_id in facts.messages if command_id}
    for msg_id, command_id in facts.messages:
        row = rows.get(command_id or "")
        if row is None:
            yield f"message {msg_id}", "belongs to no command"
        elif row.status not in OPEN:
            yield row.command_id, f"is {row.status} and still has message {msg_id}"
    for row in facts.rows:
        if row.status in OPEN and row.dispatch_status == "queued" and row.command_id not in queued:
            yield row.command_id, f"is {row.status} without a message"
        if row.holder is not None and row.status not in OPEN:
            yield row.command_id, f"is {row.status} and leased by {row.holder}"


def _audit_tells_the_state(facts: Facts) -> Wrong:
    """I12: folding the audit gives the row, by allowed steps only."""
    events = grouped(facts.events, _command)
    for row in facts.rows:
        trail = sorted(events.get(row.command_id, []), key=lambda event: event.audit_id)
        state, wrong = fold(trail)
        if wrong:
            yield row.command_id, wrong
        elif state != row.status:
            yield row.command_id, f"is {row.status}, but its audit says {state}"
    for change in facts.changes:
        if change.old_status is None and change.command_id not in events:
            yield change.command_id, "was created without a word in the audit"


def _attempts_are_bounded(facts: Facts) -> Wrong:
    """I13: never more attempts than allowed."""
    for row in facts.rows:
        if row.attempts > row.max_attempts:
            yield row.command_id, f"{row.attempts} attempts of {row.max_attempts}"


def _one_command_per_key(facts: Facts) -> Wrong:
    """I14: of all sends of one id one takes effect, whichever sender was told so."""
    accepted = Counter(send.command_id for send in facts.sends if send.outcome == "ok")
    for command_id, number in accepted.items():
        if number > 1:
            yield command_id, f"{number} sends of one id were acknowledged"
    born = Counter(event.command_id for event in facts.events if event.kind == "SENT")
    for command_id, number in born.items():
        if number > 1:
            yield command_id, f"was created {number} times"
    rows = {row.command_id for row in facts.rows}
    for send in facts.sends:
        if send.outcome == "duplicate" and send.command_id not in rows:
            yield send.command_id, "was refused as a duplicate but does not exist"


#: By their names in docs/guarantees.md.
INVARIANTS: dict[str, Callable[[Facts], Wrong]] = {
    "I1": _sent_ok_is_settled,
    "I2": _nothing_comes_from_nowhere,
    "I3": _ends_once,
    "I4": _leases_do_not_overlap,
    "I5": _epochs_grow,
    "I6": _runs_are_explained,
    "I7": _stale_results_change_nothing,
    "I8": _batches_are_counted,
    "I9": _batches_end_once,
    "I10": _one_reply_each,
    "I11": _no_orphans,
    "I12": _audit_tells_the_state,
    "I13": _attempts_are_bounded,
    "I14": _one_command_per_key,
    "I15": limits_hold,
    "I16": rates_hold,
    "I17": keys_keep_their_order,
    "I18": keys_go_on,
    "I19": ticks_are_accounted_for,
    "I20": pauses_hold,
    "I21": times_are_kept,
    "I22": the_doctor_finds_nothing,
}


def fold(trail: list[Event]) -> tuple[str | None, str | None]:
    """The state that a trail of events tells, and the first step that is not allowed."""
    state: str | None = None
    for event in trail:
        needed, made = STEPS.get(event.kind, (None, None))
        if needed is None:
            continue  # a note, a refused result: nothing changes
        if state not in needed:
            return state, f"{event.kind} in state {state} (audit {event.audit_id})"
        state = made or state
    return state, None


def extra_runs(facts: Facts) -> Iterator[tuple[str, int, int]]:
    """Commands that ran again without a failure or an operator: (id, allowed, not allowed).

    A lapse, which is what a crash, a pause or a cut leaves, allows one further run each; so does a
    handler that was cancelled by a stop and given back.
    """
    lapses = Counter(change.command_id for change in facts.changes if change.is_takeover)
    wanted: Counter[str] = Counter()
    for event in facts.events:
        if event.kind in {"FAILED", "OPERATOR_RETRY", "SNOOZED"}:
            wanted[event.command_id] += 1
        elif event.kind == "RELEASED":
            lapses[event.command_id] += 1
    for command_id, starts in grouped(facts.starts, lambda start: start.command_id).items():
        extra = len({start.epoch for start in starts}) - 1 - wanted[command_id]
        if extra > 0:
            allowed = min(extra, lapses[command_id])
            yield command_id, allowed, extra - allowed


def _command(item: Event | Change) -> str:
    return item.command_id
