"""`make release-check`: every step, one after the other, and a table of what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from release import building, installing, licences, sbom
from release.tools import ROOT, CheckError, Result, table

Found = TypeVar("Found")


def main() -> int:
    """Run the check; returns the exit code."""
    target = ROOT / "build" / "release"
    target.mkdir(parents=True, exist_ok=True)
    found: list[Result] = []
    error = None
    try:
        for some in _check(target):
            found += some
    except CheckError as failed:
        error = failed
    rows = [("ok", each.subject, each.bar, each.found) for each in found]
    if error is not None:
        rows.append(("FAILED", "", "", str(error).splitlines()[0]))
    print(table([("", "WHAT", "BAR", "FOUND"), *rows]))
    if error is not None:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"\nWheel, sdist, SBOM and licences are in {target.relative_to(ROOT)}.")
    return 0


def _check(target: Path) -> Iterator[list[Result]]:
    yield [Result("Python", f"{sys.version.split()[0]} on {sys.platform}")]
    wheel, sdist = _step("building twice", lambda: building.build(target))
    yield building.results(wheel, sdist)
    yield _step("metadata", lambda: building.check_metadata(wheel, sdist))
    core = _step("installing the core", lambda: installing.install(target, wheel))
    yield installing.check_sizes(target, core)
    full = _step("installing all extras", lambda: installing.install(target, wheel, "all"))
    download, unpacked, _ = installing.sizes(target, full, "all")
    yield [Result("all extras", f"{download:.1f} MB to download, {unpacked:.1f} MB unpacked")]
    yield _step("measuring the start", lambda: installing.check_start(core, full))
    yield _step("licences", lambda: licences.report(full, target))
    yield _step("SBOM", lambda: sbom.write(full, target))
    yield _step("the README", lambda: installing.type_first_screen(full, target))


def _step(what: str, work: Callable[[], Found]) -> Found:
    print(f"{what} …", file=sys.stderr, flush=True)
    begun = time.monotonic()
    found = work()
    print(f"  {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
