"""A load that stopped is continued, sealed or canceled, by one verb each; and calls back."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, BatchMetadata, CommandBus, InvalidOperationError
from commandbus.batches import BatchAction
from commandbus.errors import SourceError
from commandbus.loads import LoadStart, LoadStatus
from tests.integration.test_loading import (
    BOTH,
    Connection,
    json_lines,
    queued,
    register_work,
    stored,
    total,
    value,
)
from tests.waiting import until, working


async def stopped(bus: CommandBus, folder: Path, start: LoadStart = LoadStart.SEALED) -> UUID:
    bad = json_lines(folder, 60, line_50="nonsense")
    result = await bus.loads.load(
        "shop", bad, command_type="Work", checkpoint_size=20, start=start, created_by="ada"
    )
    assert (result.status, result.tasks_committed) == ("partial_success", 40)
    return result.batch_id


@BOTH
async def test_a_sealed_load_ends_with_what_it_has(
    bus: CommandBus, conn: Connection, tmp_path: Path, start: LoadStart
) -> None:
    done = register_work(bus)
    batch_id = await stopped(bus, tmp_path, start)
    load = await bus.loads.seal("shop", batch_id, operator="ada")
    assert (load.status, load.rows_committed, load.rows_dispatched) == ("sealed", 40, 40)
    assert await queued(conn) == 40
    actor = "select actor from commandbus.command_bus_audit where event_type = 'BATCH_SEALED'"
    assert await value(conn, actor) == "ada"
    async with working(bus, "shop"):
        batch = await bus.batches.wait("shop", batch_id, timeout=60)
    assert (batch.status, batch.total_count, len(done)) == ("COMPLETED", 40, 40)
    again = await bus.loads.seal("shop", batch_id)
    assert again.rows_dispatched == 40
    assert len(done) == 40


async def test_a_load_whose_first_row_is_bad_can_be_ended(bus: CommandBus, tmp_path: Path) -> None:
    ended = []
    for end in (
        lambda batch_id: bus.loads.seal("shop", batch_id),
        lambda batch_id: bus.loads.cancel("shop", batch_id, "wrong file"),
        lambda batch_id: bus.batches.cancel("shop", batch_id, "wrong file"),
    ):
        bad = json_lines(tmp_path, 3, line_1="nonsense")
        result = await bus.loads.load("shop", bad, command_type="Work")
        await end(result.batch_id)
        ended.append((await bus.batches.wait("shop", result.batch_id, timeout=60)).status)
    assert ended == ["COMPLETED", *["COMPLETED_WITH_FAILURES"] * 2]


@BOTH
async def test_a_canceled_load_is_over_for_good(
    bus: CommandBus, conn: Connection, tmp_path: Path, start: LoadStart
) -> None:
    batch_id = await stopped(bus, tmp_path, start)
    assert await bus.loads.cancel("shop", batch_id, "wrong file", operator="ada") == 40
    assert await bus.loads.cancel("shop", batch_id, "wrong file") == 0
    whole = json_lines(tmp_path, 60)
    with pytest.raises(InvalidOperationError, match="was canceled after 40 rows"):
        await bus.loads.resume("shop", batch_id, whole)
    with pytest.raises(InvalidOperationError, match="was canceled after 40 rows"):
        await bus.loads.load("shop", whole, command_type="Work", batch_id=batch_id, start=start)
    with pytest.raises(InvalidOperationError, match="was canceled after 40 rows"):
        await bus.loads.seal("shop", batch_id)
    load = await bus.loads.require("shop", batch_id)
    assert (load.status, load.last_error) == (LoadStatus.CANCELED, "wrong file")
    batch = await bus.batches.require("shop", batch_id)
    assert (batch.status, batch.canceled_count) == ("COMPLETED_WITH_FAILURES", 40)
    assert (await stored(conn, batch_id))[0] == 40


@pytest.mark.parametrize("end", ["seal", "cancel"])
async def test_a_loader_at_work_stops_when_its_load_is_ended(
    bus: CommandBus, conn: Connection, end: str
) -> None:
    batch_id, more = uuid4(), asyncio.Event()

    async def rows() -> AsyncIterator[dict[str, int]]:
        for n in range(10):
            if n == 5:
                await more.wait()
            yield {"n": n}

    task = asyncio.create_task(
        bus.loads.load("shop", rows(), command_type="Work", batch_id=batch_id, checkpoint_size=5)
    )

    async def is_there() -> bool:
        load = await bus.loads.get("shop", batch_id)
        return load is not None and load.rows_committed == 5

    await until(is_there)
    if end == "seal":
        await bus.loads.seal("shop", batch_id)
    else:
        await bus.loads.cancel("shop", batch_id, "wrong file")
    more.set()
    result = await task
    words = {"seal": "it was sealed with 5 rows", "cancel": "was canceled after 5 rows"}
    assert result.status == "partial_success"
    assert words[end] in str(result.error)
    assert not result.recovery_possible
    assert (await stored(conn, batch_id))[0] == await total(bus, batch_id) == 5
    load = await bus.loads.require("shop", batch_id)
    assert load.status == {"seal": "sealed", "cancel": "canceled"}[end]


async def test_a_resume_after_a_seal_is_told_that_the_source_has_more(
    bus: CommandBus, tmp_path: Path
) -> None:
    batch_id = await stopped(bus, tmp_path)
    await bus.loads.seal("shop", batch_id)
    with pytest.raises(InvalidOperationError, match="complete with 40 rows, and the source has"):
        await bus.loads.resume("shop", batch_id, json_lines(tmp_path, 60))


async def test_only_a_load_is_sealed_or_canceled_as_one(bus: CommandBus) -> None:
    batch_id = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})])
    with pytest.raises(InvalidOperationError, match="was not made by"):
        await bus.loads.seal("shop", batch_id)
    with pytest.raises(InvalidOperationError, match="was not made by"):
        await bus.loads.cancel("shop", batch_id, "no")


async def test_the_service_says_what_can_be_done_with_a_batch(
    bus: CommandBus, tmp_path: Path
) -> None:
    async def allowed() -> list[BatchAction]:
        load = await bus.loads.get("shop", batch_id)
        return (await bus.batches.actions("shop", batch_id, load)).allowed

    bad = json_lines(tmp_path, 3, line_1="nonsense")
    batch_id = (await bus.loads.load("shop", bad, command_type="Work")).batch_id
    assert await allowed() == ["resume", "seal", "cancel"]
    await bus.loads.resume("shop", batch_id, json_lines(tmp_path, 3))
    assert await allowed() == ["cancel"]
    await bus.batches.cancel("shop", batch_id, "no")
    assert await allowed() == []


# -- callbacks


@BOTH
async def test_a_load_calls_back_when_its_batch_ends(
    bus: CommandBus, tmp_path: Path, start: LoadStart
) -> None:
    register_work(bus)
    ended: list[BatchMetadata] = []

    async def note(batch: BatchMetadata) -> None:
        ended.append(batch)

    result = await bus.loads.load(
        "shop", json_lines(tmp_path, 3), command_type="Work", start=start, on_complete=note
    )
    async with working(bus, "shop"):
        await until(lambda: ended)
    assert [(batch.batch_id, batch.total_count) for batch in ended] == [(result.batch_id, 3)]


async def test_a_load_that_stopped_calls_back_when_it_is_ended(
    bus: CommandBus, tmp_path: Path
) -> None:
    ended: list[str] = []

    async def note(batch: BatchMetadata) -> None:
        ended.append(batch.status)

    bad = json_lines(tmp_path, 3, line_2="nonsense")
    result = await bus.loads.load("shop", bad, command_type="Work", on_complete=note)
    await bus.loads.cancel("shop", result.batch_id, "wrong file")
    await until(lambda: ended)
    assert ended == ["COMPLETED_WITH_FAILURES"]


async def test_a_process_that_resumes_a_load_is_called_back(
    bus: CommandBus, tmp_path: Path
) -> None:
    register_work(bus)
    ended: list[int] = []

    async def note(batch: BatchMetadata) -> None:
        ended.append(batch.total_count)

    batch_id = await stopped(bus, tmp_path)
    await bus.loads.resume("shop", batch_id, json_lines(tmp_path, 60), on_complete=note)
    async with working(bus, "shop"):
        await until(lambda: ended)
    assert ended == [60]


async def test_a_load_that_is_not_begun_leaves_no_callback(bus: CommandBus) -> None:
    async def never(_: BatchMetadata) -> None:
        raise AssertionError

    batch_id = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})])
    with pytest.raises(InvalidOperationError, match="was not made by"):
        await bus.loads.load(
            "shop", [{}], command_type="Work", batch_id=batch_id, on_complete=never
        )
    assert bus._completions._batch_callbacks == {}


# -- sources


async def test_a_load_from_a_slow_generator_lets_a_worker_work(bus: CommandBus) -> None:
    done = register_work(bus)
    loop = asyncio.get_running_loop()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 0}
        # Only a worker on this very event loop can do the first command now.
        asyncio.run_coroutine_threadsafe(until(lambda: done), loop).result(60)
        yield {"n": 1}

    async with working(bus, "shop"):
        result = await bus.loads.load(
            "shop", rows(), command_type="Work", checkpoint_size=1, start=LoadStart.AS_IT_LOADS
        )
        assert result.status == "success"
        await bus.batches.wait("shop", result.batch_id, timeout=60)
    assert done == [0, 1]


async def test_the_delimiter_of_a_load_is_known_when_it_is_resumed(
    bus: CommandBus, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b;n\n1;1\n2;2;2\n")
    result = await bus.loads.load(
        "shop", path, command_type="Work", delimiter=";", checkpoint_size=1
    )
    assert result.line == 3
    assert (await bus.loads.require("shop", result.batch_id)).row_format.delimiter == ";"
    path.write_text("a,b;n\n1;1\n2;2\n")
    with pytest.raises(InvalidOperationError, match="begun with other options"):
        await bus.loads.load("shop", [{}], command_type="Work", batch_id=result.batch_id)
    resumed = await bus.loads.resume("shop", result.batch_id, path)
    assert (resumed.status, resumed.tasks_committed) == ("success", 2)


async def test_a_compressed_array_is_loaded_and_resumed(bus: CommandBus, tmp_path: Path) -> None:
    path = tmp_path / "rows.json.gz"
    rows = [{"n": n} for n in range(30)]
    path.write_bytes(gzip.compress(json.dumps([*rows[:25], 7, *rows[26:]]).encode()))
    result = await bus.loads.load("shop", path, command_type="Work", checkpoint_size=10)
    assert (result.tasks_committed, result.line) == (20, 26)
    assert result.error == "item 26: a row must be an object, not int"
    path.write_bytes(gzip.compress(json.dumps(rows, indent=1).encode()))
    resumed = await bus.loads.resume("shop", result.batch_id, path)
    assert (resumed.status, resumed.tasks_committed) == ("success", 30)


async def test_an_id_of_an_earlier_checkpoint_is_named_as_a_row_of_this_load(
    bus: CommandBus,
) -> None:
    ids = [uuid4() for _ in range(4)]
    rows = [BatchCommand("Work", each, {}) for each in (*ids, ids[1])]
    result = await bus.loads.load("shop", rows, checkpoint_size=2)
    assert result.error == f"item 5: command id {ids[1]} is already that of row 2 of this load"
    result = await bus.loads.load("shop", [BatchCommand("Work", ids[0], {})])
    assert result.error == f"item 1: command id {ids[0]} was sent before"


async def test_a_load_without_rows_creates_nothing(bus: CommandBus, tmp_path: Path) -> None:
    for name, content in (("a.json", "[]"), ("b.csv", "a,b\n"), ("c.jsonl.gz", "")):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(ValueError, match="the source has no rows"):
            await bus.loads.load("shop", path, command_type="Work")
    with pytest.raises(SourceError, match="No such file"):
        await bus.loads.load("shop", tmp_path / "none.jsonl", command_type="Work")
    assert (await bus.batches.page("shop")).items == []
