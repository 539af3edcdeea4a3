"""docs/guarantees.md lists every run and every invariant, and none that does not exist."""

from __future__ import annotations

import re

from faults import INVARIANTS, catalogue
from faults.catalogue import TOTALS
from tests.docs.markdown import DOCS, table_with

PAGE = DOCS / "guarantees.md"


def test_every_run_is_listed() -> None:
    rows = table_with(PAGE, "run", "what is done")
    listed = {name for row in rows for name in re.findall(r"F\d+b?", row["run"])}
    assert listed == {run.id for run in catalogue("long")}
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


def test_the_sums_of_the_long_tier_are_told() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for least in TOTALS.values():
        assert f"{least:,} " in text, least
