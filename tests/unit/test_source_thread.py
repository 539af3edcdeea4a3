"""Sources in a thread: nobody else waits for them, and their memory is bounded."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from commandbus.errors import SourceError
from commandbus.loads import reading
from commandbus.loads.sources import Reader, open_source
from tests.unit.test_sources import WORK, rest
from tests.waiting import until

NAME = contextvars.ContextVar("NAME", default="nobody")


def source_threads() -> int:
    return sum(thread.name == "commandbus source" for thread in threading.enumerate())


async def test_a_generator_that_waits_does_not_stop_the_event_loop() -> None:
    go_on = threading.Event()

    def waiting() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        assert go_on.wait(30)
        yield {"n": 2}

    async with open_source(waiting(), WORK) as reader:
        assert await reader.read() == (1, {"n": 1})  # the first does not wait for the second
        second = asyncio.create_task(reader.read())
        await asyncio.sleep(0.01)  # the loop runs, or this would hang
        assert not second.done()
        go_on.set()
        assert await second == (2, {"n": 2})
        assert await reader.read() is None


async def test_opening_and_reading_a_pipe_does_not_stop_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CLOSE_SECONDS", 0.01)
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)

    async def first() -> object:
        async with open_source(path, WORK) as reader:
            return await reader.read()

    task = asyncio.create_task(first())
    await asyncio.sleep(0.01)  # nobody writes yet
    assert not task.done()
    with path.open("wb", buffering=0) as other_end:
        other_end.write(b'{"n": ')
        await asyncio.sleep(0.01)  # half a line
        assert not task.done()
        other_end.write(b"1}\n")
        assert await task == (1, '{"n": 1}\n')


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_load_is_cancelled_while_a_pipe_hangs(tmp_path: Path, is_open: bool) -> None:
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    # for both ends: opening does not hang then, reading does
    held = os.open(path, os.O_RDWR) if is_open else None

    async def read() -> None:
        async with open_source(path, WORK) as reader:
            await reader.read()

    task = asyncio.create_task(read())
    await until(lambda: source_threads() > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(os.open(path, os.O_RDWR) if held is None else held)  # now the thread can end
    await until(lambda: source_threads() == 0)


def test_a_source_that_hangs_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    program = """
import asyncio, sys, time
from commandbus.cli.batch_create import source_of
from commandbus.loads.model import RowFormat
from commandbus.loads.sources import open_source
async def main():
    async with asyncio.timeout(0.2):
        async with open_source(source_of("-"), RowFormat("Work")) as reader:
            print(await reader.read(), flush=True)
            await reader.read()
try:
    asyncio.run(main())
except TimeoutError:
    print("left", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        shown = process.stdout.read()  # to its end, though stdin is still open
        assert process.wait(30) == 0, process.stderr.read()
        assert shown.strip().endswith(b"left")
        assert b"Fatal" not in process.stderr.read()


async def test_what_is_read_ahead_is_bounded_by_rows_and_by_text() -> None:
    taken: list[int] = []

    def endless(text: str) -> Iterator[str]:
        while True:
            taken.append(1)
            yield text

    async with open_source(endless("{}"), WORK) as reader:
        await reader.read()
        await until(lambda: len(taken) >= reading.MAX_ROWS)
        assert len(taken) <= 2 * reading.MAX_ROWS + 1
    taken.clear()
    large = "x" * (reading.MAX_CHARACTERS // 2)
    async with open_source(endless(large), WORK) as reader:
        await reader.read()
        await until(lambda: len(taken) >= 3)
        assert len(taken) <= 6
    taken.clear()

    def table() -> Iterator[dict[str, str]]:
        return ({"a": each} for each in endless(large))

    async with open_source(table(), WORK) as reader:
        await reader.read()
        assert len(taken) <= 6


async def test_a_fast_source_is_handed_over_in_groups() -> None:
    thread = reading.SourceThread(
        lambda _: reading.Opened(iter([(n, n) for n in range(10_000)]), "item")
    )
    await thread.start()
    sizes = []
    while group := await thread.next_rows():
        sizes.append(len(group))
        await asyncio.to_thread(lambda: None)  # as a commit does, it lets the thread run
    assert sum(sizes) == 10_000
    assert max(sizes) <= reading.MAX_ROWS
    assert len(sizes) < 2_000
    await thread.close()


async def test_no_row_is_lost_however_the_threads_take_turns() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        async with open_source(({"n": n} for n in range(20_000)), WORK) as reader:
            assert [row["n"] for _, row in await rest(reader)] == list(range(20_000))
    finally:
        sys.setswitchinterval(before)


async def test_the_rows_before_an_error_come_first_and_the_error_keeps_its_place() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        yield {"n": 2}
        raise KeyError("the other end")

    async with open_source(failing(), WORK) as reader:
        assert await reader.skip(2) == 2
        with pytest.raises(SourceError, match="after item 2: KeyError") as caught:
            await reader.read()
    assert caught.value.line == 2


async def test_an_exit_in_a_source_is_not_swallowed() -> None:
    def leaving() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise GeneratorExit

    async with open_source(leaving(), WORK) as reader:
        await reader.read()
        with pytest.raises(GeneratorExit):
            await reader.read()


async def test_a_source_sees_the_context_of_its_caller_and_runs_elsewhere() -> None:
    NAME.set("ada")

    def rows() -> Iterator[dict[str, object]]:
        yield {"by": NAME.get(), "thread": threading.current_thread().name}

    async with open_source(rows(), WORK) as reader:
        assert await rest(reader) == [(1, {"by": "ada", "thread": "commandbus source"})]


async def test_a_source_is_left_before_the_load_returns() -> None:
    ended = threading.Event()

    def rows() -> Generator[dict[str, int], None, None]:
        try:
            while True:
                yield {}
        finally:
            ended.set()

    async def read(reader: Reader) -> None:
        await reader.read()
        raise RuntimeError("stop")

    source = rows()
    with pytest.raises(RuntimeError, match="stop"):
        async with open_source(source, WORK) as reader:
            await read(reader)
    source.close()  # fails while a thread is inside
    assert ended.is_set()


async def test_a_source_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CLOSE_SECONDS", 0.01)
    go_on = threading.Event()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        go_on.wait(30)

    async with open_source(rows(), WORK) as reader:
        await reader.read()
    assert source_threads() == 1
    go_on.set()
    await until(lambda: source_threads() == 0)


def test_a_thread_outlives_its_event_loop_without_harm() -> None:
    go_on = threading.Event()

    def rows() -> Iterator[dict[str, int]]:
        go_on.wait(30)
        yield {}

    async def begin() -> None:
        thread = reading.SourceThread(lambda _: reading.Opened(enumerate(rows(), 1), "item"))
        await thread.start()
        waiting = asyncio.create_task(thread.next_rows())
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(begin())
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "commandbus source":
            thread.join(30)
            assert not thread.is_alive()


async def test_a_list_is_read_without_a_thread_and_lets_others_run() -> None:
    before = source_threads()
    async with open_source([{}] * 1_000, WORK) as reader:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert len(await rest(reader)) == 1_000
        task.cancel()
        assert others >= 5
        assert source_threads() == before
