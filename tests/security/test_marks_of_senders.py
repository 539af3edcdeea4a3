"""Secrets that a sender's types mark are hidden before any worker has run, by all who look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    BlockingBus,
    Command,
    CommandBus,
    HandlerContext,
    Returns,
    Secret,
    command,
    new_id,
)
from commandbus.errors import DatabaseUnavailableError
from tests.canaries import assert_hidden, new_canary
from tests.conftest import Server
from tests.http_world import ADMIN
from tests.security.roled import RoledDatabase, roled_database
from tests.waiting import until_status, working

DOMAIN = "marked"


@command(DOMAIN, "Pay")
@dataclass
class Pay(Returns[None]):
    iban: Annotated[str, Secret]
    note: str = "seen"


async def untyped(bus: CommandBus, payload: Pay) -> None:
    async def pay(command: Pay) -> None: ...

    bus.register_handler(DOMAIN, "Pay", pay)
    await bus.send(DOMAIN, "Pay", new_id(), vars(payload))


async def in_a_batch(bus: CommandBus, payload: Pay) -> None:
    await bus.create_batch(DOMAIN, [BatchCommand("Pay", new_id(), payload)])  # type: ignore[arg-type]


async def from_rows(bus: CommandBus, payload: Pay) -> None:
    async def pay(command: Pay) -> None: ...

    bus.register_handler(DOMAIN, "Pay", pay)
    await bus.loads.load(DOMAIN, [vars(payload)], command_type="Pay")


async def for_a_caller(bus: CommandBus, payload: Pay) -> None:
    async def pay(command: Pay) -> None: ...

    bus.register_handler(DOMAIN, "Pay", pay)
    await bus.governance.send(ADMIN, DOMAIN, "Pay", new_id(), vars(payload))


WAYS: dict[str, Callable[[CommandBus, Pay], Awaitable[object]]] = {
    "send": lambda bus, payload: bus.send(payload),
    "with a key": lambda bus, payload: bus.send(payload, unique_key="k"),
    "again and again": lambda bus, payload: bus.send(payload, retry_for=5),
    "as a dict, with the handler": untyped,
    "many": lambda bus, payload: bus.send_many(DOMAIN, [payload]),
    "a generator": lambda bus, payload: bus.send_many(DOMAIN, (each for each in [payload])),
    "new ones": lambda bus, payload: bus.send_many(DOMAIN, [payload], on_duplicate="skip"),
    "a batch": in_a_batch,
    "a load": from_rows,
    "for a caller": for_a_caller,
}


async def shown(dsn: str) -> str:
    """All payloads, as a process shows them that knows no type."""
    async with CommandBus.connect(dsn) as other:
        found = [each async for each in other.search.every_command(domain=DOMAIN)]
        assert found
        return json.dumps([await other.search.payload(DOMAIN, each.command_id) for each in found])


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_sender_marks_is_hidden_from_the_first_command_on(dsn: str, way: str) -> None:
    canary = new_canary(way)
    async with CommandBus.connect(dsn) as bus:
        await WAYS[way](bus, Pay(canary))
        text = await shown(dsn)
        assert "seen" in text
        assert_hidden(text, "a payload")
        assert bus._preparer.marks.untold == {}


@pytest.mark.parametrize("when", ["with a heartbeat", "at the end"])
async def test_what_a_handler_sends_is_told_by_its_worker(dsn: str, when: str) -> None:
    async with CommandBus.connect(dsn) as bus:

        async def work(command: Command, ctx: HandlerContext) -> None:
            ctx.send(Pay(new_canary(when)))

        bus.register_handler("first", "Work", work)
        command_id = await bus.send("first", "Work", new_id(), {})
        async with working(bus, "first"):
            await until_status(bus, "first", command_id, "COMPLETED")
            if when == "with a heartbeat":
                await bus._workers.shared.beat()
                assert_hidden(await shown(dsn), "a payload")
        assert_hidden(await shown(dsn), "a payload")


def test_a_send_on_the_callers_connection_tells_apart_and_keeps_no_lock(dsn: str) -> None:
    with BlockingBus.connect(dsn) as one, BlockingBus.connect(dsn) as two:
        with psycopg.connect(dsn) as conn, psycopg.connect(dsn) as other:
            one.send(Pay(new_canary("one")), conn=conn)
            other.execute("set lock_timeout = '5s'")
            two.send(Pay(new_canary("two")), conn=other)  # waits for nobody
            conn.rollback()
        with psycopg.connect(dsn) as looking:
            keys = looking.execute("select key from commandbus.command_bus_secret_key").fetchall()
    assert keys == [("iban",)]


async def test_a_database_that_is_away_is_told_with_the_next_send(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailableError("away")

    async with CommandBus.connect(dsn) as bus:
        with monkeypatch.context() as patched:
            patched.setattr(bus._store, "declare_secrets", away)
            with pytest.raises(DatabaseUnavailableError):  # nothing is sent that would be shown
                await bus.send(Pay(new_canary("first")))
            await bus.send_many(DOMAIN, [Pay(new_canary("second"))])  # was sent, so it says so
        await bus.send(Pay(new_canary("third")))
        assert_hidden(await shown(dsn), "a payload")
        assert bus._preparer.marks.untold == {}


def test_a_login_that_may_only_send_tells_too(server: Server, template: str) -> None:
    async def send(database: RoledDatabase) -> str:
        async with CommandBus.connect(database.owner) as owner:
            await owner._store.ensure_domain(DOMAIN)
        async with database.bus("sender") as bus:
            await bus.send(Pay(new_canary("sender")))
        return await shown(database.owner)

    with roled_database(server, template) as database:
        assert_hidden(asyncio.run(send(database)), "a payload")
