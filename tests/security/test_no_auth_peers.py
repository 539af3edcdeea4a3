"""An app without authentication answers this machine, and nobody else, whatever they write."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from commandbus.errors import InvalidSettingError
from commandbus.http import HttpSettings, NoAuth, create_app
from commandbus.testing import fake_bus
from tests.http_world import problem

PATHS = ("/api/v1/whoami", "/livez", "/openapi.json", "/nowhere")


async def ask(app: Any, path: str, client: Any, **headers: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=app, client=client)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asking:
        return await asking.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
async def test_a_process_on_this_machine_is_answered(address: str) -> None:
    answer = await ask(create_app(fake_bus()), "/api/v1/whoami", (address, 1))
    assert answer.status_code == 200


@pytest.mark.parametrize("auth", [None, NoAuth("me")])
async def test_another_peer_is_refused_on_every_path_whatever_its_host_header_says(
    auth: NoAuth | None,
) -> None:
    app = create_app(fake_bus(), auth=auth)  # one for all: to make one takes longer than to ask it
    for address in ("10.0.0.7", "192.168.1.1", "2001:db8::1", "::ffff:10.0.0.7", "testclient", ""):
        for path in PATHS:
            answer = await ask(app, path, (address, 1), host="127.0.0.1")
            problem_of = problem(answer, 401, "UNAUTHENTICATED")
            assert "on its own machine only" in problem_of["detail"], (address, path)
    for path in PATHS:
        answer = await ask(app, path, None, host="127.0.0.1")
        assert "on its own machine only" in problem(answer, 401, "UNAUTHENTICATED")["detail"], path


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto", "X-Forwarded-Host",
     "X-Forwarded-Prefix"],
)  # fmt: skip
async def test_behind_a_proxy_nobody_is_on_this_machine(header: str) -> None:
    answer = await ask(
        create_app(fake_bus()), "/api/v1/whoami", ("127.0.0.1", 1), **{header: "127.0.0.1"}
    )
    problem(answer, 401, "UNAUTHENTICATED")


async def test_a_mounted_app_looks_at_the_peer_too() -> None:
    outer = FastAPI()
    outer.mount("/bus", create_app(fake_bus()))
    near = await ask(outer, "/bus/api/v1/whoami", ("127.0.0.1", 1))
    far = await ask(outer, "/bus/api/v1/whoami", ("10.0.0.7", 1))
    assert near.status_code == 200
    problem(far, 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"trusted_proxies": "127.0.0.1"}])
def test_what_would_let_others_in_is_refused_when_the_app_is_built(settings: Any) -> None:
    for auth in (None, NoAuth()):
        with pytest.raises(InvalidSettingError, match="stays on this machine"):
            create_app(fake_bus(), auth=auth, settings=HttpSettings(**settings))
