"""Runs the mutants of the SQL functions."""

from __future__ import annotations

from argparse import Namespace

from tests.mutants.choosing import load_calls
from tests.mutants.lab import Lab
from tests.mutants.results import FOLDER, Results, chosen, equivalents
from tests.mutants.sql_sites import all_mutants


def run(options: Namespace) -> int:
    """Try the chosen mutants; 1 if one survived."""
    mutants = chosen(all_mutants(), options)
    reasons = equivalents("sql")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.place:24} {mutant.key}")
        print(f"{len(mutants)} mutants")
        return 0
    results = Results("sql")
    with Lab() as lab:
        calls = load_calls(lab, FOLDER / "calls.json")
        for number, mutant in enumerate(mutants, 1):
            if results.is_over(options.minutes):
                print(f"stopped: {len(mutants) - number + 1} were not begun; go on with --resume")
                break
            digest = results.digest(mutant.statement)
            if mutant.key in reasons:
                results.count(mutant, "equivalent")
                continue
            if options.resume and results.was_killed(mutant, digest):
                results.count(mutant, "killed")
                continue
            verdict = lab.try_mutant(mutant, calls.tests_for(mutant), options.seconds)
            results.add(mutant, digest, verdict)
            results.count(mutant, verdict.outcome)
            if verdict.outcome == "killed":
                calls.killed_by(mutant, verdict.by)
            shown = f"{number}/{len(mutants)} {mutant.place} {mutant.key[:100]}"
            print(
                f"{verdict.outcome:9} {verdict.seconds:5.1f} s {verdict.tests:3} tests  {shown}"
                f"  {verdict.by}",
                flush=True,
            )
    results.show()
    return 1 if results.survivors else 0
