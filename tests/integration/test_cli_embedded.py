"""The commands on an embedded server of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commandbus.cli.frame import Place
from commandbus.cli.main import app

pytestmark = pytest.mark.postgres


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Not under tmp_path: as root the server runs as another account, which must get there."""
    folder = Path(tempfile.mkdtemp(prefix="commandbus-cli-"))
    folder.chmod(0o755)
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


def test_a_folder_beside_an_address_is_refused(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_DSN", "host=127.0.0.1 port=1")

    result = CliRunner().invoke(app, ["send", "shop", "Sell", "--data-dir", str(data_dir)])

    assert result.exit_code == 2
    assert "use one of them" in result.stderr


def test_the_folder_that_is_shown_is_the_one_that_is_used(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_HOME", str(data_dir.parent))
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    assert "COMMANDBUS_DSN" not in os.environ

    result = CliRunner().invoke(app, ["db", "status"])

    assert result.exit_code == 3
    assert Place().is_embedded
    assert Place().folder.is_dir()
