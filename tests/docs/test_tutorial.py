"""The tutorial, typed by a reader: its files, its commands in their order, what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, blocks

TUTORIAL = DOCS / "tutorial.md"


def steps() -> list[tuple[str, str]]:
    """Each command and what it should print; `…` stands for anything."""
    found: list[tuple[str, str]] = []
    for block in blocks(TUTORIAL, "console"):
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                command, expected = found[-1]
                found[-1] = (command, f"{expected}{line}\n")
    return found


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.postgres
def test_every_command_of_the_tutorial_prints_what_it_says(empty_dsn: str, tmp_path: Path) -> None:
    for block in blocks(TUTORIAL, "python"):
        name = block.text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "COMMANDBUS_DSN": empty_dsn,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }

    for command, expected in steps():
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        pattern = ".*".join(re.escape(part.strip("\n")) for part in expected.split("…"))
        assert re.search(pattern, done.stdout, re.S), f"{command} printed {done.stdout}"


def test_the_tutorial_has_commands_that_say_what_they_print() -> None:
    assert len(steps()) > 12
    assert sum("COMPLETED" in expected for _, expected in steps()) == 3
