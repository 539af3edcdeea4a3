"""The commands of the command line over two databases, and one that is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app

pytestmark = pytest.mark.postgres

DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"


@pytest.fixture
def file(dsn: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mail on two, lost on a shard that is down, all others on one."""
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.setenv("COMMANDBUS_CONNECT_TIMEOUT_SECONDS", "2")
    path = tmp_path / "shards.toml"
    path.write_text(
        f'default = "one"\n[shards]\none = "{dsn}"\ntwo = "{empty_dsn}"\ndown = "{DOWN}"\n'
        '[domains]\nmail = "two"\nlost = "down"\n'
    )
    assert run("shards", "status", "--map", str(path)).exit_code == 1  # it sets up empty ones
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_commands_go_to_the_shard_of_their_domain_and_listings_are_of_all(
    file: Path, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("--map", str(file))
    sent = run("send", "mail", "Post", *place)
    assert sent.exit_code == 0, sent.stderr
    assert run("send", "payments", "Pay", *place).exit_code == 0
    there = json.loads(run("list", "--json", "--dsn", empty_dsn).stdout)
    assert [each["domain"] for each in there["commands"]] == ["mail"]
    monkeypatch.setenv("COMMANDBUS_SHARDS", str(file))
    listed = run("list", "--json")
    document = json.loads(listed.stdout)
    assert {each["domain"] for each in document["commands"]} == {"mail", "payments"}
    assert set(document["missing_shards"]) == {"down"}
    assert "shard down is missing here" in listed.stderr
    shown = run("show", sent.stdout.strip())
    assert shown.exit_code == 0, shown.stderr
    assert "mail" in shown.stdout
    refused = run("send", "lost", "Post")
    assert refused.exit_code == 4
    assert "shard 'down'" in refused.stderr
    assert run("cancel", sent.stdout.strip(), "--reason", "void").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("list",), ("list", "--summary"), ("audit",), ("workers",), ("loads",), ("top",),
        ("schedule", "list"), ("limits", "show"),
        ("tsq", "list"), ("tsq", "groups"), ("tsq", "counts"), ("bulk", "list"),
        ("token", "list"), ("db", "retention", "show"), ("governed", "list"), ("doctor",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_listing_works_over_shards(file: Path, words: tuple[str, ...]) -> None:
    listed = run(*words, "--json", "--map", str(file))
    assert listed.exit_code in {0, 1}, listed.stderr
    assert "error:" not in listed.stderr
    json.loads(listed.stdout)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("db", "status"), "give the address of one of them"),
        (("db", "migrate"), "give the address of one of them"),
        (("backup", "x.dump"), "give the address of one of them"),
        (("down",), "give the address of one of them"),
        (("seals", "list"), "each database seals its own audit"),
        (("doctor", "--audit"), "each database seals its own audit"),
        (("db", "prune", "--dry-run"), "name a domain"),
    ],
    ids=str,
)
def test_what_works_on_one_database_says_so(file: Path, words: tuple[str, ...], says: str) -> None:
    refused = run(*words, "--map", str(file))
    assert refused.exit_code != 0
    assert says in refused.stderr


def test_one_place_must_be_meant(file: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "names all of them" in run("list", "--map", str(file), "--dsn", dsn).stderr
    monkeypatch.setenv("COMMANDBUS_SHARDS", str(file))
    monkeypatch.setenv("COMMANDBUS_DSN", dsn)
    assert "unset one of them" in run("list").stderr
    assert run("list", "--dsn", dsn).exit_code == 0
    assert run("list", "--map", str(file)).exit_code == 0
