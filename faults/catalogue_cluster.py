"""F40: a cluster under Patroni, as users run it who promise availability."""

from __future__ import annotations

from commandbus import Settings
from faults.nemeses_cluster import ClusterFaults
from faults.plan import Bars, Load, Run, Workers

#: Seconds after a leader accepts writes until commands are leased, and end, again.
RESUME = 5.0
#: A frozen server is left by then, in seconds: the deadline, and two more.
LEFT = Settings().deadline_seconds + 2.0


def full_run() -> Run:
    """All of it, by `make faults-ha`: `make faults` has an hour for all its runs."""
    return _run(ClusterFaults(20, 20, 10), RESUME, seconds=1_500.0)


def short_runs(resume_seconds: float) -> tuple[Run, ...]:
    """One of each."""
    return (_run(ClusterFaults(1, 1, 1, pace=(0.5, 1.0)), resume_seconds, seconds=60.0),)


def _run(faults: ClusterFaults, resume_seconds: float, *, seconds: float) -> Run:
    return Run(
        "F40", "a cluster under Patroni: its leader is killed, hands over, stands still",
        (faults,),
        server="cluster",
        workers=Workers(number=3, vt_seconds=10),
        load=Load(mix={"fine": 60.0, "transient": 10.0, "Write": 30.0}),
        bars=Bars(
            resume_seconds=resume_seconds,
            completion_seconds=resume_seconds,
            at_least={
                "leader_kills": faults.kills,
                "leader_switchovers": faults.switchovers,
                "leader_freezes": faults.freezes,
            },
            at_most={"left_seconds": LEFT, "workers_restarted": 0},
        ),
        calm_seconds=2.0,
        drain_seconds=90.0,
        expected_seconds=seconds,
    )  # fmt: skip
