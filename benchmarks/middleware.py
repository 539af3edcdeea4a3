"""What the built-in middleware cost: a drain without any against one with all of them, in pairs.

    python -m benchmarks.middleware --pairs 10
    python -m benchmarks.middleware --pairs 10 --workloads drain-defaults,drain-1ms

All: OpenTelemetry with one trace in a hundred recorded, Sentry, log context, timing (metrics). The
real SDKs, with an exporter and a transport that keep what they get. The ratio of a pair is that of
its two rates, measured one after the other, in turn with the one and with the other first. Both
drain as many commands, of tables that were just analyzed, and without autovacuum beside them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.catalogue import WORKLOADS
from benchmarks.lab import Case, Lab, Size
from benchmarks.runner import Results, run
from benchmarks.server import Server
from benchmarks.workloads import Workload

PLAIN = "none"
#: What each case has around its handlers; the setting is that of the adapter.
KINDS: Mapping[str, Any] = {
    "all": True,
    "opentelemetry": ["opentelemetry"],
    "sentry": ["sentry"],
    "timing": ["timing"],
}
#: Of the server, for all cases. In some drains autovacuum would analyze the tables, in others not,
#: which costs 5 to 10 µs a command; they are analyzed before each drain instead. And a drain finds
#: the files of the log that it writes, as on a server that has run for a while: else it makes new
#: ones, filled with zeros, the more the more it writes.
ALIKE = {"autovacuum": "off", "min_wal_size": "2GB"}
#: What a command costs Python and the server, in µs.
COSTS = ("python_us", "postgres_us")
#: The median that all of them together must keep.
WANTED = 0.90


def workload(key: str, kinds: Sequence[str]) -> Workload:
    """A drain of `make bench` in one process, without middleware and with each kind."""
    (found,) = [each for each in WORKLOADS if each.key == key]
    case = next(each for each in found.cases if each.entrant.name == "commandbus")
    options = {**case.options, "analyzed": True, "share": 1.0}
    more = [
        Case(kind, case.entrant, {**case.settings, "middleware": KINDS[kind]}, options)
        for kind in kinds
    ]
    plain = Case(PLAIN, case.entrant, case.settings, options)
    return replace(found, cases=(plain, *more))


def figures(results: Results, key: str, label: str, metric: str) -> list[float]:
    """One for each round that was measured."""
    return [each for each in results.values(key, label, metric) if each]


def table(results: Results, key: str, kinds: Sequence[str]) -> str:
    """The medians, with the range of the pairs, and the processor time that a command takes."""
    lines = [
        "| middleware | commands/s | ratio (median) | lowest to highest | Python µs | server µs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    plain = results.values(key, PLAIN, "rate")
    for label in (PLAIN, *kinds):
        rates = results.values(key, label, "rate")
        found = [a / b for a, b in zip(rates, plain, strict=False) if a and b]
        if not found:
            lines.append(f"| {label} | failed: {results.errors(key, label)[:1]} | | | | |")
            continue
        cost = [
            f"{statistics.median(values):.1f}" if values else "-"
            for values in (figures(results, key, label, name) for name in COSTS)
        ]
        lines.append(
            f"| {label} | {statistics.median(figures(results, key, label, 'rate')):,.0f} | "
            f"{statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} | "
            f"{cost[0]} | {cost[1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.middleware", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, default=10, help="rounds (10)")
    parser.add_argument("--commands", type=int, default=30_000, help="commands of a drain")
    parser.add_argument("--only", default="all", help=f"of {', '.join(KINDS)}, with commas (all)")
    parser.add_argument(
        "--workloads", default="drain-tuned",
        help="drains of `make bench`, with commas: drain-tuned, drain-defaults, drain-1ms",
    )  # fmt: skip
    arguments = parser.parse_args()
    kinds = [each.strip() for each in arguments.only.split(",") if each.strip()]
    if unknown := set(kinds) - set(KINDS):
        raise SystemExit(f"there is no {', '.join(sorted(unknown))}; use {', '.join(KINDS)}")
    known = {each.key for each in WORKLOADS if each.key.startswith("drain-")}
    keys = [each.strip() for each in arguments.workloads.split(",") if each.strip()]
    if strangers := set(keys) - known:
        raise SystemExit(f"there is no {', '.join(sorted(strangers))}; use {', '.join(known)}")
    measured = [workload(key, kinds) for key in keys]
    with Server.opened(ALIKE) as server:
        lab = Lab(server, Size(drain=arguments.commands))
        try:
            results = run(lab, measured, arguments.pairs)
        finally:
            lab.close()
    for each in measured:
        print(f"\n{each.key}: {each.title}\n\n{table(results, each.key, kinds)}")
    print(f"\nWanted of all: a median of {WANTED:.2f} or more.")


if __name__ == "__main__":
    main()
