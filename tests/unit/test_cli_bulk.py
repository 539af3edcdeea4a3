"""What is seen of a bulk operation while it runs, and how a rate is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from commandbus import InvalidInputError
from commandbus.cli import progress
from commandbus.cli.bulk import bulk_step, counts_text
from commandbus.cli.options import parse_rate
from commandbus.cli.progress import Bars, Lines, Quiet, progress_view
from commandbus.troubleshooting.model import BulkOperation, BulkStatus, BulkVerb

START = datetime(2026, 11, 16, tzinfo=UTC)
RUNNING = BulkOperation(
    operation_id=UUID(int=1), domain="shop", verb=BulkVerb.RETRY, conditions={}, arguments={},
    rate=100.0, actor="ann", status=BulkStatus.RUNNING, total=100, done=40, skipped=8, failed=2,
    executor="a", heartbeat_at=START + timedelta(seconds=5), created_at=START, started_at=START,
    finished_at=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rate"), [("100/s", 100), ("100", 100), ("600/m", 10), ("7.2/h", 0.002), (None, None)]
)
def test_a_rate_is_read(text: str | None, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1/s", "1/d", "1 / s", "1/s\n"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write 100/s, 600/m or 50/h"):
        parse_rate(text)


def test_counts_name_only_what_is_there() -> None:
    assert counts_text(RUNNING) == (
        "50 of 100: [green]40 done[/], [yellow]8 skipped[/], [red]2 failed[/]"
    )
    assert counts_text(replace(RUNNING, skipped=0, failed=0)) == "40 of 100: [green]40 done[/]"


def test_a_line_is_printed_once_a_second_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [10.0]
    with Lines(lambda: now[0]) as view:
        view.show(bulk_step(RUNNING))
        view.show(bulk_step(replace(RUNNING, done=41)))
        now[0] += 1.0
        view.show(bulk_step(replace(RUNNING, done=90)))
        view.show(bulk_step(replace(RUNNING, done=90, status=BulkStatus.FINISHED)))
        now[0] += 1.0
        view.show(bulk_step(replace(RUNNING, started_at=None)))
        now[0] += 1.0
        view.show(bulk_step(replace(RUNNING, started_at=RUNNING.heartbeat_at)))
    assert capsys.readouterr().out.splitlines() == [
        "50 of 100: 40 done, 8 skipped, 2 failed  10/s, 5 s left",
        "100 of 100: 90 done, 8 skipped, 2 failed  20/s",
        "100 of 100: 90 done, 8 skipped, 2 failed  20/s",
        "50 of 100: 40 done, 8 skipped, 2 failed  ",
        "50 of 100: 40 done, 8 skipped, 2 failed  ",
    ]


def test_the_view_suits_where_the_text_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(progress_view(quiet=True)) is Quiet
    assert type(progress_view(quiet=False)) is Lines
    monkeypatch.setattr(progress, "is_fancy", lambda _: True)
    with progress_view(quiet=False) as view:
        assert type(view) is Bars
        view.show(bulk_step(RUNNING))
        view.show(bulk_step(RUNNING))
