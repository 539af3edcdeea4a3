"""Exports of a real database: `--export`, and the streams of the HTTP service."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from typer.testing import CliRunner, Result

from commandbus import CommandBus, paging
from commandbus.cli.main import app
from commandbus.commands.search import Search
from commandbus.models import CommandMetadata
from tests.http_world import app_of, caller, client_of
from tests.integration.http_shop import fill, work_off
from tests.integration.looking import another_bus


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)

    async def work() -> None:
        async with another_bus(dsn) as bus:
            await fill(bus, parked=5)

    asyncio.run(work())

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an export has several pages."""
    monkeypatch.setattr("commandbus.commands.search.EVERY_LIMIT", 2)
    monkeypatch.setattr("commandbus.troubleshooting.queue.EVERY_MASKED_LIMIT", 2)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


# -- the command line


def test_an_export_has_what_the_listing_has(run: Any, tmp_path: Path) -> None:
    for command, name in (
        (("list",), "commands"),
        (("audit",), "events"),
        (("tsq", "list"), "commands"),
    ):
        listed = json.loads(run(*command, "--json", "--limit", "1000").stdout)[name]
        assert len(listed) > 4
        assert lines(run(*command, "--export", "-").stdout) == listed
        file = tmp_path / "rows.csv"
        done = run(*command, "--export", str(file), "--json")
        assert json.loads(done.stdout) == {
            "rows": len(listed), "file": str(file), "format": "csv",
        }  # fmt: skip
        rows = table(file.read_bytes().decode())
        assert [row["command_id"] for row in rows] == [each["command_id"] for each in listed]
        assert list(rows[0]) == list(listed[0])
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_an_export_takes_the_filters_of_its_listing(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "parked"
    chosen = ("--domain", "shop", "--type", "Fail")
    assert f"5 rows are in {file}" in run("tsq", "list", *chosen, "--export", str(file)).stdout
    assert {row["command_type"] for row in lines(file.read_text())} == {"Fail"}
    assert lines(run("list", "--domain", "elsewhere", "--export", "-").stdout) == []


def test_payloads_are_exported_only_if_asked_for_and_masked(run: Any, dsn: str) -> None:
    async def work() -> None:
        async with another_bus(dsn) as bus:
            await bus.send("shop", "Fail", uuid4(), {"password": "hunter2", "n": 77})
            await work_off(bus, "shop")

    asyncio.run(work())
    plain = run("tsq", "list", "--export", "-").stdout
    assert "data" not in lines(plain)[0]
    shown = run("tsq", "list", "--export", "-", "--payload").stdout
    assert {"password": "[REDACTED]", "n": 77} in [row["data"] for row in lines(shown)]
    assert "hunter2" not in plain + shown


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("list", "--format", "csv"), "--format is of --export"),
    (("list", "--export", "x", "--limit", "5"), "leave out --limit"),
    (("list", "--export", "x", "--summary"), "leave out --summary"),
    (("list", "--export", "-", "--format", "xml"), "--format"),
    (("tsq", "list", "--payload"), "--payload is of --export"),
    (("audit", "--export", "-", "--follow"), "leave out --follow"),
    (("list", "--export", "/no/such/folder/x"), "cannot write /no/such/folder/x: No such file"),
    (("list", "--export", "/tmp"), "cannot write /tmp: Is a directory"),
]


def test_what_cannot_be_exported_says_why(run: Any) -> None:
    for arguments, why in REFUSED:
        result = run(*arguments)
        assert result.exit_code in {1, 2}
        assert why in result.stderr


def test_an_export_that_breaks_leaves_the_old_file_and_no_half_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("old")

    async def breaks(self: Search, **criteria: Any) -> AsyncIterator[CommandMetadata]:
        async for found in paging.every(lambda cursor: self.commands(**criteria, cursor=cursor)):
            yield found
            raise RuntimeError("the database went away")

    monkeypatch.setattr(Search, "every_command", breaks)
    assert run("list", "--export", str(file)).exit_code == 1
    assert file.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_device_is_written_to_and_not_replaced(run: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert run("list", "--export", str(pipe)).exit_code == 0
    assert len(lines(reader.communicate(timeout=30)[0].decode())) > 4
    assert pipe.is_fifo()


def test_a_reader_that_goes_away_ends_the_export_quietly(run: Any, dsn: str) -> None:
    del run
    program = [sys.executable, "-m", "commandbus", "audit", "--export", "-", "--dsn", dsn]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == b""


# -- over HTTP


async def test_the_service_streams_every_row(bus: CommandBus) -> None:
    await fill(bus, parked=5)
    async with client_of(app_of(bus)) as client:
        for url, searched in (
            ("commands", "commands"), ("audit", "audit"),
            ("troubleshooting/shop", "troubleshooting/shop"),
        ):  # fmt: skip
            listed = (await client.get(f"/api/v1/{searched}", params={"limit": 200})).json()[
                "items"
            ]
            found = await client.get(f"/api/v1/exports/{url}")
            assert found.headers["content-type"] == "application/x-ndjson"
            assert lines(found.text) == listed
            sheet = await client.get(f"/api/v1/exports/{url}", params={"format": "csv"})
            assert sheet.headers["content-type"].startswith("text/csv")
            assert "export.csv" in sheet.headers["content-disposition"]
            assert [row["command_id"] for row in table(sheet.text)] == [
                row["command_id"] for row in listed
            ]
        some = await client.get("/api/v1/exports/commands", params={"command_type": "Fail"})
        assert {row["command_type"] for row in lines(some.text)} == {"Fail"}
        assert (await client.get("/api/v1/exports/commands?format=xml")).status_code == 400
        bad = {"created_after": "2026-05-02T00:00:00Z", "created_before": "2026-05-01T00:00:00Z"}
        assert (await client.get("/api/v1/exports/commands", params=bad)).status_code == 400


async def test_payloads_need_their_scope_also_in_an_export(bus: CommandBus) -> None:
    await bus.send("shop", "Fail", uuid4(), {"password": "hunter2", "n": 77})
    await fill(bus)
    app_ = app_of(bus, one=caller("read"), two=caller("read", "read-payload"))
    url = "/api/v1/exports/troubleshooting/shop"
    async with client_of(app_, "one") as one, client_of(app_, "two") as two:
        assert (await one.get(url, params={"payload": True})).status_code == 403
        assert {row["payload"] for row in lines((await one.get(url)).text)} == {None}
        shown = await two.get(url, params={"payload": True})
    payloads = [row["payload"] for row in lines(shown.text)]
    assert {"password": "[REDACTED]", "n": 77} in payloads


async def test_a_stream_that_breaks_does_not_look_whole(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(bus)

    async def breaks(self: Search, **criteria: Any) -> AsyncIterator[CommandMetadata]:
        async for found in paging.every(lambda cursor: self.commands(**criteria, cursor=cursor)):
            yield found
            raise RuntimeError("the database went away")

    monkeypatch.setattr(Search, "every_command", breaks)
    monkeypatch.setattr("commandbus.commands.export.PIECE", 1)
    transport = httpx2.ASGITransport(app=app_of(bus))  # raises where a server ends the connection
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"Authorization": "Bearer root"}
    ) as client:
        with pytest.raises(RuntimeError, match="went away"):
            await client.get("/api/v1/exports/commands")
