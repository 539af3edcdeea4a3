"""Runs the tests of the application as its users do, on a server of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus.embedded import EmbeddedPostgres

APP = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # root's server runs as another account
    server = EmbeddedPostgres(folder / "pg", settings={"fsync": "off"})
    server.start()
    yield server.dsn
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def manage(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "manage.py", *words],
        cwd=APP, env={**os.environ, "DATABASE_DSN": dsn}, capture_output=True, text=True,
    )  # fmt: skip


def test_the_application_passes_its_own_tests(dsn: str) -> None:
    done = manage(dsn, "test", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr


def test_commands_work_on_the_database_of_the_project(dsn: str) -> None:
    assert manage(dsn, "migrate", "--verbosity", "0").returncode == 0
    assert manage(dsn, "makemigrations", "--check").returncode == 0
    place = "from orders.services import place; place('A-9', 5)"
    done = manage(dsn, "shell", "-c", place)
    assert done.returncode == 0, done.stderr
    done = manage(dsn, "commandbus", "worker", "--until-empty")
    assert done.returncode == 0, done.stderr
    look = "from orders.models import Order; print(Order.objects.get().is_paid)"
    assert "True" in manage(dsn, "shell", "-c", look).stdout
