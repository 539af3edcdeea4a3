"""The script as its users run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from commandbus.embedded import EmbeddedPostgres

HERE = Path(__file__).parent.parent
sys.path.insert(0, str(HERE))

from invoices import send, work


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # root's server runs as another account
    server = EmbeddedPostgres(folder / "pg", settings={"fsync": "off"})
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def dsn(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> str:
    """A database for each test."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        name = sql.Identifier(request.node.name)
        conn.execute(sql.SQL("create database {}").format(name))
    return server.dsn_for(request.node.name)


def counts(dsn: str) -> tuple[int, int]:
    with psycopg.connect(dsn) as conn:
        query = "select (select count(*) from invoice), (select count(*) from payment)"
        found = conn.execute(query).fetchone()
    assert found is not None
    return found[0], found[1]


def run(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "invoices.py", *words],
        cwd=HERE, env={**os.environ, "COMMANDBUS_DSN": dsn}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip


def test_it_prints_what_the_readme_says(dsn: str) -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```text\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    lines = re.findall(r"^python invoices\.py ([a-z. ]*[a-z])", readme, re.MULTILINE)

    done = [run(dsn, *line.split()) for line in lines]

    assert [each.returncode for each in done] == [0] * len(done), [each.stderr for each in done]
    assert "".join(each.stdout for each in done) == block[1]


def test_a_file_with_a_wrong_line_leaves_nothing(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text("number,amount\n1,5\n2,much\n", encoding="utf-8")
    send(dsn, HERE / "invoices.csv")

    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        send(dsn, file)

    work(dsn)
    assert counts(dsn) == (3, 3)


def test_it_says_how_to_use_it(dsn: str) -> None:
    done = run(dsn, "pay")

    assert done.returncode == 2
    assert done.stderr == "use: invoices.py send FILE | invoices.py work\n"
