"""The log of failed attempts: a line each, a traceback for each cause once a minute."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from commandbus.handler import HandlerEntry
from commandbus.retry import RetryPolicy
from commandbus.worker import failure_log
from commandbus.worker.failure_log import Sightings
from commandbus.worker.outcomes import failed, parked
from tests.unit.stubs import a_lease


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(failure_log, "time", clock)
    monkeypatch.setattr(failure_log, "_sightings", Sightings())
    return clock


def fail(error: BaseException, **lease: Any) -> None:
    entry = HandlerEntry("shop", "Work", print, None, is_transactional=False, is_async=False)
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        failed(a_lease(**{"attempt": 3, **lease}), entry, raised, RetryPolicy())


def written(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of the worker; what other tests left behind may be logged meanwhile."""
    return [record for record in caplog.records if record.name == "commandbus.worker"]


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in written(caplog) if record.exc_text]


def test_one_cause_has_its_traceback_once_a_minute_and_then_a_count(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(38):
        fail(ValueError(f"order {number}"))
    assert len(written(caplog)) == 38
    [first] = tracebacks(caplog)
    assert "more like this" not in first

    clock.now += 60
    fail(ValueError("order 99"))
    _, second = tracebacks(caplog)
    assert second.endswith(" (37 more like this in the last 60 s)")

    clock.now += 3_600
    fail(ValueError("order 100"))
    assert len(tracebacks(caplog)) == 3
    assert "more like this" not in tracebacks(caplog)[-1]


def test_another_cause_has_its_own_traceback(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(ValueError("a"))
    fail(KeyError("b"))
    fail(ValueError("a"), command_type="Other")
    fail(ValueError("a"), domain="other")
    assert len(tracebacks(caplog)) == 4


def test_not_more_causes_are_remembered_than_a_thousand(clock: Clock) -> None:
    seen = Sightings()
    for number in range(2 * failure_log.MAX_CAUSES):
        assert seen.due(("shop", "Work", "", str(number), None), clock.now) == ""
    assert len(seen._seen) == failure_log.MAX_CAUSES
    assert seen.due(("shop", "Work", "", "0", None), clock.now) == ""
    assert seen.due(("shop", "Work", "", "1999", None), clock.now) is None


def test_an_error_text_of_several_lines_stays_one_line(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(ValueError("one\ntwo\r\nERROR three"))
    [record] = written(caplog)
    assert "ValueError: one two ERROR three (TRANSIENT ValueError) at " in record.getMessage()


def test_a_record_carries_no_exception_that_others_could_read(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(ValueError("password=hunter2"))
    [record] = written(caplog)
    assert record.exc_info is None
    assert record.exc_text is not None
    assert "hunter2" not in logging.Formatter().format(record)
    assert logging.Formatter().format(record).endswith("ValueError: password=[REDACTED]")


def test_what_is_parked_without_a_handler_has_its_line(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    lease = a_lease()
    parked(lease, "HANDLER_NOT_FOUND", "none for it")
    [record] = written(caplog)
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"shop Work {lease.command_id} failed on attempt 1 of 3: HANDLER_NOT_FOUND: none for it "
        f"(PERMANENT); parked (PERMANENT); see `commandbus show {lease.command_id} --stack`"
    )


def test_nothing_is_made_for_a_log_that_nobody_reads(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "_traceback", lambda *_: pytest.fail("was made"))
    with caplog.at_level(logging.CRITICAL, logger="commandbus"):
        fail(ValueError("a"))
        fail(ValueError("a"), attempt=1)
    assert not written(caplog)
