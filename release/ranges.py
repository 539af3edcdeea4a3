"""`make test-ranges`: a core of the tests with the oldest and the newest allowed dependencies.

The oldest on the oldest Python, the newest on the newest Python that is found here. What a range in
pyproject.toml says is thereby tried at both ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from release.tools import ROOT, CheckError, run, site_packages, table, tool

OLDEST = (3, 11)
NEWEST = (3, 14)
#: What the tests below need, of the group `dev`, and always in its newest version.
TOOLS = (
    "asyncpg", "django-tasks", "editables", "hatchling", "httpx2", "hypothesis", "msgspec",
    "opentelemetry-sdk",
    "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "sqlalchemy",
)  # fmt: skip
#: What depends most on the versions of others: driver, command line, web framework, metrics, JWT.
CORE = (
    "tests/unit/test_cli_core.py", "tests/unit/test_cli_main.py", "tests/unit/test_cli_frame.py",
    "tests/unit/test_cli_output.py", "tests/unit/test_encoding.py", "tests/unit/test_extras.py",
    "tests/unit/test_http_app.py", "tests/unit/test_http_auth.py",
    "tests/unit/test_http_metrics.py", "tests/unit/test_ticks.py",
    "tests/unit/test_connections.py", "tests/sql/test_commands.py",
    "tests/integration/test_smoke.py", "tests/integration/test_worker_transactions.py",
    "tests/integration/test_cli_commands.py",
)  # fmt: skip


@dataclass(frozen=True)
class End:
    """One end of the ranges."""

    name: str
    resolution: str
    python: Path


def found_pythons() -> dict[tuple[int, int], Path]:
    """Interpreters on the path and of pyenv that run, by version."""
    home = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found: dict[tuple[int, int], Path] = {}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        on_path = shutil.which(f"python3.{minor}")
        guesses = [*sorted(home.glob(f"versions/3.{minor}.*/bin/python3.{minor}"), reverse=True)]
        guesses += [Path(on_path)] if on_path else []
        for guess in guesses:
            done = subprocess.run([guess, "-c", "import venv"], capture_output=True, check=False)
            if done.returncode == 0:
                found[3, minor] = guess
                break
    return found


def ends() -> list[End]:
    """Both ends, with the interpreters that are here."""
    pythons = found_pythons()
    if OLDEST not in pythons:
        raise CheckError(f"no Python {OLDEST[0]}.{OLDEST[1]} here, for the lower end")
    newest = max(pythons)
    return [
        End("lowest", "lowest-direct", pythons[OLDEST]),
        End("newest", "highest", pythons[newest]),
    ]


def resolve(end: End, folder: Path) -> Path:
    """The versions of everything that commandbus[all] asks for, at this end."""
    file = folder / f"{end.name}.txt"
    tool(
        "uv", "pip", "compile", "pyproject.toml", "--all-extras", "--no-header", "--no-annotate",
        "--resolution", end.resolution, "--python", end.python, "--upgrade", "--quiet",
        "--output-file", file,
    )  # fmt: skip
    return file


def install(end: End, versions: Path, folder: Path) -> Path:
    """An environment with these versions, the tools of the tests, and this checkout."""
    home = folder / end.name
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    tools = [each for each in declared if each.startswith(TOOLS)]
    tool("uv", "venv", "--quiet", "--clear", "--python", end.python, home)
    python = home / "bin" / "python"
    tool("uv", "pip", "install", "--quiet", "--python", python, "-r", versions, *tools)
    tool(
        "uv", "pip", "install", "--quiet", "--python", python,
        "--no-deps", "--no-build-isolation", "-e", ROOT,
    )  # fmt: skip
    return home


def test(home: Path, tests: tuple[str, ...]) -> str:
    """Run the tests there; returns what pytest says last."""
    said = run(
        home / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "-n", "2", *tests, timeout=1_800,
    )  # fmt: skip
    return said.strip().splitlines()[-1].strip("= ")


def main() -> int:
    """Try the ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.ranges", description=__doc__)
    parser.add_argument("--end", choices=["lowest", "newest"], help="Only this end.")
    parser.add_argument("tests", nargs="*", help="Other tests than the core of them.")
    given = parser.parse_args()
    folder = ROOT / "build" / "ranges"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("END", "PYTHON", "TESTS")]
    is_good = True
    for end in ends():
        if given.end not in {None, end.name}:
            continue
        print(f"{end.name}: resolving, installing, testing …", file=sys.stderr, flush=True)
        try:
            home = install(end, resolve(end, folder), folder)
            found = test(home, tuple(given.tests) or CORE)
            version = run(home / "bin" / "python", "--version").split()[1]
            shutil.rmtree(site_packages(home).parents[2])
        except CheckError as failed:
            is_good, version, found = False, "-", "FAILED"
            print(failed, file=sys.stderr)
        rows.append((end.name, version, found))
    print(table(rows))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
