import asyncio
import os

import psycopg

from commandbus import Command, CommandBus, HandlerContext, new_id
from commandbus.embedded import EmbeddedPostgres

DSN = os.environ.get("COMMANDBUS_DSN") or EmbeddedPostgres().start()


async def debit(command: Command, ctx: HandlerContext) -> dict[str, int]:
    return {"taken": command.data["amount"], "attempt": ctx.attempt}


async def main() -> None:
    connect = psycopg.AsyncConnection.connect(DSN, autocommit=True)
    async with CommandBus.connect(DSN) as bus, await connect as conn:
        await conn.execute("create table if not exists payment (id uuid primary key, amount int)")
        bus.register_handler("payments", "DebitAccount", debit)
        worker = asyncio.create_task(bus.run_worker("payments"))

        payment = new_id()
        async with conn.transaction():  # the row and the command: both, or neither
            await conn.execute("insert into payment values (%s, 42)", (payment,))
            await bus.send("payments", "DebitAccount", payment, {"amount": 42}, conn=conn)

        async for reply in bus.replies("payments"):
            if reply.command_id == payment:
                print(reply.outcome, reply.data)
                break
        await bus.stop()
        await worker


asyncio.run(main())
