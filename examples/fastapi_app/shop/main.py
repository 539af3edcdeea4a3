"""The application: uvicorn --factory shop.main:create"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from fastapi import APIRouter, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

from commandbus import BatchCommand, new_id
from commandbus.embedded import EmbeddedPostgres
from commandbus.fastapi import BusDep, bus_lifespan, bus_of_request, combine
from commandbus.http import TokenAuth, create_app
from shop.database import Base, Import, SessionDep, sessions
from shop.handlers import AddProduct, handlers

#: Handlers that run at once; each keeps one connection of the engine.
CONCURRENCY = 5

router = APIRouter()


class NewImport(BaseModel):
    name: str
    products: list[AddProduct]


class Progress(BaseModel):
    name: str
    status: str
    total: int
    added: int
    refused: int
    is_finished: bool


@router.post("/imports", status_code=202)
async def start_import(new: NewImport, bus: BusDep, session: SessionDep) -> UUID:
    commands = [
        BatchCommand("AddProduct", new_id(), product.model_dump(mode="json"))
        for product in new.products
    ]
    batch_id = await bus.create_batch(
        "catalogue", commands, name=new.name, conn=session,
        on_complete_command=BatchCommand("FinishImport", new_id(), {}),
    )  # fmt: skip
    session.add(Import(id=batch_id, name=new.name))
    await session.commit()  # the row, the batch and its commands, or nothing of them
    return batch_id


@router.get("/imports/{import_id}")
async def show_import(import_id: UUID, bus: BusDep, session: SessionDep) -> Progress:
    found = await session.get(Import, import_id)
    batch = await bus.get_batch("catalogue", import_id)
    if found is None or batch is None:
        raise HTTPException(404, "there is no such import")
    return Progress(
        name=found.name, status=batch.status, total=batch.total_count,
        added=batch.completed_count, refused=batch.failed_count,
        is_finished=found.finished_at is not None,
    )  # fmt: skip


def create(url: str | None = None) -> FastAPI:
    """The application on a database: DATABASE_URL, or an embedded PostgreSQL."""
    address = url or os.environ.get("DATABASE_URL") or _embedded()

    @asynccontextmanager
    async def database(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        engine = create_async_engine(address, pool_size=CONCURRENCY + 5, pool_pre_ping=True)
        sessions.configure(bind=engine)
        async with engine.begin() as conn:
            await conn.run_sync(Base.metadata.create_all)
        yield {}
        await engine.dispose()

    # The bus is opened last and closed first: its worker needs the sessions until its end.
    bus = bus_lifespan(address, handlers=handlers, workers=["catalogue"], concurrency=CONCURRENCY)
    app = FastAPI(lifespan=combine(database, bus))
    app.include_router(router)
    app.mount("/bus", create_app(bus_of_request, auth=TokenAuth.of))
    return app


def _embedded() -> str:
    server = EmbeddedPostgres()
    server.start()
    return server.sqlalchemy_url()
