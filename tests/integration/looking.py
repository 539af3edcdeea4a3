"""How the tests of the worker look at the database, and interfere with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from commandbus import BatchCommand, CommandBus, CommandMetadata, Reply, Settings
from tests.waiting import until

Conn = psycopg.AsyncConnection[Any]


@asynccontextmanager
async def another_bus(dsn: str, **settings: Any) -> AsyncIterator[CommandBus]:
    """A bus of its own on the test's database, as another process would have."""
    async with CommandBus.connect(dsn, settings=Settings(**settings)) as bus:
        yield bus


async def rows(conn: Conn, query: str, *params: object) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return await (await conn.execute(query.encode(), params)).fetchall()


async def value(conn: Conn, query: str, *params: object) -> Any:
    """The one value of a query."""
    return (await rows(conn, query, *params))[0][0]


async def lapse(conn: Conn, *, domain: str = "shop") -> None:
    """Let every lease run out now (PGMQ's clock cannot be moved, but its timeouts can)."""
    await conn.execute(f"update pgmq.q_{domain}__commands set vt = clock_timestamp()".encode())


async def take_over(conn: Conn, worker: str = "rescuer") -> list[tuple[Any, ...]]:
    """Another worker takes what is visible, for ten minutes: (command_id, msg_id, lease_epoch)."""
    return await rows(
        conn,
        "select command_id, msg_id, lease_epoch"
        " from commandbus.receive_commands('shop', 600, 100, %s)",
        worker,
    )


async def seize(conn: Conn) -> list[tuple[Any, ...]]:
    """Let every lease run out, and take the commands over before their own worker can.

    In one transaction, or that worker would extend its leases in between. Again, if a statement of
    that worker had the message locked just then: a receive passes by what is locked.
    """

    async def try_it() -> list[tuple[Any, ...]]:
        async with conn.transaction():
            await lapse(conn)
            return await take_over(conn)

    return list(await until(try_it, "a lease in place of the worker's"))


async def complete_as_other(conn: Conn, taken: list[tuple[Any, ...]]) -> None:
    """The other worker completes what it has taken."""
    items = [
        {"command_id": str(command_id), "msg_id": msg_id, "lease_epoch": epoch, "data": "rescued"}
        for command_id, msg_id, epoch in taken
    ]
    await conn.execute("select commandbus.complete_commands('shop', %s)", (Jsonb(items),))


async def send(bus: CommandBus, command_type: str = "Work", **data: Any) -> UUID:
    """Send one command to the shop."""
    return await bus.send("shop", command_type, uuid4(), data)


async def send_some(bus: CommandBus, number: int, command_type: str = "Work") -> list[UUID]:
    """Send commands to the shop in one transaction, numbered."""
    return await bus.send_many(
        "shop", [BatchCommand(command_type, uuid4(), {"n": n}) for n in range(number)]
    )


async def look(bus: CommandBus, command_id: UUID) -> CommandMetadata:
    """The row of a command of the shop."""
    found = await bus.get_command("shop", command_id)
    assert found is not None
    return found


async def events(bus: CommandBus, command_id: UUID) -> list[str]:
    """The types of a command's audit events, oldest first."""
    return [event.event_type for event in await bus.get_audit_trail(command_id)]


async def replies(bus: CommandBus) -> list[Reply]:
    """All that lies on the shop's reply queue, taken off it."""
    return [reply async for reply in bus.replies("shop", wait=False)]


async def until_count(conn: Conn, status: str, number: int) -> None:
    """Wait until this many commands have a status."""

    async def reached() -> bool:
        found = await value(
            conn, "select count(*) from commandbus.command_bus_command where status = %s", status
        )
        return int(found) == number

    await until(reached, f"{number} commands {status}")


async def until_queue_is_empty(conn: Conn) -> None:
    """Wait until no message is left in the shop's queue of commands."""

    async def is_empty() -> bool:
        return await value(conn, "select count(*) from pgmq.q_shop__commands") == 0

    await until(is_empty, "an empty queue")
