"""Runs workloads: interleaved, with progress, an estimate and a limit of time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.lab import Case, Lab
from benchmarks.link import AdapterError
from benchmarks.workloads import Workload

#: A case that failed so often is not tried again.
FAILURES = 2


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
    keys = {workload.key for workload in workloads}
    for workload in workloads:
        is_named = any(
            workload.key == name or (name not in keys and workload.key.startswith(f"{name}-"))
            for name in only
        )
        if only and not is_named:
            continue
        if not only and (workload.is_optional or (is_quick and not workload.in_quick)):
            continue
        cases = tuple(case for case in workload.cases if not systems or _is_wanted(case, systems))
        if cases:
            found.append(replace(workload, cases=cases))
    return found


def varied(workloads: Sequence[Workload], variants: Sequence[str]) -> list[Workload]:
    """The same with more cases: 'pgqueuer={"batch_size": 500}' changes settings of its cases."""
    found = []
    for workload in workloads:
        more = []
        for variant in variants:
            name, _, text = variant.partition("=")
            changes = json.loads(text)
            more += [
                replace(case, label=f"{case.label} {text}", settings={**case.settings, **changes})
                for case in workload.cases
                if _is_wanted(case, [name])
            ]
        found.append(replace(workload, cases=(*workload.cases, *more)))
    return found


def _is_wanted(case: Case, systems: Sequence[str]) -> bool:
    return any(name in (case.entrant.name, case.entrant.module) for name in systems)


def rounds_of(workload: Workload, case: Case, rounds: int | None) -> int:
    """Rounds of a case: as asked for; else its own, or those of the workload."""
    return int(case.options.get("rounds", workload.rounds)) if rounds is None else rounds


def estimate(workloads: Sequence[Workload], rounds: int | None) -> float:
    """Seconds that a run will take, roughly."""
    return sum(
        rounds_of(workload, case, rounds) * workload.seconds
        for workload in workloads
        for case in workload.cases
    )


def run(
    lab: Lab,
    workloads: Sequence[Workload],
    rounds: int | None,
    *,
    limit_seconds: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Results:
    """Round after round, each workload once; in it each case once, in turn forwards and backwards.

    Neighbours in time are compared, so a busy moment of the machine hits all of them.
    """
    most = max(rounds_of(w, case, rounds) for w in workloads for case in w.cases)
    results = Results(rounds_wanted=most)
    began = time.monotonic()
    total, done = estimate(workloads, rounds), 0.0
    say(f"about {total / 60:.0f} minutes for {most} rounds; log of the adapters: {lab.log}")
    for number in range(most):
        for workload in workloads:
            cases = workload.cases if number % 2 == 0 else workload.cases[::-1]
            for case in cases:
                if number >= rounds_of(workload, case, rounds):
                    continue
                spent = time.monotonic() - began
                if limit_seconds is not None and spent > limit_seconds:
                    results.was_cut = True
                    results.seconds = spent
                    say(
                        f"the limit of {limit_seconds / 60:g} minutes is reached: "
                        "the rest is left out"
                    )
                    return results
                document = _measured(lab, workload, case, results)
                results.add(workload.key, case.label, document)
                done += workload.seconds
                spent = time.monotonic() - began
                left = spent / done * (total - done)
                say(
                    f"[{number + 1}/{most}] {workload.key}: {case.label}: "
                    f"{_told(workload, document)}"
                    f"   [{document.get('took_seconds', 0):.1f} s; {left / 60:.0f} min left]"
                )
    results.seconds = time.monotonic() - began
    return results


def _measured(lab: Lab, workload: Workload, case: Case, results: Results) -> dict[str, Any]:
    if len(results.errors(workload.key, case.label)) >= FAILURES:
        return {"error": "not tried again"}
    began = time.monotonic()
    try:
        return {**workload.measure(lab, case), "took_seconds": time.monotonic() - began}
    except (AdapterError, OSError) as error:
        return {"error": str(error)}


def _told(workload: Workload, document: dict[str, Any]) -> str:
    if "error" in document:
        return f"FAILED: {document['error']}"
    return ", ".join(
        f"{document[metric.key]:,.{0 if document[metric.key] >= 100 else 2}f} {metric.unit}"
        for metric in workload.metrics
    )
