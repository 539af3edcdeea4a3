"""The frame of a command: groups of options, what is printed, the exit code, and a quick start."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from commandbus.cli.frame import Frame, View, command, page_view
from commandbus.cli.main import app as real
from commandbus.cli.output import Column, ExitCode, Table
from commandbus.paging import Page


@dataclass(frozen=True)
class Fruit:
    name: Annotated[str, typer.Argument()]
    count: Annotated[int, typer.Option("--count", "-c")] = 3
    colours: Annotated[list[str] | None, typer.Option("--colour")] = None


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a small program with one command of each kind."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    app = typer.Typer()

    @command(app, "buy")
    async def buy(
        frame: Frame, fruit: Fruit, is_bad: Annotated[bool, typer.Option("--bad")] = False
    ) -> View:
        """Buy some."""
        document = {"fruit": fruit, "dsn": frame.place.dsn}
        if is_bad:
            return View(document, lambda: print("bought"), ExitCode.FAILED, "it is bad")
        return View.line(f"{fruit.count} {fruit.name}", **document)

    @command(app, "peel")
    def peel(fruit: Fruit) -> None:
        print(fruit)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return invoke


def test_a_group_of_options_is_one_value_and_each_field_one_option(run: Any) -> None:
    result = run("buy", "figs", "-c", "7", "--colour", "red", "--colour", "blue", "--json")

    assert json.loads(result.stdout) == {
        "fruit": {"name": "figs", "count": 7, "colours": ["red", "blue"]},
        "dsn": None,
    }
    assert run("buy", "figs").stdout == "3 figs\n"
    assert run("peel", "figs").stdout == f"{Fruit('figs')}\n"


def test_help_lists_the_options_of_groups_and_of_the_frame(run: Any) -> None:
    text = run("buy", "--help").stdout

    assert "Buy some." in text
    for option in ("--count", "--colour", "--bad", "--json", "--dsn", "--data-dir"):
        assert option in text
    assert "--json" not in run("peel", "--help").stdout


def test_a_result_that_is_no_success_has_an_exit_code_and_a_line_on_stderr(run: Any) -> None:
    plain, document = run("buy", "figs", "--bad"), run("buy", "figs", "--bad", "--json")

    assert (plain.exit_code, plain.stdout, plain.stderr) == (1, "bought\n", "error: it is bad\n")
    assert (document.exit_code, document.stderr) == (1, "error: it is bad\n")
    assert json.loads(document.stdout)["fruit"]["name"] == "figs"


NAMES = Table[str](Column("NAME", lambda name: name), empty="No names.")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (Page([], None), "No names.\n"),
        (Page(["a"], None), "NAME\na\n"),
        (Page(["a"], "xyz"), "NAME\na\nFor the next page, repeat this with --cursor xyz\n"),
    ],
)
def test_a_page_says_how_to_get_the_next_one(
    page: Page[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = page_view(page, "names", NAMES.print)

    view.show(as_json=False)

    assert capsys.readouterr().out == text
    assert view.document == {"names": page.items, "next_cursor": page.next_cursor}


def test_a_search_that_stopped_early_has_it_in_its_document() -> None:
    when = datetime(2020, 5, 1, tzinfo=UTC)

    view = page_view(Page([], "xyz", when), "names", NAMES.print, is_search=True)

    assert view.document["searched_to"] == when


def leaves(group: Any, name: str = "") -> dict[str, set[str]]:
    """The options of every command, by its name."""
    found: dict[str, set[str]] = {}
    for child, sub in group.commands.items():
        if hasattr(sub, "commands"):
            found |= leaves(sub, f"{name}{child} ")
        else:
            found[name + child] = {option for each in sub.params for option in each.opts}
    return found


def test_every_command_prints_json_unless_it_runs_until_it_is_stopped() -> None:
    options = leaves(typer.main.get_command(real))

    assert {name for name, found in options.items() if "--json" not in found} == {
        "up", "worker", "serve", "scheduler", "exporter", "relay", "handover", "health", "db sql",
    }  # fmt: skip


def test_every_listing_has_a_limit_and_those_of_pages_a_cursor() -> None:
    options = leaves(typer.main.get_command(real))
    listings = {name: found for name, found in options.items() if "--limit" in found}

    assert set(listings) == {
        "list", "audit", "batch list", "tsq list", "tsq groups", "bulk list", "bulk show",
        "token list", "seals list", "schedule list", "keys list", "keys show", "loads",
    }  # fmt: skip
    assert {name for name, found in listings.items() if "--cursor" not in found} == {
        "tsq groups", "seals list", "keys show",
    }  # fmt: skip


def test_the_program_starts_without_driver_terminal_library_and_web_framework() -> None:
    heavy = ("psycopg", "rich.console", "fastapi", "uvicorn", "pyarrow", "commandbus.wiring")
    code = f"import sys, commandbus.cli.main; print(*[m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "\n"
