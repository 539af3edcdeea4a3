"""`tsq edit` for many commands, and every condition of a bulk filter as an option."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus import BatchCommand, CommandBus
from commandbus.cli.main import app
from commandbus.http.schemas.troubleshooting import BulkFilterForm
from commandbus.troubleshooting import BulkFilter
from tests.parking import SETTLE


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn], input=stdin)

    return invoke


@pytest.fixture
def parked(dsn: str) -> list[UUID]:
    """Three with the wrong currency and one with the right one."""

    async def work() -> list[UUID]:
        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
            CommandBus.connect(dsn) as bus,
        ):
            ids = [uuid4() for _ in range(4)]
            for n, command_id in enumerate(ids):
                data = {"n": n, "currency": "EUR" if n == 3 else "EURO", "token": "s3cret-value"}
                await bus.send("shop", "Pay", command_id, data)
            await conn.execute(
                SETTLE, {"domain": "shop", "count": 4, "code": "CURRENCY", "message": "no"}
            )
            return ids

    return asyncio.run(work())


def group(run: Any) -> str:
    [found] = json.loads(run("tsq", "groups", "--json").stdout)["groups"]
    return str(found["fingerprint"])


def payload(run: Any, command_id: UUID) -> Any:
    shown = run("show", str(command_id), "--show-secrets", "--json").stdout
    return json.loads(shown)["payload"]


# -- edit


def test_one_change_for_a_group_is_previewed_and_made(run: Any, parked: list[UUID]) -> None:
    change = ("--group", group(run), "--merge-patch", '{"currency": "EUR", "token": "n3w-value"}')
    shown = run("tsq", "edit", *change, "--preview", "--examples", "4")
    assert shown.exit_code == 0
    assert 'data.currency: "EURO" -> "EUR"; /token set, not shown' in shown.stdout
    assert "4 commands of shop match; 4 would be changed, 0 would be sent again" in shown.stdout
    assert "value" not in shown.stdout

    document = json.loads(run("tsq", "edit", *change, "--dry-run", "--json").stdout)
    assert (document["changed"], len(document["examples"])) == (4, 4)

    made = run("tsq", "edit", *change, "--operator", "ann")
    assert (made.exit_code, "4 of 4 done" in made.stdout) == (0, True)
    assert [payload(run, each)["currency"] for each in parked] == ["EUR"] * 4
    assert "data.currency edited" in run("show", str(parked[0])).stdout
    [operation] = json.loads(run("bulk", "list", "--json").stdout)["operations"]
    assert operation["arguments"]["edit"] == {"paths": ["/currency", "/token"]}
    assert "/currency, /token" in run("bulk", "show", operation["operation_id"]).stdout


def test_a_patch_comes_from_a_file_or_from_stdin(
    run: Any, parked: list[UUID], tmp_path: Path
) -> None:
    patch = json.dumps(
        [
            {"op": "test", "path": "/currency", "value": "EURO"},
            {"op": "replace", "path": "/currency", "value": "EUR"},
        ]
    )
    file = tmp_path / "patch.json"
    file.write_text(patch)
    shown = run("tsq", "edit", "-d", "shop", "--all", "--patch", f"@{file}", "--preview")
    assert "stays parked: operation 1 (test '/currency'): the value there is another one" in (
        shown.stdout
    )
    assert "1 would stay parked: operation 1" in shown.stdout
    made = run("tsq", "edit", "-d", "shop", "--all", "--yes", "--patch", "-", stdin=patch)
    assert (made.exit_code, "3 of 4 done" in made.stdout) == (1, True)  # one was left parked

    again = run("tsq", "edit", str(parked[3]), "--merge-patch", '{"n": 9}', "--json")
    assert json.loads(again.stdout)["done"] == 1


def test_the_whole_payload_of_one_command_can_still_be_given(run: Any, parked: list[UUID]) -> None:
    one = str(parked[0])
    assert (
        run("tsq", "edit", one, "--data", '{"n": 7}').stdout == f"{one} is queued again, edited\n"
    )
    assert payload(run, parked[0]) == {"n": 7}


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("-d", "shop", "--all"), "give the new payload"),
    (("-d", "shop", "--all", "--data", "{}", "--patch", "[]"), "array of operations"),
    (("-d", "shop", "--all", "--data", "{}"), "name its id"),
    (("-d", "shop", "--all", "--merge-patch", "{"), "--merge-patch is not JSON"),
    (("-d", "shop", "--all", "--merge-patch", "[]"), "a merge patch is a JSON object"),
    (("-d", "shop", "--all", "--patch", '[{"op": "set"}]'), "operation 1 of the patch has op"),
    (("-d", "shop", "--all", "--patch", "[]", "--merge-patch", "{}"), "two changes"),
    (("-d", "shop", "--all", "--patch", "@/no/such/file"), "cannot read /no/such/file"),
    (
        ("-d", "shop", "--code", "NO", "--preview", "--merge-patch", '{"a": 1}'),
        "nothing in troubleshooting",
    ),
]


def test_what_cannot_be_meant_is_refused(run: Any) -> None:
    for options, why in REFUSED:
        result = run("tsq", "edit", *options)
        assert result.exit_code in {1, 2}
        assert why in result.stderr + result.stdout


# -- filters


def test_the_forms_have_every_condition_of_a_bulk_filter() -> None:
    assert set(BulkFilterForm.model_fields) == {spec.name for spec in fields(BulkFilter)}


#: The option of each condition; a new condition needs one.
OPTIONS = {
    "domain": "--domain", "command_type": "--type", "error_code": "--code", "group": "--group",
    "batch_id": "--batch", "parked_after": "--parked-after", "parked_before": "--parked-before",
    "command_ids": "[ID]...", "failed_of": "--failed-of",
}  # fmt: skip


@pytest.mark.parametrize("verb", ["retry", "cancel", "complete", "edit"])
def test_the_options_have_every_condition_of_a_bulk_filter(verb: str) -> None:
    assert set(OPTIONS) == {spec.name for spec in fields(BulkFilter)}
    shown = CliRunner().invoke(app, ["tsq", verb, "--help"], env={"COLUMNS": "200"}).stdout
    assert [option for option in OPTIONS.values() if option not in shown] == []


def test_a_batch_and_times_choose(run: Any, dsn: str) -> None:
    ids = asyncio.run(_batch_of_two(dsn))
    counted = ("tsq", "retry", "--dry-run", "--json")

    def total(*options: str) -> int:
        return int(json.loads(run(*counted, *options).stdout)["total"])

    assert total("--batch", ids["batch"]) == 2  # the domain is that of the batch
    assert total("-d", "shop", "--batch", ids["batch"], "--parked-before", "2h") == 1
    assert total("-d", "shop", "--parked-after", "2h") == 2
    assert total("-d", "shop", "--parked-after", "1d", "--parked-before", ids["middle"]) == 1
    started = run("tsq", "retry", "--batch", ids["batch"], "--parked-after", "2h", "--json")
    assert json.loads(started.stdout)["done"] == 1
    assert run("tsq", "retry", "--batch", str(uuid4())).exit_code == 1
    assert "write 2026-05-01T10:00" in run("tsq", "retry", "-d", "x", "--parked-after", "y").stderr
    both = run("tsq", "retry", "-d", "shop", "--all", "--parked-after", "2h")
    assert "--all is everything" in both.stderr


async def _batch_of_two(dsn: str) -> dict[str, str]:
    """A batch with two parked commands, one of them for a long time, and one command beside it."""
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
        CommandBus.connect(dsn) as bus,
    ):
        made = [BatchCommand("Work", uuid4(), {}), BatchCommand("Work", uuid4(), {})]
        batch = await bus.create_batch("shop", made)
        await bus.send("shop", "Work", uuid4(), {})
        await conn.execute(SETTLE, {"domain": "shop", "count": 3, "code": "X", "message": "no"})
        await conn.execute(
            "update commandbus.command_bus_troubleshooting set parked_at = parked_at - %s"
            " where command_id = %s",
            (timedelta(hours=5), made[0].command_id),
        )
        middle = await (await conn.execute("select now() - interval '3 hours'")).fetchone()
        assert middle is not None
        return {"batch": str(batch), "middle": middle[0].isoformat()}
