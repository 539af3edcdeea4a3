"""python -m benchmarks.flow [--only a,b] [--quick] [--json FILE]

The bars of time and flow: delays, levels, keys, limits, pauses, schedules, cancels. Ratios are
medians of pairs of whole commands, in turn on one server; times are as a user sees them. About ten
minutes; with --quick two, with smaller numbers, which show that it runs and no more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.flow_clocks import CLOCKS
from benchmarks.flow_drains import DRAINS
from benchmarks.flow_lab import QUICK, Bar, FlowLab, Scale
from benchmarks.server import Server

BARS: tuple[Bar, ...] = (*DRAINS, *CLOCKS)


async def run(lab: FlowLab, bars: list[Bar]) -> list[dict[str, Any]]:
    """One after the other; one that fails is a bar that is missed."""
    found = []
    for bar in bars:
        began = time.monotonic()
        try:
            measured = await bar.measure(lab)
        except Exception as error:  # noqa: BLE001  (the others are measured all the same)
            text, is_met, figures = f"failed: {type(error).__name__}: {error}", False, {}
        else:
            text, is_met, figures = measured.text, measured.is_met, measured.figures
        seconds = time.monotonic() - began
        found.append(
            {"key": bar.key, "title": bar.title, "bar": bar.bar, "measured": text,
             "is_met": is_met, "seconds": round(seconds, 1), "figures": figures}
        )  # fmt: skip
        print(line(found[-1]), flush=True)
    return found


def line(row: dict[str, Any]) -> str:
    """One line of the table, as Markdown has it."""
    verdict = "met" if row["is_met"] else "**missed**"
    return (
        f"| {row['key']} | {row['title']} | {row['bar']} | {row['measured']} | {verdict} |"
        f" {row['seconds']:.0f} s |"
    )


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flow", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default="", help=", ".join(bar.key for bar in BARS))
    parser.add_argument("--quick", action="store_true", help="smaller numbers, three pairs")
    parser.add_argument("--pairs", type=int, help="pairs of drains (10)")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    names = [name.strip() for name in options.only.split(",") if name.strip()]
    unknown = set(names) - {bar.key for bar in BARS}
    if unknown:
        raise SystemExit(f"no bar {', '.join(sorted(unknown))}; see --help")
    chosen = [bar for bar in BARS if not names or bar.key in names]
    scale = QUICK if options.quick else Scale()
    if options.pairs is not None:
        scale = Scale(**{**scale.__dict__, "pairs": options.pairs})
    with Server.opened() as server:
        about = server.about()
        print(f"{about['machine']}, Python {about['python']}, PostgreSQL "
              f"{about['server']['server_version']}, {about['at']}\n")  # fmt: skip
        print("| bar | what | wanted | measured | | time |\n| --- | --- | --- | --- | --- | --- |")
        lab = FlowLab(server, scale)
        try:
            found = asyncio.run(run(lab, chosen))
        finally:
            lab.close()
    if options.json is not None:
        document = {"about": about, "is_quick": options.quick, "bars": found}
        options.json.write_text(json.dumps(document, indent=2, default=str) + "\n")
    missed = [row["key"] for row in found if not row["is_met"]]
    print(
        f"\n{len(found) - len(missed)} of {len(found)} met"
        + (f"; missed: {', '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
