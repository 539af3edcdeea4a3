"""The runs of time and flow, F30 to F36, in a short and a long form."""

from __future__ import annotations

from dataclasses import replace

from faults.nemeses import KillPostmaster, KillWorkers, PauseWorkers, Wait
from faults.nemeses_flow import CancelRunning, InTurn, Pauses, WaitForCommands
from faults.nemeses_network import CutCommits
from faults.nemeses_schedules import Schedules
from faults.plan import Bars, Load, Run, Workers
from faults.watchers import KeyOperator, KeyWatch, PlaceWatch, ProgressWatch

#: Each kind of gate: places of one type, the rate of another, places and a rate for each key of a
#: third beside a rate of all of it, and places and a rate of the domain.
LIMITS = """
select commandbus.set_limit('storm', p_max_running => 13, p_rate => 400, p_burst => 40),
       commandbus.set_limit('storm', 'Limited', p_max_running => 6),
       commandbus.set_limit('storm', 'Rated', p_rate => 60, p_per => 1, p_burst => 10),
       commandbus.set_limit('storm', 'Keyed', p_rate => 50, p_burst => 8),
       commandbus.set_limit('storm', 'Keyed', true, p_max_running => 2, p_rate => 15, p_burst => 3)
"""
LIMITED = Load(
    mix={"Limited": 50.0, "Limited:transient": 4.0, "Limited:permanent": 1.0, "Rated": 20.0,
         "Keyed": 20.0, "Keyed:transient": 1.0, "fine": 4.0},
    groups=(6.0, 2.0, 0.0), limit_keys=4,
)  # fmt: skip
KEYED = Load(
    mix={"fine": 90.0, "transient": 7.0, "permanent": 3.0}, groups=(4.0, 3.0, 0.0, 2.0), keys=24,
)  # fmt: skip
CANCELED = Load(mix={"fine": 70.0, "transient": 25.0, "Write": 5.0}, work_ms=200)
EXPIRING = Load(mix={"fine": 95.0, "transient": 5.0}, expires_seconds=(0.05, 1.5), backlog=60)
SKIPPING = Load(mix={"fine": 60.0, "Report": 40.0}, groups=(1.0, 9.0, 0.2), skips_known=True)

#: These end what has expired, and fire schedules.
UPKEEP = {"maintenance": True, "maintenance_interval_seconds": 1.0}
WATCH_KEYS = (KeyWatch(), KeyOperator())


def long_runs() -> tuple[Run, ...]:
    """As in docs/guarantees.md."""
    return (
        Run(
            "F30", "limits and rates, while workers are killed and paused, and the server is",
            (InTurn((KillWorkers(60, (0.2, 0.5)), KillWorkers(6, (5.5, 6.5)), PauseWorkers(3),
                     KillPostmaster(3))),),
            (PlaceWatch(),),
            load=LIMITED, sabotage=LIMITS,
            bars=Bars(at_least={"worker_kills": 60, "place_samples": 5_000, "full_domains": 50,
                                "full_types": 500, "full_keys": 500},
                      at_most={"return_seconds": 5.0, "deadlocks": 0}),
            drain_seconds=120.0, expected_seconds=120,
        ),
        Run(
            "F31", "order by key, while workers are killed and paused, and the server is",
            (InTurn((KillWorkers(90, (0.2, 0.5)), PauseWorkers(6, at_once=2),
                     KillPostmaster(6), WaitForCommands(200_000, 900.0))),),
            WATCH_KEYS,
            # Handlers that do nothing, so that there are very many commands. Some sends are rolled
            # back or never arrive: more are tried than are wanted.
            load=replace(KEYED, work_ms=0.0, tasks=8, keys=400, backlog=600, count=230_000,
                         mix={"fine": 98.5, "transient": 1.0, "permanent": 0.5},
                         groups=(1.0, 6.0, 0.0, 1.0)),
            workers=Workers(number=3, concurrency=32),
            bars=Bars(at_least={"worker_kills": 80, "key_samples": 200, "decisions": 100,
                                "commands_sent": 200_000}),
            drain_seconds=600.0, expected_seconds=350,
        ),
        Run(
            "F32", "1,000 schedules on three workers, one of which is killed each second",
            (Schedules(1_000, 30.0, steps=3), KillWorkers(30, (0.9, 1.1))),
            load=Load(tasks=0),
            workers=Workers(number=3, concurrency=16, settings=UPKEEP),
            bars=Bars(at_least={"worker_kills": 30, "ticks_planned": 20_000, "clock_steps": 2}),
            drain_seconds=240.0, expected_seconds=120,
        ),
        Run(
            "F33", "pauses of the domain and of a type against receives",
            (Pauses(20, (None, "Limited")),),
            (PlaceWatch(),),
            load=LIMITED, sabotage=LIMITS,
            bars=Bars(at_least={"pauses": 20}),
            expected_seconds=80,
        ),
        Run(
            "F34", "cancels of what runs, while workers are killed and paused",
            (CancelRunning(600), InTurn((KillWorkers(15, (0.5, 1.5)), PauseWorkers(3)))),
            load=CANCELED,
            bars=Bars(at_least={"cancel_requests": 500, "asked_and_canceled": 100,
                                "asked_and_completed": 1}),
            expected_seconds=70,
        ),
        Run(
            "F35", "commands that expire while they are received",
            (Wait(40.0), KillWorkers(10, (2.0, 4.0))),
            load=EXPIRING, workers=Workers(settings=UPKEEP),
            bars=Bars(at_least={"expired": 200, "expiring_and_begun": 200}),
            expected_seconds=70,
        ),
        Run(
            "F36", "known ids are skipped and progress is written, while lines are cut",
            (CutCommits(400),),
            (ProgressWatch(),),
            load=SKIPPING, has_proxy=True,
            bars=Bars(at_least={"cut_commits": 400, "progress_seen": 20},
                      at_most={"progress_of_others": 0}),
            expected_seconds=80,
        ),
    )  # fmt: skip


def short_runs(brisk: Workers) -> tuple[Run, ...]:
    """The same in seconds."""
    return (
        Run(
            "F30", "limits and rates, while workers are killed and paused, and the server is",
            (InTurn((KillWorkers(4, (0.2, 0.5)), PauseWorkers(1, pace=(0.1, 0.2)),
                     KillPostmaster(1, (0.3, 0.6)))),),
            (PlaceWatch(),),
            load=LIMITED, sabotage=LIMITS,
            bars=Bars(at_least={"worker_kills": 4, "place_samples": 100, "full_domains": 1,
                                "full_types": 5, "full_keys": 5},
                      at_most={"deadlocks": 0}),
        ),
        Run(
            "F31", "order by key, while workers are killed and paused, and the server is",
            (InTurn((KillWorkers(4, (0.2, 0.5)), PauseWorkers(1, pace=(0.1, 0.2)),
                     KillPostmaster(1, (0.3, 0.6)))),),
            WATCH_KEYS,
            load=replace(KEYED, work_ms=10.0),
            bars=Bars(at_least={"worker_kills": 4, "key_samples": 10, "decisions": 1}),
        ),
        Run(
            "F32", "schedules on three workers, which are killed in turn",
            (Schedules(60, 6.0), KillWorkers(5, (0.9, 1.1))),
            load=Load(tasks=0), workers=replace(brisk, settings=UPKEEP),
            bars=Bars(at_least={"worker_kills": 5, "ticks_planned": 300, "clock_steps": 2}),
        ),
        Run(
            "F33", "pauses of the domain and of a type against receives",
            (Pauses(2, (None, "Limited"), (0.2, 0.4)),),
            (PlaceWatch(),),
            load=LIMITED, sabotage=LIMITS,
            bars=Bars(at_least={"pauses": 2}),
        ),
        Run(
            "F34", "cancels of what runs, while workers are killed and paused",
            (CancelRunning(40, 15.0), InTurn((KillWorkers(2, (0.3, 0.8)),
                                              PauseWorkers(1, pace=(0.1, 0.2))))),
            load=CANCELED,
            bars=Bars(at_least={"cancel_requests": 20, "asked_and_canceled": 5}),
        ),
        Run(
            "F35", "commands that expire while they are received",
            (Wait(3.0), KillWorkers(2, (0.5, 1.0))),
            load=EXPIRING, workers=replace(brisk, settings=UPKEEP),
            bars=Bars(at_least={"expired": 10, "expiring_and_begun": 10}),
        ),
        Run(
            "F36", "known ids are skipped and progress is written, while lines are cut",
            (CutCommits(25),),
            (ProgressWatch(),),
            load=SKIPPING, has_proxy=True,
            bars=Bars(at_least={"cut_commits": 25}, at_most={"progress_of_others": 0}),
        ),
    )  # fmt: skip
