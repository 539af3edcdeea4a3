"""Unique keys over HTTP: who may replace what, and what an answer tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from commandbus import CommandBus
from commandbus.governance.types import BatchType
from tests.http_world import app_of, caller, client_of, problem
from tests.integration.http_farm import Farm
from tests.security.test_no_way_around import breaker, farm, mallory, refused  # noqa: F401

COMMANDS = "/api/v1/commands"
CALLERS: dict[str, Any] = {
    "ann": caller("send", "read"),
    "eve": caller("send", "admin", user="eve"),
}
REPLACE: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "replace"}


def form(command_id: UUID | None = None, **more: Any) -> dict[str, Any]:
    known = {} if command_id is None else {"command_id": str(command_id)}
    return {
        "domain": "shop", "command_type": "Work", "data": {"n": 1}, "unique_key": "k", **known,
        **more,
    }  # fmt: skip


@pytest.fixture
async def ann(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    await bus._store.ensure_domain("shop")
    async with client_of(app_of(bus, **CALLERS), "ann") as client:
        yield client


@pytest.fixture
async def eve(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app_of(bus, **CALLERS), "eve") as client:
        yield client


async def accepted(client: httpx2.AsyncClient, body: dict[str, Any]) -> tuple[UUID, str]:
    answer = await client.post(COMMANDS, json=body)
    assert answer.status_code == 202, answer.text
    found = answer.json()
    assert found["status_url"].endswith(found["command_id"])
    assert found["is_repeat"] is (found["outcome"] == "repeat")
    return UUID(found["command_id"]), found["outcome"]


async def test_a_held_key_is_a_conflict_unless_it_is_skipped(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient
) -> None:
    one, outcome = await accepted(ann, form())
    assert outcome == "sent"
    body = problem(await eve.post(COMMANDS, json=form()), 409, "CONFLICT")
    assert str(one) in body["detail"]
    assert await accepted(eve, form(on_duplicate="skip")) == (one, "skipped")


async def test_a_repeat_of_a_send_with_a_key_is_a_repeat(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient, bus: CommandBus
) -> None:
    body = form(one := uuid4(), **REPLACE)
    assert await accepted(ann, body) == (one, "sent")
    assert await accepted(ann, body) == (one, "repeat")
    problem(await ann.post(COMMANDS, json=form(one)), 409, "CONFLICT")  # other options
    problem(await ann.post(COMMANDS, json=body | {"data": {"n": 2}}), 409, "CONFLICT")
    problem(await eve.post(COMMANDS, json=body), 409, "CONFLICT")
    assert await bus.search.payload("shop", one) == {"n": 1}
    trail = await bus.get_audit_trail("shop", one)
    assert [event.event_type for event in trail] == ["SENT"]


async def test_the_same_request_twice_at_once_is_sent_once(ann: httpx2.AsyncClient) -> None:
    body = form(one := uuid4())
    found = await asyncio.gather(*(accepted(ann, body) for _ in range(6)))
    assert sorted(found) == sorted([(one, "sent"), *[(one, "repeat")] * 5])


async def test_only_its_sender_replaces_a_command(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient, bus: CommandBus
) -> None:
    one, _ = await accepted(ann, form(**REPLACE))
    body = problem(await eve.post(COMMANDS, json=form(data={"n": 2}, **REPLACE)), 409, "CONFLICT")
    assert "another sender" in body["detail"]
    assert await bus.search.payload("shop", one) == {"n": 1}
    again = form(data={"n": 3}, **REPLACE)
    assert await accepted(ann, again) == (one, "replaced")
    assert await bus.search.payload("shop", one) == {"n": 3}
    (event,) = [
        each for each in await bus.get_audit_trail("shop", one) if each.event_type == "REPLACED"
    ]
    assert event.actor == "ann"


async def test_what_the_application_sent_is_not_replaced_over_http(
    ann: httpx2.AsyncClient, bus: CommandBus
) -> None:
    options: Any = {"unique_key": "k", **REPLACE}
    one = await bus.send("shop", "Work", uuid4(), {"n": 1}, **options)
    problem(await ann.post(COMMANDS, json=form(data={"n": 2}, **REPLACE)), 409, "CONFLICT")
    assert await bus.search.payload("shop", one) == {"n": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"unique_key": ""},
        {"unique_key": 7},
        {"unique_key": "x" * 201},
        {"unique_while": "done"},
        {"unique_while": True},
        {"unique_while": -1},
        {"unique_while": "5"},
        {"on_duplicate": "ignore"},
        {"on_duplicate": "replace"},
        {"max_wait_seconds": 5},
        {"unique_key": None, "on_duplicate": "skip"},
    ],
)
async def test_what_cannot_be_is_refused(
    ann: httpx2.AsyncClient, bus: CommandBus, more: dict[str, Any]
) -> None:
    answer = await ann.post(COMMANDS, json=form() | more)
    assert answer.status_code in {400, 422}, answer.text
    assert (await bus.search.commands(domain="shop")).items == []


async def test_a_governed_type_is_not_sent_with_a_key_and_never_replaced(
    farm: Farm,  # noqa: F811
    mallory: httpx2.AsyncClient,  # noqa: F811
    breaker: httpx2.AsyncClient,  # noqa: F811
) -> None:
    body = {"domain": "vms", "command_type": "DeleteVM", "data": {"name": "a"}, "unique_key": "k"}
    refused(await mallory.post(COMMANDS, json=body), "BATCH_DELETE")
    refused(await mallory.post(COMMANDS, json=body | REPLACE), "BATCH_DELETE")
    first = await breaker.post(COMMANDS, json=body | {"unique_while": "waiting"})
    assert first.status_code == 202
    again = await breaker.post(COMMANDS, json=body | {"data": {"name": "b"}} | REPLACE)
    assert "not replaced" in problem(again, 403, "PERMISSION_DENIED")["detail"]
    one = UUID(first.json()["command_id"])
    assert await farm.bus.search.payload("vms", one) == {"name": "a"}
    trail = await farm.bus.get_audit_trail("vms", one)
    assert [event.event_type for event in trail] == ["SENT", "GOVERNANCE_BYPASSED"]


async def test_a_command_that_was_sent_before_its_type_was_governed_is_not_replaced(
    ann: httpx2.AsyncClient, bus: CommandBus
) -> None:
    one, _ = await accepted(ann, form(**REPLACE))
    bus.governance.declare(BatchType(name="WORKS", domain="shop", command_type="Work", max_size=9))
    answer = await ann.post(COMMANDS, json=form(data={"n": 2}, **REPLACE))
    problem(answer, 403, "PERMISSION_DENIED")
    assert await bus.search.payload("shop", one) == {"n": 1}
