"""`shards …` on two databases, and one that is down."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app

pytestmark = pytest.mark.postgres

DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_domain_is_moved_with_the_commands_of_the_guide(
    dsn: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shards.toml"
    monkeypatch.setenv("COMMANDBUS_SHARDS", str(file))
    monkeypatch.setenv("ONE", dsn)
    monkeypatch.setenv("TWO", empty_dsn)

    def write(version: int, shard: str) -> None:
        file.write_text(
            f'version = {version}\ndefault = "one"\n[shards]\none = {{ env = "ONE" }}\n'
            f'two = {{ env = "TWO" }}\n[domains]\nmail = "{shard}"\n'
        )

    write(1, "two")
    unknown = run("shards", "status")
    assert unknown.exit_code == 1
    assert "does not know the map yet" in unknown.stdout
    assert "was new to: one, two" in run("shards", "apply").stdout
    sent = run("send", "mail", "Post", "--dsn", empty_dsn).stdout.strip()
    refused = run("send", "mail", "Post", "--dsn", dsn)
    assert refused.exit_code == 1
    assert "puts it on 'two'" in refused.stderr

    write(2, "one")
    left = run("shards", "apply")
    assert left.exit_code == 1
    assert "shard 'two': domain 'mail' cannot leave this shard yet: 1 commands" in left.stderr
    shown = run("shards", "status", "--json")
    assert shown.exit_code == 1
    states = {each["shard"]: each for each in json.loads(shown.stdout)["shards"]}
    assert states["two"]["domains"] == {"mail": {"commands that wait or run": 1}}
    assert "run `commandbus shards apply`" in states["one"]["problem"]

    assert run("cancel", sent, "--reason", "void", "--dsn", empty_dsn).exit_code == 0
    with_replies = run("shards", "apply")
    assert "1 replies that nobody has read" in with_replies.stderr
    # The reply of the cancel: nobody waits for it.
    forget_replies(empty_dsn)
    applied = run("shards", "apply", "--json")
    assert json.loads(applied.stdout) == {"map_version": 2, "shards": {"one": True, "two": True}}
    good = run("shards", "status")
    assert good.exit_code == 0, good.stdout
    assert "has left; its history is here" in good.stdout
    assert run("send", "mail", "Post", "--dsn", dsn).exit_code == 0
    assert run("send", "mail", "Post", "--dsn", empty_dsn).exit_code == 1


def forget_replies(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("delete from pgmq.q_mail__replies")


def test_a_shard_that_is_down_is_named_and_nothing_is_applied(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(f'default = "one"\n[shards]\none = "{dsn}"\ndown = "{DOWN}"\n')
    shown = run("shards", "status", "--map", str(file), "--json")
    one, down = json.loads(shown.stdout)["shards"]
    assert "cannot reach PostgreSQL" in down["problem"]
    applied = run("shards", "apply", "--map", str(file))
    assert applied.exit_code != 0
    assert "shard 'down'" in applied.stderr
    assert one["version"] is None
    both = run("shards", "status", "--map", str(file), "--dsn", dsn)
    assert "the map names all of them" in both.stderr


def test_a_domain_is_moved_with_its_history_by_one_command(
    dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    file = tmp_path / "shards.toml"

    def write(version: int, shard: str) -> None:
        file.write_text(
            f'version = {version}\ndefault = "one"\n[shards]\none = "{dsn}"\n'
            f'two = "{empty_dsn}"\n[domains]\nmail = "{shard}"\n'
        )

    def shards(*arguments: str) -> Result:
        return run("shards", *arguments, "--map", str(file))

    write(1, "one")
    assert "run `commandbus shards apply` first" in shards("move", "mail", "--to", "two").stderr
    assert shards("apply").exit_code == 0
    assert "has nothing on shard 'one'" in shards("move", "mail", "--to", "two").stderr
    sent = run("send", "mail", "Post", "--map", str(file)).stdout.strip()
    assert "give --to with the shard, or --cancel" in shards("move", "mail").stderr
    assert "there is no shard 'three'" in shards("move", "mail", "--to", "three").stderr
    assert "Domain mail is not being moved." in shards("move", "mail", "--cancel").stdout

    moved = shards("move", "mail", "--to", "two")
    assert moved.exit_code == 0, moved.stderr
    assert "Domain mail is on shard two: " in moved.stdout
    assert 'version = 2, and under [domains] mail = "two"' in " ".join(moved.stdout.split())
    assert "is on shard 'two' already" in shards("move", "mail", "--to", "two").stderr
    write(2, "two")
    shown = shards("status")
    assert shown.exit_code == 0, shown.stdout
    assert "mail: has left\n" in shown.stdout
    assert sent in run("show", sent, "--map", str(file)).stdout
    assert json.loads(shards("move", "mail", "--to", "one", "--json").stdout)["map_version"] == 3
