"""Runs workloads: interleaved, with progress, an estimate and a limit of time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lab import Case, Lab
from benchmarks.link import AdapterError
from benchmarks.workloads import Workload

#: A case that failed so often is not tried again.
FAILURES = 2
#: Creating and dropping a database, starting processes: seconds of one measurement.
OVERHEAD_SECONDS = 2.0


@dataclass
class Results:
    """Everything measured: workload -> case -> one document for each round, None if left out."""

    figures: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    rounds_wanted: int = 0
    seconds: float = 0.0
    was_cut: bool = False

    def add(self, workload: str, label: str, document: dict[str, Any]) -> None:
        """Keep one measurement."""
        self.figures.setdefault(workload, {}).setdefault(label, []).append(document)

    def values(self, workload: str, label: str, metric: str) -> list[float | None]:
        """One figure of all rounds; None where the measurement failed."""
        found = self.figures.get(workload, {}).get(label, [])
        return [document.get(metric) for document in found]

    def errors(self, workload: str, label: str) -> list[str]:
        """Why measurements failed."""
        found = self.figures.get(workload, {}).get(label, [])
        return [document["error"] for document in found if "error" in document]


def chosen(
    workloads: Sequence[Workload], only: Sequence[str], systems: Sequence[str], *, is_quick: bool
) -> list[Workload]:
    """The workloads that were asked for (a name, or how several begin), with their cases cut."""
    found = []
    for workload in workloads:
        is_named = any(workload.key == name or workload.key.startswith(f"{name}-") for name in only)
        if only and not is_named:
            continue
        if not only and (workload.is_optional or (is_quick and not workload.in_quick)):
            continue
        cases = tuple(
            case for case in workload.cases if not systems or _is_wanted(case, systems)
        )
        if cases:
            found.append(
                Workload(
                    workload.key, workload.title, workload.measure, workload.metrics, cases,
                    workload.seconds, workload.in_quick, workload.is_optional,
                )  # fmt: skip
            )
    return found


def _is_wanted(case: Case, systems: Sequence[str]) -> bool:
    return any(name in (case.entrant.name, case.entrant.module) for name in systems)


def estimate(workloads: Sequence[Workload], rounds: int) -> float:
    """Seconds that a run will take, roughly."""
    return rounds * sum(
        len(workload.cases) * (workload.seconds + OVERHEAD_SECONDS) for workload in workloads
    )


def run(
    lab: Lab,
    workloads: Sequence[Workload],
    rounds: int,
    *,
    limit_seconds: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Results:
    """Round after round, each workload once; in it each case once, in turn forwards and backwards.

    Neighbours in time are compared, so a busy moment of the machine hits all of them.
    """
    results = Results(rounds_wanted=rounds)
    began = time.monotonic()
    total, done = estimate(workloads, rounds), 0.0
    say(f"about {total / 60:.0f} minutes for {rounds} rounds; log of the adapters: {lab.log}")
    for number in range(rounds):
        for workload in workloads:
            cases = workload.cases if number % 2 == 0 else workload.cases[::-1]
            for case in cases:
                spent = time.monotonic() - began
                if limit_seconds is not None and spent > limit_seconds:
                    results.was_cut = True
                    results.seconds = spent
                    say(f"the limit of {limit_seconds / 60:.0f} minutes is reached: the rest is left out")
                    return results
                document = _measured(lab, workload, case, results)
                results.add(workload.key, case.label, document)
                done += workload.seconds + OVERHEAD_SECONDS
                spent = time.monotonic() - began
                left = spent / done * (total - done)
                say(
                    f"[{number + 1}/{rounds}] {workload.key}: {case.label}: "
                    f"{_told(workload, document)}   ({left / 60:.0f} min left)"
                )
    results.seconds = time.monotonic() - began
    return results


def _measured(lab: Lab, workload: Workload, case: Case, results: Results) -> dict[str, Any]:
    if len(results.errors(workload.key, case.label)) >= FAILURES:
        return {"error": "not tried again"}
    try:
        return workload.measure(lab, case)
    except (AdapterError, OSError) as error:
        return {"error": str(error)}


def _told(workload: Workload, document: dict[str, Any]) -> str:
    if "error" in document:
        return f"FAILED: {document['error']}"
    return ", ".join(
        f"{document[metric.key]:,.{0 if document[metric.key] >= 100 else 2}f} {metric.unit}"
        for metric in workload.metrics
    )
