"""The invariants of time and flow: limits, rates, order by key, pauses, expiry, schedules.

As those of `checker`: pure functions of `Facts`, which say what is wrong as (subject, words).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from faults.facts import Change, Facts, grouped
from faults.facts_flow import PlaceSample, Rate

Wrong = Iterator[tuple[str, str]]

#: Spans of time in which the leases of a rate are counted, in seconds.
WINDOWS = (0.1, 1.0, 10.0)
#: A handler writes down its start a moment after it was called.
NOTED_SECONDS = 0.25
#: Audit and tap have microseconds, a float has a little less.
ROUNDING = 1e-5


def limits_hold(facts: Facts) -> Wrong:
    """I15: never more places taken than the limit, one for each lease, none left over."""
    for sample in facts.flow.places:
        if sample.taken > sample.limit:
            yield sample.gate, f"{sample.taken} places of {sample.limit} taken at {sample.at:.3f}"
    for number, mismatches in enumerate(facts.flow.place_mismatches):
        if mismatches:
            yield f"sample {number}", f"{mismatches} leases without a place, or the reverse"
    if facts.flow.places_left:
        yield "places", f"{facts.flow.places_left} are left after the drain"


def rates_hold(facts: Facts) -> Wrong:
    """I16: in no span of t seconds more leases than rate * t + burst, by the audit."""
    rows = {row.command_id: row for row in facts.rows}
    received = [event for event in facts.events if event.kind == "RECEIVED"]
    for rate in facts.flow.rates:
        counted = defaultdict[str, list[float]](list)
        for event in received:
            row = rows.get(event.command_id)
            if row is None or rate.command_type not in {"", row.command_type}:
                continue
            if not rate.by_key:
                counted[rate.command_type or "the domain"].append(event.at)
            elif row.limit_key is not None:
                counted[f"{rate.command_type}/{row.limit_key}"].append(event.at)
        for name, times in counted.items():
            yield from _follow_rate(name, rate, sorted(times))


def _follow_rate(name: str, rate: Rate, times: list[float]) -> Wrong:
    for span in WINDOWS:
        allowed = rate.per_second * span + rate.burst
        for place, at in enumerate(times):
            found = bisect_right(times, at + span - ROUNDING) - place
            if found > allowed + ROUNDING:
                yield name, f"{found} leases in {span:g} s from {at:.3f}"
                break


def keys_keep_their_order(facts: Facts) -> Wrong:
    """I17: leases and results of a key in the order of its numbers, one lease at a time."""
    for key, changes in grouped(
        (change for change in facts.changes if change.ordering_key is not None),
        lambda change: change.ordering_key,
    ).items():
        yield from _follow_key(str(key), changes)


def _follow_key(key: str, changes: list[Change]) -> Wrong:
    last = 0
    holders: dict[str, str] = {}
    for change in changes:
        number = change.key_seq or 0
        if change.is_claim:
            if number < last:
                yield change.command_id, f"number {number} of {key} was leased after {last}"
            others = holders.keys() - {change.command_id}
            if others:
                yield change.command_id, f"was leased while {min(others)} of {key} was"
        is_result = change.old_holder is not None and change.new_holder is None
        if is_result and number < last:
            yield change.command_id, f"number {number} of {key} ended after {last} had begun"
        last = max(last, number if change.is_claim else 0)
        if change.new_holder is None:
            holders.pop(change.command_id, None)
        else:
            holders[change.command_id] = change.new_holder


def keys_go_on(facts: Facts) -> Wrong:
    """I18: no key stands still for longer than a lease and two seconds, unless it is blocked."""
    for key, seconds in facts.flow.stuck_keys.items():
        if seconds > facts.flow.patience_seconds:
            yield key, f"had no head that is due or leased for {seconds:.2f} s"


def ticks_are_accounted_for(facts: Facts) -> Wrong:
    """I19: each planned tick is one command, or recorded as skipped or missed."""
    for ticked in facts.flow.ticks:
        told = ticked.sent + ticked.skipped + ticked.dropped
        if told != ticked.planned:
            yield (
                ticked.name,
                f"{ticked.planned} ticks were planned; {ticked.sent} were sent, "
                f"{ticked.skipped} skipped, {ticked.dropped} dropped",
            )


def pauses_hold(facts: Facts) -> Wrong:
    """I20: no lease by a receive that began after a pause; what was not begun is given back."""
    types = {row.command_id: row.command_type for row in facts.rows}
    started = {(start.command_id, start.epoch): start.at for start in facts.starts}
    for number, pause in enumerate(facts.flow.pauses):
        for event in facts.events:
            if event.kind != "RECEIVED" or not pause.committed < event.at < pause.resuming:
                continue
            if pause.command_type in {None, types.get(event.command_id)}:
                late = event.at - pause.committed
                yield event.command_id, f"was leased {late:.3f} s after pause {number}"
        for command_id, epoch in pause.held:
            at = started.get((command_id, epoch))
            if at is None or at > pause.held_at + NOTED_SECONDS:
                yield command_id, f"was not begun, and still leased 2 s after pause {number}"


def times_are_kept(facts: Facts) -> Wrong:
    """I21: no lease before a command is due, nor after it has expired; what expires ends."""
    for event in facts.events:
        if event.kind != "RECEIVED":
            continue
        due = facts.flow.due_at.get(event.command_id)
        expires = facts.flow.expires_at.get(event.command_id)
        if due is not None and event.at < due - ROUNDING:
            yield event.command_id, f"was leased {due - event.at:.3f} s before it was due"
        if expires is not None and event.at > expires + ROUNDING:
            yield event.command_id, f"was leased {event.at - expires:.3f} s after it expired"
    for event in facts.events:
        expires = facts.flow.expires_at.get(event.command_id)
        if event.kind == "EXPIRED" and expires is not None and event.at < expires - ROUNDING:
            yield event.command_id, f"ended as expired {expires - event.at:.3f} s too early"


def the_doctor_finds_nothing(facts: Facts) -> Wrong:
    """I22: after the drain the doctor has nothing to say."""
    for finding in facts.flow.findings:
        yield "doctor", finding


def slowest_return(facts: Facts) -> float | None:
    """Seconds from the death of a worker until all places are used by the living again.

    Only deaths that no other death, and no outage, follows within the time that is allowed. Gates
    of types only: one of a key is full as long as its customer has much to do, and one of a domain
    as long as its types let that many through.
    """
    patience = facts.flow.patience_seconds
    deaths = sorted(death.at for death in facts.deaths)
    killed = {death.pid: death.at for death in facts.deaths if death.kind == "kill"}
    samples = defaultdict[str, list[PlaceSample]](list)
    for sample in facts.flow.places:
        if sample.gate.startswith("l:t:"):
            samples[sample.gate].append(sample)
    slowest: float | None = None
    for place, died in enumerate(deaths):
        following = deaths[place + 1] if place + 1 < len(deaths) else float("inf")
        is_alone = following - died > patience and not any(
            outage.began < died + patience and outage.ready > died for outage in facts.outages
        )
        if not is_alone or not facts.phases.during[0] <= died <= facts.phases.during[1]:
            continue
        for found in samples.values():
            at = next((s.at for s in found if s.at > died and _is_full(s, killed)), None)
            if at is not None:
                slowest = max(slowest or 0.0, at - died)
    return slowest


def _is_full(sample: PlaceSample, killed: dict[int, float]) -> bool:
    used = sum(n for pid, n in sample.holders.items() if killed.get(pid, sample.at) >= sample.at)
    return used >= sample.limit
