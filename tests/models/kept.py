"""Runs a state machine, and keeps the steps that led to a failure: a log is soon gone."""

from __future__ import annotations

import os
import traceback
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.reporting import with_reporter
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

#: Made by the first failure: the steps as text, and what hypothesis tries first the next time.
FOLDER = Path(os.environ.get("MODEL_FAILURES", Path(__file__).parents[2] / "build" / "models"))


def run_kept(
    machine: type[RuleBasedStateMachine], *, examples: int, steps: int, folder: Path | None = None
) -> None:
    """As run_state_machine_as_test; the same failure is tried again first in the next run."""
    place = FOLDER if folder is None else folder
    lines: list[str] = []

    def keep(text: object) -> None:
        lines.append(str(text))
        print(text)

    try:
        with with_reporter(keep):
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    database=DirectoryBasedExampleDatabase(place / "examples"),
                    print_blob=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    except BaseException as error:
        if lines or not isinstance(error, KeyboardInterrupt):
            place.mkdir(parents=True, exist_ok=True)
            kept = place / f"{machine.__name__}-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"
            text = "".join(traceback.format_exception(error))
            kept.write_text("\n".join([*lines, "", text]), encoding="utf-8")
            print(f"the steps are kept in {kept}")
        raise
