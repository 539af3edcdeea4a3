"""`tsq groups`, decisions for many, and `bulk`, against a real database."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus import CommandBus
from commandbus.cli import progress
from commandbus.cli.main import app
from tests.parking import park


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


@pytest.fixture
def parked(dsn: str) -> dict[str, str]:
    """Three commands of one cause and two of another: code -> fingerprint."""

    async def work() -> dict[str, str]:
        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
            CommandBus.connect(dsn) as bus,
        ):
            await park(conn, 3)
            await park(conn, 2, code="LATE", command_type="Other", message="[late] by")
            return {str(g.error_code): g.fingerprint for g in await bus.troubleshooting.groups()}

    return asyncio.run(work())


def waiting(run: Any, *options: str) -> int:
    """How many commands wait."""
    return len(json.loads(run("tsq", "list", "--json", *options).stdout)["commands"])


def test_groups_are_listed_largest_first(run: Any, parked: dict[str, str]) -> None:
    shown = run("tsq", "groups").stdout
    assert shown.splitlines()[0].split() == [
        "GROUP", "DOMAIN", "TYPE", "PARKED", "FIRST", "SEEN", "LAST", "SEEN", "ERROR",
    ]  # fmt: skip
    first, second = shown.splitlines()[1:]
    assert first.startswith(parked["DOWN"])
    assert "DOWN: no answer to <n> of <uuid>" in first
    assert "LATE: [late] by <n> of <uuid>" in second

    document = json.loads(run("tsq", "groups", "shop", "--json", "--type", "Other").stdout)
    [group] = document["groups"]
    assert (group["fingerprint"], group["parked_count"]) == (parked["LATE"], 2)
    assert run("tsq", "groups", "elsewhere").stdout == "Nothing waits for an operator.\n"


def test_a_group_is_listed_by_the_beginning_of_its_name(run: Any, parked: dict[str, str]) -> None:
    assert waiting(run) == 5
    assert waiting(run, "--group", parked["LATE"][:8]) == 2


def test_a_group_is_retried(run: Any, parked: dict[str, str]) -> None:
    result = run("tsq", "retry", "--group", parked["LATE"][:8], "--rate", "6000/m")

    assert result.exit_code == 0, result.output
    assert "2 commands of shop" in result.stdout
    assert "2 of 2: 2 done" in result.stdout
    assert result.stdout.endswith("finished: 2 of 2 done\n")
    assert waiting(run) == 3


def test_a_dry_run_counts_and_changes_nothing(run: Any, parked: dict[str, str]) -> None:
    result = run("tsq", "cancel", "--domain", "shop", "--code", "DOWN", "-r", "x", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "3 commands of shop would be acted on (cancel); none was." in result.stdout
    document = json.loads(
        run("tsq", "complete", "--domain", "shop", "--all", "--dry-run", "--json").stdout
    )
    assert (document["total"], [g["matched"] for g in document["groups"]]) == (5, [3, 2])
    assert waiting(run) == 5
    assert json.loads(run("bulk", "list", "--json").stdout) == {
        "operations": [], "next_cursor": None,
    }  # fmt: skip


def test_a_number_that_is_expected_must_be_the_number_that_matches(
    run: Any, parked: dict[str, str]
) -> None:
    choice = ("tsq", "retry", "--domain", "shop", "--code", "LATE")

    refused, done = run(*choice, "--expect", "3"), run(*choice, "--expect", "2")

    assert refused.exit_code == 1
    assert "2" in refused.stderr
    assert done.exit_code == 0, done.output
    assert waiting(run) == 3


def test_everything_needs_yes(run: Any, parked: dict[str, str]) -> None:
    refused = run("tsq", "complete", "--domain", "shop", "--all")
    assert refused.exit_code == 1
    assert "matches everything in troubleshooting of 'shop': 5 commands" in refused.stderr
    assert "--yes" in refused.stderr
    assert waiting(run) == 5

    done = run("tsq", "complete", "--domain", "shop", "--all", "--yes", "--data", '{"by": "me"}')
    assert done.exit_code == 0, done.output
    assert waiting(run) == 0


def test_several_ids_are_one_operation(run: Any, parked: dict[str, str]) -> None:
    ids = [c["command_id"] for c in json.loads(run("tsq", "list", "--json").stdout)["commands"]]
    document = json.loads(
        run("tsq", "cancel", *ids[:2], "--reason", "x", "--operator", "ann", "--json").stdout
    )
    assert (document["status"], document["done"], document["actor"]) == ("finished", 2, "ann")
    assert document["arguments"] == {"reason": "x"}
    one = run("tsq", "retry", ids[2])
    assert one.stdout == f"{ids[2]} is queued again\n"
    assert waiting(run) == 2
    shown = run("bulk", "show", document["operation_id"]).stdout
    assert "2 ids" in shown


def test_an_operation_is_left_to_the_workers_stopped_and_resumed(
    run: Any, parked: dict[str, str]
) -> None:
    own = str(uuid4())
    choice = ("tsq", "retry", "--domain", "shop", "--type", "Work", "--no-wait")
    result = run(*choice, "--rate", "1/h", "--id", own, "--operator", "ann")
    assert result.exit_code == 0, result.output
    assert "The workers of shop act on it" in result.stdout
    again = run(*choice)
    assert f"The same decision runs already: {own}" in again.stdout

    [listed] = json.loads(run("bulk", "list", "--json", "--status", "running").stdout)["operations"]
    assert (listed["operation_id"], listed["total"], listed["done"]) == (own, 3, 0)
    assert own in run("bulk", "list", "--domain", "shop").stdout
    assert json.loads(run("bulk", "list", "--limit", "1", "--json").stdout)["next_cursor"] is None
    assert run("bulk", "list", "--status", "finished").stdout == "There are no bulk operations.\n"

    stopped = run("bulk", "stop", own)
    assert stopped.stdout == f"{own} is stopped; 3 of 3 were not acted on\n"
    assert json.loads(run("bulk", "stop", own, "--json").stdout)["status"] == "stopped"
    shown = run("bulk", "show", own).stdout
    for text in ("stopped", "0 of 3: 0 done", "command_type Work", "0.000277778/s", "ann"):
        assert text in shown
    idle = run("bulk", "resume", own, "--no-wait", "--rate", "2/h")
    assert idle.exit_code == 0
    done = run("bulk", "resume", own, "--rate", "1000")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("finished: 3 of 3 done\n")
    for verb in ("stop", "resume"):
        refused = run("bulk", verb, own)
        assert refused.exit_code == 1
        assert "is finished" in refused.stderr


def test_operations_are_listed_page_by_page(run: Any, parked: dict[str, str]) -> None:
    for code in ("DOWN", "LATE"):
        run("tsq", "retry", "--domain", "shop", "--code", code, "--no-wait", "--rate", "1/h")

    first = json.loads(run("bulk", "list", "--limit", "1", "--json").stdout)
    rest = json.loads(
        run("bulk", "list", "--limit", "1", "--cursor", first["next_cursor"], "--json").stdout
    )

    listed = [*first["operations"], *rest["operations"]]
    assert [operation["conditions"]["error_code"] for operation in listed] == ["LATE", "DOWN"]
    assert rest["next_cursor"] is None


def test_items_that_failed_are_shown_and_end_with_exit_code_1(
    run: Any, dsn: str, parked: dict[str, str]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("delete from pgmq.a_shop__commands where message ->> 'type' = 'Other'")
    result = run("tsq", "retry", "--domain", "shop", "--all", "--yes")
    assert result.exit_code == 1
    assert "5 of 5: 3 done, 2 failed" in result.stdout
    operation = json.loads(run("bulk", "list", "--json").stdout)["operations"][0]["operation_id"]

    shown = run("bulk", "show", operation)
    assert shown.stdout.count("the payload is no longer archived") == 2
    document = json.loads(
        run("bulk", "show", operation, "--outcome", "done", "--limit", "2", "--json").stdout
    )
    assert [item["outcome"] for item in document["items"]] == ["done", "done"]
    cursor = document["next_cursor"]
    rest = json.loads(
        run("bulk", "show", operation, "-o", "done", "--cursor", cursor, "--json").stdout
    )
    assert len(rest["items"]) == 1


def test_what_is_not_clear_is_refused(run: Any, parked: dict[str, str]) -> None:
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("tsq", "retry"), 2, "say which: name ids, or choose with --group"),
        (("tsq", "retry", "--type", "Work"), 2, "say which domain with --domain"),
        (("tsq", "retry", "--all", "--type", "X", "-d", "shop"), 2, "--all is everything"),
        (("tsq", "retry", str(uuid4()), "--all"), 2, "not both"),
        (("tsq", "retry", "--group", "ffff"), 1, "no failure group 'ffff'"),
        (("tsq", "retry", "--group", "%"), 2, "is not the fingerprint"),
        (("tsq", "retry", "-d", "shop", "--all", "--rate", "fast"), 2, "write 100/s"),
        (("tsq", "retry", "-d", "shop", "--all", "--rate", "0/s"), 2, "rate is 0"),
        (("tsq", "retry", "-d", "shop", "--all", "--id", "x"), 2, "--id 'x' is not a UUID"),
        (("tsq", "cancel", "-d", "shop", "--all", "-r", " "), 2, "reason must be a text"),
        (("tsq", "retry", "-d", "shop", "--code", "X"), 1, "nothing in troubleshooting"),
        (("tsq", "retry", "-d", "shop", "--code", "X", "--dry-run"), 1, "nothing in troubleshoot"),
        (("tsq", "list", "--cursor", "x"), 2, "cursor"),
        (("bulk", "show", str(uuid4())), 1, "no bulk operation"),
        (("bulk", "show", str(uuid4()), "--cursor", "x"), 2, "--cursor needs the --outcome"),
        (("bulk", "stop", "x"), 2, "is not a UUID"),
        (("bulk", "list", "--status", "x"), 2, "no status 'x'"),
    ]
    for arguments, code, text in cases:
        result = run(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        assert text in result.stderr
    assert waiting(run) == 5


def test_ids_of_two_domains_are_refused(run: Any, dsn: str, parked: dict[str, str]) -> None:
    async def work() -> str:
        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
            CommandBus.connect(dsn) as bus,
        ):
            await park(conn, 1, domain="bank")
            [item] = await bus.list_troubleshooting("bank")
            return str(item.command_id)

    other = asyncio.run(work())
    ids = [c["command_id"] for c in json.loads(run("tsq", "list", "--json").stdout)["commands"]]
    result = run("tsq", "retry", next(i for i in ids if i != other), other)
    assert result.exit_code == 2
    assert "in several domains: bank, shop" in result.stderr


def test_a_terminal_shows_a_bar(
    run: Any, parked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "is_fancy", lambda _: True)
    result = run("tsq", "retry", "--group", parked["DOWN"])

    assert result.exit_code == 0, result.output
    assert "3 of 3: 3 done" in result.stdout
