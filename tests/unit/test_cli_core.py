"""The door that every installation has: Typer's options, a quick start, clear about extras."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from commandbus import __version__
from commandbus.cli import core, schema
from commandbus.cli.declared import option
from commandbus.cli.frame import View, command
from commandbus.cli.logs import LogFormat, LogLevel
from commandbus.cli.main import app
from commandbus.cli.output import ExitCode, escaped, say, text_of
from commandbus.errors import DatabaseUnavailableError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)


@pytest.fixture
def without_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra `cli` was not installed."""
    hidden = {"typer", "rich"}
    monkeypatch.setattr(core, "find_spec", lambda name: None if name in hidden else True)
    monkeypatch.setattr("commandbus.cli.output.find_spec", lambda _: None)


def typer_command(name: tuple[str, ...]) -> Any:
    found: Any = typer.main.get_command(app)
    for word in name:
        found = found.commands[word]
    return found


# -- both doors


@pytest.mark.parametrize("name", core.COMMANDS, ids=" ".join)
def test_both_doors_have_the_same_options(name: tuple[str, ...]) -> None:
    parser = core.parser_of(name, core.function_of(name))
    ours = {
        (tuple(sorted(each.option_strings)) or each.metavar, each.help, each.default)
        for each in parser._actions
        if each.dest != "help"
    }
    theirs = {
        (tuple(sorted(each.opts)) if each.param_type_name == "option" else each.metavar,
         each.help, each.default)
        for each in typer_command(name).params
        if each.name != "help"
    }  # fmt: skip
    assert {(flags, text) for flags, text, _ in ours} == {
        (flags, text) for flags, text, _ in theirs
    }
    assert {f"{flags} {default}" for flags, _, default in ours if default is not None} == {
        f"{flags} {default}" for flags, _, default in theirs if default is not None
    }


@pytest.mark.parametrize("name", core.COMMANDS, ids=" ".join)
def test_both_doors_have_the_same_command(name: tuple[str, ...]) -> None:
    summary = (core.function_of(name).__doc__ or "").splitlines()[0]

    assert typer_command(name).help.startswith(summary.split(":")[0])


def test_what_is_declared_for_typer_alone_is_refused_by_the_core() -> None:
    def odd(*, count: Annotated[int, typer.Option("--count")] = 3) -> None: ...

    odd.__annotations__["count"] = Annotated[int, typer.Option("--count")]
    with pytest.raises(TypeError, match="count is declared for Typer only"):
        core.parser_of(("odd",), odd)


def test_an_option_is_read_from_its_variable_by_both_doors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def speak(*, level: Level = LogLevel.INFO) -> None:
        print(level.value)

    program = typer.Typer()
    command(program, "speak")(speak)
    monkeypatch.setenv("SPEAK_LEVEL", "error")

    assert core.parser_of(("speak",), speak).parse_args([]).level is LogLevel.ERROR
    assert CliRunner().invoke(program, []).stdout == "error\n"


Level = Annotated[LogLevel, option("--level", help="How loud.", envvar="SPEAK_LEVEL")]


# -- arguments


def test_arguments_become_the_values_that_the_function_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: dict[str, Any] = {}
    monkeypatch.setattr("commandbus.cli.worker.run_until_stopped", lambda _: None)
    monkeypatch.setattr(
        "commandbus.cli.logs.start_logging",
        lambda level, form=None: taken.update(level=level, form=form),
    )

    code = core.run(
        ["worker", "a:b", "-d", "x", "--domain=y", "-c5", "--no-notify", "--log-level", "error"]
    )

    assert (code, taken["level"], taken["form"]) == (0, LogLevel.ERROR, LogFormat.TEXT)
    given = core.parser_of(("worker",), core.function_of(("worker",))).parse_args(
        ["a:b", "-d", "x", "--domain=y", "-c5", "--data-dir", "f"]
    )
    assert (given.app, given.domain, given.concurrency) == ("a:b", ["x", "y"], 5)
    assert (given.data_dir.name, given.no_notify, given.dsn) == ("f", False, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker"], "MODULE:ATTRIBUTE"),
        (["worker", "a:b", "--concurrency", "many"], "many"),
        (["worker", "a:b", "--log-level", "loud"], "'loud' is not one of debug, info"),
        (["worker", "a:b", "--log-format", "xml"], "'xml' is not one of text, json"),
        (["worker", "a:b", "--conc", "3"], "--conc"),
        (["worker", "a:b", "--include-delayed"], "--include-delayed goes with --until-empty"),
        (["worker", "nowhere:setup", "--dsn", "x", "--data-dir", "y"], "use one of them"),
        (["worker", "nowhere:setup"], "no module 'nowhere'"),
        (["db", "status", "--dsn"], "--dsn"),
    ],
)
def test_what_cannot_be_meant_gets_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = core.run(words)
    except SystemExit as ended:
        code = int(ended.code or 0)

    shown = capsys.readouterr().err
    assert code == ExitCode.USAGE
    assert said in shown
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1


# -- errors


def test_an_error_is_one_line_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> str:
        raise DatabaseUnavailableError("no\nserver at postgres://me:hunter2@db")

    monkeypatch.setattr("commandbus.database.migrations.full_sql", fail)

    assert core.run(["db", "sql"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err == "error: no server at postgres://me:[REDACTED]@db\n"
    with pytest.raises(DatabaseUnavailableError):
        core.run(["--debug", "db", "sql"])
    monkeypatch.setenv("COMMANDBUS_DEBUG", "1")
    with pytest.raises(DatabaseUnavailableError):
        core.run(["db", "sql"])


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    done = subprocess.run(
        f"{sys.executable} -m commandbus db sql | head -c 10",
        shell=True, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert (len(done.stdout), done.stderr) == (10, "")


def test_a_command_prints_its_result_and_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(_: object, **__: object) -> View:
        await asyncio.sleep(0)
        return View({"is_current": False}, print, ExitCode.PENDING_MIGRATIONS, "old")

    monkeypatch.setattr(schema, "_migrate", refused)

    with pytest.raises(SystemExit) as ended:
        core.run(["db", "migrate", "--json", "--dsn", "x"])
    assert ended.value.code == ExitCode.PENDING_MIGRATIONS
    assert capsys.readouterr() == ('{\n  "is_current": false\n}\n', "error: old\n")


# -- which door


def test_what_the_core_does_not_have_is_handed_to_typer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["commandbus", "worker", "--help"])
    with pytest.raises(SystemExit) as ended:
        core.main()
    assert ended.value.code == 0
    assert "commandbus worker [OPTIONS]" in capsys.readouterr().out


@pytest.mark.usefixtures("without_typer")
@pytest.mark.parametrize(
    ("words", "named"),
    [(["tsq", "list"], "tsq"), (["demo"], "demo"), (["db", "roles"], "db roles"), (["x"], "x")],
)
def test_a_command_of_an_extra_says_what_to_install(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert core.run(words) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"error: `commandbus {named}` needs typer, which is not installed: "
        'pip install "commandbus[cli]"\n'
    )


@pytest.mark.usefixtures("without_typer")
def test_the_core_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert core.run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in core.COMMANDS:
        assert f"\n  {' '.join(name)} " in text
    assert 'pip install "commandbus[cli]"' in text
    for code in ExitCode:
        assert f"{code.value:<4} {code.meaning}" in text
    assert core.run([]) == core.run(["db"]) == ExitCode.USAGE
    assert "Commands:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        core.run(["worker", "--help"])
    assert "--concurrency" in capsys.readouterr().out


@pytest.mark.usefixtures("without_typer")
def test_without_rich_markup_is_left_out_and_brackets_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(f"[bold green]done[/] {escaped('[red] a[0] [x1]')} {text_of('[/]')} [yellow]![/]")

    assert capsys.readouterr().out == "done [red] a[0] [x1] [/] !\n"


# -- how quickly it starts


def cpu_seconds(*words: str) -> float:
    """The least CPU of some runs, in seconds: neighbours make a run longer, never shorter."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    timer = (
        "import os, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
        "spent = os.times(); print(spent.children_user + spent.children_system)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-I", "-c", timer, sys.executable, *words],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(5)
    ]  # fmt: skip
    return min(map(float, runs))


def test_the_program_and_the_package_load_quickly() -> None:
    """Compared with asyncio, because machines differ, and with room for neighbours.
    `make release-check` measures the bars themselves.
    """
    asyncio_alone = cpu_seconds("-c", "import asyncio")

    assert cpu_seconds("-c", "import commandbus") <= asyncio_alone
    assert cpu_seconds("-c", "from commandbus import CommandBus") <= 4 * asyncio_alone
    assert cpu_seconds("-m", "commandbus", "--version") <= 2 * asyncio_alone
    assert cpu_seconds("-m", "commandbus", "--help") <= 12 * asyncio_alone


def test_an_import_loads_neither_driver_nor_framework() -> None:
    program = """
import asyncio, sys
there = {*sys.modules}
import commandbus
from commandbus import BlockingBus, CommandBus, Handlers, new_id
others = {"psycopg", "typer", "rich", "pydantic", "fastapi", "django"}
# Those of Python that take long, and that nothing needs before a bus is opened.
late = {"hashlib", "pathlib", "random", "urllib.parse"}
print(*(others | late) & ({*sys.modules} - there))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_the_version_is_printed_without_loading_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert core.run(["--version"]) == core.run(["--debug", "--version"]) == 0
    assert capsys.readouterr().out == f"commandbus {__version__}\n" * 2
