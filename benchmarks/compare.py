"""Compare this checkout with another one: the hot paths, in pairs, on one server in one run.

    git worktree add --detach ../before COMMIT
    python -m benchmarks.compare --before ../before --repeats 10

Each pair measures both checkouts one after the other, in turn with the one and with the other
first. The ratio of a pair is above 1 if this checkout is better; read the median of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.catalogue import WORKLOADS
from benchmarks.lab import Case, Lab, Size
from benchmarks.runner import Results, chosen, run
from benchmarks.server import Server
from benchmarks.workloads import Metric, Workload

NOW, BEFORE = "now", "before"

#: Larger than a quick look: a pair of runs that take a second each differs by a tenth on its own.
SIZE = Size(drain=20_000, sends=1_000, many_sends=6_000, rounds=80)


def paired(workloads: Sequence[Workload], before: Path) -> list[Workload]:
    """Each workload with two cases: commandbus as it is, and as it was."""
    found = []
    for workload in workloads:
        case = next(case for case in workload.cases if case.entrant.name == "commandbus")
        other = replace(case.entrant, source=str(before.resolve() / "src"))
        cases = (
            Case(NOW, case.entrant, case.settings, case.options),
            Case(BEFORE, other, case.settings, case.options),
        )
        found.append(replace(workload, cases=cases))
    return found


def ratios(results: Results, workload: Workload, metric: Metric) -> list[float]:
    """One for each pair that was measured; above 1: better than before."""
    pairs = zip(
        results.values(workload.key, NOW, metric.key),
        results.values(workload.key, BEFORE, metric.key),
        strict=False,
    )
    return [
        now / before if metric.higher_is_better else before / now
        for now, before in pairs
        if now and before
    ]


def table(results: Results, workloads: Sequence[Workload]) -> str:
    """The medians, with the range of the pairs."""
    lines = [
        "| workload | figure | pairs | ratio (median) | lowest to highest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for workload in workloads:
        for metric in workload.metrics:
            found = ratios(results, workload, metric)
            if not found:
                errors = results.errors(workload.key, NOW) + results.errors(workload.key, BEFORE)
                lines.append(f"| {workload.key} | {metric.title} | 0 | failed: {errors[:1]} | |")
                continue
            lines.append(
                f"| {workload.key} | {metric.title} | {len(found)} | "
                f"{statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--before", type=Path, required=True, help="the folder of a checkout")
    parser.add_argument("--repeats", type=int, default=10, help="pairs (10)")
    parser.add_argument("--only", default="", help="workloads, with commas (those of --quick)")
    parser.add_argument("--commands", type=int, default=SIZE.drain, help="commands of a drain")
    parser.add_argument("--limit-minutes", type=float, help="begin nothing new after that time")
    arguments = parser.parse_args()
    if not (arguments.before / "src" / "commandbus").is_dir():
        raise SystemExit(f"{arguments.before} is not a checkout of commandbus; give its folder")
    only = [name.strip() for name in arguments.only.split(",") if name.strip()]
    workloads = paired(chosen(WORKLOADS, only, ["commandbus"], is_quick=not only), arguments.before)
    with Server.opened() as server:
        lab = Lab(server, replace(SIZE, drain=arguments.commands))
        try:
            limit = None if arguments.limit_minutes is None else arguments.limit_minutes * 60
            results = run(lab, workloads, arguments.repeats, limit_seconds=limit)
        finally:
            lab.close()
    print(table(results, workloads))


if __name__ == "__main__":
    main()
