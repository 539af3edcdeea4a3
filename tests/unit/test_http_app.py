"""The app: routes and scopes, headers on every answer, prefixes, what it refuses to be built as."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from fastapi import APIRouter, FastAPI
from starlette.responses import StreamingResponse

import commandbus.http
from commandbus import CommandBus, InvalidSettingError
from commandbus.access.model import Caller, Scope
from commandbus.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from commandbus.http import HttpSettings, NoAuth, create_app
from commandbus.http.auth.scopes import PUBLIC, requires
from commandbus.http.context import SECURITY_HEADERS
from commandbus.testing import fake_bus
from tests.http_world import app_of, client_of, problem, scopes_of


async def test_every_answer_carries_the_security_headers_and_a_request_id() -> None:
    app = app_of(fake_bus())

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("password=hunter2")

    async with client_of(app) as client, client_of(app, None) as stranger:
        answers = [
            await client.get("/livez"),
            await client.get("/nowhere"),
            await client.put("/livez"),
            await stranger.get("/api/v1/commands"),
            await client.post("/api/v1/commands", content=b"{", headers=JSON),
            await client.get("/broken"),
            await client.get("/openapi.json"),
        ]

    assert [each.status_code for each in answers] == [200, 404, 405, 401, 400, 500, 200]
    for each in answers:
        assert {name: each.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert len(each.headers["x-request-id"]) == 32
        assert "server" not in each.headers
        assert "content-encoding" not in each.headers
        assert "strict-transport-security" not in each.headers


JSON = {"Content-Type": "application/json"}


async def test_an_unexpected_error_tells_the_client_nothing_and_the_log_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = app_of(fake_bus())

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("password=hunter2 of row 17")

    async with client_of(app) as client:
        answer = await client.get("/broken", headers={"X-Request-Id": "abc-1"})

    body = problem(answer, 500, "INTERNAL_ERROR")
    assert body["request_id"] == "abc-1"
    assert "17" not in answer.text
    assert "abc-1" in caplog.text
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text + answer.text


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("abc.DEF_1-2", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("é", False)],
)
async def test_a_request_id_is_kept_only_if_it_is_harmless(given: str, is_kept: bool) -> None:
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.get("/livez", headers={b"X-Request-Id": given.encode("latin-1")})

    assert (answer.headers["x-request-id"] == given) is is_kept


async def test_over_tls_the_browser_is_told_to_stay_there() -> None:
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.get("https://127.0.0.1/livez")

    assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_an_answer_that_fails_half_way_is_cut_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = app_of(fake_bus())

    async def parts() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("password=hunter2")

    @app.get("/half")
    async def half() -> StreamingResponse:
        return StreamingResponse(parts())

    async with client_of(app) as client:
        answer = await client.get("/half")

    assert answer.status_code == 200
    assert "RuntimeError: password=[REDACTED]" in caplog.text


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (DatabaseUnavailableError("no"), "does not answer"),
        (SchemaTooOldError("no"), "needs a migration"),
        (SchemaTooNewError("no"), "needs a newer commandbus"),
        (DatabaseError("password=hunter2"), "not fit"),
        (TimeoutError(), "does not answer"),
    ],
)
async def test_readiness_says_what_is_wrong_and_no_more(
    monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    bus = fake_bus()

    async def check() -> None:
        raise error

    monkeypatch.setattr(bus._store, "check", check)
    async with client_of(app_of(bus), None) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    checks = {"database": shown, "pool": "ok", "workers": "ok"}
    assert answer.json() == {"status": "failing", "checks": checks}


async def test_a_process_whose_worker_is_stuck_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CommandBus, "stuck_domains", ["shop"])
    async with client_of(app_of(fake_bus()), None) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    checks = {"database": "ok", "pool": "ok", "workers": "stuck"}
    assert answer.json() == {"status": "failing", "checks": checks}


# -- scopes


def test_every_route_has_one_scope_or_is_in_the_public_list() -> None:
    scopes = scopes_of(app_of(fake_bus()))

    assert {path for (path, _), scope in scopes.items() if scope is None} == PUBLIC
    assert len(scopes) > 30


def test_a_route_without_a_scope_fails_the_build() -> None:
    router = APIRouter()

    @router.get("/oops")
    async def oops() -> None: ...

    with pytest.raises(InvalidSettingError, match="routes without a scope: GET /api/v1/oops"):
        create_app(fake_bus(), routers=(router,))


def test_a_route_with_two_scopes_fails_the_build() -> None:
    router = APIRouter()

    @router.get("/both")
    async def both(
        first: Annotated[Caller, requires(Scope.READ)],
        second: Annotated[Caller, requires(Scope.SEND)],
    ) -> None: ...

    with pytest.raises(InvalidSettingError, match="several scopes"):
        create_app(fake_bus(), routers=(router,))


async def test_a_router_of_ones_own_is_served_and_guarded() -> None:
    router = APIRouter()

    @router.get("/mine")
    async def mine(caller: Annotated[Caller, requires(Scope.APPROVE)]) -> dict[str, str]:
        return {"user": caller.user_id}

    app = create_app(fake_bus(), routers=(router,))

    async with client_of(app, None) as client:
        assert (await client.get("/api/v1/mine")).json() == {"user": "developer"}
    assert app.openapi()["paths"]["/api/v1/mine"]["get"]["x-scope"] == "approve"


@pytest.mark.parametrize("auth", [None, NoAuth()])
def test_without_authentication_another_address_than_loopback_is_refused(auth: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"not on 0\.0\.0\.0; use --auth token"):
        create_app(fake_bus(), auth=auth, settings=HttpSettings(host="0.0.0.0"))


@pytest.mark.parametrize("prefix", ["bus", "/bus/"])
def test_a_prefix_that_is_not_one_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSettingError, match="prefix is"):
        create_app(fake_bus(), prefix=prefix)


# -- prefixes and mounts


async def test_under_a_prefix_and_a_mount_addresses_are_what_the_client_must_write() -> None:
    main = FastAPI()
    main.mount("/outer", app_of(fake_bus(), prefix="/bus"))
    form = {"domain": "shop", "command_type": "Work", "data": {}, "command_id": str(uuid4())}

    async with client_of(main) as client, client_of(main, None) as stranger:
        sent = await client.post("/outer/bus/api/v1/commands", json=form)
        shown = await client.get(sent.headers["location"])
        refused = await stranger.get("/outer/bus/api/v1/commands")
        document = await stranger.get("/outer/bus/openapi.json")

    assert sent.status_code == 202
    url = f"/outer/bus/api/v1/commands/shop/{form['command_id']}"
    assert (sent.headers["location"], sent.json()["status_url"]) == (url, url)
    assert shown.json()["status_url"] == url
    assert refused.status_code == 401
    assert "/bus/api/v1/commands" in document.json()["paths"]


async def test_the_host_that_a_client_names_is_in_no_address() -> None:
    form = {"domain": "shop", "command_type": "Work", "data": {}}
    async with client_of(app_of(fake_bus())) as client:
        sent = await client.post("/api/v1/commands", json=form, headers={"Host": "evil.example"})

    assert sent.headers["location"].startswith("/api/v1/")
    assert "evil" not in sent.text


async def test_apps_of_one_process_share_the_routes_and_each_serves_its_own_bus() -> None:
    first, second = app_of(fake_bus()), app_of(fake_bus())
    shared = {id(each) for each in first.routes} & {id(each) for each in second.routes}
    assert len(shared) == len(first.routes) - 1  # an app's own document is its own

    @first.get("/mine")
    async def mine() -> str:
        return "first"

    form = {"domain": "shop", "command_type": "Work", "data": {}, "command_id": str(uuid4())}
    async with client_of(first) as one, client_of(second) as other:
        await one.post("/api/v1/commands", json=form)
        path = f"/api/v1/commands/shop/{form['command_id']}"
        assert [(await each.get(path)).status_code for each in (one, other)] == [200, 404]
        assert [(await each.get("/mine")).status_code for each in (one, other)] == [200, 404]
    assert ("/mine" in first.openapi()["paths"], "/mine" in second.openapi()["paths"]) == (
        True, False,
    )  # fmt: skip


def test_two_apps_on_one_bus_share_nothing_but_the_bus() -> None:
    bus = fake_bus()

    first, second = app_of(bus), app_of(bus)

    assert first.state.commandbus.metrics is not second.state.commandbus.metrics
    assert first.state.commandbus.bus is second.state.commandbus.bus


# -- the OpenAPI document


def test_the_document_says_scope_security_and_problems_of_every_operation() -> None:
    document = app_of(fake_bus()).openapi()
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }

    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for (path, method), operation in operations.items():
        assert "422" not in operation["responses"]
        assert operation["summary"]
        assert (path in PUBLIC) == ("x-scope" not in operation)
        expected = {"400", "500", "503"} | (set() if path in PUBLIC else {"401", "403", "429"})
        if method == "post":
            expected |= {"408", "409", "413", "415"}
        assert expected <= set(operation["responses"]), path
    assert len({operation["operationId"] for operation in operations.values()}) == len(operations)


def test_what_can_be_asked_is_what_is_documented() -> None:
    app = app_of(fake_bus())
    served = {(path, method.lower()) for path, method in scopes_of(app) if path != "/openapi.json"}
    documented = {
        (path, method) for path, methods in app.openapi()["paths"].items() for method in methods
    }

    assert served == documented


def test_the_service_imports_no_http_client() -> None:
    folder = Path(commandbus.http.__file__).parent
    imported = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            # What only writes and reads addresses is no client.
            elif isinstance(node, ast.ImportFrom) and node.module != "urllib.parse":
                imported.add(str(node.module).partition(".")[0])

    assert "fastapi" in imported
    assert not imported & {"httpx", "httpx2", "requests", "urllib", "urllib3", "aiohttp", "http"}
