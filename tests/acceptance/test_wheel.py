"""Lesson 15: what is shipped works by itself, not only what is checked out."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path) -> str:
    """Run to the end; a failure shows what was printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={
            # Neither the coverage nor the xdist of the run around it.
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COV", "PYTEST"))
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def clean_python(tmp_path: Path) -> Path:
    """An environment with the built wheel, the locked dependencies, and not this checkout."""
    run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "--wheel-dir", tmp_path, ROOT,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("commandbus-*.whl")
    home = tmp_path / "clean"
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A path that is added by a .pth file has its own .pth files ignored: so the dependencies are
    # there, and the editable installation of this checkout is not.
    here = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "dependencies.pth").write_text("\n".join(here))
    return home / "bin" / "python"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_built_wheel_migrates_and_passes_the_seven_scenarios(
    clean_python: Path, empty_dsn: str
) -> None:
    where = run(clean_python, "-P", "-c", "import commandbus; print(commandbus.__file__)")
    assert str(clean_python.parents[1]) in where

    run(clean_python, "-m", "commandbus", "db", "init", "--dsn", empty_dsn)
    status = run(clean_python, "-m", "commandbus", "db", "status", "--json", "--dsn", empty_dsn)
    assert '"pending": []' in status

    scenarios = run(
        clean_python, "-m", "pytest", "tests/acceptance/test_scenarios.py", "-q",
        "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist",
    )  # fmt: skip
    assert "7 passed" in scenarios
