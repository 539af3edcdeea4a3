"""The pure parts of the benchmarks: figures, bars, tables, plots. Nothing is measured here."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import report
from benchmarks.bars import BARS, bars_table, fastest_peer
from benchmarks.catalogue import WORKLOADS
from benchmarks.entrants import ENTRANTS
from benchmarks.figures import paired, quantile, spread
from benchmarks.lab import Case, Lab, Size
from benchmarks.link import address
from benchmarks.plot import line_chart, nice_ceiling, short
from benchmarks.runner import Results, chosen, estimate, rounds_of, run, varied
from benchmarks.workloads import RATE, Workload

ABOUT = {
    "at": "2026-01-02T03:04:05+00:00",
    "machine": "two cores",
    "system": "Linux",
    "python": "3.11",
    "server": {"fsync": "on"},
    "versions": {"pgqueuer": "1.6.0"},
    "command": "python -m benchmarks",
}


def workload(*names: str, measure=lambda lab, case: {"rate": 1.0}, **changes) -> Workload:
    cases = tuple(Case(name, ENTRANTS[name]) for name in names)
    return replace(Workload("drain-tuned", "a drain", measure, (RATE,), cases, 1.0), **changes)


def results_of(**rates: list[float]) -> Results:
    results = Results()
    for label, values in rates.items():
        for value in values:
            results.add("drain-tuned", label.replace("_", " "), {"rate": value})
    return results


# -- figures


def test_a_spread_has_the_median_and_both_ends():
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.count) == (2.0, 1.0, 3.0, 3)


def test_large_figures_are_shown_without_decimals_and_small_ones_with():
    assert str(spread([12_345.6, 12_000.0, 13_000.0])) == "12,346 (12,000 to 13,000)"
    assert str(spread([1.234, 1.0, 2.0])) == "1.23 (1.00 to 2.00)"
    assert str(spread([15.25])) == "15.2"


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_ratios_are_taken_between_neighbours_and_failed_rounds_are_left_out():
    assert paired([2.0, None, 6.0, 8.0], [1.0, 5.0, None, 2.0]) == [2.0, 4.0]


def test_a_quantile_is_one_of_the_values():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    assert quantile([1.0], 0.99) == 1.0


# -- choosing


def test_a_name_means_itself_or_all_that_begin_with_it():
    keys = [w.key for w in chosen(WORKLOADS, ["drain"], [], is_quick=False)]
    assert len(keys) > 2
    assert all(key.startswith("drain-") for key in keys)
    assert [w.key for w in chosen(WORKLOADS, ["history"], [], is_quick=False)] == ["history"]


def test_systems_are_chosen_by_their_name_or_their_adapter():
    (found,) = chosen(WORKLOADS, ["drain-tuned"], ["commandbus", "pgmq"], is_quick=False)
    assert {case.entrant.module for case in found.cases} == {"commandbus", "pgmq"}


def test_long_workloads_run_only_when_they_are_named():
    everything = {w.key for w in chosen(WORKLOADS, [], [], is_quick=False)}
    assert "memory" not in everything
    assert [w.key for w in chosen(WORKLOADS, ["memory"], [], is_quick=False)] == ["memory"]


def test_a_full_run_fits_into_half_an_hour_and_a_quick_one_into_five_minutes():
    assert estimate(chosen(WORKLOADS, [], [], is_quick=False), None) <= 30 * 60
    assert estimate(chosen(WORKLOADS, [], [], is_quick=True), 1) <= 5 * 60


def test_what_a_bar_is_read_off_has_five_rounds_for_ours():
    barred = {"drain-tuned", "drain-defaults", "bulk-100k", "single", "senders-10", "senders-32",
              "wakeups", "latency", "history", "backing-off", "batch"}  # fmt: skip
    for found in WORKLOADS:
        if found.key in barred:
            ours = [case for case in found.cases if case.entrant.name == "commandbus"]
            assert all(rounds_of(found, case, None) == 5 for case in ours), found.key
        if not found.is_optional:
            assert all(rounds_of(found, case, None) >= 3 for case in found.cases), found.key


def test_a_variant_is_one_more_case_with_other_settings():
    (found,) = varied([workload("commandbus", "pgqueuer")], ['pgqueuer={"batch_size": 7}'])
    assert [case.label for case in found.cases] == [
        "commandbus", "pgqueuer", 'pgqueuer {"batch_size": 7}',
    ]  # fmt: skip
    assert found.cases[2].settings == {"batch_size": 7}


def test_a_slow_system_gets_its_share_of_the_commands():
    assert Size(drain=1_000).commands(Case("x", ENTRANTS["commandbus"])) == 1_000
    assert Size(drain=10_000).commands(Case("x", ENTRANTS["procrastinate"])) == 1_000


# -- running


def nowhere() -> Lab:
    """A lab that is never asked for a trial."""
    return cast(Lab, SimpleNamespace(log="nowhere"))


def test_rounds_go_forwards_and_backwards_over_the_systems():
    seen = []

    def measure(lab, case):
        seen.append(case.label)
        return {"rate": 1.0}

    said: list[str] = []
    run(nowhere(), [workload("commandbus", "pgqueuer", measure=measure)], 2, say=said.append)
    assert seen == ["commandbus", "pgqueuer", "pgqueuer", "commandbus"]
    assert len(said) == 1 + 4


def test_a_failure_is_kept_and_after_two_the_case_is_left_alone():
    calls = []

    def measure(lab, case):
        calls.append(1)
        raise OSError("no such peer")

    results = run(nowhere(), [workload("awa", measure=measure)], 4, say=lambda _: None)
    assert len(calls) == 2
    assert results.errors("drain-tuned", "awa")[0] == "no such peer"


def test_nothing_new_begins_after_the_limit_of_time():
    results = run(nowhere(), [workload("awa")], 4, limit_seconds=-1, say=lambda _: None)
    assert results.was_cut
    assert results.figures == {}


# -- bars and tables


def test_the_fastest_peer_is_neither_ours_nor_the_floor():
    results = results_of(
        commandbus=[9.0], **{"raw_PGMQ,_groups": [99.0]}, pgqueuer=[5.0], awa=[7.0, 1.0, 1.0]
    )
    assert fastest_peer(results, "drain-tuned", "rate") == "pgqueuer"
    assert fastest_peer(results, "drain-tuned", "rate", lowest=True) == "awa"
    assert fastest_peer(results, "latency", "rate") is None


def test_a_bar_is_judged_by_the_median_of_the_pairs():
    table = bars_table(results_of(commandbus=[2.0, 2.0, 3.0], pgqueuer=[1.0, 1.0, 3.0]))
    line = next(line for line in table.splitlines() if "one process" in line)
    assert "| 2.00 (1.00 to 2.00) x | pgqueuer | 3 | beyond |" in line


def test_a_bar_that_is_missed_or_not_measured_says_so():
    table = bars_table(results_of(commandbus=[1.0], pgqueuer=[1.0]))
    assert "**not reached**" in table
    assert table.count("not measured") == len(BARS) - 1
    assert "not measured" not in bars_table(Results(), only_measured=True)


def test_the_table_says_where_a_peer_is_ahead():
    found = workload("commandbus", "pgqueuer", "awa")
    table = report.workload_table(found, results_of(commandbus=[10.0], pgqueuer=[20.0], awa=[5.0]))
    ahead = [line for line in table.splitlines() if "this one is ahead" in line]
    assert len(ahead) == 1
    assert ahead[0].startswith("| pgqueuer | 20.0 |")


def test_the_table_says_why_a_peer_failed():
    results = results_of(commandbus=[10.0])
    results.add("drain-tuned", "awa", {"error": "no | wheel"})
    table = report.workload_table(workload("commandbus", "awa"), results)
    assert "| awa | failed: no / wheel | |" in table


def test_one_failed_round_does_not_hide_the_others():
    results = results_of(commandbus=[10.0, 10.0], awa=[5.0])
    results.add("drain-tuned", "awa", {"error": "too slow"})
    table = report.workload_table(workload("commandbus", "awa"), results)
    assert "| awa | 5.00 | commandbus = 2.00 x; failed 1 times: too slow |" in table


def test_a_new_section_goes_above_the_older_ones():
    kept = f"# Results\n\n{report.MARK}\n\n## old\n"
    text = report.with_section(kept, "## new\n")
    assert text.index("## new") < text.index("## old")
    with pytest.raises(ValueError, match="has no line"):
        report.with_section("# Results", "## new")


def test_a_section_names_machine_versions_and_settings():
    results = results_of(commandbus=[10.0])
    text = report.markdown([workload("commandbus")], results, ABOUT, ["a.svg"])
    for wanted in ("two cores", "pgqueuer 1.6.0", "fsync on", "results/a.svg", "its defaults"):
        assert wanted in text


def test_keeping_writes_results_figures_and_plots(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(report, "KEPT", tmp_path / "results")
    (tmp_path / "RESULTS.md").write_text(f"# Results\n\n{report.MARK}\n")
    found = next(w for w in WORKLOADS if w.key == "history")
    results = Results()
    for case in found.cases:
        results.add("history", case.label, {"rate": 100.0})
    report.keep([found], results, ABOUT)
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"2026-01-02-0304.json", "2026-01-02-0304-history.svg"}
    assert "2026-01-02-0304-history.svg" in (tmp_path / "RESULTS.md").read_text()


# -- plots and addresses


def test_a_chart_has_axes_labels_a_legend_and_a_point_for_each_figure():
    svg = line_chart("by <group>", "group", "rate", {"ours": [(1, 5), (10, 50)], "b": [(1, 4)]})
    root = ET.fromstring(svg)
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert {"by <group>", "group", "rate", "ours", "b", "1", "10", "50"} <= set(texts)
    assert sum(1 for node in root.iter() if node.tag.endswith("circle")) == 3


def test_an_empty_chart_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        line_chart("t", "x", "y", {"ours": []})


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (1.1, 2), (23_000, 25_000), (90, 100)]
)
def test_an_axis_ends_at_a_round_number(value, ceiling):
    assert nice_ceiling(value) == ceiling


def test_numbers_on_an_axis_are_short():
    assert [short(n) for n in (0, 250, 1_500, 1_000_000)] == ["0", "250", "1.5k", "1M"]


def test_an_address_survives_special_characters():
    found = address("host=/sockets port=5432 user=me password='p@ss/word' dbname=bench")
    assert found["url"] == "postgresql://me:p%40ss%2Fword@/bench?host=%2Fsockets&port=5432"
