"""Needs: what of the figures asks for a person, worst first. Pure functions of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from commandbus.upkeep.overview import DomainOverview, DomainRates

#: What has been due for longer than this many seconds, with workers at hand, is late.
LATE_SECONDS = 300.0


class Urgency(IntEnum):
    """How soon somebody should look."""

    NOW = 0
    SOON = 1
    KNOWN = 2


class NeedKind(StrEnum):
    """What it is about, so that a face knows where to lead to."""

    NOBODY_WORKS = "nobody-works"
    STUCK = "stuck"
    PARKED = "parked"
    SILENT = "silent"
    LATE = "late"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a person should look at."""

    urgency: Urgency
    kind: NeedKind
    domain: str
    text: str
    #: How many it is about, to put the largest first.
    size: int = 0


def needs_of(domains: Sequence[DomainOverview], rates: Mapping[str, DomainRates]) -> list[Need]:
    """What needs a person, worst first."""
    found = [need for each in domains for need in _of(each, rates.get(each.domain))]
    return sorted(found, key=lambda need: (need.urgency, -need.size, need.domain))


def _of(each: DomainOverview, rate: DomainRates | None) -> list[Need]:
    found: list[Need] = []

    def add(urgency: Urgency, kind: NeedKind, text: str, size: int = 0) -> None:
        found.append(Need(urgency, kind, each.domain, text, size))

    if each.is_paused:
        add(Urgency.KNOWN, NeedKind.PAUSED, f"{each.domain} is paused", each.ready)
    elif each.ready and not each.workers:
        text = f"nobody works on {each.domain}: {each.ready:,} are ready"
        add(Urgency.NOW, NeedKind.NOBODY_WORKS, text, each.ready)
    elif each.ready and each.due_seconds > LATE_SECONDS:
        text = (
            f"{each.domain} is behind: the first has been due for {each.due_seconds / 60:,.0f} min"
        )
        add(Urgency.SOON, NeedKind.LATE, text, each.ready)
    if each.stuck:
        text = f"{each.stuck} handlers of {each.domain} hang: restart their workers"
        add(Urgency.NOW, NeedKind.STUCK, text, each.stuck)
    if each.parked:
        growing = rate is not None and bool(rate.parked_rate)
        text = f"{each.parked:,} of {each.domain} in troubleshooting" + (
            ", and more come" if growing else ""
        )
        add(Urgency.NOW if growing else Urgency.SOON, NeedKind.PARKED, text, each.parked)
    if each.silent:
        who = "1 worker" if each.silent == 1 else f"{each.silent:,} workers"
        text = f"{who} of {each.domain} gave no sign of life for a minute"
        add(Urgency.SOON, NeedKind.SILENT, text, each.silent)
    return found
