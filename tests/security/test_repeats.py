"""A repeat is its sender's: to everybody else a known id tells nothing of what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus import CommandBus, DuplicateCommandError, Settings
from tests.http_world import app_of, caller, client_of, problem
from tests.integration.http_shop import work_off

COMMANDS = "/api/v1/commands"
CALLERS: dict[str, Any] = {"ann": caller("send"), "eve": caller("send", "admin", user="eve")}


def form(command_id: UUID, **more: Any) -> dict[str, Any]:
    data = {"card": "4111 1111", "cents": 500}
    kind = more.pop("command_type", "Work")
    return {
        "domain": "shop", "command_type": kind, "command_id": str(command_id), "data": data | more
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


async def become(bus: CommandBus, conn: AsyncConnection, state: str, command_id: UUID) -> None:
    """Let a command of type Work, or Fail, come into a state."""
    if state == "PENDING":
        return
    if state == "CANCELED":
        await bus.cancel("shop", command_id, "no")
        return
    await work_off(bus, "shop")
    if state == "without an archive":
        await conn.execute("delete from pgmq.a_shop__commands")
    if state == "retried":
        await bus.operator_retry("shop", command_id)


STATES = ["PENDING", "CANCELED", "COMPLETED", "parked", "retried", "without an archive"]


@pytest.mark.parametrize("state", STATES)
async def test_a_known_id_answers_its_sender_by_content_and_others_always_alike(
    bus: CommandBus, conn: AsyncConnection, ann: httpx2.AsyncClient, eve: httpx2.AsyncClient,
    state: str,
) -> None:  # fmt: skip
    command_id = uuid4()
    kind = "Fail" if state in {"parked", "retried"} else "Work"
    sent = form(command_id, command_type=kind)
    assert (await ann.post(COMMANDS, json=sent)).json()["is_repeat"] is False
    await become(bus, conn, state, command_id)

    repeat = await ann.post(COMMANDS, json=sent)
    assert (repeat.status_code, repeat.json()["is_repeat"]) == (202, True)
    found = await bus.get_command("shop", command_id)
    assert found is not None
    assert repeat.json()["status"] == found.status.value
    other = form(command_id, command_type=kind, cents=501)
    mine = problem(await ann.post(COMMANDS, json=other), 409, "CONFLICT")
    kindred = form(command_id, command_type="Play")
    problem(await ann.post(COMMANDS, json=kindred), 409, "CONFLICT")

    guesses = [await eve.post(COMMANDS, json=each) for each in (sent, other, kindred)]
    bodies = [problem(each, 409, "CONFLICT") for each in guesses]
    assert {each["detail"] for each in bodies} == {mine["detail"]}
    for answer, body in zip(guesses, bodies, strict=True):
        assert set(body) == set(mine)
        assert len(answer.content) == len(guesses[0].content)
        assert set(answer.headers) == set(guesses[0].headers)


async def test_what_the_library_sent_is_nobodys_to_repeat_over_http(
    bus: CommandBus, ann: httpx2.AsyncClient
) -> None:
    command_id = uuid4()
    sent = form(command_id)
    await bus.send("shop", "Work", command_id, sent["data"], actor="ann")
    problem(await ann.post(COMMANDS, json=sent), 409, "CONFLICT")
    problem(await ann.post(COMMANDS, json=form(command_id, cents=1)), 409, "CONFLICT")


async def test_the_sender_is_the_user_whichever_token_it_has(bus: CommandBus) -> None:
    app = app_of(
        bus, old=caller("send", "admin"), new=caller("send", "read"), other=caller("send", user="x")
    )
    sent = form(uuid4())
    async with client_of(app, "old") as old, client_of(app, "new") as new:
        await old.post(COMMANDS, json=sent)
        assert (await new.post(COMMANDS, json=sent)).json()["is_repeat"] is True


async def test_an_idempotency_key_is_an_id_like_any_other(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient
) -> None:
    key = str(uuid4())
    sent = form(uuid4())
    del sent["command_id"]
    headers = {"Idempotency-Key": key}
    assert (await ann.post(COMMANDS, json=sent, headers=headers)).json()["command_id"] == key
    assert (await ann.post(COMMANDS, json=sent, headers=headers)).json()["is_repeat"] is True
    assert (await ann.post(COMMANDS, json={**sent, "command_id": key})).json()["is_repeat"] is True
    problem(await eve.post(COMMANDS, json=sent, headers=headers), 409, "CONFLICT")


async def test_a_command_of_a_batch_is_its_senders_to_repeat(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient
) -> None:
    sent = form(uuid4())
    item = {name: sent[name] for name in ("command_type", "command_id", "data")}
    batch = {"commands": [item]}
    assert (await ann.post("/api/v1/command-batches/shop", json=batch)).status_code == 202
    assert (await ann.post(COMMANDS, json=sent)).json()["is_repeat"] is True
    problem(await eve.post(COMMANDS, json=sent), 409, "CONFLICT")
    # A batch is never a repeat, whoever asks and whatever it contains.
    other = {"commands": [{**item, "data": {}}]}
    details = [
        problem(await who.post("/api/v1/command-batches/shop", json=body), 409, "CONFLICT")[
            "detail"
        ]
        for who in (ann, eve)
        for body in (batch, other)
    ]
    assert len(set(details)) == 1


async def test_the_order_of_fields_does_not_matter_and_every_value_does(
    ann: httpx2.AsyncClient,
) -> None:
    sent = form(uuid4(), more={"a": 1, "b": [1, 2]})
    await ann.post(COMMANDS, json=sent)
    turned = {**sent, "data": dict(reversed(sent["data"].items()))}
    assert (await ann.post(COMMANDS, json=turned)).json()["is_repeat"] is True
    for data in ({}, {**sent["data"], "more": {"a": 1, "b": [2, 1]}}, {**sent["data"], "x": None}):
        problem(await ann.post(COMMANDS, json={**sent, "data": data}), 409, "CONFLICT")


async def test_of_two_senders_at_once_one_wins_and_the_other_learns_nothing(
    ann: httpx2.AsyncClient, eve: httpx2.AsyncClient
) -> None:
    for _ in range(10):
        sent = form(uuid4())
        answers = await asyncio.gather(*(who.post(COMMANDS, json=sent) for who in (ann, eve)))
        assert sorted(each.status_code for each in answers) == [202, 409]


async def test_digests_cannot_be_made_without_the_pepper(dsn: str, conn: AsyncConnection) -> None:
    sent = form(uuid4())
    digests = []
    for pepper in ("one", "two"):
        async with CommandBus.connect(dsn, settings=Settings(token_pepper=pepper)) as bus:
            await bus.governance.send(CALLERS["eve"], "shop", "Work", uuid4(), sent["data"])
        row = await (
            await conn.execute(
                "select s.digest from commandbus.command_bus_sender s"
                " join commandbus.command_bus_command c using (domain, command_id)"
                " order by c.created_at desc limit 1"
            )
        ).fetchone()
        assert row is not None
        digests.append(row[0])
    assert len(set(digests)) == 2


async def test_a_repeat_is_known_after_the_pepper_was_replaced(dsn: str) -> None:
    command_id, data = uuid4(), {"amount": 1}
    found: list[object] = []
    for settings in (
        Settings(token_pepper="one"),
        Settings(token_pepper="two", token_pepper_old="one"),
        Settings(token_pepper="two"),
    ):
        async with CommandBus.connect(dsn, settings=settings) as bus:
            try:
                made = await bus.governance.send(CALLERS["eve"], "shop", "Work", command_id, data)
                found.append(made.is_repeat)
            except DuplicateCommandError:
                found.append("refused")
    assert found == [False, True, "refused"]


async def test_retention_forgets_the_sender_with_the_command(
    bus: CommandBus, conn: AsyncConnection, ann: httpx2.AsyncClient, eve: httpx2.AsyncClient
) -> None:
    single, child = form(uuid4()), form(uuid4())
    item = {name: child[name] for name in ("command_type", "command_id", "data")}
    await ann.post(COMMANDS, json=single)
    await ann.post("/api/v1/command-batches/shop", json={"commands": [item]})
    await work_off(bus, "shop")
    await conn.execute(
        "update commandbus.command_bus_command set created_at = created_at - interval '9 days',"
        " updated_at = updated_at - interval '9 days'"
    )
    await conn.execute(
        "update commandbus.command_bus_batch set created_at = created_at - interval '9 days',"
        " completed_at = completed_at - interval '9 days'"
    )
    await bus.upkeep.set_retention("commands", timedelta(days=1))
    await bus.upkeep.prune()
    rows = await conn.execute("select count(*) from commandbus.command_bus_sender")
    assert await rows.fetchone() == (0,)
    # The id is unknown again, and its next sender is the sender.
    assert (await eve.post(COMMANDS, json=single)).json()["is_repeat"] is False
    problem(await ann.post(COMMANDS, json=single), 409, "CONFLICT")
