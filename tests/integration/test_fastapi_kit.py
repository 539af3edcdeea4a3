"""The bus in an application on FastAPI: lifespan, dependency, mounted, included, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from fastapi import FastAPI

from commandbus import Command, CommandStatus, HandlerContext, Handlers, InvalidInputError
from commandbus.errors import InvalidOperationError, InvalidSettingError
from commandbus.fastapi import BusDep, bus_lifespan, bus_of_request, combine
from commandbus.http import TokenAuth, create_app, create_router
from commandbus.testing import fake_bus, sent
from tests.integration.looking import Conn, rows, value
from tests.waiting import until


def shop() -> Handlers:
    handlers = Handlers("shop")

    @handlers.handle("Work")
    async def work(command: Command, ctx: HandlerContext) -> str:
        return "done"

    return handlers


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Run the lifespan as a server does: its state is a part of every request."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx2.ASGITransport(app=with_state, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def site(lifespan: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.post("/orders")
    async def order(bus: BusDep) -> UUID:
        return await bus.send("shop", "Work", uuid4(), {})

    return app


async def test_a_route_gets_the_bus_of_a_test_without_a_database() -> None:
    app = site(bus_lifespan("host=nowhere"))
    bus = fake_bus()
    app.dependency_overrides[bus_of_request] = lambda: bus
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post("/orders")
    assert [str(each.command_id) for each in sent(bus, "shop", "Work")] == [answer.json()]


@pytest.mark.parametrize("kind", ["mounted", "included"])
async def test_a_service_in_an_application_answers_and_names_addresses_below_its_prefix(
    dsn: str, kind: str
) -> None:
    app = site(bus_lifespan(dsn, handlers=shop(), workers=["shop"]))
    if kind == "mounted":
        app.mount("/inner/bus", create_app(bus_of_request))
    else:
        app.include_router(create_router(bus_of_request), prefix="/inner/bus")
    async with running(app) as client:
        sent = (await client.post("/orders")).json()

        async def is_completed() -> bool:
            found = await client.get(f"/inner/bus/api/v1/commands/shop/{sent}")
            return bool(found.json()["status"] == CommandStatus.COMPLETED)

        await until(is_completed)
        body = {"domain": "shop", "command_type": "Work", "command_id": str(uuid4()), "data": {}}
        created = await client.post("/inner/bus/api/v1/commands", json=body)
        assert created.status_code in {201, 202}, created.text
        url = created.json()["status_url"]
        assert url.startswith("/inner/bus/api/v1/commands/shop/")
        assert (await client.get(url)).status_code == 200
        assert (await client.get("/inner/bus/readyz")).status_code == 200
        assert (await client.get("/inner/bus/api/v1/nothing")).status_code == 404


async def test_a_mounted_service_asks_for_tokens_of_the_bus_that_the_request_is_for(
    dsn: str,
) -> None:
    app = site(bus_lifespan(dsn))
    app.mount("/bus", create_app(bus_of_request, auth=TokenAuth.of))
    async with running(app) as client:
        assert (await client.get("/bus/api/v1/domains")).status_code == 401
        assert (await client.get("/bus/livez")).status_code == 200
        nothing = await client.get("/bus/nothing")
        assert "; /bus/openapi.json lists" in nothing.json()["detail"]


async def test_a_mounted_service_without_a_bus_says_what_is_missing() -> None:
    app = FastAPI()
    app.mount("/bus", create_app(bus_of_request))
    async with running(app) as client:
        answer = await client.get("/bus/livez")
    assert answer.status_code == 503
    assert "bus_lifespan" in answer.json()["detail"]


async def test_a_worker_that_dies_is_loud_and_the_process_is_not_ready(
    dsn: str, conn: Conn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    lifespan = bus_lifespan(dsn, handlers=shop(), workers=["shop"], on_worker_failure="exit")
    app = site(lifespan)
    app.mount("/bus", create_app(bus_of_request))

    @app.post("/stop")
    async def stop(bus: BusDep) -> None:
        await bus.stop()  # behind the back of the lifespan: its worker ends

    async with running(app) as client:
        assert (await client.get("/bus/readyz")).status_code == 200
        await client.post("/stop")
        await until(lambda: bool(killed))
        answer = await client.get("/bus/readyz")
        assert answer.status_code == 503
        assert "commandbus-worker-shop has failed" in answer.json()["detail"]
    assert killed == [(os.getpid(), signal.SIGTERM)]
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


async def test_a_worker_for_a_domain_without_handlers_ends_the_start(dsn: str) -> None:
    app = site(bus_lifespan(dsn, handlers=shop(), workers=["shop", "mail"]))
    with pytest.raises(InvalidInputError, match="mail, which has no handlers"):
        async with running(app):
            pass


def test_an_unknown_way_to_fail_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="use log or exit"):
        bus_lifespan(on_worker_failure="shout")  # type: ignore[arg-type]


async def test_combined_lifespans_nest_and_put_their_states_together(dsn: str) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, Any]]:
        order.append("opened")
        yield {"answer": 42}
        order.append("closed")

    @asynccontextmanager
    async def plain(app: Any) -> AsyncIterator[None]:
        yield

    app = site(combine(own, bus_lifespan(dsn), plain))
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        assert state["answer"] == 42
        assert order == ["opened"]
    assert order == ["opened", "closed"]


def test_a_request_without_a_bus_says_what_is_missing() -> None:
    from starlette.requests import Request

    with pytest.raises(InvalidOperationError, match="bus_lifespan"):
        bus_of_request(Request({"type": "http"}))


async def test_sigterm_under_load_loses_nothing_that_was_answered(dsn: str, conn: Conn) -> None:
    await conn.execute("create table written (command_id uuid)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "tests.integration.fastapi_site:app", "--port", str(port),
        "--log-level", "warning", env={**os.environ, "SITE_DSN": dsn},
    )  # fmt: skip
    answered: list[UUID] = []
    is_over = asyncio.Event()

    async def load(client: httpx2.AsyncClient) -> None:
        while not is_over.is_set():
            try:
                answer = await client.post("/orders")
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                answered.append(UUID(answer.json()))

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        tasks = [asyncio.create_task(load(client)) for _ in range(8)]
        await until(lambda: len(answered) > 50)
        server.send_signal(signal.SIGTERM)
        await asyncio.wait_for(server.wait(), 30)
        is_over.set()
        await asyncio.gather(*tasks)
    found = {row[0] for row in await rows(conn, "select command_id from written")}
    completed = "select command_id from commandbus.command_bus_command where status = 'COMPLETED'"
    assert found == {row[0] for row in await rows(conn, completed)}
    known = {
        r[0] for r in await rows(conn, "select command_id from commandbus.command_bus_command")
    }
    assert set(answered) <= known
    # Drained: nothing is left leased.
    leased = "select count(*) from commandbus.command_bus_command where status = 'IN_PROGRESS'"
    assert await value(conn, leased) == 0
