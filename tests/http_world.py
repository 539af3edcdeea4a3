"""An app without a socket, and callers that are known by name."""

from __future__ import annotations

from typing import Any

import httpx2
from fastapi import FastAPI
from starlette.datastructures import Headers

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.http import HttpSettings, create_app
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.auth.scopes import requirements_of


class NamedCallers:
    """`Authorization: Bearer <name>` is that caller; nobody else is anybody."""

    def __init__(self, **callers: Caller) -> None:
        self.callers = callers

    async def authenticate(self, headers: Headers) -> Caller:
        try:
            return self.callers[bearer_of(headers)]
        except KeyError:
            raise NotAuthenticated from None


def caller(*scopes: str, domains: tuple[str, ...] | None = None, user: str = "ann") -> Caller:
    reach = None if domains is None else frozenset(domains)
    return Caller(user, frozenset(Scope(scope) for scope in scopes), reach)


ADMIN = caller(*Scope, user="root")


def app_of(
    bus: CommandBus, settings: HttpSettings | None = None, prefix: str = "", **callers: Caller
) -> FastAPI:
    """The API of a bus, with these callers and `root`, who may do everything; without the console,
    which `tests/console` has.
    """
    auth = NamedCallers(root=ADMIN, **callers)
    return create_app(
        bus, auth=auth, settings=settings or HttpSettings(), prefix=prefix, console=False
    )


def scopes_of(app: FastAPI) -> dict[tuple[str, str], Scope | None]:
    """The scope of each route, by path and method; None: it is public."""
    required = requirements_of(app).items()
    return {key: None if each is None else each.scope for key, each in required}


def client_of(app: Any, who: str | None = "root") -> httpx2.AsyncClient:
    """A client of an app; `who=None`: without credentials."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {} if who is None else {"Authorization": f"Bearer {who}"}
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Assert that an answer is this problem, and return its body."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"] == f"urn:commandbus:problem:{code.lower().replace('_', '-')}"
    assert body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    return body
