"""Which workloads there are, and who takes part in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.entrants import ENTRANTS
from benchmarks.lab import Case
from benchmarks.workloads import (
    RATE,
    Metric,
    Workload,
    bulk_send,
    drain,
    latency,
    memory,
    send_and_drain,
    senders,
    small_workers,
    steady,
    submissions,
)

WORKERS = tuple(name for name, entrant in ENTRANTS.items() if entrant.can_work)
#: Without the driver that only matters where it is fast, and without reading one by one.
MAIN = ("commandbus", "raw PGMQ, groups", "pgqueuer", "awa", "chancy", "procrastinate")
SENDERS = (*MAIN, "pgqueuer (psycopg)", "taskiq-pg")
#: The ones that come near; the slow ones would only take time.
FAST = ("commandbus", "raw PGMQ, groups", "pgqueuer", "awa")
RIVALS = ("commandbus", "pgqueuer", "awa")
#: Those that one can take for the fastest sender.
NEAR_SENDERS = ("commandbus", "pgqueuer", "pgqueuer (psycopg)", "taskiq-pg")
GROUPS = (1, 10, 100, 250)
HISTORY = (0, 100_000, 1_000_000)
LONG_HISTORY = 10_000_000

COST = (
    Metric("postgres_us", "Postgres CPU", "µs", higher_is_better=False),
    Metric("python_us", "Python CPU", "µs", higher_is_better=False),
)

#: With what the processes cost until they are at work: their connections and first plans.
COST_WITH_START = Metric(
    "postgres_all_us", "Postgres CPU, beginning included", "µs", higher_is_better=False
)


def _cases(
    kind: str, names: tuple[str, ...], barred: tuple[str, ...] = (), **options: Any
) -> tuple[Case, ...]:
    """Those that a bar is read off have five rounds, the others three: a run has half an hour."""
    return tuple(
        Case(
            name,
            ENTRANTS[name],
            getattr(ENTRANTS[name], kind),
            {**options, "rounds": 5 if name in barred else 3},
        )
        for name in names
    )


def _ours(label: str, settings: Mapping[str, Any] | None = None, **options: Any) -> Case:
    entrant = ENTRANTS["commandbus"]
    chosen = entrant.tuned if settings is None else settings
    return Case(f"commandbus, {label}", entrant, chosen, options)


def _ready(name: str, **settings: Any) -> tuple[Case, ...]:
    """A bulk send that is given what its call takes; to make that is the application's work."""
    label = name + "".join(f", {setting}" for setting in settings)
    chosen = {**ENTRANTS[name].defaults, "ready": True, **settings}
    return (Case(label, ENTRANTS[name], chosen, {"count": 100_000, "rounds": 5}),)


def _small(label: str, **settings: Any) -> Case:
    """Two places each. With the defaults, quick handlers have more leased for them ahead."""
    return _ours(label, {"concurrency": 2, **settings}, workers=16, share=1.6)


def _grouped(group: int) -> tuple[Case, ...]:
    settings: dict[str, dict[str, Any]] = {
        "commandbus": {"concurrency": group, "max_prefetch": group},
        "raw PGMQ, groups": {"group": group, "loops": 2},
        "pgqueuer": {"driver": "pool", "batch_size": group},
    }
    options = {"share": 0.1 if group < 10 else 0.5, "group": group}
    return tuple(
        Case(f"{name}, groups of {group}", ENTRANTS[name], chosen, options)
        for name, chosen in settings.items()
    )


def _processes(
    names: tuple[str, ...], handler_ms: int, barred: set[tuple[str, int]]
) -> tuple[Case, ...]:
    """1, 2 and 4 worker processes."""
    return tuple(
        Case(
            f"{name}, {workers} {'process' if workers == 1 else 'processes'}",
            ENTRANTS[name],
            {**ENTRANTS[name].tuned, "handler_ms": handler_ms},
            {
                "workers": workers,
                "processes": workers,
                "rounds": 5 if (name, workers) in barred else 3,
            },
        )
        for workers in (1, 2, 4)
        for name in names
        # It takes the longest, and more processes gain it nothing.
        if name != "awa" or workers == 1
    )


def _behind(rows: int) -> Case:
    label = f"{rows:,} finished behind"
    return _ours(label, behind=("finished", rows), history=rows)


def _behind_random(rows: int) -> Case:
    chosen = {**ENTRANTS["commandbus"].tuned, "random_ids": True}
    behind = ("finished, random ids", rows)
    return _ours(f"{rows:,} finished behind, random ids", chosen, behind=behind)


def _with_concurrency(names: tuple[str, ...], value: int, **settings: Any) -> tuple[Case, ...]:
    keys: dict[str, dict[str, Any]] = {
        "commandbus": {"concurrency": value},
        "raw PGMQ, groups": {"group": value // 2, "loops": 2},
        "pgqueuer": {"batch_size": value // 2, "max_concurrent_tasks": value},
        "awa": {"workers": value, "connections": 20},
    }
    return tuple(
        Case(name, ENTRANTS[name], {**keys[name], **settings}, {"share": 0.25}) for name in names
    )


P50 = Metric("p50_ms", "p50", "ms", higher_is_better=False)
MACHINE = Metric("machine_cores", "CPU of the whole machine", "cores", higher_is_better=False)
PEAK = Metric("peak_mb", "peak memory of the sender", "MB", higher_is_better=False)

#: Longer than other sends: the rate beside a worker is uneven from one second to the next.
BESIDE = {"parallel": 10, "worker": True, "times": 3}

WORKLOADS = (
    Workload("drain-tuned", "drain, no-op, best settings, one process", drain, (RATE, *COST),
             _cases("tuned", WORKERS, ("commandbus", "raw PGMQ, groups", "pgqueuer")), 3.5,
             in_quick=True),
    Workload("drain-defaults", "drain, no-op, defaults at concurrency 10", drain, (RATE,),
             _cases("defaults", MAIN, ("commandbus", "pgqueuer"), share=0.25), 4, in_quick=True),
    Workload("drain-processes", "drain, no-op, best settings, 1, 2 and 4 processes", drain, (RATE,),
             _processes(FAST, 0, {(name, 2) for name in RIVALS}), 3.5),
    Workload("drain-1ms", "drain, handlers of 1 ms, 1, 2 and 4 processes", drain,
             (RATE, Metric("postgres_cores", "Postgres CPU", "cores", higher_is_better=False),
              MACHINE),
             _processes(RIVALS, 1, {("commandbus", 1), ("commandbus", 4)}), 4),
    Workload("drain-50ms", "drain, handlers of 50 ms, concurrency 100", drain, (RATE,),
             _with_concurrency(FAST, 100, handler_ms=50), 4),
    Workload("bulk-10k", "bulk send of 10,000, atomic", bulk_send, (RATE, PEAK),
             _cases("defaults", MAIN, count=10_000), 2.5, in_quick=True),
    Workload("bulk-100k", "bulk send of 100,000, atomic", bulk_send, (RATE, PEAK),
             _cases("defaults", FAST, RIVALS, count=100_000), 6),
    Workload("bulk-100k-ready", "bulk send of 100,000, atomic, arguments made before", bulk_send,
             (RATE, PEAK), (*_ready("commandbus"), *_ready("awa"), *_ready("awa", sync=True)), 6,
             is_optional=True),
    Workload("single", "single send, one sender", senders,
             (P50, Metric("p99_ms", "p99", "ms", higher_is_better=False)),
             _cases("sending", SENDERS, NEAR_SENDERS), 2, in_quick=True),
    Workload("senders-10", "single sends, 10 senders", senders, (RATE,),
             _cases("sending", SENDERS, NEAR_SENDERS, parallel=10), 3, in_quick=True),
    Workload("senders-32", "single sends, 32 senders", senders, (RATE,),
             _cases("sending", SENDERS, NEAR_SENDERS, parallel=32), 3),
    Workload("wakeups", "10 senders beside an idle worker, wake-ups on and off", senders,
             (RATE, Metric("worker_cores", "CPU of the worker", "cores", higher_is_better=False),
              MACHINE),
             (_ours("wake-ups on", {"pool_size": 32}, **BESIDE),
              _ours("wake-ups off", {"pool_size": 32, "use_notify": False}, **BESIDE)),
             7, rounds=5),
    Workload("latency", "idle worker, one command at a time", latency,
             (Metric("start_p50_ms", "send to handler start, p50", "ms", higher_is_better=False),
              Metric("end_p50_ms", "send to completion recorded, p50", "ms",
                     higher_is_better=False)),
             _cases("defaults", MAIN, ("commandbus", "pgqueuer", "procrastinate")), 5,
             in_quick=True),
    Workload("submissions", "governed batches of 50 over HTTP, one by one", submissions,
             (P50, Metric("p95_ms", "p95", "ms", higher_is_better=False)),
             (Case("commandbus", ENTRANTS["commandbus"], {}, {"count": 150, "children": 50}),),
             6, is_optional=True),
    Workload("steady", "10 senders and one worker together", steady, (RATE,),
             _cases("tuned", FAST[:3]), 4),
    Workload("history", "drain with finished commands behind", drain, (RATE,),
             tuple(_behind(rows) for rows in HISTORY), 7, rounds=5),
    Workload("history-10m", "drain with 10,000,000 finished commands behind", drain, (RATE,),
             (_behind(0), _behind(LONG_HISTORY)), 120, is_optional=True),
    Workload("history-random", "drain of random ids, with finished ones behind", drain, (RATE,),
             tuple(_behind_random(rows) for rows in (0, 1_000_000)), 12, rounds=5,
             is_optional=True),
    Workload("backing-off", "drain with 100,000 backing-off commands at the head", drain, (RATE,),
             (_ours("none", behind=("backing-off", 0)),
              _ours("100,000 backing off", behind=("backing-off", 100_000), stays=True)),
             4, rounds=5),
    Workload("small-workers", "drain, 16 processes of two places each", small_workers,
             (RATE, *COST, COST_WITH_START),
             (_small("two ahead", max_prefetch=2), _small("defaults")), 25, is_optional=True),
    Workload("batch", "one batch of 100,000 against none", drain, (RATE,),
             (_ours("no batch", count=100_000),
              _ours("one batch", {**ENTRANTS["commandbus"].tuned, "in_batch": True,
                                  "max_batch_size": 100_000}, count=100_000)), 16, rounds=5),
    Workload("transactional", "transactional handlers", drain, (RATE,),
             (_ours("plain, concurrency 10", {}, share=0.25),
              _ours("transactional, concurrency 10", {"transactional": True}, share=0.25)), 4),
    Workload("snapshot", "drain while an idle snapshot is held open", drain, (RATE,),
             tuple(Case(f"{name}, {what}", ENTRANTS[name], ENTRANTS[name].tuned,
                        {"snapshot": what == "held"})
                   for name in RIVALS[:2] for what in ("none", "held")), 3.5),
    Workload("cost", "cost of a command, send to completion", send_and_drain,
             (*COST, Metric("wal_bytes", "WAL", "bytes", higher_is_better=False),
              Metric("statements", "statements of the drain", "", higher_is_better=False),
              Metric("dead_rows", "row versions made dead", "", higher_is_better=False),
              Metric("hot_share", "HOT share of updates", "")),
             _cases("tuned", MAIN, counts_statements=True), 3.5),
    Workload("groups", "drain by size of the group", drain, (RATE,),
             tuple(case for group in GROUPS for case in _grouped(group)), 3),
    Workload("memory", "worker memory in ten minutes of steady state", memory,
             (Metric("growth", "last quarter to second quarter", "", higher_is_better=False),
              Metric("worker_mb", "resident", "MB", higher_is_better=False)),
             (_ours("tuned", seconds=600),), 620, is_optional=True, rounds=1),
)  # fmt: skip
