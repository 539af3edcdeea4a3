"""docs/guarantees.md lists every run, invariant and bar; faults/RESULTS.md has the figures."""

from __future__ import annotations

import re

from faults import INVARIANTS, catalogue
from faults.catalogue import TOTALS
from tests.docs.markdown import DOCS, ROOT, table_with, tables

PAGE = DOCS / "guarantees.md"
RESULTS = ROOT / "faults" / "RESULTS.md"


def test_every_run_is_listed() -> None:
    rows = table_with(PAGE, "run", "what is done")
    listed = {name for row in rows for name in re.findall(r"F\d+b?", row["run"])}
    # F41 and F42 need shards and brokers, not workers to kill: they are tests of their own.
    assert listed == {run.id for tier in ("long", "ha") for run in catalogue(tier)} | {"F41", "F42"}
    in_short = {
        name
        for row in rows
        if row["short tier"] != "-"
        for name in re.findall(r"F\d+b?", row["run"])
    }
    assert {run.id for run in catalogue("short")} <= in_short


def test_every_invariant_is_listed_and_stands_for_a_promise() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (I\d+) \|", text, re.M)) == set(INVARIANTS)
    rows = table_with(PAGE, "promise", "runs", "invariants")
    kept = {name for row in rows for name in re.findall(r"I\d+", row["invariants"])}
    assert kept == set(INVARIANTS)


def test_the_bars_of_the_long_tier_are_told() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    bars = text[text.index("## Bars") :]
    for least in TOTALS.values():
        assert f"{least:,} " in bars, least


def test_the_newest_kept_results_name_their_command_and_cover_every_run() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    date, seed = re.findall(r"^## (\d{4}-\d\d-\d\d), seed (\d+)$", text, re.M)[0]
    assert f'`make faults FAULT_ARGS="--seed {seed}"`' in text, date
    rows = next(rows for rows in tables(RESULTS) if rows and "commands" in rows[0])
    assert [row["run"] for row in rows] == [run.id for run in catalogue("long")]


def test_the_kept_sums_reach_the_bars() -> None:
    sums = {row["sum over all runs"]: row[""] for row in tables(RESULTS)[0]}
    for name, least in TOTALS.items():
        assert int(sums[name.replace("_", " ")].replace(",", "")) >= least, name
    for name in ("lost", "double finished", "stale accepted", "batch mismatches", "orphans"):
        assert sums[name] == "0", name
