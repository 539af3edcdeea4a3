"""`governed list|remove` against a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from commandbus.cli.main import app
from commandbus.models import AuditEventType
from tests.integration.governed import governed_bus

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LOGNAME", "bob")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])

    return invoke


async def register(dsn: str) -> None:
    async with governed_bus(dsn) as bus:
        await bus.governance.register()


async def removals(dsn: str) -> list[str | None]:
    async with governed_bus(dsn) as bus:
        kinds = [AuditEventType.GOVERNED_TYPE_REMOVED]
        return [event.actor for event in (await bus.search.audit(event_types=kinds)).items]


def test_what_is_governed_is_listed_and_removed_with_the_name_of_who_did_it(
    dsn: str, run: Run
) -> None:
    for _ in range(2):  # what is known is left alone
        asyncio.run(register(dsn))
    listed = json.loads(run("governed", "list", "--json").stdout)["governed"]
    assert [(each["domain"], each["batch_type"]) for each in listed] == [
        ("approvals", "BATCH_APPROVE"), ("shop", "GUARDED"), ("shop", "ORDERS"),
    ]  # fmt: skip
    table = run("governed", "list", "--domain", "shop").stdout
    assert "PlaceOrder" in table
    assert "DecideTicket" not in table

    removed = run("governed", "remove", "shop", "PlaceOrder", "ORDERS", "--operator", "olga")
    assert removed.exit_code == 0
    assert "governs PlaceOrder of shop no more" in removed.stdout
    assert "ORDERS" not in run("governed", "list").stdout
    again = run("governed", "remove", "shop", "PlaceOrder", "ORDERS")
    assert again.exit_code == 1
    assert "does not govern" in again.stderr
    assert asyncio.run(removals(dsn)) == ["olga"]


def test_the_approvals_of_every_database_cannot_be_removed(run: Run) -> None:
    refused = run("governed", "remove", "approvals", "DecideTicket", "BATCH_APPROVE")
    assert refused.exit_code == 1
    assert "declared in this program" in refused.stderr
