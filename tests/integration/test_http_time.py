"""Time, reschedule and pause over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus import CommandBus
from tests.http_world import app_of, caller, client_of, problem

COMMANDS = "/api/v1/commands"


@pytest.fixture
async def client(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app_of(bus)) as opened:
        yield opened


def form(**more: Any) -> dict[str, Any]:
    values = {"domain": "shop", "command_type": "Work", "data": {"n": 1}}
    return values | {"command_id": str(uuid4())} | more


def later(**length: float) -> str:
    return (datetime.now(UTC) + timedelta(**length)).isoformat()


async def test_a_command_says_when_it_may_start_and_shows_it(client: httpx2.AsyncClient) -> None:
    sent = await client.post(
        COMMANDS,
        json=form(delay_seconds=600, expires_in_seconds=900, priority=2, limit_key="customer:4"),
    )
    assert sent.status_code == 202, sent.text
    shown = (await client.get(sent.headers["location"])).json()
    assert shown["due_at"] == shown["deliver_at"]
    assert shown["expires_at"] > shown["due_at"]
    assert (shown["priority"], shown["limit_key"], shown["ordering_key"]) == (2, "customer:4", None)
    assert shown["waiting_for"] is None


async def test_commands_of_a_batch_have_their_own_times(client: httpx2.AsyncClient) -> None:
    commands = [
        {"command_type": "Work", "data": {}, "deliver_at": later(hours=1)},
        {"command_type": "Work", "data": {}},
    ]
    made = await client.post("/api/v1/command-batches/shop", json={"commands": commands})
    assert made.status_code == 202, made.text
    found = (await client.get(f"{made.headers['location']}/commands")).json()["items"]
    assert [each["due_at"] is not None for each in found] == [True, False]


async def test_a_repeat_must_ask_for_the_same_time(client: httpx2.AsyncClient) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    body = form(deliver_at=moment.isoformat(), expires_in_seconds=9_000, priority=1)
    assert not (await client.post(COMMANDS, json=body)).json()["is_repeat"]
    elsewhere = moment.astimezone(tz=None).isoformat()
    same = await client.post(COMMANDS, json=body | {"deliver_at": elsewhere})
    assert same.json()["is_repeat"], "the same moment in another zone"
    for changed in ({"deliver_at": later(hours=2)}, {"priority": 2}, {"expires_in_seconds": 9_001}):
        problem(await client.post(COMMANDS, json=body | changed), 409, "CONFLICT")
    without = {name: value for name, value in body.items() if name != "deliver_at"}
    problem(await client.post(COMMANDS, json=without), 409, "CONFLICT")


async def test_a_repeat_after_the_expiry_is_still_a_repeat(
    client: httpx2.AsyncClient, bus: CommandBus
) -> None:
    body = form(expires_at=later(seconds=1.5))
    first = await client.post(COMMANDS, json=body)
    assert first.status_code == 202

    async with bus.consumer("shop") as consumer:
        # It has begun in time, or has expired: either way its time is over soon.
        await consumer.receive(1)
        while datetime.now(UTC) < datetime.fromisoformat(body["expires_at"]):
            await consumer.receive(1, wait_seconds=0.05)
    again = await client.post(COMMANDS, json=body)
    assert (again.status_code, again.json()["is_repeat"]) == (202, True)
    refused = await client.post(COMMANDS, json=body | {"command_id": str(uuid4())})
    assert "expires_at is in the past" in problem(refused, 400, "INVALID_REQUEST")["detail"]


@pytest.mark.parametrize(
    "bad",
    [
        {"deliver_at": "2026-05-01T10:00:00"},
        {"deliver_at": 1_800_000_000},
        {"deliver_at": "tomorrow"},
        {"delay_seconds": -1},
        {"delay_seconds": "5"},
        {"delay_seconds": True},
        {"delay_seconds": 4e7},
        {"delay_seconds": 1, "deliver_at": "2026-12-01T10:00:00Z"},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": 5, "delay_seconds": 5},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"priority": 3},
        {"priority": 1.5},
        {"ordering_key": ""},
        {"ordering_key": "a" * 201},
        {"ordering_key": "a", "delay_seconds": 5},
        {"limit_key": 7},
    ],
)
async def test_a_start_that_cannot_be_is_refused(
    client: httpx2.AsyncClient, conn: AsyncConnection, bad: dict[str, Any]
) -> None:
    assert (await client.post(COMMANDS, json=form(**bad))).status_code == 400
    row = await (
        await conn.execute("select count(*) from commandbus.command_bus_command")
    ).fetchone()
    assert row == (0,)


async def test_a_command_is_rescheduled_and_sent_now(client: httpx2.AsyncClient) -> None:
    url = (await client.post(COMMANDS, json=form(delay_seconds=60))).headers["location"]
    moved = await client.post(f"{url}/reschedule", json={"deliver_at": later(hours=2)})
    assert moved.status_code == 200, moved.text
    assert moved.json()["due_at"] > later(hours=1)
    now = await client.post(f"{url}/reschedule", json={"now": True})
    assert now.json()["due_at"] is None
    events = (await client.get(f"{url}/audit")).json()["items"]
    assert [(e["event_type"], e["actor"]) for e in events][1:] == [("RESCHEDULED", "root")] * 2


async def test_a_new_time_that_cannot_be_is_refused(
    client: httpx2.AsyncClient, bus: CommandBus
) -> None:
    sent = form(expires_in_seconds=60)
    url = (await client.post(COMMANDS, json=sent)).headers["location"]
    for bad in (
        {}, {"now": True, "deliver_at": later(hours=1)}, {"delay_seconds": -1}, {"now": False},
        {"now": True, "delay_seconds": 600}, {"delay_seconds": 5, "deliver_at": later(hours=1)},
    ):  # fmt: skip
        answer = await client.post(f"{url}/reschedule", json=bad)
        assert answer.status_code == 400, bad
    problem(await client.post(f"{url}/reschedule", json={"delay_seconds": 61}), 409, "CONFLICT")
    unknown = f"{COMMANDS}/shop/{uuid4()}/reschedule"
    assert (await client.post(unknown, json={"now": True})).status_code == 404
    await bus.cancel("shop", UUID(sent["command_id"]), "why")
    problem(await client.post(f"{url}/reschedule", json={"now": True}), 409, "CONFLICT")


async def test_what_is_due_later_is_listed_by_its_time(client: httpx2.AsyncClient) -> None:
    for seconds in (300, 100, 200):
        await client.post(COMMANDS, json=form(delay_seconds=seconds, data={"n": seconds}))
    await client.post(COMMANDS, json=form())
    page = (await client.get("/api/v1/domains/shop/scheduled", params={"limit": 2})).json()
    rest = await client.get(
        "/api/v1/domains/shop/scheduled", params={"limit": 2, "cursor": page["next_cursor"]}
    )
    due = [each["due_at"] for each in (*page["items"], *rest.json()["items"])]
    assert len(due) == 3
    assert due == sorted(due)
    none = await client.get(
        "/api/v1/domains/shop/scheduled", params={"command_type": "Other", "limit": 2}
    )
    assert none.json()["items"] == []
    assert (await client.get("/api/v1/domains/shop/waiting")).json()["items"] == []


async def test_a_domain_is_paused_shown_and_resumed(
    client: httpx2.AsyncClient, bus: CommandBus
) -> None:
    await client.post(COMMANDS, json=form())
    paused = await client.post(
        "/api/v1/domains/shop/pause", json={"reason": "stocktaking", "seconds": 3_600}
    )
    assert paused.status_code == 200, paused.text
    assert (paused.json()["was_paused"], paused.json()["paused"]["by"]) == (False, "root")
    (shown,) = (await client.get("/api/v1/domains")).json()["items"]
    assert shown["paused"]["reason"] == "stocktaking"
    assert shown["paused"]["until"] > shown["paused"]["since"]
    async with bus.consumer("shop") as consumer:
        assert await consumer.receive(1) == []
    metrics = (await client.get("/metrics")).text
    assert 'commandbus_paused{domain="shop"} 1.0' in metrics
    diagnosis = await bus.upkeep.doctor()
    assert [each.code for each in diagnosis.findings if each.code == "DOMAIN_PAUSED"]

    for was_paused in (True, False):
        resumed = await client.post("/api/v1/domains/shop/resume")
        assert resumed.json() == {
            "domain": "shop", "paused": None, "paused_types": [], "was_paused": was_paused,
        }  # fmt: skip
    (shown,) = (await client.get("/api/v1/domains")).json()["items"]
    assert shown["paused"] is None


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        ({}, 400),
        ({"reason": " "}, 400),
        ({"reason": "x" * 1_001}, 400),
        ({"reason": "why", "until": "2001-01-01T00:00:00Z"}, 400),
        ({"reason": "why", "until": "2026-12-01T10:00:00"}, 400),
        ({"reason": "why", "until": "2126-01-01T00:00:00Z", "seconds": 5}, 400),
        ({"reason": "why", "seconds": 0}, 400),
    ],
)
async def test_a_pause_that_cannot_be_is_refused(
    client: httpx2.AsyncClient, bus: CommandBus, bad: dict[str, Any], status: int
) -> None:
    await client.post(COMMANDS, json=form())
    answer = await client.post("/api/v1/domains/shop/pause", json=bad)
    assert answer.status_code == status, answer.text
    assert await bus.pauses() == []
    assert (await client.post("/api/v1/domains/no/pause", json={"reason": "x"})).status_code == 404


async def test_a_type_is_paused_beside_its_domain(client: httpx2.AsyncClient) -> None:
    await client.post(COMMANDS, json=form())
    body = {"reason": "broken", "type": "Work"}
    for was_paused in (False, True):
        paused = await client.post("/api/v1/domains/shop/pause", json=body)
        assert (paused.json()["paused"], paused.json()["was_paused"]) == (None, was_paused)
    (shown,) = (await client.get("/api/v1/domains")).json()["items"]
    assert (shown["paused"], shown["paused_types"][0]["type"]) == (None, "Work")
    resumed = await client.post("/api/v1/domains/shop/resume", json={"type": "Work"})
    assert (resumed.json()["paused_types"], resumed.json()["was_paused"]) == ([], True)


async def test_a_pause_needs_the_scope_operate_and_the_domain(bus: CommandBus) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    app = app_of(
        bus,
        reader=caller("read"),
        sender=caller("send", "read"),
        other=caller("operate", "read", domains=("bank",)),
    )
    for who, status in (("reader", 403), ("sender", 403), ("other", 404)):
        async with client_of(app, who) as client:
            for url in ("/api/v1/domains/shop/pause", "/api/v1/domains/shop/resume"):
                answer = await client.post(url, json={"reason": "x"} if "pause" in url else {})
                assert answer.status_code == status
    assert await bus.pauses() == []
