"""What all steps of the check share: folders, running a program, the result of a step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "dev.lock"


class CheckError(Exception):
    """A step found something that must not be released."""


@dataclass(frozen=True)
class Result:
    """What a step found: the bar, and what was measured or seen."""

    subject: str
    found: str
    bar: str = "-"


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of a user: no variable of ours, of pytest, or of this checkout."""
    ours = ("COMMANDBUS", "COV", "PYTEST", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run(
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    umask: int = -1,
    timeout: float = 600,
) -> str:
    """Run a program to its end; a failure shows what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean_environment() if env is None else env,
        capture_output=True,
        text=True,
        umask=umask,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-3_000:]
        raise CheckError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{said}")
    return done.stdout


def tool(*words: str | Path, env: Mapping[str, str] | None = None, umask: int = -1) -> str:
    """Run a tool of requirements/release.lock: `python -m ...`."""
    return run(sys.executable, "-m", *words, env=env, umask=umask)


def pip(home: Path, *words: str | Path) -> None:
    """Run pip in an environment."""
    run(home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q", *words)


def new_environment(home: Path) -> Path:
    """An empty environment, with pip."""
    venv.create(home, with_pip=True, clear=True)
    return home


def site_packages(home: Path) -> Path:
    """Where its packages are."""
    (found,) = home.glob("lib/python*/site-packages")
    return found


def write_constraints(file: Path) -> Path:
    """The locked versions without their hashes, which pip wants for all or for none."""
    pins = re.findall(r"^[a-z0-9][\w.\-]*==[^ \\]+(?: ; [^\\\n]+)?", LOCK.read_text(), re.M)
    file.write_text("\n".join(pins) + "\n")
    return file


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first one is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
