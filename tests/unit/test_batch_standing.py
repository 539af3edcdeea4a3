"""Why a batch is open, and when it will be done: from what is known of it alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from commandbus.batches import BatchFacts, BatchPace, batch_sentence, pace_of
from commandbus.models import BatchMetadata, BatchStatus

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


BATCH = BatchMetadata(
    UUID(int=7), "shop", None, None, BatchStatus.IN_PROGRESS, 100, 40, 0, 0, 0, ago(600), ago(400),
    None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("row", "facts", "words"),
    [
        ({}, {"workers": 2}, "60 to do; 2 workers are there"),
        ({}, {"workers": 1}, "60 to do; 1 worker is there"),
        ({"in_troubleshooting_count": 3}, {"workers": 1},
         "57 to do, and 3 wait for an operator; 1 worker is there"),
        ({}, {}, "60 to do; no worker of shop was heard of in the last minute: start one"),
        ({}, {"is_paused": True, "workers": 1}, "60 to do; its domain is paused"),
        ({}, {"unqueued": 50, "workers": 1}, "60 to do; 50 are not in the queue yet"),
        ({}, {"unqueued": 10_001}, "60 to do; more than 10,000 are not in the queue yet"),
        ({"in_troubleshooting_count": 60}, {},
         "waits for 60 decisions of an operator; all else has ended"),
        ({"completed_count": 99, "in_troubleshooting_count": 1}, {},
         "waits for 1 decision of an operator; all else has ended"),
        ({}, {"is_undecided": True}, "waits for an approval, for 10 min"),
        ({}, {"is_sealed": False}, "it is still being loaded, so it cannot end yet"),
        ({"completed_at": ago(60), "failed_count": 2, "canceled_count": 58}, {},
         "ended 1 min ago, 9 min after it was created: 40 completed, 2 failed, 58 canceled"),
    ],
)  # fmt: skip
def test_a_batch_says_what_holds_it_open(
    row: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    assert batch_sentence(replace(BATCH, **row), BatchFacts(**facts), NOW) == words


def test_the_end_is_a_range_between_the_rates_and_none_if_nothing_ends() -> None:
    assert pace_of(BATCH, NOW) == BatchPace(None, 0.1, 600.0, 600.0)
    seen = [(ago(300), 0), (ago(50), 30), (ago(1), 40)]
    assert pace_of(BATCH, NOW, seen) == BatchPace(0.2, 0.1, 300.0, 600.0)
    assert pace_of(BATCH, NOW, [(ago(30), 40)]) == BatchPace(0.0, 0.1, None, None)
    reopened = pace_of(BATCH, NOW, [(ago(30), 70)])  # a retry opened what had ended
    assert reopened.recent_per_second == 0.0
    ended = replace(BATCH, completed_at=NOW)
    assert pace_of(ended, NOW).seconds_left_low is None
    assert pace_of(replace(BATCH, completed_count=0), NOW) == BatchPace(None, None, None, None)
