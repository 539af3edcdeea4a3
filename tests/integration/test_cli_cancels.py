"""The command line about what runs: cancel --running, list --running, show."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from commandbus import BatchCommand, CommandBus
from commandbus.cli.main import app


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--dsn", dsn])


@pytest.fixture
def leased(dsn: str) -> tuple[UUID, UUID, UUID]:
    """A running command that says how far it is, another of a batch, and the batch."""
    one, other = uuid4(), uuid4()

    async def send() -> UUID:
        async with CommandBus.connect(dsn) as bus:
            await bus.send("shop", "Work", one, {})
            return await bus.create_batch("shop", [BatchCommand("Work", other, {})])

    batch = asyncio.run(send())
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = conn.execute(
            "select command_id, lease_epoch from commandbus.receive_commands("
            "'shop', 600, 10, 'host:1:ab')"
        ).fetchall()
        said = [
            {"command_id": str(i), "lease_epoch": e, "fraction": 0.4, "message": "page [4] of 10"}
            for i, e in rows
            if i == one
        ]
        conn.execute("select commandbus.record_progress('shop', %s)", (Jsonb(said),))
    return one, other, batch


def test_a_cancel_refuses_what_runs_unless_it_is_asked_for(run: Any, leased: Any) -> None:
    one = str(leased[0])
    refused = run("cancel", one, "--reason", "why")
    assert refused.exit_code != 0
    assert "leased by a worker" in refused.output
    asked = run("cancel", one, "--reason", "why", "--running", "--json")
    assert asked.exit_code == 0, asked.output
    assert json.loads(asked.stdout)["answer"] == "requested"
    shown = json.loads(run("show", one, "--json").stdout)
    assert [event["event_type"] for event in shown["events"]][-1] == "CANCEL_REQUESTED"


def test_show_and_list_say_how_far_a_running_command_has_come(run: Any, leased: Any) -> None:
    one, other, _ = (str(each) for each in leased)
    text = run("show", one)
    assert "40%, page [4] of 10, at " in text.output
    assert json.loads(run("show", one, "--json").stdout)["progress"]["fraction"] == 0.4
    assert json.loads(run("show", other, "--json").stdout)["progress"] is None

    listed = json.loads(run("list", "--running", "--json").stdout)["commands"]
    told = {each["command_id"]: each["progress"] for each in listed}
    assert told[other] is None
    assert (told[one]["fraction"], told[one]["message"]) == (0.4, "page [4] of 10")
    table = run("list", "--running").output
    assert "host:1:ab" in table
    assert "40%" in table
    both = run("list", "--running", "--status", "PENDING")
    assert both.exit_code != 0
    assert "leave out --status" in both.output


def test_a_batch_is_canceled_with_what_runs_of_it(run: Any, leased: Any) -> None:
    batch = str(leased[2])
    refused = run("batch", "cancel", batch, "--reason", "why", "--yes")
    assert "nothing to cancel" in refused.output
    asked = run("batch", "cancel", batch, "--reason", "why", "--yes", "--running")
    assert asked.exit_code == 0, asked.output
    assert "1 commands are canceled, or asked to end." in asked.output
