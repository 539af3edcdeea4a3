"""The compose file: what it starts exists, and does what the file expects of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict

from tests.waiting import until_sync

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "compose.yaml"
PATIENCE = 120


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def ours() -> list[str]:
    return [name for name, service in services().items() if "build" in service]


def run(arguments: list[str], dsn: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "COMMANDBUS_DSN": dsn}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "commandbus", *arguments],
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip


def says(log: Path, line: str) -> bool:
    return line in log.read_text()


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing")
@pytest.mark.parametrize("file", ["compose.yaml", "compose.test.yml"])
def test_a_client_of_compose_accepts_the_files(file: str, tmp_path: Path) -> None:
    # Debian's client is older than the member `name`, and paths count from where the file is.
    text = re.sub(r"(?m)^name:.*\n", "", (ROOT / "deploy" / file).read_text())
    (copy := tmp_path / "compose.yaml").write_text(text)

    done = subprocess.run(
        ["docker-compose", "-f", str(copy), "--profile", "monitoring", "config"],
        env={**os.environ, "COMMANDBUS_PASSWORD": "x"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(yaml.safe_load(text)["services"])


def test_services_wait_for_what_they_need() -> None:
    for name, service in services().items():
        for needed in service.get("depends_on", {}):
            assert needed in services(), f"{name} waits for {needed}"
    assert services()["worker"]["depends_on"]["migrate"]["condition"] == (
        "service_completed_successfully"
    )


def test_the_address_is_that_of_the_server_in_the_file() -> None:
    database = services()["db"]["environment"]
    for name in ours():
        address = services()[name]["environment"]["COMMANDBUS_DSN"]
        parts = conninfo_to_dict(re.sub(r"\$\{\w+[^}]*\}", "password", address))
        assert parts["host"] == "db"
        assert parts["user"] == database["POSTGRES_USER"]
        assert parts["dbname"] == database["POSTGRES_DB"]
        assert parts["port"] == "5432"


def test_nothing_listens_beyond_this_machine_and_no_password_is_in_the_file() -> None:
    for service in services().values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    assert set(re.findall(r"\$\{COMMANDBUS_PASSWORD[^}]*\}", FILE.read_text())) == {
        "${COMMANDBUS_PASSWORD:?choose a password}"
    }


def test_the_image_is_made_of_files_that_exist() -> None:
    for name in ours():
        build = services()[name]["build"]
        context = (FILE.parent / build["context"]).resolve()
        recipe = context / build["dockerfile"]
        assert recipe.is_file()
        for lock in re.findall(r"-r (\S+)", recipe.read_text()):
            assert (context / lock).is_file()


@pytest.mark.long
def test_the_commands_do_what_the_file_expects_of_them(empty_dsn: str, tmp_path: Path) -> None:
    migrated = run(services()["migrate"]["command"], empty_dsn, tmp_path / "migrate")
    assert migrated.wait(PATIENCE) == 0, (tmp_path / "migrate").read_text()
    lines = {"worker": "serves", "api": "http://"}
    for name, line in lines.items():
        # The service of a test must not be seen by other machines, nor take a fixed port.
        arguments = [
            {"0.0.0.0": "127.0.0.1", "8080": "0"}.get(word, word)
            for word in services()[name]["command"]
        ]
        log = tmp_path / name
        process = run(arguments, empty_dsn, log)
        try:
            until_sync(partial(says, log, line), timeout=PATIENCE)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
