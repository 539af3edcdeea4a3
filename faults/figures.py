"""The figures of a run, and whether its bars are met. Pure, as the checker is."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from faults.checker import Violation, extra_runs
from faults.facts import Facts
from faults.plan import Bars

#: Invariants whose violations have a name in the report.
LOST, DOUBLE, STALE, MISCOUNTED, ORPHANS = "I1", "I3", "I7", "I8", "I11"
#: A lease may be committed so long after the death of who asked for it.
CLOCKS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run has shown."""

    commands: int
    sends_unknown: int
    lost: int
    double_finished: int
    stale_accepted: int
    stale_rejected: int
    batch_samples: int
    batch_mismatches: int
    orphans: int
    duplicates_allowed: int
    duplicates_not_allowed: int
    lapses: int
    #: Seconds; None if there was nothing to measure.
    longest_rescue: float | None
    longest_redelivery: float | None
    slowest_resume: float | None
    slowest_completion: float | None
    rate_before: float | None
    rate_during: float | None
    rate_after: float | None
    counts: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """For the report in JSON."""
        return asdict(self)


def measure(
    facts: Facts,
    violations: list[Violation],
    counts: dict[str, int],
    peaks: dict[str, float],
) -> Figures:
    """All figures of a run."""
    wrong = Counter(violation.invariant for violation in violations)
    allowed = not_allowed = 0
    for _, some, others in extra_runs(facts):
        allowed += some
        not_allowed += others
    takeovers = [change for change in facts.changes if change.is_takeover]
    delays = [change.at - change.held_until for change in takeovers if change.held_until]
    return Figures(
        commands=len(facts.rows),
        sends_unknown=_errors(facts),
        lost=wrong[LOST],
        double_finished=wrong[DOUBLE],
        stale_accepted=wrong[STALE],
        stale_rejected=sum(event.kind == "STALE_RESULT_REJECTED" for event in facts.events),
        batch_samples=len(facts.batch_samples),
        batch_mismatches=wrong[MISCOUNTED],
        orphans=wrong[ORPHANS],
        duplicates_allowed=allowed,
        duplicates_not_allowed=not_allowed,
        lapses=len(takeovers),
        longest_rescue=longest_rescue(facts),
        longest_redelivery=max(delays, default=None),
        slowest_resume=slowest_resume(facts),
        slowest_completion=slowest_completion(facts),
        rate_before=_rate(facts, facts.phases.before),
        rate_during=_rate(facts, facts.phases.during),
        rate_after=_rate(facts, facts.phases.after),
        counts=dict(counts),
        peaks=dict(peaks),
    )


def longest_rescue(facts: Facts) -> float | None:
    """From the death of a worker until somebody else leased what it held.

    A rescue across an outage of the database is left out: nobody could have come. So is a lease
    that began after the death: its worker was paused and came back, and lost it in another way.
    """
    deaths: defaultdict[int, list[float]] = defaultdict(list)
    for death in sorted(facts.deaths, key=lambda death: death.at):
        deaths[death.pid].append(death.at)
    longest: float | None = None
    leased_at: dict[str, float] = {}
    for change in facts.changes:
        began = leased_at.get(change.command_id, 0.0)
        if change.is_claim:
            leased_at[change.command_id] = change.at
        if not change.is_takeover or not change.old_holder:
            continue
        times = deaths.get(int(change.old_holder.split(":")[-2]), [])
        place = bisect_left(times, change.at)
        if place == 0:
            continue
        died = times[place - 1]
        if died < began - CLOCKS_SECONDS:
            continue
        if any(outage.began < change.at and outage.ready > died for outage in facts.outages):
            continue
        longest = max(longest or 0.0, change.at - died)
    return longest


def slowest_resume(facts: Facts) -> float | None:
    """From the database being back until the first lease; across all outages the longest."""
    return _slowest(facts, [change.at for change in facts.changes if change.is_claim])


def slowest_completion(facts: Facts) -> float | None:
    """The same until the first command has ended well."""
    return _slowest(facts, [change.at for change in facts.changes if change.is_completion])


def _slowest(facts: Facts, moments: list[float]) -> float | None:
    moments = sorted(moments)
    slowest: float | None = None
    for number, outage in enumerate(facts.outages):
        place = bisect_left(moments, outage.ready)
        # If the next one came first, it lasted so long at least.
        ends = [each.began for each in facts.outages[number + 1 : number + 2]]
        ends += moments[place : place + 1]
        if ends:
            slowest = max(slowest or 0.0, min(ends) - outage.ready)
    return slowest


def _rate(facts: Facts, window: tuple[float, float]) -> float | None:
    begin, end = window
    if end <= begin:
        return None
    done = sum(event.kind == "COMPLETED" and begin <= event.at < end for event in facts.events)
    return done / (end - begin)


def _errors(facts: Facts) -> int:
    """Sends that raised; each begins as unknown, which is not counted."""
    tries = Counter(send.command_id for send in facts.sends if send.outcome == "unknown")
    return sum(number - 1 for number in tries.values() if number > 1)


def missed_bars(figures: Figures, bars: Bars, vt_seconds: int) -> list[str]:
    """What a run did not show, in words."""
    missed = []
    limits = (
        ("rescue", figures.longest_rescue, bars.rescue_seconds, vt_seconds),
        ("resume", figures.slowest_resume, bars.resume_seconds, 0),
        ("completion", figures.slowest_completion, bars.completion_seconds, 0),
    )
    for name, value, limit, base in limits:
        if limit is None:
            continue
        if value is None:
            missed.append(f"{name}: there was nothing to measure")
        elif value > limit + base:
            missed.append(f"{name} took {value:.2f} s, at most {limit + base:g} s is allowed")
    shares = (
        ("after", figures.rate_after, bars.rate_after),
        ("during", figures.rate_during, bars.rate_during),
    )
    for name, rate, share in shares:
        if share is None:
            continue
        if not figures.rate_before or rate is None:
            missed.append(f"rate {name}: there was nothing to measure")
        elif rate < share * figures.rate_before:
            missed.append(
                f"the rate {name} was {rate / figures.rate_before:.0%} of the rate before, "
                f"at least {share:.0%} is wanted"
            )
    if bars.duplicates is not None and figures.duplicates_allowed > bars.duplicates:
        missed.append(f"{figures.duplicates_allowed} further runs, {bars.duplicates} are allowed")
    known = {**figures.counts, "stale_rejected": figures.stale_rejected}
    for name, least in bars.at_least.items():
        if known.get(name, 0) < least:
            missed.append(f"{name}: {known.get(name, 0):,}, at least {least:,} are wanted")
    measured = {**known, **figures.peaks}
    for name, most in bars.at_most.items():
        if measured.get(name, 0) > most:
            missed.append(f"{name}: {measured[name]:,.3g}, at most {most:,g} is allowed")
    return missed
