"""`keys …` against a real database."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LOGNAME", "bob")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


@pytest.fixture
def blocker(dsn: str) -> str:
    """A parked command that blocks the key a, with one behind it; the key b is free."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for key in ("a", "a", "b"):
            conn.execute(
                "select commandbus.send_command('shop', 'Book', gen_random_uuid(),"
                " p_ordering_key => %s)",
                [key],
            )
        rows = conn.execute(
            "select r.command_id::text, r.msg_id, r.lease_epoch"
            " from commandbus.receive_commands('shop', 60, 1, 'w') r order by r.msg_id"
        ).fetchall()
        ((command_id, msg_id, epoch),) = rows
        item = {
            "command_id": command_id, "msg_id": msg_id, "lease_epoch": epoch,
            "reason": "PERMANENT", "error_type": "PERMANENT", "error_code": "X", "error_msg": "no",
        }  # fmt: skip
        conn.execute("select commandbus.park_commands('shop', %s)", [json.dumps([item])])
    return str(command_id)


def test_a_blocked_key_is_listed_shown_and_stepped_over(run: Run, blocker: str) -> None:
    listed = json.loads(run("keys", "list", "shop", "--json").stdout)["keys"]
    assert [(each["ordering_key"], each["is_blocked"]) for each in listed] == [
        ("a", True),
        ("b", False),
    ]
    assert listed[0]["head"] == blocker
    only = json.loads(run("keys", "list", "shop", "--blocked", "--json").stdout)["keys"]
    assert [each["ordering_key"] for each in only] == ["a"]
    assert "KEY" in run("keys", "list", "shop").stdout
    shown = json.loads(run("keys", "show", "shop", "a", "--json").stdout)["places"]
    assert [each["place"] for each in shown] == [0, 1]
    assert "PLACE" in run("keys", "show", "shop", "a").stdout
    assert "Nothing of this key" in run("keys", "show", "shop", "c").stdout
    skipped = run("keys", "skip", "shop", "a", "--expected", blocker, "--reason", "by hand")
    assert skipped.exit_code == 0, skipped.output
    assert "stepped over" in skipped.stdout
    again = run("keys", "skip", "shop", "a")
    assert again.exit_code != 0
    assert "not blocked" in again.output
    assert "No key" in run("keys", "list", "elsewhere").stdout


def test_the_policy_is_shown_and_changed(run: Run) -> None:
    assert "blocks its key" in run("keys", "policy", "shop").stdout
    changed = run("keys", "policy", "shop", "skip", "--reason", "each alone", "--json")
    assert json.loads(changed.stdout) == {"domain": "shop", "on_park": "skip"}
    assert "is stepped over" in run("keys", "policy", "shop").stdout
