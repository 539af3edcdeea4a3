"""Times of loads: of each row, of all rows, after a resume, and over before they begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import BatchCommand, CommandBus, InvalidInputError, InvalidOperationError
from commandbus.loads import LoadStart
from tests.waiting import until

Connection = psycopg.AsyncConnection[Any]
BOTH = pytest.mark.parametrize("start", list(LoadStart))


def rows(*more: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"command_type": "Work", "data": {"n": n}, **each} for n, each in enumerate(more)]


async def due(bus: CommandBus, batch_id: Any) -> list[float]:
    """Seconds from the creation of each command until it is due."""
    found = await bus.list_batch_commands("shop", batch_id)
    return [
        round((c.deliver_at - c.created_at).total_seconds()) if c.deliver_at else 0 for c in found
    ]


@BOTH
async def test_rows_have_their_own_times_and_the_others_those_of_the_load(
    bus: CommandBus, start: LoadStart
) -> None:
    source = rows({"delay_seconds": 60}, {}, {"priority": 2, "expires_in_seconds": 9_000})
    done = await bus.loads.load("shop", source, start=start, delay=3_600, priority=1)
    assert done.status == "success", done.error
    assert await due(bus, done.batch_id) == [60, 3_600, 3_600]
    found = await bus.list_batch_commands("shop", done.batch_id)
    assert [c.priority for c in found] == [1, 1, 2]
    assert [c.due_at is not None for c in found] == [True] * 3, "queued with their times"


async def test_a_resumed_load_keeps_what_all_its_rows_have(
    bus: CommandBus, conn: Connection
) -> None:
    source = [*rows({}, {}, {}), {"command_type": "bad type!"}]
    at = datetime.now(UTC) + timedelta(hours=5)
    stopped = await bus.loads.load("shop", source, checkpoint_size=2, deliver_at=at, limit_key="c")
    assert (stopped.status, stopped.tasks_committed) == ("partial_success", 2)
    done = await bus.loads.resume("shop", stopped.batch_id, rows({}, {}, {}))
    assert done.status == "success", done.error
    found = await bus.list_batch_commands("shop", done.batch_id)
    assert {(c.deliver_at, c.limit_key) for c in found} == {(at, "c")}


async def test_a_load_that_is_begun_again_must_have_the_same_options(bus: CommandBus) -> None:
    batch_id = uuid4()
    source = [*rows({}, {}), {"command_type": "bad type!"}]
    await bus.loads.load("shop", source, batch_id=batch_id, checkpoint_size=1, delay=60)
    with pytest.raises(InvalidOperationError, match="other options"):
        await bus.loads.load("shop", source, batch_id=batch_id, checkpoint_size=1, delay=61)
    again = await bus.loads.load("shop", source, batch_id=batch_id, checkpoint_size=1, delay=60)
    assert again.tasks_committed == 2


@BOTH
async def test_a_row_whose_time_is_over_stops_the_load_at_its_line(
    bus: CommandBus, start: LoadStart
) -> None:
    source = rows({}, {"expires_at": "2001-01-01T00:00:00Z"}, {})
    stopped = await bus.loads.load("shop", source, start=start, checkpoint_size=10)
    assert (stopped.status, stopped.line, stopped.tasks_committed) == ("partial_success", 2, 0)
    assert stopped.error is not None
    assert "expires_at is in the past" in stopped.error


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"deliver_at": "2026-12-01T10:00:00"}, "write a time with its zone"),
        ({"deliver_at": "noon"}, "write a time with its zone"),
        ({"deliver_at": 5}, "use a datetime"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"delay": 5}, "unknown keys delay"),
        ({"delay_seconds": 5, "deliver_at": "2026-12-01T10:00:00Z"}, "both given"),
        ({"ordering_key": "k", "delay_seconds": 5}, "cannot be delayed"),
    ],
)
async def test_a_row_that_cannot_start_so_is_refused_with_its_line(
    bus: CommandBus, bad: dict[str, Any], says: str
) -> None:
    stopped = await bus.loads.load("shop", rows({}, bad))
    assert (stopped.status, stopped.line) == ("partial_success", 2)
    assert stopped.error is not None
    assert says in stopped.error


async def test_options_that_cannot_be_begin_no_load(bus: CommandBus) -> None:
    with pytest.raises(InvalidInputError, match="longer than delay"):
        await bus.loads.load("shop", rows({}), delay=60, expires_in=30)
    assert await bus.list_batches("shop") == []


async def test_a_load_has_no_unique_keys_since_all_of_it_is_sent(bus: CommandBus) -> None:
    with pytest.raises(InvalidInputError, match="none of them has a unique_key"):
        await bus.loads.load("shop", rows({}), unique_key="report:42")
    assert await bus.list_batches("shop") == []
    one = BatchCommand("Work", uuid4(), {}, unique_key="report:42")
    stopped = await bus.loads.load("shop", [one])
    assert (stopped.status, stopped.line, stopped.tasks_committed) == ("partial_success", 1, 0)


async def test_rows_that_expire_before_a_load_is_complete_end_and_the_rest_goes_on(
    bus: CommandBus, conn: Connection
) -> None:
    """Stored, not queued yet: the chore ends them, and the load is queued without them."""
    source = [*rows({"expires_in_seconds": 0.05}, {}), {"command_type": "bad type!"}]
    stopped = await bus.loads.load("shop", source, checkpoint_size=2)
    assert stopped.tasks_committed == 2

    async def expired() -> bool:
        await conn.execute("select commandbus.end_expired()")
        batch = await bus.get_batch("shop", stopped.batch_id)
        return batch is not None and batch.canceled_count == 1

    await until(expired, "the end of the first row")
    await bus.loads.seal("shop", stopped.batch_id)
    async with bus.consumer("shop") as consumer:
        (held,) = await consumer.receive(5)
        await held.complete()
    batch = await bus.get_batch("shop", stopped.batch_id)
    assert batch is not None
    assert (batch.status, batch.completed_count, batch.canceled_count) == (
        "COMPLETED_WITH_FAILURES",
        1,
        1,
    )


async def test_options_of_batch_commands_of_a_load_count(bus: CommandBus) -> None:
    commands = [BatchCommand("Work", uuid4(), {}, delay=120), BatchCommand("Work", uuid4(), {})]
    done = await bus.loads.load("shop", commands, start=LoadStart.AS_IT_LOADS)
    assert await due(bus, done.batch_id) == [120, 0]
