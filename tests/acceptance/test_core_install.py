"""An installation of the core alone: what works there, and what it says about missing extras."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from release.building import check_names

ROOT = Path(__file__).parents[2]
#: The packages of the core, with what they ask for themselves.
CORE = (
    "psycopg", "psycopg-binary", "psycopg-pool", "orjson", "cronsim", "pgmq", "typing_extensions",
)  # fmt: skip

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("core-install")]


def call(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run something as a user does: nothing of this checkout or of pytest in its environment."""
    ours = ("COMMANDBUS", "COV", "PYTEST", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Without the folders where a server of the system may be.
    env |= {"PATH": "/nowhere"} | more
    return subprocess.run(
        [str(word) for word in words],
        cwd="/", env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--wheel-dir", folder, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the locked packages of the core, copied from this one."""
    home = tmp_path_factory.mktemp("core")
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in CORE:
        for file in distribution(name).files or ():
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(str(file.locate())), target)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return home


@pytest.fixture
def program(home: Path) -> list[str | Path]:
    return [home / "bin" / "python", "-m", "commandbus"]


def test_the_wheel_has_what_belongs_into_it_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        check_names(archive.namelist())


def test_the_core_migrates_a_database_and_runs_a_worker(
    program: list[str | Path], empty_dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(
        "import uuid\n"
        "async def setup(bus):\n"
        "    async def greet(command, ctx):\n"
        "        print('hello', command.data['name'], flush=True)\n"
        "    bus.register_handler('greetings', 'Greet', greet)\n"
        "    await bus.send('greetings', 'Greet', uuid.uuid4(), {'name': 'Ada'})\n"
    )

    migrated = call(*program, "db", "migrate", "--dsn", empty_dsn)
    status = call(*program, "db", "status", COMMANDBUS_DSN=empty_dsn)
    worked = call(
        *program, "worker", "app:setup", "--until-empty", "--dsn", empty_dsn,
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip

    assert (migrated.returncode, migrated.stderr) == (0, "")
    assert migrated.stdout.startswith("Applied 0001")
    assert (status.returncode, status.stderr) == (0, "")
    assert "The database is up to date." in status.stdout
    assert "[" not in status.stdout
    assert worked.returncode == 0, worked.stderr
    assert worked.stdout == "hello Ada\n"


def test_the_core_prints_its_sql_its_version_and_its_help(program: list[str | Path]) -> None:
    assert "create table" in call(*program, "db", "sql").stdout
    assert call(*program, "--version").stdout.startswith("commandbus ")
    shown = call(*program, "--help")
    assert shown.returncode == 0
    assert 'pip install "commandbus[cli]"' in shown.stdout
    assert "--concurrency" in call(*program, "worker", "--help").stdout


@pytest.mark.parametrize(
    "words", [["demo"], ["up", "--demo"], ["tsq", "list"], ["serve"], ["db", "roles"]], ids=" ".join
)
def test_a_command_of_the_extra_cli_names_it(program: list[str | Path], words: list[str]) -> None:
    done = call(*program, *words)

    assert done.returncode == 2
    assert 'pip install "commandbus[cli]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_core_without_an_address_names_both_ways_out(
    program: list[str | Path], tmp_path: Path
) -> None:
    done = call(*program, "db", "migrate", COMMANDBUS_HOME=str(tmp_path))

    assert done.returncode == 4
    assert "name a database (COMMANDBUS_DSN, or --dsn)" in done.stderr
    assert 'pip install "commandbus[embedded]"' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("what", "extra"),
    [("import commandbus.http", "api"), ("import commandbus.django", "django")],
)
def test_a_part_of_an_extra_that_is_imported_names_it(home: Path, what: str, extra: str) -> None:
    done = call(home / "bin" / "python", "-c", what)

    assert done.returncode == 1
    assert f'pip install "commandbus[{extra}]"' in done.stderr.splitlines()[-1]


def test_the_core_has_every_module_that_needs_no_extra(home: Path) -> None:
    done = call(
        home / "bin" / "python", "-c",
        "from commandbus import *\n"
        "import commandbus.batches, commandbus.loads, commandbus.schedules, commandbus.testing\n"
        "import commandbus.governance, commandbus.troubleshooting, commandbus.upkeep\n"
        "from commandbus.testing import fake_bus; fake_bus(); print(CommandBus.__name__)",
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "CommandBus\n", "")
