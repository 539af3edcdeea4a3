"""All runs, F1 to F19, in a short and a long form. docs/guarantees.md explains each."""

from __future__ import annotations

from commandbus.testing.faults.nemeses import KillWorkers
from commandbus.testing.faults.plan import Bars, Run, Scale


def catalogue(scale: Scale) -> tuple[Run, ...]:
    """The runs of a tier."""
    return (
        Run(
            "F1", "workers are killed",
            lambda: (KillWorkers(4, (0.5, 1.0)),),
            calm_seconds=2.0,
            bars=Bars(rescue_seconds=2.0),
        ),
    )
