"""Faults on purpose: real workers, a real server, seeded nemeses, and one checker for it all.

    python -m faults --list
    python -m faults --only F1,F3 --seed 7

A suite of one's own makes a `Run` and gives it to a `Runner`:

    verdict = await Runner().run(my_run, seed=7)
    assert verdict.is_good, verdict

What is listed in __all__ is public; everything else may change.
"""

from faults.catalogue import catalogue
from faults.checker import INVARIANTS, Violation, check
from faults.facts import Facts
from faults.figures import Figures
from faults.plan import Bars, Load, Run, Workers
from faults.runner import Runner, Verdict, replay_command

__all__ = [
    "INVARIANTS",
    "Bars",
    "Facts",
    "Figures",
    "Load",
    "Run",
    "Runner",
    "Verdict",
    "Violation",
    "Workers",
    "catalogue",
    "check",
    "replay_command",
]
