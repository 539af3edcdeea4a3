"""Figures, bars and the report: pure functions of facts and verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from faults import Bars, Run, Verdict, Violation, catalogue, replay_command
from faults import report as reporting
from faults.__main__ import chosen, main
from faults.display import Display
from faults.facts import Death, Event, Facts, Outage, Phases
from faults.figures import (
    Figures,
    longest_rescue,
    measure,
    missed_bars,
    slowest_completion,
    slowest_resume,
)
from faults.nemeses import Wait
from tests.faults.histories import OTHER, WORKER, History, sound

RUN = Run("F0", "nothing happens", (Wait(0.0),))


def figures(**changes: Any) -> Figures:
    return replace(measure(sound().end(), [], {}, {}), **changes)


def test_a_rescue_is_measured_from_the_death_to_the_next_lease() -> None:
    history = History()
    history.send("a")
    history.claim("a", WORKER)
    history.facts.deaths.append(Death(11, history.now + 1.0, "kill"))
    history.now += 4.0
    history.claim("a", OTHER)
    assert longest_rescue(history.facts) == pytest.approx(3.1)


def test_a_rescue_across_an_outage_is_not_judged() -> None:
    history = History()
    history.send("a")
    history.claim("a", WORKER)
    history.facts.deaths.append(Death(11, history.now, "kill"))
    history.facts.outages.append(Outage(history.now + 1, history.now + 2))
    history.now += 9.0
    history.claim("a", OTHER)
    assert longest_rescue(history.facts) is None


def test_a_lapse_of_somebody_who_did_not_die_is_no_rescue() -> None:
    history = History()
    history.send("a")
    history.claim("a", WORKER)
    history.claim("a", OTHER)
    assert longest_rescue(history.facts) is None


def test_a_lease_that_began_after_a_pause_is_no_rescue_from_it() -> None:
    history = History()
    history.send("a")
    history.facts.deaths.append(Death(11, history.now, "pause"))
    history.now += 20.0
    history.claim("a", WORKER)
    history.now += 4.0
    history.claim("a", OTHER)
    assert longest_rescue(history.facts) is None


def test_a_resume_is_measured_from_the_server_being_back_to_the_first_lease() -> None:
    history = History()
    history.send("a")
    history.facts.outages.append(Outage(history.now, history.now + 2))
    history.now += 3.4
    history.claim("a")
    history.facts.outages.append(Outage(history.now + 5, history.now + 6))  # nothing came after it
    assert slowest_resume(history.facts) == pytest.approx(1.5)
    assert slowest_completion(history.facts) == pytest.approx(6.5), "nothing ended in between"
    history.finish("a")
    assert slowest_completion(history.facts) == pytest.approx(1.6)


def test_an_outage_after_which_nothing_was_done_until_the_next_one_counts() -> None:
    history = History()
    history.send("a")
    began = history.now
    history.facts.outages.append(Outage(began, began + 2))
    history.facts.outages.append(Outage(began + 9, began + 10))
    history.now += 10.5
    history.claim("a")
    assert slowest_resume(history.facts) == pytest.approx(7.0)


def test_rates_are_counted_in_their_windows() -> None:
    events = [Event(n, 10.0 + n, "a", "COMPLETED") for n in range(10)]
    phases = Phases(before=(10.0, 15.0), during=(15.0, 17.0), after=(0.0, 0.0))
    found = measure(Facts(events=events, phases=phases), [], {}, {})
    assert (found.rate_before, found.rate_during, found.rate_after) == (1.0, 1.0, None)


def test_violations_are_counted_under_their_names() -> None:
    wrong = [Violation(name, "a", "") for name in ("I1", "I3", "I3", "I7", "I8", "I11", "I13")]
    found = measure(sound().end(), wrong, {"worker_kills": 3}, {})
    assert (found.lost, found.double_finished, found.stale_accepted) == (1, 2, 1)
    assert (found.batch_mismatches, found.orphans) == (1, 1)
    assert (found.stale_rejected, found.duplicates_allowed, found.lapses) == (1, 1, 1)
    assert found.counts == {"worker_kills": 3}


@pytest.mark.parametrize(
    ("bars", "changes", "words"),
    [
        (Bars(rescue_seconds=2.0), {"longest_rescue": 5.5}, "rescue took 5.50 s, at most 5 s"),
        (Bars(rescue_seconds=2.0), {"longest_rescue": None}, "rescue: there was nothing"),
        (Bars(resume_seconds=5.0), {"slowest_resume": 5.1}, "resume took 5.10 s"),
        (Bars(completion_seconds=5.0), {"slowest_completion": 5.2}, "completion took 5.20 s"),
        (
            Bars(rate_after=0.95),
            {"rate_before": 100.0, "rate_after": 90.0},
            "the rate after was 90% of the rate before, at least 95%",
        ),
        (Bars(rate_during=0.6), {"rate_before": 0.0}, "rate during: there was nothing"),
        (Bars(duplicates=0), {"duplicates_allowed": 1}, "1 further runs, 0 are allowed"),
        (Bars(at_least={"stale_rejected": 5}), {}, "stale_rejected: 1, at least 5"),
        (Bars(at_least={"failovers": 1}), {}, "failovers: 0, at least 1"),
        (Bars(at_most={"deadlocks": 0}), {"counts": {"deadlocks": 2}}, "deadlocks: 2, at most 0"),
        (Bars(at_most={"heal": 1.0}), {"peaks": {"heal": 1.5}}, "heal: 1.5, at most 1"),
    ],
)
def test_a_bar_that_is_missed_is_told_in_words(
    bars: Bars, changes: dict[str, Any], words: str
) -> None:
    (missed,) = missed_bars(figures(**changes), bars, vt_seconds=3)
    assert missed.startswith(words)


def test_bars_that_are_met_are_not_told() -> None:
    bars = Bars(2.0, 5.0, 5.0, 0.95, 0.6, 3, {"kills": 2}, {"deadlocks": 0})
    found = figures(
        longest_rescue=4.9, slowest_resume=1.0, slowest_completion=1.1, rate_before=100.0,
        rate_during=60.0,
        rate_after=95.0, counts={"kills": 2},
    )  # fmt: skip
    assert missed_bars(found, bars, vt_seconds=3) == []


# -- the report


def verdicts() -> list[Verdict]:
    good = Verdict(RUN, 7, 12.0, figures(rate_before=100.0, rate_during=50.0, rate_after=100.0))
    wrong = [Violation("I1", "c1", "is gone")]
    bad = Verdict(
        replace(RUN, id="F9"), 7, 3.0, figures(lost=1), wrong, ["too slow"], ["as it was"]
    )
    skipped = Verdict(replace(RUN, id="F11"), 7, 0.1, None, skipped="no right to mount")
    return [good, bad, skipped]


def test_the_report_has_sums_figures_and_the_way_to_see_a_failure_again(tmp_path: Path) -> None:
    found = reporting.document(verdicts(), "long", 7, 99.0, ["failovers: 0 in all"])
    reporting.write(found, tmp_path / "report")
    text = (tmp_path / "report" / "faults.md").read_text()
    assert json.loads((tmp_path / "report" / "faults.json").read_text()) == found
    assert "**NOT GOOD**" in text
    assert "| commands | 10 |" in text
    assert "100/s, 50/s (50%), 100/s" in text
    assert "F9: I1 c1: is gone" in text
    assert "F9: too slow" in text
    assert "`python -m faults --only F9 --seed 7 --scale long`" in text
    assert "F11 was skipped: no right to mount" in text
    assert "failovers: 0 in all" in text


def test_a_report_without_faults_is_good() -> None:
    found = reporting.document(verdicts()[:1], "short", 7, 9.0, [])
    assert found["is_good"]
    assert "all good" in reporting.markdown(found)


def test_sums_that_are_too_small_are_told() -> None:
    assert reporting.missed_totals(verdicts(), {"commands": 10}) == []
    (missed,) = reporting.missed_totals(verdicts(), {"cut_commits": 1_000})
    assert missed == "cut_commits: 0 in all, at least 1,000 are wanted"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_display_says_what_came_of_each_run(is_terminal: bool) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=300, color_system=None)
    display = Display([RUN], console)
    with display.live():
        display.say(RUN, "storm")
        for verdict in verdicts():
            display.judged(verdict, "short")
    said = out.getvalue()
    assert "storm" in said
    assert "F0   good" in said
    assert "F9   BAD" in said
    assert "I1 c1: is gone" in said
    assert "again: python -m faults --only F9 --seed 7 --scale short" in said
    assert "F11  skipped: no right to mount" in said


# -- the catalogue and the program


@pytest.mark.parametrize("scale", ["short", "long"])
def test_the_runs_of_a_tier_have_names_of_their_own_and_faults(scale: Any) -> None:
    runs = catalogue(scale)
    assert len({run.id for run in runs}) == len(runs)
    assert all(run.nemeses for run in runs)


def test_the_long_tier_has_every_fault_of_the_plan_and_fits_into_an_hour() -> None:
    runs = catalogue("long")
    assert {f"F{n}" for n in (*range(1, 20), *range(30, 37))} <= {run.id for run in runs}
    assert sum(run.expected_seconds for run in runs) < 3_600
    (cluster,) = catalogue("ha")
    assert cluster.bars.at_least == {
        "leader_kills": 20, "leader_switchovers": 20, "leader_freezes": 10,
    }  # fmt: skip


def test_runs_are_chosen_by_their_names() -> None:
    runs = catalogue("short")
    assert [run.id for run in chosen(runs, "F3, F1")] == ["F1", "F3"]
    assert chosen(runs, "") == list(runs)
    with pytest.raises(SystemExit, match="no run F99 in this tier; there are F1"):
        chosen(runs, "F1,F99")


def test_the_program_lists_its_runs() -> None:
    out = StringIO()
    assert main(["--list", "--scale", "long"], Console(file=out, width=200)) == 0
    assert "F17  PgBouncer in transaction mode" in out.getvalue()


def test_the_command_of_a_replay_names_run_seed_and_scale() -> None:
    command = replay_command(verdicts()[0], "long")
    assert command == "python -m faults --only F0 --seed 7 --scale long"
