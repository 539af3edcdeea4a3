"""How operations and causes stand, in words; and how fast an operation is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from commandbus.troubleshooting import (
    BulkOperation,
    BulkStatus,
    BulkVerb,
    FailureGroup,
    bulk_sentence,
    group_sentence,
)
from commandbus.wording import span

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
ID = UUID(int=7)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


RUNNING = BulkOperation(
    ID, "shop", BulkVerb.RETRY, {}, {}, None, "ann", BulkStatus.RUNNING, 500, 0, 0, 0, None, None,
    ago(60), None, None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a second"),
        (0.96, "1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (119, "1 min"),
        (3_599, "59 min"),
        (3_600, "1 h"),
        (3_660, "1 h 1 min"),
        (36_060, "10 h"),
        (86_400 * 3 + 3_600 * 5, "3 d 5 h"),
        (86_400 * 30, "30 d"),
    ],
)
def test_a_time_is_told_in_at_most_two_units(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"starts_at": NOW + timedelta(seconds=8)}, "starts in 8 s; until then a stop undoes"),
        ({"created_at": ago(5)}, "running: 0 of 500"),
        ({}, "nobody has acted on it for 1 min: start a worker of shop, or `commandbus bulk res"),
        ({"rate": 0.01}, "running: 0 of 500, about 13 h left"),
        (
            {"done": 90, "failed": 10, "started_at": ago(20), "heartbeat_at": NOW},
            "running: 100 of 500, about 1 min left",
        ),
        ({"status": BulkStatus.STOPPED, "stopped_by": "bob"}, "stopped by bob before its first"),
        (
            {"status": BulkStatus.STOPPED, "done": 80},
            "stopped: 420 of 500 were not acted on; the others stay",
        ),
        (
            {"status": BulkStatus.FINISHED, "done": 490, "skipped": 8, "failed": 2},
            "finished: 490 of 500 done, 8 skipped, 2 failed",
        ),
    ],
)
def test_an_operation_says_where_it_stands(changes: dict[str, object], words: str) -> None:
    said = bulk_sentence(replace(RUNNING, **changes), NOW)  # type: ignore[arg-type]
    assert said.startswith(words), said


def test_the_rate_is_that_since_it_last_went_on_and_never_above_the_one_set() -> None:
    going = replace(RUNNING, done=100, started_at=ago(1_000), heartbeat_at=ago(980))
    assert going.per_second == 5.0
    assert going.seconds_left == 80.0
    resumed = replace(going, done=160, resumed_at=ago(10), resumed_from=100, heartbeat_at=NOW)
    assert resumed.per_second == 6.0
    assert replace(resumed, rate=2.0).per_second == 2.0
    # Nothing is told before there is something to tell.
    assert replace(resumed, heartbeat_at=None).per_second is None
    assert replace(resumed, done=100).per_second is None
    assert replace(going, heartbeat_at=going.started_at).per_second is None
    assert replace(RUNNING, rate=10.0).seconds_left == 50.0
    assert replace(resumed, status=BulkStatus.STOPPED).seconds_left is None


GROUP = FailureGroup(
    "shop", "a" * 16, "Work", None, "DOWN", "no answer", None, ID, 3, 1_204, ago(7_200), ago(60)
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "3 parked, seen 1,204 times in all, first 2 h ago"),
        (
            {"back_at": ago(120), "back_after": timedelta(days=3), "back_count": 1},
            "3 parked, seen 1,204 times in all; back 2 min ago after 3 d without it",
        ),
        (
            {"back_at": ago(120), "back_after": timedelta(days=3), "back_count": 22},
            "3 parked, seen 1,204 times in all; back 2 min ago after 3 d without it, for the 22nd"
            " time",
        ),
        (
            {"parked_count": 0, "emptied_at": ago(3_600)},
            "nothing of it is parked for 1 h; it was seen 1,204 times in all",
        ),
    ],
)
def test_a_cause_says_what_is_known_of_it(changes: dict[str, object], words: str) -> None:
    assert group_sentence(replace(GROUP, **changes), NOW) == words  # type: ignore[arg-type]
