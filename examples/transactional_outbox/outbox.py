"""An order and the command to ship it are one commit; so are the shipment and the completion."""

import asyncio
import os
from uuid import UUID, uuid4

import psycopg

from commandbus import (
    NO_REPLY,
    Command,
    CommandBus,
    HandlerContext,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.embedded import EmbeddedPostgres

TABLES = """
create table if not exists orders (id uuid primary key, item text not null);
create table if not exists shipment (order_id uuid not null, item text not null);
"""

DSN = os.environ.get("COMMANDBUS_DSN") or EmbeddedPostgres().start()


async def ship(command: Command, ctx: HandlerContext) -> None:
    """Transactional: what is written on ctx.conn and the completion commit together."""
    await ctx.conn.execute(
        "insert into shipment select id, item from orders where id = %s", (command.command_id,)
    )
    if ctx.attempt == 1:
        # The row above is rolled back, so the second attempt does not ship twice.
        raise TransientCommandError("CARRIER_BUSY", "no truck free")
    # Goes out in the same commit, with the correlation id of this command.
    ctx.send("mail", "TellCustomer", uuid4(), {"order": str(command.command_id)})


async def tell_customer(command: Command, _: HandlerContext) -> dict[str, str]:
    return {"told": command.data["order"]}


async def place_order(bus: CommandBus, conn: psycopg.AsyncConnection, item: str) -> UUID:
    order = uuid4()
    async with conn.transaction():
        await conn.execute("insert into orders values (%s, %s)", (order, item))
        await bus.send("shipping", "ShipOrder", order, {}, NO_REPLY, order, conn=conn)
        if item == "nothing":
            raise ValueError("an empty order")
    return order


async def main() -> None:
    connect = psycopg.AsyncConnection.connect(DSN, autocommit=True)
    async with CommandBus.connect(DSN) as bus, await connect as conn:
        await conn.execute(TABLES)
        soon = RetryPolicy(backoff_schedule=[0])
        bus.register_handler("shipping", "ShipOrder", ship, retry_policy=soon, transactional=True)
        bus.register_handler("mail", "TellCustomer", tell_customer)
        workers = [asyncio.create_task(bus.run_worker(domain)) for domain in bus.domains]

        order = await place_order(bus, conn, "a book")
        try:
            await place_order(bus, conn, "nothing")
        except ValueError as error:
            print("rolled back, with its command:", error)

        async for reply in bus.replies("mail"):
            if reply.correlation_id == order:
                break
        await bus.stop()
        await asyncio.gather(*workers)

        cursor = await conn.execute("select count(*) from shipment where order_id = %s", (order,))
        events = [event.event_type for event in await bus.get_audit_trail(order)]
        print("shipments:", (await cursor.fetchone() or [None])[0])
        print("life of the command:", ", ".join(events))


asyncio.run(main())
