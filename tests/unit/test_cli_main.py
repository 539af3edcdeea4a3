"""The program itself: help, version, and what becomes of an error. No database is needed."""

from __future__ import annotations

from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner, Result

from commandbus import __version__
from commandbus.cli import main as program
from commandbus.cli.ending import exit_code_of
from commandbus.cli.main import app
from commandbus.cli.output import ExitCode
from commandbus.errors import (
    CommandBusError,
    CommandNotFoundError,
    DatabaseUnavailableError,
    EmbeddedServerError,
    InvalidNameError,
    InvalidOperationError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `commandbus db sql` raise."""

    def fail(_: object) -> str:
        raise error

    monkeypatch.setattr("commandbus.database.migrations.full_sql", fail)


def test_version_is_that_of_the_package() -> None:
    result = run("--version")

    assert (result.exit_code, result.stdout) == (0, f"commandbus {__version__}\n")


def test_help_lists_every_command_and_every_exit_code() -> None:
    result = run("--help")

    assert result.exit_code == 0
    for word in ("demo", "up", "worker", "send", "show", "list", "batch", "tsq", "db"):
        assert f"\n  {word} " in result.stdout
    for code in ExitCode:
        assert f"{code.value:<4} {code.meaning}" in result.stdout


@pytest.mark.parametrize("group", ["batch", "tsq", "db"])
def test_a_group_alone_prints_its_help(group: str) -> None:
    result = run(group)

    assert result.exit_code == ExitCode.USAGE
    assert f"Usage: commandbus {group}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sned"], "Did you mean 'send'?"),
        (["list", "--nonsense"], "No such option: --nonsense"),
        (["tsq", "cancel", str(uuid4())], "Missing option '--reason'"),
        (["demo", "--commands", "3"], "--commands"),
        (["show", "not-a-uuid", "--dsn", "x", "--data-dir", "y"], "use one of them"),
        (["send", "d", "T", "--data", "{oops"], "--data is not JSON"),
        (["send", "d", "T", "--data", "{}", "--data-file", "f"], "two payloads"),
        (["send", "d", "T", "--data-file", "/no/such/file"], "cannot read /no/such/file"),
        (["send", "d", "T", "--wait", "5", "--reply-to", "d.replies"], "leave out --reply-to"),
        (["send", "d", "T", "--wait", "0"], "--wait is 0"),
        (["send", "d", "T", "--id", "7"], "--id '7' is not a UUID"),
        (["tsq", "complete", str(uuid4()), "--data", "{"], "--data is not JSON"),
    ],
)
def test_what_cannot_be_meant_gets_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    result = run(*arguments)

    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandNotFoundError("d", uuid4()), 1),
        (InvalidOperationError("no"), 1),
        (RuntimeError("a bug"), 1),
        (InvalidNameError("bad"), 2),
        (SchemaTooOldError("old"), 3),
        (SchemaMissingError("none"), 3),
        (SchemaTooNewError("new"), 5),
        (DatabaseUnavailableError("away"), 4),
        (EmbeddedServerError("cannot start"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_an_error_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(DatabaseUnavailableError("no\nserver at postgres://me:hunter2@db"), monkeypatch)

    result = run("db", "sql")

    assert result.exit_code == 4
    assert result.stderr == "error: no server at postgres://me:[REDACTED]@db\n"


def test_a_bug_is_one_line_that_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyError("x"), monkeypatch)

    result = run("db", "sql")

    assert result.exit_code == 1
    assert result.stderr == "error: KeyError: 'x' (`commandbus --debug …` shows where)\n"


def test_the_error_of_a_group_is_the_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ExceptionGroup("both", [OSError("x"), SchemaTooOldError("migrate it")]), monkeypatch)

    result = run("db", "sql")

    assert (result.exit_code, result.stderr) == (3, "error: migrate it\n")


def test_the_first_error_of_a_group_is_shown_when_none_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raising(ExceptionGroup("both", [OSError("first"), OSError("second")]), monkeypatch)

    assert "OSError: first" in run("db", "sql").stderr


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyboardInterrupt(), monkeypatch)

    result = run("db", "sql")

    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("how", ["--debug", "COMMANDBUS_DEBUG"])
def test_debug_lets_the_traceback_through(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(CommandBusError("why"), monkeypatch)
    options = [how] if how.startswith("-") else []
    if not options:
        monkeypatch.setenv(how, "1")

    result = run(*options, "db", "sql")

    assert isinstance(result.exception, CommandBusError)


def test_an_error_of_the_library_that_is_no_usage_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raising(typer.TyperException("odd"), monkeypatch)

    result = run("db", "sql")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: odd (`commandbus --help`")


def test_sql_is_printed_without_a_database() -> None:
    result = run("db", "sql")

    assert result.exit_code == 0
    assert "create table commandbus.command_bus_command" in result.stdout
    assert "receive_commands" in result.stdout


def test_main_runs_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["commandbus", "--version"])

    with pytest.raises(SystemExit) as ended:
        program.main()

    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out
