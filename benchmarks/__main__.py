"""Measure commandbus beside its peers, on one server, interleaved; print or keep the tables.

Each system runs in processes of its own, the peers in an environment of their own
(`make bench` and `make bench-quick` make it). Figures compare within one run only: read the ratios.

    python -m benchmarks --only drain --systems commandbus,pgqueuer --repeats 5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.catalogue import WORKLOADS
from benchmarks.lab import Lab, Size
from benchmarks.link import PEERS_PYTHON
from benchmarks.runner import Results, chosen, estimate, run, varied
from benchmarks.server import Server
from benchmarks.workloads import Workload

QUICK = Size(drain=5_000, sends=200, many_sends=1_500, rounds=25)


@dataclass(frozen=True)
class Run:
    """What came out of a call."""

    workloads: Sequence[Workload]
    results: Results
    about: dict[str, Any]


def measure(
    only: Sequence[str] = (),
    systems: Sequence[str] = (),
    *,
    rounds: int | None = None,
    size: Size | None = None,
    is_quick: bool = False,
    variants: Sequence[str] = (),
    limit_minutes: float | None = None,
) -> Run:
    """Run workloads; the same as the command line, for a notebook or a test of an idea."""
    workloads = varied(chosen(WORKLOADS, only, systems, is_quick=is_quick), variants)
    if not workloads:
        known = ", ".join(workload.key for workload in WORKLOADS)
        raise SystemExit(f"nothing to measure; there are {known}")
    if any(case.entrant.is_peer for w in workloads for case in w.cases) and (
        not PEERS_PYTHON.exists()
    ):
        raise SystemExit(
            "the peers are not installed; run `make bench-peers`, or use --systems commandbus,pgmq"
        )
    with Server.opened() as server:
        lab = Lab(server, size or (QUICK if is_quick else Size()))
        try:
            limit = None if limit_minutes is None else limit_minutes * 60
            results = run(lab, workloads, rounds, limit_seconds=limit)
            command = " ".join(["python -m benchmarks", *sys.argv[1:]])
            about = {**server.about(), "versions": lab.versions, "command": command}
        finally:
            lab.close()
    return Run(workloads, results, about)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default="", help="workloads, with commas; `drain` means drain-*")
    parser.add_argument("--systems", default="", help="systems, with commas")
    parser.add_argument(
        "--repeats", type=int, help="rounds of all (5 where a bar is read, else 3; 1 if quick)"
    )
    parser.add_argument("--commands", type=int, help="commands of a drain (15000; 5000)")
    parser.add_argument("--quick", action="store_true", help="fewer workloads, smaller")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="SYSTEM=JSON",
        help="one more case with these settings, e.g. 'pgqueuer={\"batch_size\": 500}'",
    )  # fmt: skip
    parser.add_argument("--limit-minutes", type=float, help="begin nothing new after so long")
    parser.add_argument("--keep", action="store_true", help="write RESULTS.md, figures and plots")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--list", action="store_true", help="list the workloads and what they take")
    arguments = parser.parse_args()
    rounds = arguments.repeats or (1 if arguments.quick else None)
    if arguments.list:
        _list(rounds, is_quick=arguments.quick)
        return
    size = QUICK if arguments.quick else Size()
    if arguments.commands:
        size = replace(size, drain=arguments.commands)
    done = measure(
        _names(arguments.only), _names(arguments.systems), rounds=rounds, size=size,
        is_quick=arguments.quick, variants=arguments.variant,
        limit_minutes=arguments.limit_minutes,
    )  # fmt: skip
    print(report.markdown(done.workloads, done.results, done.about, [], is_partial=True))
    if arguments.json:
        arguments.json.write_text(report.as_json(done.results, done.about))
    if arguments.keep:
        report.keep(done.workloads, done.results, done.about)
        print(f"kept in {report.RESULTS}", file=sys.stderr)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _list(rounds: int | None, *, is_quick: bool) -> None:
    for workload in WORKLOADS:
        is_in = workload in chosen(WORKLOADS, (), (), is_quick=is_quick)
        minutes = estimate([workload], rounds) / 60
        note = "" if is_in else "  (only when named)"
        print(f"{workload.key:16} {minutes:5.1f} min  {workload.title}{note}")
    print(
        f"{'all':16} {estimate(chosen(WORKLOADS, (), (), is_quick=is_quick), rounds) / 60:5.1f} min"
    )


if __name__ == "__main__":
    main()
