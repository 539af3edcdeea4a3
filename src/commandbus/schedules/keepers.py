"""Keepers: what every process that lives does for all domains, be it a worker, a service or a
scheduler: it fires schedules, ends what is over, looks after limits and takes samples. There is no
leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from commandbus.database.store import Store
from commandbus.gates.gatekeeper import Gatekeeper
from commandbus.loops import Loop
from commandbus.schedules.firing import Firing
from commandbus.schedules.timekeeper import Timekeeper
from commandbus.upkeep.sampling import Sampler


def keepers_of(store: Store, domains: Callable[[], Collection[str]] = tuple) -> list[Loop]:
    """The loops, to be run beside the work; `domains`: of this process, for what is logged."""
    return [Timekeeper(store), Firing(store), Gatekeeper(store, domains), Sampler(store)]
