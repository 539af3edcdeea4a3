"""Metrics of a process: closed labels, and the text that Prometheus reads."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time

import pytest

from commandbus.monitoring import Metrics, catalogue
from commandbus.monitoring.catalogue import FAMILIES, MAX_CODES, MAX_DOMAINS, MAX_TYPES, OTHER
from commandbus.monitoring.exposition import exposition, number
from commandbus.monitoring.samples import Histogram, Snapshot


def busy_metrics() -> Metrics:
    metrics = Metrics()
    metrics.know("shop", ["Pack"])
    metrics.waited("shop", "Pack", 0.2)
    metrics.handled("shop", "Pack", 0.004)
    metrics.ended("shop", "Pack", "retried", 1, "OUT_OF_STOCK")
    metrics.ended("shop", "Pack", "completed", 2)
    metrics.settled("shop", 0.01)
    metrics.sent("shop", ["Pack", "Pack", "Ship"], 0.003)
    metrics.lease_lost("shop")
    return metrics


def lines(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_what_happened_is_in_the_text() -> None:
    found = lines(busy_metrics())

    assert 'commandbus_commands_total{domain="shop",type="Pack",outcome="completed"} 1' in found
    assert 'commandbus_commands_total{domain="shop",type="Pack",outcome="parked"} 0' in found
    assert 'commandbus_errors_total{domain="shop",type="Pack",code="OUT_OF_STOCK"} 1' in found
    assert 'commandbus_wait_seconds_bucket{domain="shop",type="Pack",le="0.1"} 0' in found
    assert 'commandbus_wait_seconds_bucket{domain="shop",type="Pack",le="0.25"} 1' in found
    assert 'commandbus_wait_seconds_bucket{domain="shop",type="Pack",le="+Inf"} 1' in found
    assert 'commandbus_wait_seconds_sum{domain="shop",type="Pack"} 0.2' in found
    assert 'commandbus_handle_seconds_count{domain="shop",type="Pack"} 1' in found
    assert 'commandbus_attempts_bucket{domain="shop",type="Pack",le="1"} 0' in found
    assert 'commandbus_attempts_bucket{domain="shop",type="Pack",le="2"} 1' in found
    assert 'commandbus_sent_total{domain="shop",type="Pack"} 2' in found
    assert 'commandbus_sent_total{domain="shop",type="Ship"} 1' in found
    assert 'commandbus_leases_lost_total{domain="shop"} 1' in found


def test_a_known_type_is_there_with_zeros_before_its_first_command() -> None:
    metrics = Metrics()
    metrics.know("shop", ["Pack"])

    assert 'commandbus_handle_seconds_count{domain="shop",type="Pack"} 0' in lines(metrics)
    assert 'commandbus_leases_lost_total{domain="shop"} 0' in lines(metrics)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_the_text() -> None:
    metrics = busy_metrics()
    metrics.ended("shop", "Pack", "parked", 1, 'a "code"\nin \\ two lines')

    run = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.text(), capture_output=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr


def test_types_beyond_the_limit_are_summed_as_other() -> None:
    metrics = Metrics()
    for index in range(MAX_TYPES + 50):
        metrics.sent("shop", [f"Type{index}"], 0.0)

    snapshot = metrics.snapshot()
    assert snapshot.get(catalogue.SENT, "shop", "Type0") == 1
    assert snapshot.get(catalogue.SENT, "shop", f"Type{MAX_TYPES}") is None
    assert snapshot.get(catalogue.SENT, "shop", OTHER) == 50


def test_domains_beyond_the_limit_are_summed_as_other() -> None:
    metrics = Metrics()
    for index in range(MAX_DOMAINS + 7):
        metrics.settled(f"d{index}", 0.1)
        metrics.lease_lost(f"d{index}")
        metrics.sent(f"d{index}", ["Pack"], None)

    snapshot = metrics.snapshot()
    assert snapshot.get(catalogue.LEASES_LOST, OTHER) == 7
    assert snapshot.get(catalogue.SENT, OTHER, OTHER) == 7


def test_a_type_without_a_handler_does_not_get_a_series() -> None:
    # What others send must not fill the places of our own types.
    metrics = Metrics()
    for index in range(300):
        metrics.ended("shop", f"Unknown{index}", "parked", 1, "HANDLER_NOT_FOUND")
    metrics.know("shop", ["Pack"])
    metrics.ended("shop", "Pack", "completed", 1)

    snapshot = metrics.snapshot()
    assert snapshot.get(catalogue.COMMANDS, "shop", OTHER, "parked") == 300
    assert snapshot.get(catalogue.COMMANDS, "shop", "Pack", "completed") == 1


@pytest.mark.parametrize("code", ["4111 1111 1111 1111", "a@b", "", "x" * 101, 'say "hi"'])
def test_a_code_that_may_be_a_value_is_no_label(code: str) -> None:
    metrics = Metrics()
    metrics.ended("shop", "Pack", "parked", 1, code)

    assert metrics.snapshot().get(catalogue.ERRORS, "shop", OTHER, OTHER) == 1


def test_codes_beyond_the_limit_are_summed_as_other() -> None:
    metrics = Metrics()
    metrics.know("shop", ["Pack"])
    for index in range(MAX_CODES + 3):
        metrics.ended("shop", "Pack", "parked", 1, f"CODE_{index}")
    metrics.ended("shop", "Pack", "parked", 1, "CODE_0")

    snapshot = metrics.snapshot()
    assert snapshot.get(catalogue.ERRORS, "shop", "Pack", "CODE_0") == 2
    assert snapshot.get(catalogue.ERRORS, "shop", "Pack", OTHER) == 3


def test_labels_are_escaped() -> None:
    snapshot = Snapshot()
    snapshot.add(catalogue.STUCK, ('a"b\\c\nd',), 1)

    assert exposition(snapshot).decode().splitlines()[-1] == (
        'commandbus_stuck_threads{domain="a\\"b\\\\c\\nd"} 1'
    )
    assert exposition(Snapshot()) == b""


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (3.0, "3"), (0.25, "0.25"), (float("inf"), "+Inf"), (1e-9, "1e-09")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_threads_lose_no_count() -> None:
    metrics = Metrics()

    def send() -> None:
        for _ in range(2_000):
            metrics.sent("shop", ["Pack"], 0.001)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert metrics.snapshot().get(catalogue.SENT, "shop", "Pack") == 8_000


def test_values_that_are_counted_together_are_counted_as_each_by_itself() -> None:
    values = [0.3, 0.0, 0.002, 5_000.0, 0.001, 0.3, 0.005, 0.0051]
    for count in range(len(values) + 1):
        one, together = Histogram(catalogue.SECONDS), Histogram(catalogue.SECONDS)
        for value in values[:count]:
            one.observe(value)
        together.observe_all(values[:count])
        assert together.counts == one.counts
        assert together.total == pytest.approx(one.total)


def test_an_observation_takes_microseconds() -> None:
    # The bar is 2 µs; ten times that shows a mistake and not a busy machine.
    metrics = Metrics()
    metrics.know("shop", ["Pack"])
    best = min(_seconds_of(metrics) for _ in range(20))

    assert best < 20e-6


def _seconds_of(metrics: Metrics) -> float:
    began = time.perf_counter()
    for _ in range(500):
        metrics.handled("shop", "Pack", 0.02)
    return (time.perf_counter() - began) / 500


def test_collectors_are_asked_until_they_are_taken_off() -> None:
    metrics = Metrics()

    def slots() -> list:
        return [(catalogue.SLOTS, ("shop", "busy"), 2)]

    metrics.collect(slots)
    metrics.collect(slots)  # two workers of one domain
    assert metrics.snapshot().get(catalogue.SLOTS, "shop", "busy") == 4

    metrics.uncollect(slots)
    assert metrics.snapshot().get(catalogue.SLOTS, "shop", "busy") is None


def test_series_of_one_name_add_up_and_delays_do_not() -> None:
    snapshot = Snapshot()
    for lag in (0.1, 3.0):
        snapshot.add(catalogue.LOOP_LAG, (), lag)
        snapshot.add(catalogue.STUCK, ("shop",), 4)
        snapshot.add(catalogue.SETTLE, ("shop",), [1.0] * (len(catalogue.SECONDS) + 2))

    assert snapshot.get(catalogue.LOOP_LAG) == 3.0
    assert snapshot.get(catalogue.STUCK, "shop") == 8
    assert snapshot.get(catalogue.SETTLE, "shop") == [2.0] * (len(catalogue.SECONDS) + 2)


def test_values_on_a_bound_belong_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)

    assert histogram.sample() == [1, 2, 1, 13.5]


def test_names_follow_the_rules_of_prometheus() -> None:
    for name, family in FAMILIES.items():
        assert name.startswith("commandbus_")
        assert name.endswith("_total") == (family.kind == "counter")
        assert bool(family.bounds) == (family.kind == "histogram")
        assert family.help.endswith(".")
