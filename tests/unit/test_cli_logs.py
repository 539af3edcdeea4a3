"""Log lines of the program: to stderr, each once, also beside what the application configures."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from commandbus.cli import logs
from commandbus.cli.logs import LogFormat, start_logging

LOG = logging.getLogger("commandbus.test")


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Loggers as they were."""
    library, root = logging.getLogger("commandbus"), logging.getLogger()
    before = (library.level, [*library.handlers], root.level, [*root.handlers])
    for each in root.handlers[:]:
        if isinstance(each, logs._StderrHandler):
            root.removeHandler(each)
    yield
    logs._set_here.clear()
    library.setLevel(before[0])
    library.handlers[:] = before[1]
    library.propagate = True
    root.setLevel(before[2])
    root.handlers[:] = before[3]


def test_log_lines_go_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("warning")
    start_logging("warning")
    LOG.warning("look here")
    LOG.info("not here")

    captured = capsys.readouterr()
    assert captured.err.endswith(" WARNING commandbus.test look here\n")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_lines_are_objects_when_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("warning")
    start_logging("info", LogFormat.JSON)
    LOG.info("look here")

    found = json.loads(capsys.readouterr().err)
    assert (found["level"], found["logger"], found["msg"]) == (
        "INFO", "commandbus.test", "look here",
    )  # fmt: skip


@pytest.mark.parametrize("where", ["", "commandbus"])
def test_a_line_that_the_application_shows_itself_is_not_shown_twice(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = logging.StreamHandler(sys.stderr)
    own.setFormatter(logging.Formatter("mine: %(message)s"))
    logging.getLogger(where).addHandler(own)
    start_logging("info")
    LOG.info("look here")

    assert capsys.readouterr().err == "mine: look here\n"


def test_what_the_handler_of_the_application_leaves_out_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = logging.StreamHandler(sys.stderr)
    own.addFilter(lambda record: "secret" not in record.getMessage())
    own.setLevel(logging.WARNING)
    logging.getLogger("commandbus").addHandler(own)
    start_logging("info")
    LOG.info("one")
    LOG.warning("secret two")

    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "one", "two",
    ]  # fmt: skip


def test_a_logger_that_hands_nothing_on_is_looked_at_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger("commandbus").propagate = False
    start_logging("info")
    assert not logs._is_shown(logging.makeLogRecord({"name": "commandbus.test"}))
    LOG.warning("nowhere")
    assert capsys.readouterr().err == ""


def test_the_level_is_that_of_the_library_only_where_the_application_configures_logging(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger().setLevel(logging.WARNING)
    start_logging("warning")
    start_logging("debug")
    LOG.debug("ours")
    logging.getLogger("theirs").info("theirs")
    assert capsys.readouterr().err == "ours\n"

    logging.getLogger("commandbus").setLevel(logging.ERROR)  # as LOGGING may say
    start_logging("info")
    LOG.warning("too quiet")
    assert capsys.readouterr().err == ""


def test_json_beside_the_handlers_of_the_application_is_answered_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    start_logging("info", LogFormat.JSON)
    assert "use commandbus.logging.JsonFormatter" in capsys.readouterr().err
