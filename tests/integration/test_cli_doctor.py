"""`doctor`, `db prune` and `db retention`."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus.cli import output
from commandbus.cli.main import app
from tests.sql.faults import healthy, message_of_ended
from tests.sql.helpers import Session


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)


@pytest.fixture
def run(dsn: str) -> Any:
    """Run the program on the test's database."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


def on_database(dsn: str, work: Any) -> Any:
    async def inner() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            return await work(Session(conn))

    return asyncio.run(inner())


def test_doctor_names_what_is_wrong_repairs_it_and_ends_accordingly(run: Any, dsn: str) -> None:
    on_database(dsn, healthy)
    clean = run("doctor")

    async def break_it(db: Session) -> None:
        (done,) = await db.rows(
            "select command_id from commandbus.command_bus_command c"
            " where c.status = 'COMPLETED' and c.batch_id is null"
        )
        ended = type("Ended", (), done)
        await message_of_ended(db, {"LONE": ended})
        for _ in range(6):
            await db.rows(
                "select pgmq.send('payments__commands', %s::jsonb)",
                json.dumps({"command_id": str(uuid4()), "data": {"card": "4111"}}),
            )

    on_database(dsn, break_it)
    broken = run("doctor")
    document = json.loads(run("doctor", "--json", "--domain", "payments").stdout)
    repaired = run("doctor", "--fix", "--operator", "ada", "--full")
    after = run("doctor", "--since", "24h")

    assert clean.exit_code == 0, clean.stdout
    assert "Healthy: 0 errors" in clean.stdout
    assert "Looked at everything, in one snapshot" in clean.stdout
    assert "Not known: free disk space" in clean.stdout
    assert broken.exit_code == 1
    assert "error MESSAGE_OF_ENDED in payments, 1:" in broken.stdout
    assert "what to do  `commandbus doctor --fix` moves it to the archive" in broken.stdout
    assert "Not healthy: 2 errors" in broken.stdout
    assert "4111" not in broken.stdout
    assert document["is_healthy"] is False
    finding = document["findings"][0]
    assert (finding["code"], finding["severity"], finding["can_fix"]) == (
        "MESSAGE_UNKNOWN", "error", True,
    )  # fmt: skip
    assert (finding["found"], len(finding["examples"])) == (6, 5)
    assert repaired.exit_code == 0, repaired.stdout
    assert "repaired 7 in payments (repair_messages):" in repaired.stdout
    assert "and 2 more" in repaired.stdout
    assert after.exit_code == 0
    assert "what was changed since" in after.stdout


def test_doctor_refuses_what_it_does_not_understand(run: Any) -> None:
    for arguments, words in {
        ("--since", "yesterday"): "'yesterday' is no age",
        ("--since", "1h", "--full"): "contradicts",
        ("--domain", "No Such"): "domain",
    }.items():
        result = run("doctor", *arguments)
        assert result.exit_code == 2, result.output
        assert words in result.stderr


def test_rules_are_set_shown_and_taken_back(run: Any) -> None:
    default = run("db", "retention", "show")
    run("db", "retention", "set", "replies", "none")
    nothing = run("db", "retention", "show")
    run("db", "retention", "set", "commands", "30d", "--operator", "ada")
    run("db", "retention", "set", "audit", "12h")
    kept = run("db", "retention", "set", "commands", "forever", "--domain", "ledger")
    shown = run("db", "retention", "show")
    document = json.loads(run("db", "retention", "show", "--json").stdout)
    gone = run("db", "retention", "set", "commands", "none", "--domain", "ledger")
    again = run("db", "retention", "set", "commands", "none", "--domain", "ledger")
    short = run("db", "retention", "set", "commands", "30s")
    wrong = run("db", "retention", "set", "payloads", "5d")

    assert "replies  7 days" in default.stdout
    assert "everything is kept" in nothing.stdout
    assert "commands of domain ledger: kept forever." in kept.stdout
    assert "30 days" in shown.stdout
    assert "12 hours" in shown.stdout
    assert "(all others)" in shown.stdout
    rules = {
        (r["domain"], r["kind"]): (r["keep_seconds"], r["updated_by"]) for r in document["rules"]
    }
    assert rules[None, "commands"] == (2_592_000.0, "ada")
    assert rules["ledger", "commands"][0] is None
    assert "is gone" in gone.stdout
    assert "There was no such rule" in again.stdout
    assert short.exit_code == wrong.exit_code == 2
    assert "a minute at least" in short.stderr
    assert "no kind 'payloads'" in wrong.stderr


def test_prune_counts_first_and_removes_then(run: Any, dsn: str) -> None:
    on_database(dsn, lambda db: db.put("COMPLETED"))

    run("db", "retention", "set", "replies", "none")
    idle = run("db", "prune")
    dry = run("db", "prune", "--older-than", "0s", "--dry-run")
    counted = json.loads(run("db", "prune", "--older-than", "0s", "--dry-run", "--json").stdout)
    done = run("db", "prune", "--older-than", "0s", "--kind", "commands", "--kind", "replies")
    rest = json.loads(run("db", "prune", "--older-than", "0s", "--json").stdout)

    assert "no rule says how long to keep things" in idle.stdout
    assert "WOULD REMOVE" in dry.stdout
    assert "Nothing was changed." in dry.stdout
    assert counted["dry_run"] is True
    assert {r["kind"]: r["pruned"] for r in counted["results"]} == {
        "audit": {"audit events": 3},
        "archives": {"archived messages": 0},
        "replies": {"replies": 1},
        "history": {"commands of the history": 0, "batches of the history": 0},
        "commands": {"commands": 1, "batches": 0},
    }
    assert "1 commands, 0 batches" in done.stdout
    assert [r["pruned"] for r in rest["results"] if r["kind"] == "audit"] == [{"audit events": 3}]


def test_on_a_terminal_long_work_shows_that_it_goes_on(
    run: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_database(dsn, lambda db: db.put("COMPLETED"))
    monkeypatch.setattr(output, "is_fancy", lambda _: True)

    assert run("doctor").exit_code == 0
    assert "REMOVED" in run("db", "prune", "--older-than", "0s").stdout
