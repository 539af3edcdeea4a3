"""Governed command types where there is no database: on a bus in memory, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from commandbus import BatchCommand, CommandBus, RetryPolicy, Settings
from commandbus.access.model import Caller, Scope
from commandbus.commands.preparing import Preparer
from commandbus.errors import GovernedTypeError, InvalidInputError, PermissionDeniedError
from commandbus.testing import fake_bus
from tests.http_world import app_of, caller, client_of, problem
from tests.integration.governed import GUARDED, ORDERS

ANN = caller("send")
BREAKER = caller("send", "bypass-governance")


@pytest.fixture
def bus() -> CommandBus:
    made = fake_bus()
    made.governance.declare(ORDERS)
    made.governance.declare(GUARDED)
    return made


async def test_a_declared_type_is_refused_in_memory_too(bus: CommandBus) -> None:
    with pytest.raises(GovernedTypeError, match="PlaceOrder must be submitted as GUARDED or ORDER"):
        await bus.governance.send(ANN, "shop", "PlaceOrder", uuid4(), {})
    with pytest.raises(PermissionDeniedError, match="'send'"):
        await bus.governance.send(caller("submit"), "shop", "Look", uuid4(), {})
    sent = await bus.governance.send(ANN, "shop", "Look", uuid4(), {})
    assert not sent.is_repeat
    passed = await bus.governance.send(BREAKER, "shop", "PlaceOrder", uuid4(), {})
    (event,) = await bus.get_audit_trail("shop", passed.command_id)
    assert event.actor == "ann"


async def test_batches_for_a_caller_are_refused_in_memory_too(bus: CommandBus) -> None:
    who = bus.governance.on_behalf_of(ANN, "shop")
    governed = [BatchCommand("Look", uuid4(), {}), BatchCommand("PlaceOrder", uuid4(), {})]
    with pytest.raises(GovernedTypeError):
        await bus.batches.create("shop", governed, on_behalf=who)
    await bus.batches.create("shop", governed[:1], on_behalf=who)
    (event,) = await bus.get_audit_trail("shop", governed[0].command_id)
    assert event.actor == "ann"


@pytest.mark.parametrize(
    "more",
    [
        {"conn": object()},
        {"on_complete": lambda batch: None},
        {"on_complete_command": BatchCommand("PlaceOrder", uuid4(), {})},
    ],
)
async def test_a_batch_for_a_caller_brings_nothing_else_with_it(
    bus: CommandBus, more: dict[str, Any]
) -> None:
    who = bus.governance.on_behalf_of(ANN, "shop")
    with pytest.raises(InvalidInputError, match="on behalf of a caller"):
        await bus.batches.create("shop", [BatchCommand("Look", uuid4(), {})], on_behalf=who, **more)


async def test_over_http_the_refusal_names_what_to_submit(bus: CommandBus) -> None:
    app = app_of(bus, ann=Caller("ann", frozenset({Scope.SEND, Scope.ADMIN})))
    async with client_of(app, "ann") as client:
        form = {"domain": "shop", "command_type": "PlaceOrder", "data": {}}
        body = problem(await client.post("/api/v1/commands", json=form), 403, "PERMISSION_DENIED")
    assert body["batch_types"] == ["GUARDED", "ORDERS"]


async def test_a_caller_sends_in_its_own_domains_only(bus: CommandBus) -> None:
    bound = caller("send", domains=("other",))
    with pytest.raises(PermissionDeniedError, match="in domain 'shop'"):
        await bus.governance.send(bound, "shop", "Look", uuid4(), {})


def test_without_a_place_for_keys_repeats_are_known_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "file"
    folder.write_text("no folder")
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(folder))
    first, second = (Preparer(Settings(), RetryPolicy()) for _ in range(2))
    command = first.command("shop", "Work", uuid4(), {"b": 1, "a": 2}, None, None)
    assert first.digest("shop", command) == second.digest("shop", command)
    named = Preparer(Settings(token_pepper="p"), RetryPolicy())
    assert named.digest("shop", command) != first.digest("shop", command)
    assert named.digest("shop", command) != named.digest("bank", command)
