"""Runs the mutants of the SQL functions."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Sequence

from tests.mutants.choosing import asked, collected_files, load_calls
from tests.mutants.lab import Lab
from tests.mutants.results import FOLDER, Results, chosen, equivalents
from tests.mutants.sql_sites import Mutant, all_mutants


def run(options: Namespace) -> int:
    """Try the chosen mutants; 1 if one survived."""
    mutants = chosen(all_mutants(), options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.place:24} {mutant.key}")
        print(f"{len(mutants)} mutants")
        return 0
    # In the background of a shell only this one ends a program, and the server must not stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = Results("sql")
    with Lab() as lab:
        files = collected_files({mutant.file for mutant in mutants} if options.near else None)
        lab.with_tests(files, lambda: _try_all(mutants, lab, results, options))
    results.show()
    return 1 if results.survivors else 0


def _try_all(mutants: Sequence[Mutant], lab: Lab, results: Results, options: Namespace) -> None:
    reasons = equivalents("sql")
    calls = load_calls(lab, FOLDER / "calls.json")
    for number, mutant in enumerate(mutants, 1):
        if mutant.key in reasons:
            results.count(mutant, "equivalent")
            continue
        digest = results.digest(mutant.statement)
        tests = calls.tests_for(mutant)[: options.tests]
        question = asked(tests)
        known = results.known(mutant, digest, question) if options.resume else None
        if known is not None:
            results.count(mutant, known)
            continue
        if results.is_over(options.minutes):
            results.count(mutant, "not begun")
            continue
        verdict = lab.try_mutant(mutant, tests, options.seconds)
        # One for which the time ran out may be asked again.
        is_whole = verdict.outcome == "survived" and not verdict.by
        results.add(mutant, digest, verdict, question if is_whole else None)
        results.count(mutant, verdict.outcome)
        if verdict.is_killed:
            calls.killed_by(mutant, verdict.by)
        print(
            f"{verdict.outcome:9} {verdict.seconds:5.1f} s {verdict.tests:3} tests"
            f"  {number}/{len(mutants)} {mutant.place} {mutant.key[:100]}  {verdict.by}",
            flush=True,
        )
