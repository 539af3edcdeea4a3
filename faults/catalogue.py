"""All runs in a short and a long form. docs/guarantees.md says what each stands for.

The rate is limited by slots and the length of handlers, not by the machine: a slot that is lost
for good shows in the rate afterwards, and a busy machine hardly does.
"""

from __future__ import annotations

from dataclasses import replace

from faults import catalogue_cluster, catalogue_flow
from faults.nemeses import (
    Failover,
    HoldPool,
    KillBackends,
    KillPostmaster,
    KillWorkers,
    PauseWorkers,
    RollingTerm,
    Wait,
)
from faults.nemeses_data import (
    ClockSteps,
    Hang,
    HoldSnapshot,
    Operators,
    Poison,
    Senders,
)
from faults.nemeses_network import BadWeather, CutCommits
from faults.nemeses_upkeep import CountSessions, FillDisk, UnusualSettings, Upgrade
from faults.plan import Bars, Load, Run, Scale, Workers

RESCUE, RESUME, AFTER = 2.0, 5.0, 0.95
#: What holds when an asynchronous standby takes over: what survived is whole.
SURVIVORS = ("I3", "I8", "I9", "I10", "I11", "I12", "I13")

#: Fewer messages than slots: those who are left have room for what the paused ones held, and so the
#: zombies find their commands in other hands.
SLACK = -20

#: Sums over all runs of the long tier, by the names of counters.
TOTALS = {
    "commands": 100_000,
    "worker_kills": 500,
    "postmaster_kills": 20,
    "failovers": 10,
    "cut_commits": 1_000,
    "stale_rejected": 500,
}

BATCHES = Load(groups=(2.0, 2.0, 4.0), mix={"fine": 78.0, "transient": 10.0, "permanent": 12.0})
TWO_DOMAINS = {"variants": [{"domain": "storm"}, {"domain": "storm_two"}]}
#: Two of three workers have a clock that is a day off.
WRONG_CLOCKS = {
    "variants": [{"clock_offset": 0.0}, {"clock_offset": 86400.0}, {"clock_offset": -86400.0}]
}
SPELLS = (
    ("silence", 8.0), ("silence", 20.0), ("deaf", 6.0), ("mute", 6.0), ("reset", 5.0),
    ("slow", 8.0), ("drip", 8.0), ("half_close", 3.0),
)  # fmt: skip


def catalogue(scale: Scale) -> tuple[Run, ...]:
    """The runs of a tier."""
    if scale == "ha":
        return (catalogue_cluster.full_run(),)
    return _long() if scale == "long" else _short()


def _long() -> tuple[Run, ...]:
    return (
        *_processes(),
        *_database(),
        *_network(),
        *_handlers(),
        *_data(),
        *_upkeep(),
        *catalogue_flow.long_runs(),
    )


def _processes() -> tuple[Run, ...]:
    return (
        Run(
            "F1", "workers are killed, every 1 to 4 s",
            (KillWorkers(40, (1.0, 4.0)),),
            bars=Bars(RESCUE, rate_after=AFTER, rate_during=0.6, at_least={"worker_kills": 40}),
            expected_seconds=140,
        ),
        Run(
            "F1b", "workers are killed, three a second",
            (KillWorkers(470, (0.2, 0.5)),),
            bars=Bars(RESCUE, rate_after=AFTER, at_least={"worker_kills": 460}),
            expected_seconds=220,
        ),
        Run(
            "F2", "workers are paused for twice their lease, and come back as zombies",
            (PauseWorkers(30, at_once=3),),
            # So long that slots are the limit: at 150 ms the producer was, with its uneven rate.
            load=Load(work_ms=400, backlog=SLACK),
            workers=Workers(number=6, concurrency=16),
            bars=Bars(RESCUE, rate_after=AFTER, at_least={"stale_rejected": 500}),
            expected_seconds=260,
        ),
        Run(
            "F15", "workers are stopped and replaced, one by one",
            (RollingTerm(60, grace_seconds=5.0),),
            workers=Workers(settings={"shutdown_grace_seconds": 5.0}),
            bars=Bars(
                rate_after=AFTER, duplicates=0,
                at_most={"bad_stops": 0, "stop_seconds": 7.0},
            ),
            expected_seconds=90,
        ),
    )  # fmt: skip


def _database() -> tuple[Run, ...]:
    back = Bars(resume_seconds=RESUME, rate_after=AFTER)
    return (
        Run(
            "F3", "the server is killed with all its processes and recovers",
            (KillPostmaster(22, (2.0, 4.0)),),
            load=Load(tasks=8),
            bars=replace(back, at_least={"postmaster_kills": 20}),
            expected_seconds=130,
        ),
        Run(
            "F4", "failover to a synchronous standby",
            (Failover(10),),
            server="sync_pair",
            bars=replace(back, at_least={"failovers": 10}),
            expected_seconds=120,
        ),
        Run(
            "F4b", "failover to an asynchronous standby: what is lost is reported",
            (Failover(3, (3.0, 5.0)),),
            server="async_pair", invariants=SURVIVORS,
            bars=Bars(resume_seconds=RESUME),
            expected_seconds=50,
        ),
        Run(
            "F6", "sessions are ended, five a second",
            (KillBackends(250),),
            bars=Bars(rate_after=AFTER, at_least={"backend_kills": 240}),
            expected_seconds=80,
        ),
        Run(
            "F7", "300 idle connections, a pool of two, handlers with connections of their own",
            (HoldPool(300, 25.0),),
            load=Load(mix={"fine": 80.0, "Connect": 20.0}, pool_size=2),
            workers=Workers(settings={"pool_size": 2}),
            bars=Bars(rate_after=AFTER, duplicates=0),
            expected_seconds=70,
        ),
        Run(
            "F19", "the embedded server is killed, with a pid file cut off or another's pid in it",
            (KillPostmaster(6, (2.0, 3.0), ("", "truncate", "foreign")),),
            bars=replace(back, at_least={"postmaster_kills": 6}),
            expected_seconds=60,
        ),
    )  # fmt: skip


def _network() -> tuple[Run, ...]:
    return (
        Run(
            "F5", "lines are cut after the commit and before its answer",
            (CutCommits(1_000),),
            has_proxy=True,
            bars=Bars(rate_after=AFTER, at_least={"cut_commits": 1_000}),
            expected_seconds=120,
        ),
        Run(
            "F5b", "silence both ways and one way, resets, delay, dripping, half-closed lines",
            (BadWeather(SPELLS),),
            has_proxy=True,
            bars=Bars(resume_seconds=15.0, rate_after=AFTER),
            drain_seconds=120, expected_seconds=130,
        ),
    )  # fmt: skip


def _handlers() -> tuple[Run, ...]:
    return (
        Run(
            "F8", "handlers that block the event loop or compute, longer than the lease",
            (Wait(40),),
            load=Load(mix={"fine": 99.0, "Block": 0.5, "Spin": 0.5}, block_seconds=6.0, backlog=20),
            bars=Bars(duplicates=0),
            drain_seconds=120, expected_seconds=90,
        ),
        Run(
            "F9", "poison: handlers that kill their worker, unreadable and unknown messages",
            (Poison(14, 2, 2),),
            workers=Workers(options={"memory_bytes": 4 << 30}),
            bars=Bars(rate_after=AFTER, at_least={"poison_parked": 20}),
            drain_seconds=120, expected_seconds=110,
        ),
        Run(
            "F21", "half of the handlers hang, on the event loop and in threads",
            (Hang(6),),
            # Half of the slots are left, and they keep at least 90 % of their rate.
            bars=Bars(
                rate_after=AFTER, rate_during=0.45, duplicates=0, at_least={"timed_out": 48}
            ),
            expected_seconds=90,
        ),
        Run(
            "F16", "fifty sends of each id at once, some given up",
            (Senders("identical", {"keys": 1_000, "sends": 50}, 300.0),),
            load=Load(tasks=0),
            expected_seconds=120,
        ),
        Run(
            "F14", "producers that send to two domains in opposite order",
            (Senders("crossing", {"tasks": 32, "rounds": 60, "settings": {"pool_size": 32}},
                             open_seconds=30.0),),
            load=Load(tasks=1), workers=Workers(options=TWO_DOMAINS),
            bars=Bars(at_most={"deadlocks": 0, "bad_senders": 0}),
            expected_seconds=60,
        ),
    )  # fmt: skip


def _data() -> tuple[Run, ...]:
    return (
        Run(
            "F10", "the clock of the database jumps by an hour, those of workers are a day off",
            (ClockSteps(8),),
            workers=Workers(options=WRONG_CLOCKS),
            bars=Bars(rate_after=AFTER),
            expected_seconds=70,
        ),
        Run(
            "F12", "100,000 delayed commands, and a snapshot that stops vacuum",
            (HoldSnapshot(100_000, 60.0),),
            workers=Workers(number=2),
            bars=Bars(rate_after=0.9, at_most={"probe_p99_ms": 50.0}),
            drain_seconds=180, expected_seconds=200,
        ),
        Run(
            "F13", "batches, killed workers, and operators who decide at random",
            (KillWorkers(30, (1.0, 3.0)), Operators(600)),
            load=replace(BATCHES, work_ms=140), workers=Workers(concurrency=8),
            bars=Bars(RESCUE, rate_after=AFTER, at_most={"deadlocks": 0},
                      at_least={"decisions": 500}),
            expected_seconds=120,
        ),
    )  # fmt: skip


def _upkeep() -> tuple[Run, ...]:
    return (
        Run(
            "F11", "the disk runs full and is freed again",
            (FillDisk(2, 6.0),),
            server="small_disk",
            load=Load(work_ms=100, backlog=30), workers=Workers(number=2),
            bars=Bars(rate_after=AFTER, at_most={"heal_seconds": 30.0}),
            expected_seconds=60,
        ),
        Run(
            "F17", "PgBouncer in transaction mode, and workers are killed",
            (KillWorkers(10, (1.0, 3.0)),),
            server="pooler",
            workers=Workers(options={"variants": [{"use_notify": False}, {"use_notify": True}]}),
            bars=Bars(RESCUE, rate_after=AFTER),
            expected_seconds=60,
        ),
        Run(
            "F18", "all functions are replaced under traffic; a dump is restored",
            (Upgrade(15),),
            bars=Bars(rate_after=AFTER, at_least={"migrations": 15, "restores": 1},
                      at_most={"restore_faults": 0, "failed_migrations": 0}),
            expected_seconds=60,
        ),
        Run(
            "F22", "all defaults of the server become unusual",
            (UnusualSettings(3, 3.0),),
            # The plans of the harness's own statements suffer as well, so the rate is not judged.
            bars=Bars(at_least={"unusual_settings": 16}),
            expected_seconds=45,
        ),
        Run(
            "F23", "one process serves a thousand domains, nearly all of them idle",
            (CountSessions(1_000, 10.0),),
            workers=Workers(number=1, concurrency=16, options={"idle_domains": 999}),
            # Of the worker 10 + 24 + 16 + 2, of the producer 10, of the side table 10.
            bars=Bars(at_least={"domains_served": 1_000}, at_most={"sessions": 72}),
            drain_seconds=120.0, expected_seconds=150,
        ),
    )  # fmt: skip


#: The machine of a test suite is busy with other things: the short tier judges what is lost or
#: doubled, and times only roughly. The long tier has the real bars.
ROUGHLY = 20.0
#: Short leases, no measuring of rates: seconds for each run.
BRISK = Workers(number=3, concurrency=8, vt_seconds=2)


def _short() -> tuple[Run, ...]:
    runs = (
        Run(
            "F1", "workers are killed",
            (KillWorkers(4, (0.2, 0.6)),),
            bars=Bars(ROUGHLY, at_least={"worker_kills": 4}),
        ),
        Run(
            "F2", "workers are paused for twice their lease, and come back as zombies",
            (PauseWorkers(1, at_once=3, pace=(0.1, 0.3)),),
            load=Load(work_ms=140, backlog=SLACK), workers=replace(BRISK, number=6, concurrency=16),
            bars=Bars(ROUGHLY, at_least={"stale_rejected": 3}),
        ),
        Run(
            "F3", "the server is killed with all its processes and recovers",
            (KillPostmaster(1, (0.5, 1.0)),),
            bars=Bars(resume_seconds=ROUGHLY, at_least={"postmaster_kills": 1}),
        ),
        Run(
            "F4", "failover to a synchronous standby",
            (Failover(1, (0.5, 1.0)),),
            server="sync_pair",
            bars=Bars(resume_seconds=ROUGHLY, at_least={"failovers": 1}),
        ),
        Run(
            "F5", "lines are cut after the commit and before its answer",
            (CutCommits(40),), has_proxy=True,
            bars=Bars(at_least={"cut_commits": 40}),
        ),
        Run(
            "F5b", "silence, resets, half-closed lines",
            (BadWeather((("silence", 1.0), ("reset", 0.5), ("half_close", 0.3),
                                 ("slow", 0.5), ("drip", 0.3)), 0.3),),
            has_proxy=True,
            bars=Bars(resume_seconds=ROUGHLY),
        ),
        Run(
            "F6", "sessions are ended",
            (KillBackends(12, (0.05, 0.15)),),
            bars=Bars(at_least={"backend_kills": 10}),
        ),
        Run(
            "F7", "idle connections, a pool of two, handlers with connections of their own",
            (HoldPool(100, 1.0),),
            load=Load(mix={"fine": 80.0, "Connect": 20.0}, pool_size=2),
            workers=replace(BRISK, settings={"pool_size": 2}),
            bars=Bars(duplicates=0),
        ),
        Run(
            "F8", "handlers that block the event loop or compute, longer than the lease",
            (Wait(1.0),),
            load=Load(mix={"fine": 94.0, "Block": 3.0, "Spin": 3.0}, block_seconds=2.5, backlog=0,
                      count=120),
            workers=replace(BRISK, vt_seconds=1),
            bars=Bars(duplicates=0),
        ),
        Run(
            "F9", "poison: handlers that kill their worker, unreadable and unknown messages",
            (Poison(1),),
            workers=replace(BRISK, vt_seconds=1, options={"memory_bytes": 4 << 30}),
            bars=Bars(at_least={"poison_parked": 5}),
        ),
        Run(
            "F10", "the clock of the database jumps by an hour, those of workers are a day off",
            (ClockSteps(1, hold_seconds=0.5),),
            workers=replace(BRISK, options=WRONG_CLOCKS),
        ),
        Run(
            "F13", "batches, killed workers, and operators who decide at random",
            (KillWorkers(3, (0.3, 0.8)), Operators(30, 10.0)),
            load=BATCHES,
            bars=Bars(at_least={"decisions": 10}, at_most={"deadlocks": 0}),
        ),
        Run(
            "F14", "producers that send to two domains in opposite order",
            (Senders("crossing", {"tasks": 16, "rounds": 5, "settings": {"pool_size": 16}},
                             open_seconds=1.0),),
            load=Load(tasks=1), workers=replace(BRISK, options=TWO_DOMAINS),
            bars=Bars(at_most={"deadlocks": 0, "bad_senders": 0}),
        ),
        Run(
            "F15", "workers are stopped and replaced, one by one",
            (RollingTerm(5, grace_seconds=5.0, pace=(0.1, 0.3)),),
            workers=replace(BRISK, settings={"shutdown_grace_seconds": 5.0}),
            bars=Bars(duplicates=0, at_most={"bad_stops": 0, "stop_seconds": ROUGHLY}),
        ),
        Run(
            "F16", "many sends of each id at once, some given up",
            (Senders("identical", {"keys": 20, "sends": 20}, 60.0),),
            load=Load(tasks=0),
        ),
        Run(
            "F22", "all defaults of the server become unusual",
            (UnusualSettings(1, 1.5),),
            bars=Bars(at_least={"unusual_settings": 16}),
        ),
        *catalogue_cluster.short_runs(ROUGHLY),
        *catalogue_flow.short_runs(BRISK),
    )  # fmt: skip
    brisk = []
    for run in runs:
        workers = BRISK if run.workers == Workers() else run.workers
        brisk.append(replace(run, workers=workers, calm_seconds=0.4, expected_seconds=8.0))
    return tuple(brisk)
