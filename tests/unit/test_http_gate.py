"""The gate and the scopes: who comes in, who is counted, and what each may touch."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request

from commandbus.access.model import Caller, Scope
from commandbus.errors import InvalidSettingError, PermissionDeniedError, RateLimitExceededError
from commandbus.http import HttpSettings
from commandbus.http.auth.authenticators import NotAuthenticated
from commandbus.http.auth.gate import GateMiddleware, Strangers
from commandbus.http.auth.scopes import (
    Requires,
    caller_of,
    refuse_routes_without_scope,
    requirements_of,
    requires,
)
from commandbus.http.budgets import LATE_SECONDS, Patience
from commandbus.http.context import ClientGone, RequestInfo
from commandbus.http.problems import Problem
from commandbus.http.protection import CountMiddleware
from tests.http_world import caller, scopes_of

ANN = caller("read", domains=("shop",))


class Bench:
    """A gate before an app that remembers what came through."""

    is_available = True

    def __init__(self, **settings: Any) -> None:
        self.passed: list[Any] = []
        self.counted: list[str] = []
        self.pauses: list[float] = []
        self.is_gone = False
        chosen = HttpSettings(max_auth_failures=2, **settings)
        patience = Patience(10, self._pause, clock=lambda: 90.0)
        self.strangers = Strangers(chosen, patience, clock=lambda: 90.0)
        counting = CountMiddleware(self._app, cast("Any", self), "/api/")
        self.gate = GateMiddleware(
            counting, auth=self, strangers=self.strangers, guarded=("/api/", "/metrics"),
            public=frozenset({"/livez", "/openapi.json"}), free=frozenset({"/livez"}),
        )  # fmt: skip

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(scope)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.is_gone:
            await asyncio.Event().wait()

    async def authenticate(self, headers: Headers) -> Caller:
        if headers.get("authorization") != "Bearer ann":
            raise NotAuthenticated
        return ANN

    async def count_request(self, user_id: str) -> str:
        self.counted.append(user_id)
        return "a limit"

    async def ask(
        self, path: str, who: str | None = "ann", *, info: RequestInfo | None = None, **scope: Any
    ) -> RequestInfo:
        known = info or RequestInfo("r1")
        headers = [] if who is None else [(b"authorization", f"Bearer {who}".encode())]
        await self.gate(
            {"type": "http", "path": path, "headers": headers, "client": ("10.0.0.1", 5),
             "method": "GET", "state": {"commandbus": known}, **scope},
            self._receive, cast("Any", None),
        )  # fmt: skip
        return known

    async def _receive(self) -> Any:
        if self.is_gone:
            return {"type": "http.disconnect"}
        return await asyncio.Event().wait()

    def failures(self, address: str) -> int:
        return self.strangers.failures.count(("address", address))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_guarded_path_is_proved_and_counted(bench: Bench) -> None:
    info = await bench.ask("/api/v1/x")
    assert info.caller is ANN
    assert list(cast("Any", info.limits)) == ["a limit"]
    assert bench.counted == ["ann"]
    assert len(bench.passed) == 1


async def test_a_guarded_path_that_is_not_counted_is_proved_only(bench: Bench) -> None:
    info = await bench.ask("/metrics")
    assert (info.caller, info.limits) == (ANN, ())
    assert bench.counted == []
    with pytest.raises(Problem):
        await bench.ask("/metrics", None)


async def test_what_is_not_guarded_is_passed_on_as_it_is(bench: Bench) -> None:
    info = await bench.ask("/livez", None)
    assert info.caller is None
    await bench.ask("/api/v1/x", None, type="lifespan")
    await bench.ask("/api/v1/x", None, state={})
    assert len(bench.passed) == 3
    assert bench.counted == []


async def test_nobody_comes_in_without_a_proof_and_only_a_wrong_one_counts(bench: Bench) -> None:
    for who in (None, None, None, "eve"):
        with pytest.raises(Problem) as refused:
            await bench.ask("/api/v1/x", who)
        assert refused.value.kind.status == 401
    assert bench.passed == []
    assert bench.failures("10.0.0.1") == 1


async def test_wrong_credentials_of_an_address_that_fails_too_often_wait_for_the_next_minute(
    bench: Bench,
) -> None:
    for _ in range(2):
        with pytest.raises(Problem):
            await bench.ask("/api/v1/x", "eve")
    with pytest.raises(RateLimitExceededError) as limited:
        await bench.ask("/api/v1/x", "eve")
    assert limited.value.retry_after == 30
    assert (limited.value.limit_type, limited.value.scope) == ("auth_failures", "address")
    with pytest.raises(Problem):
        await bench.ask("/api/v1/x", "eve", client=("10.0.0.2", 5))


async def test_a_valid_token_is_not_refused_for_the_failures_of_its_address(bench: Bench) -> None:
    for _ in range(50):
        with pytest.raises((Problem, RateLimitExceededError)):
            await bench.ask("/api/v1/x", "eve")
    info = await bench.ask("/api/v1/x", "ann")
    assert info.caller is ANN


async def test_an_address_may_ask_so_often_without_credentials() -> None:
    bench = Bench(max_address_requests=12)
    await bench.ask("/x", None)
    await bench.ask("/openapi.json", None)
    with pytest.raises(Problem):
        await bench.ask("/api/v1/x", None)
    for path in ("/x", "/openapi.json", "/api/v1/x"):
        with pytest.raises(RateLimitExceededError) as limited:
            await bench.ask(path, None)
        assert (limited.value.limit_type, limited.value.max_value) == ("address_requests", 12)
    with pytest.raises(RateLimitExceededError):
        await bench.ask("/livez", None, method="POST")
    await bench.ask("/livez", None)
    await bench.ask("/api/v1/x", "ann")


async def test_what_leads_nowhere_is_answered_late_if_there_is_much_of_it(bench: Bench) -> None:
    for _ in range(5):
        await bench.ask("/x", None)
        with pytest.raises(Problem):
            await bench.ask("/api/v1/x", None)
    await bench.ask("/openapi.json", None)
    assert bench.pauses == []
    await bench.ask("/x", None)
    await bench.ask("/livez", None, method="POST")
    with pytest.raises(Problem):
        await bench.ask("/api/v1/x", "eve")
    assert len(bench.pauses) == 3
    assert all(LATE_SECONDS / 2 <= each <= LATE_SECONDS * 1.5 for each in bench.pauses)
    for path, who in (("/api/v1/x", "ann"), ("/livez", None), ("/openapi.json", None)):
        await bench.ask(path, who)
    assert len(bench.pauses) == 3
    bench.is_gone = True
    with pytest.raises(ClientGone):
        await bench.ask("/x", None)


async def test_those_without_an_address_share_one(bench: Bench) -> None:
    with pytest.raises(Problem):
        await bench.ask("/api/v1/x", "eve", client=None)
    assert bench.failures("unknown") == 1


async def test_all_addresses_of_an_ipv6_network_are_one(bench: Bench) -> None:
    for address in ("2001:db8::1", "2001:db8::ffff:1"):
        with pytest.raises(Problem):
            await bench.ask("/api/v1/x", "eve", client=(address, 5))
    assert bench.failures("2001:db8::/64") == 2
    with pytest.raises(Problem):
        await bench.ask("/api/v1/x", "eve", client=("::ffff:10.0.0.9", 5))
    assert bench.failures("10.0.0.9") == 1


# -- scopes


def a_request(who: Caller | None, **params: str) -> Request:
    state = {"commandbus": RequestInfo("r1", caller=who)}
    return Request({"type": "http", "headers": [], "state": state, "path_params": params})


async def test_a_caller_is_let_through_by_its_scope_or_by_another_that_will_do() -> None:
    assert await Requires(Scope.READ)(a_request(ANN)) is ANN
    assert await Requires(Scope.SEND, Scope.READ)(a_request(ANN)) is ANN
    with pytest.raises(PermissionDeniedError):
        await Requires(Scope.SEND, Scope.APPROVE)(a_request(ANN))


async def test_a_domain_in_the_path_must_be_one_that_the_caller_reaches() -> None:
    assert await Requires(Scope.READ)(a_request(ANN, domain="shop")) is ANN
    with pytest.raises(Problem) as refused:
        await Requires(Scope.READ)(a_request(ANN, domain="bank"))
    assert refused.value.kind.status == 404


def test_a_request_without_a_proved_caller_is_refused() -> None:
    assert caller_of(a_request(ANN)) is ANN
    for request in (a_request(None), Request({"type": "http", "headers": []})):
        with pytest.raises(Problem):
            caller_of(request)


def test_the_scope_of_each_route_is_found_and_a_route_without_one_is_refused() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    async def guarded(who: Annotated[Caller, requires(Scope.READ)]) -> None: ...

    async def public() -> None: ...

    app.add_api_route("/x/{item}", guarded, methods=["GET", "POST"])
    app.add_api_route("/files/{name:path}", guarded)
    app.add_api_route("/v1/open", public)
    assert scopes_of(app) == {
        ("/x/{item}", "GET"): Scope.READ,
        ("/x/{item}", "POST"): Scope.READ,
        ("/files/{name}", "GET"): Scope.READ,
        ("/v1/open", "GET"): None,
    }
    refuse_routes_without_scope(requirements_of(app), "/v1", frozenset({"/open"}))
    with pytest.raises(InvalidSettingError, match="routes without a scope: GET /v1/open;"):
        refuse_routes_without_scope(requirements_of(app), "/v2", frozenset({"/open"}))
