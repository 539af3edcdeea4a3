"""`commandbus batch` without a database: what is refused, and how a batch and a load are drawn."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.batch_load import load_step, resume_command
from commandbus.cli.batch_watch import (
    LiveBar,
    Speed,
    bar,
    batch_step,
    counts_text,
    hint_of,
    segments,
)
from commandbus.cli.frame import Frame, Place
from commandbus.cli.main import app
from commandbus.cli.progress import Lines, Quiet, progress_view, rate_text
from commandbus.loads.model import (
    LoadMetadata,
    LoadProgress,
    LoadResult,
    LoadStart,
    LoadStatus,
    RowFormat,
)
from commandbus.models import BatchMetadata

BATCH = UUID(int=7)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def batch(
    total: int = 10,
    completed: int = 0,
    failed: int = 0,
    canceled: int = 0,
    parked: int = 0,
    *,
    status: str = "IN_PROGRESS",
) -> BatchMetadata:
    ended = BEGAN + timedelta(seconds=5) if status.startswith("COMPLETED") else None
    return BatchMetadata(
        BATCH, "shop", None, None, status, total, completed, failed, canceled, parked,
        BEGAN, BEGAN, ended,
    )  # fmt: skip


def load_of(status: LoadStatus, error: str | None = None) -> LoadMetadata:
    return LoadMetadata(
        BATCH, "shop", "rows.jsonl", RowFormat("Work"), LoadStart.SEALED, status, None, 1_500, 2, 0,
        error, BEGAN, BEGAN, 1, None,
    )  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMMANDBUS_DSN", "COMMANDBUS_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout a terminal; not a fixture, because pytest sets stdout after those."""
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["batch", *arguments], input=stdin)


# -- what is refused before a database is asked


def test_batch_alone_prints_its_help() -> None:
    result = run()

    assert result.exit_code == 2
    for verb in ("create", "show", "watch", "list", "cancel", "retry", "load", "resume"):
        assert f"\n  {verb} " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "shop", "rows.csv"], "a CSV file needs --type"),
        (["load", "shop", "ROWS.CSV", "--id-column", "id"], "--type-column for the column"),
        (["create", "shop", "-", "--custom-data", "[1]"], "--custom-data must be a JSON object"),
        (["load", "shop", "-", "--custom-data", "{"], "--custom-data is not JSON"),
        (["create", "shop", "/no/such.jsonl"], "cannot read '/no/such.jsonl': No such file"),
        (["create", "shop", "rows.txt"], "cannot tell what 'rows.txt' holds"),
        (["load", "shop", "-", "--batch-id", "7"], "--batch-id '7' is not a UUID"),
        (["load", "shop", "-", "--start", "now"], "--start"),
        (["resume", "shop", "7", "rows.jsonl"], "batch id '7' is not a UUID"),
        (["watch", str(BATCH), "--timeout", "0"], "--timeout is 0; use seconds"),
        (["cancel", str(BATCH)], "Missing option '--reason'"),
    ],
)
def test_what_cannot_be_meant_gets_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ('{"n": 1}\n{"n": \n', ["--type", "Work"], "line 2: not JSON: "),
        ('{"n": 1}\n', [], "line 1: unknown keys n; a row has command_type, data and perhaps"),
        ('{"n": 1}\n', ["--type", "no type"], "line 1: command type 'no type' is not well formed"),
        ('{"command_type": "A", "command_id": 7}', [], "line 1: command_id 7 is not a UUID"),
        ("\n \n", ["--type", "Work"], "- has no rows, and a batch needs at least one command"),
    ],
)
def test_a_bad_row_of_a_batch_is_named_and_nothing_is_created(
    rows: str, options: list[str], said: str
) -> None:
    result = run("create", "shop", "-", *options, stdin=rows)

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("is_file", "count"), [(True, " (it has 3)"), (False, "")])
def test_more_than_one_transaction_holds_is_refused_with_a_hint_at_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_file: bool, count: str
) -> None:
    monkeypatch.setenv("COMMANDBUS_MAX_BATCH_SIZE", "2")
    rows = '{"n": 1}\n' * 3
    path = tmp_path / "rows.jsonl"
    path.write_text(rows)
    source = str(path) if is_file else "-"

    result = run("create", "shop", source, "--type", "Work", stdin=rows)

    assert result.exit_code == 2
    assert f"more than the 2 rows that one transaction should hold{count}; " in result.stderr
    assert "`commandbus batch load`" in result.stderr


# -- the words of a batch


def test_counts_name_what_there_is() -> None:
    assert counts_text(batch()) == "0 of 10 ended: [green]0 completed[/]"
    assert counts_text(batch(1_000, 400, 3, 2, 1)) == (
        "405 of 1,000 ended: [green]400 completed[/], [red]3 failed[/], [yellow]2 canceled[/], "
        "[magenta]1 in troubleshooting[/]"
    )


@pytest.mark.parametrize(
    ("per_second", "left", "text"),
    [
        (1_234.5, 59.6, "1,234/s, 60 s left"),
        (2.25, 0.2, "2.2/s, 1 s left"),
        (12.0, 600.0, "12/s, 10 min left"),
        (0.0, None, "0/s"),
        (50.0, 0.0, "50/s"),
    ],
)
def test_a_rate_comes_with_the_time_that_is_left(
    per_second: float, left: float | None, text: str
) -> None:
    assert rate_text(per_second, left) == text


@pytest.mark.parametrize(
    ("found", "load", "said"),
    [
        (batch(10, 4), None, ""),
        (batch(10, 4, parked=2), None, ""),
        (batch(10, 8, parked=2), None, f"`commandbus batch retry {BATCH}` sends it again"),
        (batch(10), load_of(LoadStatus.FAILED, "line 3: no"), "the load stopped (line 3: no); "),
        (batch(10), load_of(LoadStatus.LOADING), "not complete, 1,500 rows are in"),
        (batch(10), load_of(LoadStatus.SEALED), ""),
        (batch(10, 10, status="COMPLETED"), load_of(LoadStatus.SEALED), ""),
    ],
)
def test_what_holds_a_batch_up_comes_with_what_to_do(
    found: BatchMetadata, load: LoadMetadata | None, said: str
) -> None:
    hint = hint_of(found, load)

    assert said in hint
    assert bool(hint) == bool(said)


# -- the bar


@pytest.mark.parametrize(
    ("counts", "total", "cells"),
    [
        ([0, 0, 0, 0], 10, [0, 0, 0, 0]),
        ([5, 0, 0, 0], 10, [10, 0, 0, 0]),
        ([10, 0, 0, 0], 10, [20, 0, 0, 0]),
        ([999_999, 0, 0, 0], 1_000_000, [19, 0, 0, 0]),
        ([999_997, 1, 1, 1], 1_000_000, [17, 1, 1, 1]),
        ([1, 1, 1, 0], 3, [8, 6, 6, 0]),
        ([1, 0, 0, 1], 1_000_000, [1, 0, 0, 1]),
        ([0, 0, 0, 0], 0, [0, 0, 0, 0]),
    ],
)
def test_every_part_is_seen_and_only_an_ended_batch_fills_the_bar(
    counts: list[int], total: int, cells: list[int]
) -> None:
    assert segments(counts, total, 20) == cells


def test_the_bar_has_a_colour_for_each_part() -> None:
    drawn = bar(batch(8, 3, 1, 1, 1), 8)

    assert drawn.plain == "━" * 8
    assert [(span.end - span.start, span.style) for span in drawn.spans] == [
        (3, "green"), (1, "red"), (1, "yellow"), (1, "magenta"), (2, "bright_black"),
    ]  # fmt: skip


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    speed = Speed(clock)

    first = speed.see(batch(1_000, 100))
    clock.now += 2
    second = speed.see(batch(1_000, 300))
    clock.now += 30
    alone = speed.see(batch(1_000, 300))
    clock.now += 2
    standing = speed.see(batch(1_000, 300))
    clock.now += 2
    reopened = speed.see(batch(1_000, 200))
    ended = speed.see(batch(1_000, 1_000, status="COMPLETED"))

    # A single look has only what the batch says of itself.
    assert None not in (first.per_second, alone.per_second)
    assert (second.per_second, second.seconds_left) == (100.0, 7.0)
    assert (standing.per_second, standing.seconds_left) == (0.0, None)
    assert reopened.per_second == 0.0
    assert ended.per_second == 200.0


def look(stage: Quiet, found: BatchMetadata, hint: str = "") -> None:
    stage.show(batch_step(found, Speed().see(found), hint))


def test_lines_come_once_a_second_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines(clock)

    look(lines, batch(10))
    look(lines, batch(10, 1))
    clock.now += 1
    look(lines, batch(10, 2), "wait [for] it")
    clock.now += 1
    look(lines, batch(10, 3), "wait [for] it")
    clock.now += 1
    look(lines, batch(10, 4))
    look(lines, batch(10, 10, status="COMPLETED"))

    shown = [line.split(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "0 of 10 ended: 0 completed",
        "2 of 10 ended: 2 completed",
        "  wait [for] it",
        "3 of 10 ended: 3 completed",
        "4 of 10 ended: 4 completed",
        "10 of 10 ended: 10 completed",
    ]


def test_a_terminal_gets_a_live_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with progress_view(quiet=False, bars=LiveBar) as stage:
        look(stage, batch(200, 199))
        look(stage, batch(200, 190, parked=10), "wait [for] it")

    text = screen.getvalue()
    assert isinstance(stage, LiveBar)
    assert " 99 %" in text
    assert "\x1b[35m━" in text
    assert "wait [for] it" in text


def test_nothing_is_shown_beside_a_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_view(quiet=True, bars=LiveBar) as stage:
        look(stage, batch(10))

    assert capsys.readouterr().out == ""
    with progress_view(quiet=False, bars=LiveBar) as stage:
        look(stage, batch(10))

    assert capsys.readouterr().out == "0 of 10 ended: 0 completed\n"


# -- loads


def test_the_command_that_goes_on_can_be_typed_and_has_no_password() -> None:
    plain = resume_command(Place(), "shop", BATCH, "my rows.jsonl")
    address = resume_command(Place("postgres://me:hunter2@db/x"), "shop", BATCH, "-")
    folder = resume_command(Place(data_dir=Path("/data/pg")), "shop", BATCH, "a.csv")

    assert plain == f"commandbus batch resume shop {BATCH} 'my rows.jsonl'"
    assert address.endswith(" - --dsn 'postgres://me:[REDACTED]@db/x'")
    assert folder.endswith(" a.csv --data-dir /data/pg")


def told(rows: int, total: int | None, stage: Any = "loading") -> LoadProgress:
    left = None if total is None else (total - rows) / 50
    return LoadProgress(stage, rows, 1, 50.0, total, left)


def test_a_load_is_told_once_a_second_and_at_the_end_of_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    lines = Lines(clock)

    lines.show(load_step(told(1_000, 4_000)))
    lines.show(load_step(told(2_000, 4_000)))
    lines.show(load_step(told(4_000, 4_000)))
    lines.show(load_step(told(1_000, 4_000, "dispatching")))
    clock.now += 1
    lines.show(load_step(told(2_000, None)))

    assert capsys.readouterr().out.splitlines() == [
        "1,000 of 4,000 rows stored; 50/s, 60 s left",
        "4,000 of 4,000 rows stored; 50/s",
        "2,000 rows stored; 50/s",
    ]


def test_a_load_has_a_bar_for_each_stage_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)

    with progress_view(quiet=False) as view:
        view.show(load_step(told(1_000, 4_000)))
        view.show(load_step(told(4_000, 4_000)))
        view.show(load_step(told(4_000, 4_000, "dispatching")))

    text = screen.getvalue()
    assert "stored" in text
    assert "queued" in text
    assert "4,000 of 4,000 rows  50/s" in text


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], LoadResult]], None]:
    """Replace the database: `bus.loads.load` does what the test says."""

    def play(load: Callable[[Any], LoadResult]) -> None:
        async def load_it(*_: object, on_progress: Any, **__: object) -> LoadResult:
            return load(on_progress)

        @asynccontextmanager
        async def open_it(*_: object, **__: object) -> AsyncIterator[Any]:
            yield SimpleNamespace(bus=SimpleNamespace(loads=SimpleNamespace(load=load_it)))

        monkeypatch.setattr(Frame, "open", open_it)

    return play


@pytest.mark.parametrize("rows", [0, 1_000])
def test_an_interrupted_load_says_how_to_go_on_if_rows_are_in(loading: Any, rows: int) -> None:
    def interrupted(on_progress: Callable[[LoadProgress], None]) -> LoadResult:
        if rows:
            on_progress(told(rows, None))
            on_progress(told(rows - 1, None, "dispatching"))
        raise KeyboardInterrupt

    loading(interrupted)

    result = run("load", "shop", "rows.jsonl", "--batch-id", str(BATCH))

    assert result.exit_code == 130
    hint = f"1,000 rows are safe; go on with: commandbus batch resume shop {BATCH} rows.jsonl\n"
    assert result.stderr == (hint if rows else "") + "error: interrupted\n"


def test_a_load_that_cannot_go_on_does_not_say_how_to(loading: Any) -> None:
    batch_id = uuid4()
    loading(
        lambda _: LoadResult(
            "partial_success", batch_id, 3, 300, failed_checkpoint=4, tasks_failed=1, error="gone"
        )
    )

    plain = run("load", "shop", "rows.jsonl")
    document = run("load", "shop", "rows.jsonl", "--json")

    assert (plain.exit_code, document.exit_code) == (1, 1)
    assert plain.stderr == document.stderr == "error: gone\n"
    assert "  recovery_possible  no\n" in plain.stdout
    assert json.loads(document.stdout)["resume"] is None
