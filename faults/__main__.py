"""The fault runs: python -m faults --scale long --report FOLDER."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from faults import report
from faults.catalogue import TOTALS, catalogue
from faults.display import Display
from faults.plan import Run
from faults.runner import Runner, Verdict

MOST_SEEDS = 1_000_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description="Break workers, server and network on purpose, and check what is left.",
    )
    parser.add_argument("--list", action="store_true", help="show the runs and do nothing")
    parser.add_argument("--only", default="", help="ids of runs, separated by commas")
    parser.add_argument("--seed", type=int, help="the schedule; by default a new one")
    parser.add_argument("--scale", choices=("short", "long", "ha"), default="short")
    parser.add_argument("--report", type=Path, help="a folder for faults.md, faults.json and logs")
    return parser.parse_args(arguments)


def chosen(runs: Sequence[Run], only: str) -> list[Run]:
    """The runs that were named; all without a name."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = set(names) - {run.id for run in runs}
    if unknown:
        known = ", ".join(run.id for run in runs)
        raise SystemExit(f"no run {', '.join(sorted(unknown))} in this tier; there are {known}")
    return [run for run in runs if not names or run.id in names]


async def run_all(
    runs: Sequence[Run], seed: int, scale: str, display: Display, keep_logs: Path | None
) -> list[Verdict]:
    """One after the other, on one machine."""
    runner = Runner(keep_logs=keep_logs)
    verdicts = []
    try:
        with display.live():
            for run in runs:
                verdict = await runner.run(run, seed, lambda step, run=run: display.say(run, step))  # type: ignore[misc]
                display.judged(verdict, scale)
                verdicts.append(verdict)
    finally:
        await asyncio.to_thread(runner.close)
    return verdicts


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run what was asked for; 1 if anything is wrong."""
    options = parse(arguments)
    console = console or Console(soft_wrap=True)
    runs = chosen(catalogue(options.scale), options.only)
    if options.list:
        for run in runs:
            seconds = f"about {run.expected_seconds:.0f} s"
            console.print(f"{run.id:<4} {run.title} ({seconds})", highlight=False)
        return 0
    seed = options.seed if options.seed is not None else random.randrange(MOST_SEEDS)
    console.print(f"seed {seed}: {report.command(options.scale, seed)}", highlight=False)
    began = time.monotonic()
    display = Display(runs, console)
    verdicts = asyncio.run(run_all(runs, seed, options.scale, display, options.report))
    is_whole = options.scale == "long" and not options.only
    missed = report.missed_totals(verdicts, TOTALS if is_whole else {})
    found = report.document(verdicts, options.scale, seed, time.monotonic() - began, missed)
    if options.report is not None:
        report.write(found, options.report)
        console.print(f"the report is in {options.report}", highlight=False)
    for text in missed:
        console.print(text, style="red", highlight=False)
    return 0 if found["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
