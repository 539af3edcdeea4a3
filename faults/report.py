"""The report of a tier: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.runner import Verdict, replay_command

#: Violations that are shown of each run; the rest is counted.
SHOWN = 10
#: Sums that the report shows, in this order.
SUMS = (
    "commands", "worker_kills", "worker_pauses", "worker_stops", "postmaster_kills", "failovers",
    "cut_commits", "backend_kills", "connections_reset", "stale_rejected", "lapses",
    "duplicates_allowed", "duplicates_not_allowed", "lost", "double_finished", "stale_accepted",
    "batch_samples", "batch_mismatches", "orphans",
)  # fmt: skip


def totals(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Sums over all runs: of the figures, and of what the nemeses counted."""
    found: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.figures is None:
            continue
        document = verdict.figures.document()
        for name in SUMS:
            if isinstance(document.get(name), int):
                found[name] += document[name]
        found.update(verdict.figures.counts)
    return dict(found)


def missed_totals(verdicts: Sequence[Verdict], wanted: Mapping[str, int]) -> list[str]:
    """Which sums are too small."""
    found = totals(verdicts)
    return [
        f"{name}: {found.get(name, 0):,} in all, at least {least:,} are wanted"
        for name, least in wanted.items()
        if found.get(name, 0) < least
    ]


def document(
    verdicts: Sequence[Verdict], scale: str, seed: int, seconds: float, missed: Sequence[str]
) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(scale, seed),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}",
        "scale": scale,
        "seed": seed,
        "seconds": round(seconds, 1),
        "is_good": all(verdict.is_good for verdict in verdicts) and not missed,
        "totals": totals(verdicts),
        "missed_totals": list(missed),
        "runs": [_run_document(verdict, scale) for verdict in verdicts],
    }


def command(scale: str, seed: int) -> str:
    """How the whole tier is run again."""
    return f"python -m faults --scale {scale} --seed {seed}"


def _run_document(verdict: Verdict, scale: str) -> dict[str, Any]:
    return {
        "id": verdict.run.id,
        "title": verdict.run.title,
        "seed": verdict.seed,
        "replay": replay_command(verdict, scale),
        "seconds": round(verdict.seconds, 1),
        "is_good": verdict.is_good,
        "skipped": verdict.skipped,
        "figures": verdict.figures.document() if verdict.figures else None,
        "missed": verdict.missed,
        "notes": verdict.notes,
        "violations": [
            f"{v.invariant} {v.subject}: {v.message}" for v in verdict.violations[:SHOWN]
        ],
        "violations_in_all": len(verdict.violations),
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The same, for people; faults/RESULTS.md takes its tables from here."""
    lines = [
        f"# Fault runs, {found['scale']} tier",
        "",
        f"`{found['command']}` on {found['machine']}, {found['at']}, {found['seconds']:,.0f} s: "
        f"**{'all good' if found['is_good'] else 'NOT GOOD'}**.",
        "",
        "| sum over all runs | |",
        "| --- | --- |",
        *(
            f"| {name.replace('_', ' ')} | {found['totals'][name]:,} |"
            for name in SUMS
            if name in found["totals"]
        ),
        "",
        "| run | fault | commands | lost | double | stale accepted / rejected |"
        " further runs allowed / not | rescue | resume | rate before, during, after | time | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_line(run) for run in found["runs"]),
        "",
    ]
    for run in found["runs"]:
        if run["skipped"]:
            lines.append(f"- {run['id']} was skipped: {run['skipped']}")
        notes = (*run["missed"], *run["violations"], *run["notes"])
        lines += [f"- {run['id']}: {note}" for note in notes]
        if not run["is_good"]:
            lines.append(f"- {run['id']} again: `{run['replay']}`")
    lines += [f"- {text}" for text in found["missed_totals"]]
    return "\n".join(lines) + "\n"


def _line(run: Mapping[str, Any]) -> str:
    figures = run["figures"]
    if figures is None:
        return f"| {run['id']} | {run['title']} |" + " - |" * 9 + " skipped |"
    before = figures["rate_before"] or 0
    rates = ", ".join(
        _rate(figures[f"rate_{phase}"], before) for phase in ("before", "during", "after")
    )
    cells = (
        run["id"], run["title"], f"{figures['commands']:,}", f"{figures['lost']:,}",
        f"{figures['double_finished']:,}",
        f"{figures['stale_accepted']:,} / {figures['stale_rejected']:,}",
        f"{figures['duplicates_allowed']:,} / {figures['duplicates_not_allowed']:,}",
        _seconds(figures["longest_rescue"]), _seconds(figures["slowest_resume"]), rates,
        f"{run['seconds']:.0f} s", "good" if run["is_good"] else "**bad**",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _rate(rate: float | None, before: float) -> str:
    if rate is None:
        return "-"
    share = f" ({rate / before:.0%})" if before and rate != before else ""
    return f"{rate:,.0f}/s{share}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Both forms, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "faults.md").write_text(markdown(found))
