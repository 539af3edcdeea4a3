"""Very large batches: committed in checkpoints, resumed without a double or a gap."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from commandbus import (
    BatchCommand,
    BatchNotFoundError,
    Command,
    CommandBus,
    DatabaseUnavailableError,
    HandlerContext,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
    Settings,
)
from commandbus.errors import SourceError
from commandbus.loads import LoadProgress, LoadStart, LoadStatus
from commandbus.loads import run as load_run
from commandbus.worker.maintenance import Maintenance
from tests.intercepting import Ask, Rows, intercept, refuse
from tests.waiting import until, working

Connection = psycopg.AsyncConnection[Any]
BOTH = pytest.mark.parametrize("start", list(LoadStart))


def json_lines(folder: Path, count: int, **replaced: str) -> Path:
    """Rows {"n": 0}, {"n": 1}, …; `line_7="…"` puts something else on line 7."""
    lines = [json.dumps({"n": n}) for n in range(count)]
    for name, text in replaced.items():
        lines[int(name.removeprefix("line_")) - 1] = text
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


async def value(conn: Connection, query: str, *params: object) -> Any:
    row = await (await conn.execute(query.encode(), params)).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


async def stored(conn: Connection, batch_id: UUID) -> tuple[int, int, int, int]:
    """Commands, distinct ids, first and last number of a batch."""
    found: tuple[int, int, int, int] = await value(
        conn,
        "select count(*), count(distinct command_id), coalesce(min(sequence_no), 0),"
        " coalesce(max(sequence_no), 0) from commandbus.command_bus_command where batch_id = %s",
        batch_id,
    )
    return found


async def queued(conn: Connection) -> int:
    count: int = await value(conn, "select count(*) from pgmq.q_shop__commands")
    return count


async def total(bus: CommandBus, batch_id: UUID) -> int:
    batch = await bus.get_batch("shop", batch_id)
    assert batch is not None
    return batch.total_count


def register_work(bus: CommandBus) -> list[int]:
    done: list[int] = []

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        done.append(command.data["n"])

    return done


@BOTH
async def test_rows_are_queued_at_the_rate_that_was_asked_for(
    bus: CommandBus, conn: Connection, tmp_path: Path, start: LoadStart
) -> None:
    waited: list[float] = []
    steps: list[int] = []
    file = json_lines(tmp_path, 50)
    began = time.monotonic()
    loading = asyncio.create_task(
        bus.loads.load("shop", file, command_type="Work", start=start, dispatch_rate=20.0)
    )
    while not loading.done():
        with suppress(psycopg.errors.UndefinedTable):  # before the domain is there
            steps.append(await queued(conn))
            waited.append(time.monotonic() - began)
        await asyncio.sleep(0.02)
    assert (await loading).status == "success"
    assert await queued(conn) == 50
    # What is due in a second goes at once, the next when that second is over: 0, 1 and 2 s.
    assert set(steps) <= {0, 20, 40, 50}
    assert waited[-1] > 1.9
    for wrong in (0, -1, 10_000_000, float("nan")):
        with pytest.raises(InvalidSettingError, match="dispatch_rate"):
            await bus.loads.load("shop", file, command_type="Work", dispatch_rate=wrong)
        with pytest.raises(InvalidSettingError, match="dispatch_rate"):
            await bus.loads.resume("shop", uuid4(), file, dispatch_rate=wrong)


@BOTH
async def test_a_file_is_loaded_in_checkpoints_and_worked_on_to_its_end(
    bus: CommandBus, conn: Connection, tmp_path: Path, start: LoadStart
) -> None:
    done = register_work(bus)
    reports: list[LoadProgress] = []
    result = await bus.loads.load(
        "shop", json_lines(tmp_path, 250), command_type="Work", start=start, checkpoint_size=100,
        name="import", custom_data={"file": "rows"}, created_by="ada",
        on_complete_command=BatchCommand("Work", uuid4(), {"n": -1}), on_progress=reports.append,
    )  # fmt: skip
    assert (result.status, result.checkpoints, result.tasks_committed) == ("success", 3, 250)
    assert (result.failed_checkpoint, result.tasks_failed, result.error) == (None, 0, None)
    assert await stored(conn, result.batch_id) == (250, 250, 1, 250)
    assert await queued(conn) == 250
    load = await bus.loads.get("shop", result.batch_id)
    assert load is not None
    assert (load.status, load.rows_committed, load.rows_dispatched) == (LoadStatus.SEALED, 250, 250)
    loading = [report for report in reports if report.stage == "loading"]
    assert [(r.rows, r.checkpoints, r.total) for r in loading] == [
        (100, 1, 250), (200, 2, 250), (250, 3, 250),
    ]  # fmt: skip
    assert loading[0].seconds_left == pytest.approx(150 / loading[0].per_second)
    dispatching = [report.rows for report in reports if report.stage == "dispatching"]
    assert dispatching == ([100, 200, 250] if start == "sealed" else [])
    measured = await value(
        conn,
        "select array[pattern, batch_size::text, (db_insert_ms > 0)::text,"
        " (queue_send_ms > 0)::text, (total_ms > db_insert_ms + queue_send_ms)::text]"
        " from commandbus.command_bus_creation_metric where batch_id = %s",
        result.batch_id,
    )
    assert measured == ["checkpoint", "250", "true", str(start == "sealed").lower(), "true"]
    async with working(bus, "shop"):
        batch = await bus.batches.wait("shop", result.batch_id, timeout=30)
        await until(lambda: -1 in done, "the command of the closing")
    assert (batch.status, batch.total_count, batch.completed_count) == ("COMPLETED", 250, 250)
    assert (batch.name, batch.custom_data) == ("import", {"file": "rows"})
    assert sorted(done) == list(range(-1, 250))
    assert await value(conn, "select count(*) from commandbus.command_bus_payload_archive") == 0


@BOTH
async def test_a_bad_row_names_its_line_leaves_its_chunk_out_and_can_be_mended(
    bus: CommandBus, conn: Connection, tmp_path: Path, start: LoadStart
) -> None:
    bad = json_lines(tmp_path, 250, line_157='{"n": 1')
    result = await bus.loads.load("shop", bad, command_type="Work", start=start, checkpoint_size=50)
    assert (result.status, result.line, result.recovery_possible) == ("partial_success", 157, True)
    assert str(result.error).startswith("line 157: not JSON: ")
    assert (result.checkpoints, result.failed_checkpoint) == (3, 4)
    assert (result.tasks_committed, result.tasks_failed) == (150, 100)
    assert await stored(conn, result.batch_id) == (150, 150, 1, 150)
    assert await total(bus, result.batch_id) == 150
    assert await queued(conn) == (0 if start == "sealed" else 150)
    load = await bus.loads.get("shop", result.batch_id)
    assert load is not None
    assert (load.status, load.last_error) == (LoadStatus.FAILED, result.error)
    mended = await bus.loads.resume("shop", result.batch_id, json_lines(tmp_path, 250))
    assert (mended.status, mended.checkpoints, mended.tasks_committed) == ("success", 5, 250)
    assert await stored(conn, result.batch_id) == (250, 250, 1, 250)
    assert await queued(conn) == 250
    load = await bus.loads.get("shop", result.batch_id)
    assert load is not None
    assert (load.status, load.last_error) == (LoadStatus.SEALED, None)


async def test_a_bad_row_that_is_taken_out_at_the_very_end_leaves_a_complete_load(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    bad = json_lines(tmp_path, 21, line_21="nonsense")
    result = await bus.loads.load("shop", bad, command_type="Work", checkpoint_size=20)
    assert (result.line, result.tasks_committed) == (21, 20)
    mended = await bus.loads.resume("shop", result.batch_id, json_lines(tmp_path, 20))
    assert (mended.status, mended.tasks_committed) == ("success", 20)
    assert await queued(conn) == 20


async def test_a_source_that_raises_half_way_keeps_what_was_committed(
    bus: CommandBus, conn: Connection
) -> None:
    async def rows(fail: bool) -> AsyncIterator[dict[str, Any]]:
        for n in range(100):
            if fail and n == 45:
                raise ConnectionError("the other end hung up")
            yield {"n": n}

    result = await bus.loads.load("shop", rows(True), command_type="Work", checkpoint_size=20)
    assert (result.status, result.tasks_committed, result.line) == ("partial_success", 40, 45)
    assert result.error == "the source failed after item 45: ConnectionError: the other end hung up"
    assert (result.tasks_failed, result.recovery_possible) == (5, True)
    again = await bus.loads.resume("shop", result.batch_id, rows(False))
    assert (again.status, again.tasks_committed) == ("success", 100)
    assert await stored(conn, result.batch_id) == (100, 100, 1, 100)


@BOTH
async def test_a_duplicate_id_names_its_line_and_nothing_of_its_chunk_is_created(
    bus: CommandBus, conn: Connection, start: LoadStart
) -> None:
    rows = [BatchCommand("Work", uuid4(), {"n": n}) for n in range(30)]
    await bus.send("shop", "Work", rows[17].command_id, {"n": 0})
    result = await bus.loads.load("shop", rows, start=start, checkpoint_size=10)
    assert (result.line, result.tasks_committed, result.tasks_failed) == (18, 10, 20)
    assert result.error == f"item 18: command id {rows[17].command_id} was sent before"
    assert await stored(conn, result.batch_id) == (10, 10, 1, 10)
    rows[17] = rows[14]
    result = await bus.loads.resume("shop", result.batch_id, rows)
    assert (result.line, result.tasks_committed) == (18, 10)
    assert str(result.error).endswith("stands on item 15 already")
    rows[17] = BatchCommand("Work", uuid4(), {"n": 17})
    result = await bus.loads.resume("shop", result.batch_id, rows)
    assert result.status == "success"
    assert await stored(conn, result.batch_id) == (30, 30, 1, 30)
    assert await queued(conn) == 31


async def test_the_batch_does_not_end_before_the_seal_and_then_once(
    bus: CommandBus, conn: Connection
) -> None:
    done = register_work(bus)
    seen: list[Any] = []

    def is_done(count: int) -> bool:
        return len(done) >= count

    async def rows() -> AsyncIterator[dict[str, Any]]:
        for n in range(60):
            if n and n % 20 == 0:  # everything that is loaded has ended, and the batch goes on
                await until(partial(is_done, n), "the work so far")
                batch = (await bus.list_batches("shop"))[0]
                seen.append((batch.completed_at, batch.status))
            yield {"n": n}

    async with working(bus, "shop"):
        result = await bus.loads.load(
            "shop", rows(), command_type="Work", start=LoadStart.AS_IT_LOADS, checkpoint_size=20,
            on_complete_command=BatchCommand("Work", uuid4(), {"n": 999}),
        )  # fmt: skip
        batch = await bus.batches.wait("shop", result.batch_id, timeout=30)
        await until(lambda: 999 in done, "the closing command")
    assert len(seen) == 2
    assert {at for at, _ in seen} == {None}
    assert (batch.status, batch.total_count, batch.completed_count) == ("COMPLETED", 60, 60)
    events = [event.event_type for event in await bus.get_audit_trail(result.batch_id)]
    assert events == ["BATCH_STARTED", "BATCH_COMPLETED"]
    assert sorted(done) == [*range(60), 999]


async def test_a_seal_after_all_commands_have_ended_closes_the_batch(
    bus: CommandBus, conn: Connection
) -> None:
    done = register_work(bus)

    async def rows() -> AsyncIterator[dict[str, Any]]:
        for n in range(20):
            yield {"n": n}
        await until(lambda: len(done) == 20, "all work")

    async with working(bus, "shop"):
        result = await bus.loads.load(
            "shop", rows(), command_type="Work", start=LoadStart.AS_IT_LOADS, checkpoint_size=20
        )
    batch = await bus.get_batch("shop", result.batch_id)
    assert batch is not None
    assert batch.status == "COMPLETED"


async def test_commands_of_a_sealed_load_start_only_when_everything_is_in(
    bus: CommandBus, conn: Connection
) -> None:
    done = register_work(bus)

    async def rows() -> AsyncIterator[dict[str, Any]]:
        for n in range(40):
            yield {"n": n}
        assert await queued(conn) == 0
        assert done == []

    async with working(bus, "shop"):
        result = await bus.loads.load("shop", rows(), command_type="Work", checkpoint_size=20)
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert sorted(done) == list(range(40))


async def test_a_sealed_load_whose_process_ended_is_queued_to_its_end_by_a_chore(
    bus: CommandBus, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(load_run, "RETRY_SECONDS", -1)
        refuse(patched, bus, "dispatch_load")
        source = json_lines(tmp_path, 1_200)
        result = await bus.loads.load("shop", source, command_type="Work", checkpoint_size=600)
    assert result.status == "partial_success"
    assert await queued(conn) == 0
    await Maintenance(bus._store, lambda: ["shop"], Settings()).step()
    assert await queued(conn) == 0, "it may still be at work"
    await conn.execute(
        "update commandbus.command_bus_load set updated_at = now() - interval '1 hour'"
    )
    await conn.execute("delete from commandbus.command_bus_chore")
    await Maintenance(bus._store, lambda: ["shop"], Settings()).step()
    assert await queued(conn) == 1_200
    assert (await bus.loads.resume("shop", result.batch_id, source)).status == "success"
    assert await queued(conn) == 1_200


async def test_a_load_that_is_canceled_half_way_ends_and_takes_nothing_more(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    bad = json_lines(tmp_path, 60, line_50="nonsense")
    batch_id = (await bus.loads.load("shop", bad, command_type="Work", checkpoint_size=20)).batch_id
    assert await bus.batches.cancel("shop", batch_id, "wrong file") == 40
    with pytest.raises(InvalidOperationError, match=r"canceled after 40 rows \(wrong file\)"):
        await bus.loads.resume("shop", batch_id, json_lines(tmp_path, 60))
    assert await queued(conn) == 0
    batch = await bus.batches.wait("shop", batch_id, timeout=30)
    assert (batch.status, batch.canceled_count) == ("COMPLETED_WITH_FAILURES", 40)


@BOTH
async def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_doubled(
    bus: CommandBus,
    conn: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: LoadStart,
) -> None:
    losses = 0

    async def lossy(_: tuple[Any, ...], ask: Ask) -> Rows:
        nonlocal losses
        found = await ask()
        losses += 1
        if losses % 2:
            raise DatabaseUnavailableError("cut")
        return found

    for name in ("load_chunk", "seal_load", "dispatch_load"):
        intercept(monkeypatch, bus, name, lossy)
    result = await bus.loads.load(
        "shop", json_lines(tmp_path, 90), command_type="Work", start=start, checkpoint_size=30
    )
    assert (result.status, result.checkpoints) == ("success", 3)
    assert losses >= 8
    assert await stored(conn, result.batch_id) == (90, 90, 1, 90)
    assert (await queued(conn), await total(bus, result.batch_id)) == (90, 90)


async def test_a_database_that_stays_away_ends_the_run_and_not_the_load(
    bus: CommandBus, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = json_lines(tmp_path, 50)

    monkeypatch.setattr(load_run, "RETRY_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        refuse(patched, bus, "load_chunk")
        result = await bus.loads.load("shop", path, command_type="Work", checkpoint_size=20)
    assert (result.status, result.tasks_committed, result.error) == (
        "partial_success", 0, "the queue is down",
    )  # fmt: skip
    assert (result.recovery_possible, result.line, result.tasks_failed) == (True, None, 50)
    with monkeypatch.context() as patched:
        refuse(patched, bus, "dispatch_load")
        result = await bus.loads.resume("shop", result.batch_id, path)
    assert (result.status, result.failed_checkpoint, result.tasks_failed) == (
        "partial_success", None, 0,
    )  # fmt: skip
    assert await queued(conn) == 0
    assert (await bus.loads.resume("shop", result.batch_id, path)).status == "success"
    assert await queued(conn) == 50


async def test_two_loaders_of_one_batch_double_nothing(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    path, batch_id = json_lines(tmp_path, 300), uuid4()
    results = await asyncio.gather(*(
        bus.loads.load("shop", path, command_type="Work", checkpoint_size=size, batch_id=batch_id)
        for size in (20, 30)
    ))  # fmt: skip
    if any(result.status != "success" for result in results):
        assert not all(result.recovery_possible for result in results)
        await bus.loads.resume("shop", batch_id, path)
    assert await stored(conn, batch_id) == (300, 300, 1, 300)
    assert (await queued(conn), await total(bus, batch_id)) == (300, 300)


async def test_the_same_call_again_goes_on_and_a_complete_load_stays_as_it_is(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    batch_id = uuid4()
    path = json_lines(tmp_path, 60)

    def load(source: object) -> Any:
        return bus.loads.load(
            "shop", source, command_type="Work", checkpoint_size=25, batch_id=batch_id
        )

    first = await load(json_lines(tmp_path, 60, line_55="nonsense"))
    assert (first.status, first.tasks_committed) == ("partial_success", 50)
    json_lines(tmp_path, 60)
    for _ in range(2):
        again = await load(path)
        assert (again.status, again.checkpoints, again.tasks_committed) == ("success", 3, 60)
    async with working(bus, "shop"):
        register_work(bus)
        await bus.batches.wait("shop", batch_id, timeout=30)
    assert (await load(path)).status == "success", "finished, and the same rows"
    with pytest.raises(
        InvalidOperationError, match="complete with 60 rows, and the source has more"
    ):
        await load(json_lines(tmp_path, 61))
    assert await stored(conn, batch_id) == (60, 60, 1, 60)


async def test_a_resume_needs_the_same_source(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    bad = json_lines(tmp_path, 60, line_55="nonsense")
    batch_id = (await bus.loads.load("shop", bad, command_type="Work", checkpoint_size=25)).batch_id
    changed = [{"n": 7 if n == 49 else n} for n in range(60)]
    wrong_ones: tuple[object, ...] = (changed, json_lines(tmp_path, 40), iter(()))
    for wrong in wrong_ones:
        with pytest.raises(InvalidOperationError, match="are not those that batch"):
            await bus.loads.resume("shop", batch_id, wrong)
    assert await stored(conn, batch_id) == (50, 50, 1, 50)
    assert (await bus.loads.resume("shop", batch_id, json_lines(tmp_path, 60))).status == "success"


async def test_what_cannot_be_loaded_is_refused_and_creates_nothing(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    path = json_lines(tmp_path, 10)
    with pytest.raises(SourceError, match="No such file"):
        await bus.loads.load("shop", tmp_path / "none.jsonl", command_type="Work")
    with pytest.raises(InvalidInputError, match="no rows"):
        await bus.loads.load("shop", [], command_type="Work")
    with pytest.raises(InvalidInputError, match="no start 'now'; use one of sealed, as_it_loads"):
        await bus.loads.load("shop", path, command_type="Work", start="now")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="checkpoint_size is 0"):
        await bus.loads.load("shop", path, command_type="Work", checkpoint_size=0)
    with pytest.raises(InvalidInputError, match="not both"):
        await bus.loads.load("shop", path, command_type="Work", type_column="type")
    with pytest.raises(InvalidInputError, match="id_column needs"):
        await bus.loads.load("shop", path, id_column="id")
    with pytest.raises(InvalidInputError, match="domain"):
        await bus.loads.load("Shop", path, command_type="Work")
    with pytest.raises(BatchNotFoundError):
        await bus.loads.resume("shop", uuid4(), path)
    assert await bus.loads.get("shop", uuid4()) is None
    assert await value(conn, "select count(*) from commandbus.command_bus_batch") == 0


async def test_a_batch_that_is_no_load_or_was_begun_otherwise_is_refused(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    path = json_lines(tmp_path, 10)
    created = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {"n": 1})])
    with pytest.raises(InvalidOperationError, match=r"was not made by `bus\.loads\.load`"):
        await bus.loads.resume("shop", created, path)
    with pytest.raises(InvalidOperationError, match=r"was not made by `bus\.loads\.load`"):
        await bus.loads.load("shop", path, command_type="Work", batch_id=created)
    loaded = (await bus.loads.load("shop", path, command_type="Work")).batch_id
    with pytest.raises(InvalidOperationError, match="begun with other options"):
        await bus.loads.load("shop", path, command_type="Other", batch_id=loaded)
    with pytest.raises(BatchNotFoundError):
        await bus.loads.load("other", path, command_type="Work", batch_id=loaded)
    assert await stored(conn, loaded) == (10, 10, 1, 10)


async def test_csv_rows_bring_their_ids_and_types(
    bus: CommandBus, conn: Connection, tmp_path: Path
) -> None:
    ids = [uuid4() for _ in range(3)]
    path = tmp_path / "rows.csv"
    path.write_text("id,kind,amount\n" + "".join(f"{i},Pay,{n}\n" for n, i in enumerate(ids)))
    result = await bus.loads.load("shop", path, id_column="id", type_column="kind")
    listed = await bus.list_batch_commands("shop", result.batch_id)
    assert [(row.command_id, row.command_type) for row in listed] == [(i, "Pay") for i in ids]
    messages = await (await conn.execute("select message from pgmq.q_shop__commands")).fetchall()
    assert [row[0]["data"] for row in messages] == [{"amount": str(n)} for n in range(3)]
    path.write_text("id,kind,amount\nnot-an-id,Pay,1\n")
    result = await bus.loads.load("shop", path, id_column="id", type_column="kind")
    assert (result.line, result.tasks_committed, result.failed_checkpoint) == (2, 0, 1)
    assert "not a UUID" in str(result.error)


async def test_large_payloads_end_a_checkpoint_early(
    bus: CommandBus, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_run, "MAX_CHUNK_BYTES", 10_000)
    rows = [{"n": n, "text": "x" * 3_000} for n in range(20)]
    result = await bus.loads.load("shop", rows, command_type="Work")
    assert (result.status, result.checkpoints) == ("success", 5)


async def test_who_watches_does_not_stop_the_load(bus: CommandBus, tmp_path: Path) -> None:
    def broken(progress: LoadProgress) -> None:
        raise ZeroDivisionError

    path = json_lines(tmp_path, 10)
    result = await bus.loads.load("shop", path, command_type="Work", on_progress=broken)
    assert result.status == "success"


async def test_the_database_refuses_gaps_other_rows_and_a_sealed_load(
    bus: CommandBus, conn: Connection
) -> None:
    def rows() -> Iterator[dict[str, int]]:
        return ({"n": n} for n in range(10))

    batch_id = (await bus.loads.load("shop", rows(), command_type="Work")).batch_id
    unsealed = uuid4()
    await conn.execute(
        "select commandbus.begin_load('shop', %s, 'psql', '{}', 'sealed')", (unsealed,)
    )

    async def load(batch: UUID, checkpoint: int, first_row: int, digest: bytes = b"d") -> Any:
        commands = Jsonb([{"command_id": str(uuid4()), "type": "Work", "data": {}}])
        return await value(
            conn, "select commandbus.load_chunk('shop', %s, %s, %s, %s, %s)",
            batch, checkpoint, first_row, commands, digest,
        )  # fmt: skip

    assert await load(unsealed, 1, 1) == "committed"
    assert await load(unsealed, 1, 1) == "repeated"
    for batch, checkpoint, first_row, digest, message in [
        (unsealed, 1, 1, b"e", "is there with other rows"),
        (unsealed, 3, 2, b"d", "does not follow"),
        (unsealed, 2, 3, b"d", "does not follow"),
        (batch_id, 2, 11, b"d", "is complete"),
        (uuid4(), 1, 1, b"d", "no batch"),
    ]:
        with pytest.raises(psycopg.Error, match=message):
            await load(batch, checkpoint, first_row, digest)
    with pytest.raises(psycopg.Error, match="is not complete"):
        await conn.execute("select commandbus.dispatch_load('shop', %s, 10)", (unsealed,))
    with pytest.raises(psycopg.Error, match="has 1 rows and the source 2"):
        await conn.execute("select commandbus.seal_load('shop', %s, 2)", (unsealed,))
    assert await stored(conn, unsealed) == (1, 1, 1, 1)
