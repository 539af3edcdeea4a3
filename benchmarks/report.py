"""What a run has found, as Markdown, JSON and plots. Pure, but for `keep`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import OURS, bars_table
from benchmarks.figures import paired, spread
from benchmarks.lab import Case
from benchmarks.plot import line_chart
from benchmarks.runner import Results
from benchmarks.workloads import Workload

RESULTS = Path(__file__).with_name("RESULTS.md")
KEPT = Path(__file__).with_name("results")
#: Above the first section of RESULTS.md; a new run goes right below it.
MARK = "<!-- newest first -->"

#: Plot: workload, option that is the x axis, title, label of the x axis.
PLOTS = (
    ("groups", "group", "Drain of no-op commands by size of the group", "commands in a group"),
    ("drain-processes", "processes", "Drain of no-op commands by processes", "worker processes"),
    ("drain-1ms", "processes", "Drain, handlers of 1 ms, by processes", "worker processes"),
    ("history", "history", "Drain of no-op commands by history", "finished commands behind"),
)


def counterpart(workload: Workload, case: Case) -> str | None:
    """Whom a case is compared with: ours of the same variant; ours with the first of ours."""
    labels = [other.label for other in workload.cases]
    if case.entrant.name == OURS:
        first = next(c.label for c in workload.cases if c.entrant.name == OURS)
        return first if first != case.label else None
    ours = OURS + case.label.removeprefix(case.entrant.name)
    return ours if ours in labels else None


def workload_table(workload: Workload, results: Results) -> str:
    """One workload: medians with their spread, and the paired ratio."""
    metric = workload.metrics[0]
    better = "higher is better" if metric.higher_is_better else "lower is better"
    titles = [
        f"{m.title}{f', {m.unit}' if m.unit and m.unit != '/s' else ''}" for m in workload.metrics
    ]
    lines = [
        f"### {workload.title}",
        "",
        f"`--only {workload.key}`; {better} ({titles[0]}).",
        "",
        f"| system | {' | '.join(titles)} | compared |",
        f"|---|{'---|' * (len(titles) + 1)}",
    ]
    for case in workload.cases:
        columns = [
            [v for v in results.values(workload.key, case.label, m.key) if v is not None]
            for m in workload.metrics
        ]
        errors = results.errors(workload.key, case.label)
        if columns[0]:
            cells = " | ".join(str(spread(column)) for column in columns)
            failed = f"; failed {len(errors)} times: {_plain(errors[0])}" if errors else ""
            compared = _compared(workload, case, results)
            lines.append(f"| {case.label} | {cells} | {compared}{failed} |")
        elif errors:
            rest = " |" * len(titles)
            lines.append(f"| {case.label} | failed: {_plain(errors[0])} |{rest}")
    return "\n".join(lines)


def _compared(workload: Workload, case: Case, results: Results) -> str:
    other = counterpart(workload, case)
    if other is None:
        return ""
    metric = workload.metrics[0]
    mine = results.values(workload.key, case.label, metric.key)
    theirs = results.values(workload.key, other, metric.key)
    if case.entrant.name == OURS:
        ratios, words = paired(mine, theirs), f"of {other.removeprefix(f'{OURS}, ')}"
        return f"{spread(ratios)} x {words}" if ratios else ""
    ratios = paired(theirs, mine)
    if not ratios:
        return ""
    found = spread(ratios)
    is_ahead = (found.median < 1) == metric.higher_is_better and found.median != 1
    note = "; **this one is ahead**" if is_ahead else ""
    return f"commandbus = {found} x{note}"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:200]


def settings_table(workloads: Sequence[Workload]) -> str:
    """Which settings each case had."""
    lines = ["| workload | system | settings |", "|---|---|---|"]
    for workload in workloads:
        for case in workload.cases:
            shown = ", ".join(f"{k}={v}" for k, v in case.settings.items()) or "its defaults"
            share = case.entrant.share * case.options.get("share", 1.0)
            more = "" if share == 1.0 else f"; {share:g} of the commands"
            lines.append(f"| {workload.key} | {case.label} | {shown}{more} |")
    return "\n".join(lines)


def markdown(
    workloads: Sequence[Workload],
    results: Results,
    about: dict[str, Any],
    plots: Sequence[str],
    *,
    is_partial: bool = False,
) -> str:
    """One run, as a section of RESULTS.md; a partial one leaves out bars that it cannot judge."""
    server = ", ".join(f"{name} {value}" for name, value in about["server"].items())
    versions = ", ".join(f"{name} {value}" for name, value in sorted(about["versions"].items()))
    cut = " The limit of time cut it short." if results.was_cut else ""
    parts = [
        f"## {about['at']}",
        "",
        f"`{about['command']}`: {results.rounds_wanted} rounds, {results.seconds / 60:.0f} minutes."
        f"{cut} Medians, with the lowest and the highest in parentheses; ratios are medians of "
        "pairs that were measured right after each other.",
        "",
        f"- Machine: {about['machine']}; {about['system']}; Python {about['python']}.",
        f"- Server: PostgreSQL {server}.",
        f"- Versions: {versions}.",
        "",
        "### Bars",
        "",
        bars_table(results, only_measured=is_partial),
        "",
        *(f"![{name}](results/{name})" for name in plots),
        "",
        *(text for w in workloads for text in (workload_table(w, results), "")),
        "### Settings",
        "",
        settings_table(workloads),
        "",
    ]
    return "\n".join(parts)


def plots(workloads: Sequence[Workload], results: Results) -> Iterator[tuple[str, str]]:
    """(name, SVG) of every plot that there are figures for."""
    for key, option, title, x_label in PLOTS:
        workload = next((w for w in workloads if w.key == key), None)
        if workload is None:
            continue
        series: dict[str, list[tuple[float, float]]] = {}
        for case in workload.cases:
            values = [v for v in results.values(key, case.label, "rate") if v is not None]
            if values:
                point = (float(case.options[option]), spread(values).median)
                series.setdefault(case.entrant.name, []).append(point)
        if series:
            yield key, line_chart(title, x_label, "commands/s (median)", series)


def as_json(results: Results, about: dict[str, Any]) -> str:
    """All figures."""
    document = {
        "about": about,
        "rounds_wanted": results.rounds_wanted,
        "seconds": round(results.seconds, 1),
        "was_cut": results.was_cut,
        "figures": results.figures,
    }
    return json.dumps(document, indent=1) + "\n"


def with_section(kept: str, section: str) -> str:
    """RESULTS.md with a new run on top of the older ones."""
    head, mark, older = kept.partition(MARK)
    if not mark:
        raise ValueError(f"RESULTS.md has no line {MARK!r}: put it where new runs should go")
    return f"{head}{mark}\n\n{section.rstrip()}\n{older}"


def keep(workloads: Sequence[Workload], results: Results, about: dict[str, Any]) -> None:
    """Write RESULTS.md, the figures and the plots."""
    KEPT.mkdir(exist_ok=True)
    day = about["at"][:16].replace(":", "").replace("T", "-")
    names = []
    for key, svg in plots(workloads, results):
        names.append(f"{day}-{key}.svg")
        KEPT.joinpath(names[-1]).write_text(svg)
    KEPT.joinpath(f"{day}.json").write_text(as_json(results, about))
    section = markdown(workloads, results, about, names)
    RESULTS.write_text(with_section(RESULTS.read_text(), section))
