"""What is done with each system. Every measurement starts on a fresh database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import quantile
from benchmarks.lab import Case, Lab
from benchmarks.link import machine_seconds


@dataclass(frozen=True)
class Metric:
    """One figure of a measurement."""

    key: str
    title: str
    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class Workload:
    """A row of the report, or several: what is done, by whom, and what is read off."""

    key: str
    title: str
    measure: Callable[[Lab, Case], dict[str, Any]]
    metrics: tuple[Metric, ...]
    cases: tuple[Case, ...]
    #: Rough seconds of one measurement with all around it, for the estimate.
    seconds: float
    in_quick: bool = False
    #: Rounds of a full run: five where a bar is read off, else three.
    rounds: int = 3
    #: Long ones run only when they are named.
    is_optional: bool = False


RATE = Metric("rate", "commands/s", "/s")


def bulk_send(lab: Lab, case: Case) -> dict[str, Any]:
    """One call, all or none; the memory is that of the sending process."""
    count = max(100, int(case.options["count"] * case.entrant.share))
    with lab.trial(case) as trial:
        sender = trial.process()
        idle = sender.resident_bytes()
        before = lab.server.read(trial.conninfo)
        seconds = trial.bulk_send(sender, count)
        after = lab.server.read(trial.conninfo)
        return {
            "rate": count / seconds,
            "peak_mb": sender.peak_bytes() / 1e6,
            "idle_mb": idle / 1e6,
            "wal_bytes": (after.wal_bytes - before.wal_bytes) / count,
            "count": count,
        }


def senders(lab: Lab, case: Case) -> dict[str, Any]:
    """Single sends by several tasks of one process; optionally with a worker beside them."""
    parallel = case.options.get("parallel", 1)
    count = lab.size.sends if parallel == 1 else lab.size.many_sends
    count *= case.options.get("times", 1)
    with lab.trial(case) as trial:
        sender = trial.process()
        worker = trial.process() if case.options.get("worker") else None
        if worker is not None:
            worker.ask("start_worker")
            time.sleep(0.5)  # it has found nothing, and listens
        sender.ask("senders", parallel=parallel, count=max(parallel, 20))  # caches are warm
        began = worker.cpu_seconds() if worker else 0.0
        machine = machine_seconds()
        answer = sender.ask("senders", parallel=parallel, count=count)
        machine = machine_seconds() - machine
        taken = answer["latencies"]
        return {
            "rate": len(taken) / answer["seconds"],
            "worker_cores": (worker.cpu_seconds() - began if worker else 0.0) / answer["seconds"],
            "machine_cores": machine / answer["seconds"],
            "p50_ms": quantile(taken, 0.5) * 1_000,
            "p99_ms": quantile(taken, 0.99) * 1_000,
            "count": count,
        }


def submissions(lab: Lab, case: Case) -> dict[str, Any]:
    """Governed batches over HTTP, one by one, to a service in a process of its own."""
    children = case.options["children"]
    with lab.trial(case) as trial:
        answer = trial.process().ask(
            "submissions", count=case.options["count"], children=children, timeout=120
        )
        taken = answer["latencies"]
        return {
            "p50_ms": quantile(taken, 0.5) * 1_000,
            "p95_ms": quantile(taken, 0.95) * 1_000,
            "count": len(taken),
        }


def latency(lab: Lab, case: Case) -> dict[str, Any]:
    """One command at a time, to a worker that waits."""
    with lab.trial(case) as trial:
        sender, worker = trial.process(), trial.process()
        worker.ask("start_worker")
        time.sleep(0.5)
        trial.rounds(sender, 5)
        starts, ends = trial.rounds(sender, lab.size.rounds)
        return {
            "start_p50_ms": statistics.median(starts) * 1_000,
            "start_p99_ms": quantile(starts, 0.99) * 1_000,
            "end_p50_ms": statistics.median(ends) * 1_000,
            "end_p99_ms": quantile(ends, 0.99) * 1_000,
        }


def drain(lab: Lab, case: Case) -> dict[str, Any]:
    """Fill the queue, then let one or more worker processes empty it."""
    count = lab.size.commands(case)
    _, rows = case.options.get("behind", (None, 0))
    stays = int(rows) if case.options.get("stays") else 0
    with lab.trial(case) as trial:
        trial.fill(count)
        if case.options.get("analyzed"):
            trial.analyze()
        workers = [trial.process() for _ in range(case.options.get("workers", 1))]
        done = trial.drain(workers, count, remaining=stays)
        return {
            "rate": count / done.seconds,
            "startup_ms": done.startup_seconds * 1_000,
            "worker_mb": done.resident_bytes / 1e6,
            "count": count,
            # Share of the machine that the server took: at 1.0 of each core it is at its limit.
            "postgres_cores": done.cost["postgres_us"] * count / 1e6 / done.seconds,
            "machine_cores": done.machine_cores,
            **done.cost,
        }


def small_workers(lab: Lab, case: Case) -> dict[str, Any]:
    """Many worker processes of few places each, on one queue."""
    count = lab.size.commands(case)
    with lab.trial(case) as trial:
        trial.fill(count)
        processes = [trial.process() for _ in range(case.options["workers"])]
        done, with_start = trial.steady(processes, count)
        return {
            "rate": done.count / done.seconds,
            "postgres_cores": done.cost["postgres_us"] * done.count / 1e6 / done.seconds,
            "machine_cores": done.machine_cores,
            "count": done.count,
            "postgres_all_us": with_start["postgres_us"],
            "python_all_us": with_start["python_us"],
            **done.cost,
        }


def send_and_drain(lab: Lab, case: Case) -> dict[str, Any]:
    """What a command costs from its sending to its completion, with statements counted."""
    count = lab.size.commands(case)
    with lab.trial(case) as trial:
        sender = trial.process()
        before, python = lab.server.read(trial.conninfo), sender.cpu_seconds()
        trial.bulk_send(sender, count)
        sent_python = (sender.cpu_seconds() - python) / count * 1e6
        sent = lab.server.read(trial.conninfo)
        done = trial.drain([trial.process()], count)
        return {
            "wal_bytes": (sent.wal_bytes - before.wal_bytes) / count + done.cost["wal_bytes"],
            "send_wal_bytes": (sent.wal_bytes - before.wal_bytes) / count,
            "send_postgres_us": (sent.cpu_seconds - before.cpu_seconds) / count * 1e6,
            "send_python_us": sent_python,
            **{name: value for name, value in done.cost.items() if name != "wal_bytes"},
            "drain_wal_bytes": done.cost["wal_bytes"],
            "count": count,
        }


def steady(lab: Lab, case: Case) -> dict[str, Any]:
    """Ten senders of single commands and one worker at the same time, until all is done."""
    count = max(100, int(lab.size.many_sends * min(1.0, case.entrant.share * 2)))
    with lab.trial(case) as trial:
        sender = trial.process(**case.entrant.sending)
        worker = trial.process()
        worker.ask("start_worker")
        time.sleep(0.3)
        began = time.monotonic()
        sender.post("senders", parallel=10, count=count)
        trial.sent += count // 10 * 10
        ended = trial.wait_all(trial.sent)
        sender.answer()
        return {"rate": trial.sent / (ended - began), "count": trial.sent}


def memory(lab: Lab, case: Case) -> dict[str, Any]:
    """Steady work for a long time: is the worker's memory flat?"""
    seconds = float(case.options["seconds"])
    samples: list[float] = []
    with lab.trial(case) as trial:
        sender, worker = trial.process(), trial.process()
        worker.ask("start_worker")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sender.ask("senders", parallel=10, count=1_000)
            trial.sent += 1_000
            samples.append(worker.resident_bytes() / 1e6)
        trial.wait_all(trial.sent)
    quarter = max(1, len(samples) // 4)
    return {
        "growth": statistics.median(samples[-quarter:])
        / statistics.median(samples[quarter : 2 * quarter]),
        "worker_mb": samples[-1],
        "samples_mb": [round(sample, 1) for sample in samples],
        "count": trial.sent,
    }
