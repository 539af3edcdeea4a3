"""An application on FastAPI with a worker in its process; served by uvicorn in a test."""

from __future__ import annotations

import os
from uuid import UUID

from fastapi import FastAPI

from commandbus import Command, HandlerContext, Handlers, new_id
from commandbus.fastapi import BusDep, bus_lifespan, bus_of_request
from commandbus.http import create_app

handlers = Handlers("shop")


@handlers.handle("Work", transactional=True)
async def work(command: Command, ctx: HandlerContext) -> None:
    await ctx.conn.execute("insert into written values (%s)", (command.command_id,))


app = FastAPI(lifespan=bus_lifespan(os.environ["SITE_DSN"], handlers=handlers, workers=["shop"]))
app.mount("/bus", create_app(bus_of_request))


@app.post("/orders")
async def order(bus: BusDep) -> UUID:
    return await bus.send("shop", "Work", new_id(), {})
