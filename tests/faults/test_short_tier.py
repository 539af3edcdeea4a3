"""The short tier: every kind of fault once, with real processes, in seconds.

A failure names its seed; the long tier is `make faults`. The seed is fixed here, so that the suite
is the same each time; FAULT_SEED=7 runs another schedule.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from faults import (
    Bars,
    Load,
    Run,
    Runner,
    Verdict,
    Workers,
    catalogue,
    replay_command,
)
from faults.__main__ import main
from faults.nemeses import PauseWorkers

SEED = int(os.environ.get("FAULT_SEED", "20261116"))

# One server for all runs, so one process for them; the rest of the suite has the other cores.
pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.xdist_group("faults")]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def explain(verdict: Verdict) -> str:
    lines = [*verdict.missed, *verdict.notes]
    lines += [f"{v.invariant} {v.subject}: {v.message}" for v in verdict.violations[:10]]
    return "\n".join([*lines, f"again: {replay_command(verdict, 'short')}"])


#: Run by the program itself, below.
BY_PROGRAM = "F16"


def _param(run: Run) -> Any:
    # The leader's key in a cluster lives for 20 s, and the servers of a cluster start one by one.
    marks = [pytest.mark.timeout(300)] if run.server == "cluster" else []
    return pytest.param(run, id=run.id, marks=marks)


@pytest.mark.parametrize("run", [_param(run) for run in catalogue("short") if run.id != BY_PROGRAM])
async def test_nothing_is_lost_or_doubled(runner: Runner, run: Run) -> None:
    verdict = await runner.run(run, SEED)
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    assert verdict.is_good, explain(verdict)
    assert verdict.figures is not None
    assert verdict.figures.commands > 0


def test_the_program_runs_what_it_is_asked_for_and_leaves_a_report(tmp_path: Path) -> None:
    out = StringIO()
    options = ["--only", BY_PROGRAM, "--seed", str(SEED), "--report", str(tmp_path)]
    status = main(options, Console(file=out, width=200))
    assert status == 0, out.getvalue()
    found = json.loads((tmp_path / "faults.json").read_text())
    assert (found["is_good"], found["seed"]) == (True, SEED)
    (run,) = found["runs"]
    assert (run["id"], run["figures"]["commands"], run["figures"]["lost"]) == (BY_PROGRAM, 20, 0)
    assert f"{BY_PROGRAM}  good 20 commands" in out.getvalue()


GUARD = "and c.lease_epoch = i.lease_epoch and c.leased_by is not null"


def without_the_fence() -> str:
    """end_leases as it would be without its guard, and what it moved is not called stale."""
    source = importlib.resources.files("commandbus").joinpath("database/sql/functions/leases.sql")
    text = source.read_text(encoding="utf-8")
    changed = []
    for name, old, new in (
        ("end_leases", GUARD, ""),
        (
            "reject_stale",
            "where not (",
            "where i.command_id <> all(coalesce(p_moved, '{}')) and not (",
        ),
    ):
        found = re.search(
            rf"create or replace function commandbus\.{name}.*?\nend \$\$;", text, re.S
        )
        assert found is not None
        assert found[0].count(old) == 1
        changed.append(found[0].replace(old, new))
    return "\n".join(changed)


async def test_a_worker_that_finishes_without_the_fence_is_caught_within_a_minute(
    runner: Runner,
) -> None:
    """The test of the tests: zombies come back while somebody else works on their commands."""
    leaky = Run(
        "F2", "zombies, and no fence",
        (PauseWorkers(1, at_once=2, pace=(0.1, 0.3)),),
        load=Load(work_ms=2_000, mix={"fine": 1.0}, backlog=-22, groups=(1.0, 0.0, 0.0)),
        workers=Workers(number=4, concurrency=10, vt_seconds=2),
        bars=Bars(),
        calm_seconds=0.2,
        drain_seconds=30.0,
        sabotage=without_the_fence(),
    )  # fmt: skip
    began = time.monotonic()
    verdict = await runner.run(leaky, SEED)
    assert time.monotonic() - began < 60
    assert verdict.figures is not None
    assert verdict.figures.stale_accepted > 0, explain(verdict)
    assert not verdict.is_good
    assert {"I7"} <= {violation.invariant for violation in verdict.violations}
