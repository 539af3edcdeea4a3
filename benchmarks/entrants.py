"""Who is measured, and with which settings: the defaults, and the best that were found.

"Defaults" means what a user gets who changes nothing but the concurrency: 10 for all, as
commandbus has it, because some start with one job at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entrant:
    """One system."""

    name: str
    module: str
    is_peer: bool = True
    defaults: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)
    #: For many single senders at once.
    sending: dict[str, Any] = field(default_factory=dict)
    #: Share of the commands that it is given, because it would take too long with all.
    share: float = 1.0
    can_work: bool = True
    #: The `src` folder of another checkout, instead of this one.
    source: str | None = None


ENTRANTS = {
    entrant.name: entrant
    for entrant in (
        Entrant(
            "commandbus",
            "commandbus",
            is_peer=False,
            tuned={"concurrency": 250},
            sending={"pool_size": 32},
        ),
        Entrant(
            "raw PGMQ, groups",
            "pgmq",
            is_peer=False,
            defaults={"group": 10, "loops": 1},
            tuned={"group": 100, "loops": 2},
            sending={"pool_size": 32},
        ),
        Entrant(
            "raw PGMQ, one by one",
            "pgmq",
            is_peer=False,
            defaults={"group": 1, "loops": 10},
            tuned={"group": 1, "loops": 10},
            sending={"pool_size": 32},
            share=0.2,
        ),
        Entrant(
            "pgqueuer",
            "pgqueuer",
            tuned={"driver": "pool", "batch_size": 250},
            sending={"driver": "pool", "pool_size": 32},
        ),
        Entrant(
            "pgqueuer (psycopg)",
            "pgqueuer",
            defaults={"driver": "psycopg"},
            tuned={"driver": "psycopg", "batch_size": 250},
            sending={"driver": "psycopg"},
        ),
        Entrant(
            "awa",
            "awa",
            tuned={
                "workers": 400,
                "connections": 20,
                "queue": {"claimers": 4, "claim_batch_size": 500},
            },
            sending={"connections": 32},
        ),
        Entrant(
            "chancy",
            "chancy",
            tuned={"concurrency": 500, "flush_seconds": 0.1},
            sending={"pool_size": 32},
            share=0.25,
        ),
        Entrant(
            "procrastinate",
            "procrastinate",
            tuned={"concurrency": 30, "pool_size": 30},
            sending={"pool_size": 32},
            share=0.1,
        ),
        Entrant(
            "taskiq-pg",
            "taskiq",
            sending={"pool_size": 32},
            can_work=False,
        ),
    )
}
