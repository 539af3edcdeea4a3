"""The bars: what must be reached, computed from what was measured. Pure.

A bar is a ratio of neighbours in time (paired), or a figure by itself. Raw PGMQ is the floor, not a
peer: it keeps nothing of a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.figures import paired, spread
from benchmarks.runner import Results

OURS = "commandbus"
FLOOR = "raw PGMQ"


@dataclass(frozen=True)
class Finding:
    """The ratios, or figures, behind a bar, and whom they compare with."""

    values: list[float]
    versus: str
    unit: str = "x"


@dataclass(frozen=True)
class Bar:
    """One line of the table."""

    title: str
    target: float
    beyond: float | None
    find: Callable[[Results], Finding | None]
    is_ceiling: bool = False

    def wanted(self) -> str:
        """The bar in words."""
        sign = "≤" if self.is_ceiling else "≥"
        text = f"{sign} {self.target:g}"
        return text if self.beyond is None else f"{text} (beyond: {sign} {self.beyond:g})"

    def verdict(self, median: float) -> str:
        """Whether it is reached."""
        if self.beyond is not None and self._meets(median, self.beyond):
            return "beyond"
        return "reached" if self._meets(median, self.target) else "**not reached**"

    def _meets(self, value: float, limit: float) -> bool:
        return value <= limit if self.is_ceiling else value >= limit


def fastest_peer(
    results: Results, workload: str, metric: str, suffix: str = "", *, lowest: bool = False
) -> str | None:
    """The label of the peer with the best median; neither ours nor the floor."""
    medians = {}
    for label in results.figures.get(workload, {}):
        if label.startswith((OURS, FLOOR)) or not label.endswith(suffix):
            continue
        values = [v for v in results.values(workload, label, metric) if v is not None]
        if values:
            medians[label] = spread(values).median
    if not medians:
        return None
    return (min if lowest else max)(medians, key=lambda label: medians[label])


def _against_peer(
    workload: str, metric: str = "rate", suffix: str = "", *, lowest: bool = False
) -> Callable[[Results], Finding | None]:
    def find(results: Results) -> Finding | None:
        peer = fastest_peer(results, workload, metric, suffix, lowest=lowest)
        if peer is None:
            return None
        return _between(workload, f"{OURS}{suffix}", peer, metric)(results)

    return find


def _between(
    workload: str, ours: str, theirs: str, metric: str = "rate"
) -> Callable[[Results], Finding | None]:
    def find(results: Results) -> Finding | None:
        ratios = paired(
            results.values(workload, ours, metric), results.values(workload, theirs, metric)
        )
        return Finding(ratios, theirs) if ratios else None

    return find


def _figure(
    workload: str, label: str, metric: str, unit: str
) -> Callable[[Results], Finding | None]:
    def find(results: Results) -> Finding | None:
        values = [v for v in results.values(workload, label, metric) if v is not None]
        return Finding(values, "", unit) if values else None

    return find


def _own(what: str) -> str:
    return f"{OURS}, {what}"


BARS: Sequence[Bar] = (
    Bar("drain, no-op, best settings, one process, against the fastest peer", 1.3, 1.8,
        _against_peer("drain-tuned")),
    Bar("the same, against raw PGMQ in groups", 0.55, 0.8,
        _between("drain-tuned", OURS, "raw PGMQ, groups")),
    Bar("the same, two processes, against the fastest peer", 1.1, 1.5,
        _against_peer("drain-processes", suffix=", 2 processes")),
    Bar("drain, no-op, defaults, against the fastest peer at concurrency 10", 1.5, 3,
        _against_peer("drain-defaults")),
    Bar("bulk send of 100,000, against pgqueuer", 1.0, None,
        _between("bulk-100k", OURS, "pgqueuer")),
    Bar("bulk send of 100,000, against awa (COPY)", 0.9, 1.2, _between("bulk-100k", OURS, "awa")),
    Bar("bulk send of 100,000, peak memory", 100, None,
        _figure("bulk-100k", OURS, "peak_mb", "MB"), is_ceiling=True),
    Bar("single send, p50, against the fastest peer", 1.0, 0.8,
        _against_peer("single", "p50_ms", lowest=True), is_ceiling=True),
    Bar("10 senders, against the fastest peer", 1.0, 1.3, _against_peer("senders-10")),
    Bar("32 senders, against the fastest peer", 1.0, 1.3, _against_peer("senders-32")),
    Bar("10 senders, wake-ups on against off", 0.9, None,
        _between("wakeups", _own("wake-ups on"), _own("wake-ups off"))),
    Bar("send to handler start, idle worker, p50, against the fastest peer", 1.0, 0.75,
        _against_peer("latency", "start_p50_ms", lowest=True), is_ceiling=True),
    Bar("send to completion recorded, idle worker, p50, against the fastest peer", 0.9, 0.7,
        _against_peer("latency", "end_p50_ms", lowest=True), is_ceiling=True),
    Bar("4 processes against 1, handlers of 1 ms (or Postgres at its limit)", 2.5, 3.5,
        _between("drain-1ms", _own("4 processes"), _own("1 process"))),
    Bar("drain with 1,000,000 finished commands behind, against none", 0.9, 0.98,
        _between("history", _own("1,000,000 finished behind"), _own("0 finished behind"))),
    Bar("drain with 100,000 backing-off commands at the head, against none", 0.6, 0.95,
        _between("backing-off", _own("100,000 backing off"), _own("none"))),
    Bar("one batch of 100,000 against no batch", 0.9, 0.98,
        _between("batch", _own("one batch"), _own("no batch"))),
    Bar("WAL of a command, send to completion", 3_300, 2_500,
        _figure("cost", OURS, "wal_bytes", "bytes"), is_ceiling=True),
    Bar("16 processes of two places, two ahead, CPU of the server a command", 400, None,
        _figure("small-workers", _own("two ahead"), "postgres_us", "µs"), is_ceiling=True),
    Bar("the same, with the beginning of the processes", 400, None,
        _figure("small-workers", _own("two ahead"), "postgres_all_us", "µs"), is_ceiling=True),
    Bar("worker memory in steady state, last quarter against second", 1.05, None,
        _figure("memory", _own("tuned"), "growth", "x"), is_ceiling=True),
)  # fmt: skip


def bars_table(results: Results, *, only_measured: bool = False) -> str:
    """The bars as Markdown, each with its verdict; what was not measured says so."""
    lines = [
        "| what | bar | measured | against | pairs | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for bar in BARS:
        finding = bar.find(results)
        if finding is None:
            if not only_measured:
                lines.append(f"| {bar.title} | {bar.wanted()} | | | 0 | not measured |")
            continue
        found = spread(finding.values)
        lines.append(
            f"| {bar.title} | {bar.wanted()} | {found} {finding.unit} | {finding.versus} "
            f"| {found.count} | {bar.verdict(found.median)} |"
        )
    return "\n".join(lines)
