"""Who asks: API tokens, JSON Web Tokens, nobody at all; and how often one may fail."""

from __future__ import annotations

import hmac
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import jwt
import pytest
from starlette.datastructures import Headers

from commandbus import InvalidInputError, InvalidOperationError, InvalidSettingError, Settings
from commandbus.access.model import EVERYTHING, ApiToken, NewToken, Scope, StoredToken
from commandbus.access.peppers import Peppers
from commandbus.access.tokens import Tokens
from commandbus.errors import DatabaseUnavailableError
from commandbus.http import HttpSettings, JwtAuth, NoAuth, TokenAuth, create_app
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.budgets import Minutes
from commandbus.testing import fake_bus
from tests.http_world import app_of, client_of, problem


class TokensInMemory:
    """A store whose gateway knows the statements of tokens, and counts what it is asked."""

    def __init__(self) -> None:
        self.tokens: dict[str, StoredToken] = {}
        self.finds = 0
        self.touches: list[str] = []
        self.limits: list[int] = []
        self.is_down = False
        self.gateway = self

    async def value(self, text: str, params: Any) -> datetime | None:
        now = datetime.now(UTC)
        if "create_api_token" in text:
            token_id, user_id, scopes, domains, label, secret_hash, expires_at, _ = params
            token = ApiToken(
                token_id=token_id,
                user_id=user_id,
                scopes=frozenset(scopes),
                domains=None if domains is None else frozenset(domains),
                label=label,
                created_at=now,
                expires_at=expires_at,
                revoked_at=None,
                last_used_at=None,
            )
            self.tokens[token_id] = StoredToken(token, secret_hash)
            return now
        assert "revoke_api_token" in text
        stored = self.tokens.get(params[0])
        if stored is None:
            return None
        self.tokens[params[0]] = replace(stored, token=replace(stored.token, revoked_at=now))
        return now

    async def rows(self, text: str, params: Any, *, into: Any = None) -> list[Any]:
        if "= any(%s)" in text:
            self.finds += 1
            return [self.tokens[each] for each in params[0] if each in self.tokens]
        if "group by" in text:  # the peppers of those in use
            marks = Counter(stored.secret_hash[:-32].hex() for stored in self.tokens.values())
            return [(mark, count, None) for mark, count in marks.items()]
        if "touch_api_token" in text:
            if self.is_down:
                raise DatabaseUnavailableError("down")
            self.touches.append(params[0])
            return []
        self.limits.append(params[-1])
        return [stored.token for stored in self.tokens.values()]


def peppers_of(text: str) -> Peppers:
    return Peppers(Settings(token_pepper=text))


class World:
    def __init__(self) -> None:
        self.store = TokensInMemory()
        self.now = 1_000.0
        self.tokens = Tokens(cast("Any", self.store), peppers_of("pepper"))
        self.auth = TokenAuth(self.tokens, cache_seconds=5, clock=lambda: self.now)

    async def make(self, **options: Any) -> NewToken:
        return await self.tokens.create("ann", ["read"], **options)

    async def ask(self, text: str) -> Any:
        return await self.auth.authenticate(Headers({"Authorization": f"Bearer {text}"}))


async def test_a_token_proves_its_user_its_scopes_and_its_domains() -> None:
    world = World()
    made = await world.tokens.create("ann", ["read", "send"], domains=["shop"], label="ci")

    caller = await world.ask(made.text)

    assert caller == made.token.caller()
    assert (caller.user_id, caller.scopes) == ("ann", {Scope.READ, Scope.SEND})
    assert (caller.domains, caller.token_id) == ({"shop"}, made.token.token_id)


async def test_a_token_is_written_as_promised_and_its_secret_is_stored_nowhere() -> None:
    world = World()
    first, second = await world.make(), await world.make()

    prefix, token_id, secret = first.text.split("_", 2)
    assert (prefix, token_id, len(secret)) == ("cb", first.token.token_id, 43)
    assert first.text != second.text
    assert secret not in repr(first) + repr(world.store.tokens)
    assert len(world.store.tokens[token_id].secret_hash) == 8 + 32


async def test_wrong_tokens_are_refused_all_in_the_same_way() -> None:
    world = World()
    made = await world.make()
    expired = await world.make(expires_in=timedelta(microseconds=1))
    token_id, secret = made.token.token_id, made.text[36:]
    wrong = [
        f"cb_{'0' * 32}_{secret}",  # unknown id
        f"cb_{token_id}_{'A' * 43}",  # wrong secret
        made.text[:-1],
        made.text + "A",
        made.text.upper(),
        expired.text,
        "",
        "cb__",
        token_id,
        secret,
        "é" * 80,
    ]

    for text in wrong:
        with pytest.raises(NotAuthenticated) as refused:
            await world.ask(text)
        assert refused.value.args == ()


async def test_another_pepper_proves_nothing() -> None:
    world = World()
    made = await world.make()
    other = TokenAuth(Tokens(cast("Any", world.store), peppers_of("another")))

    with pytest.raises(NotAuthenticated):
        await other.authenticate(Headers({"Authorization": f"Bearer {made.text}"}))


async def test_an_unknown_id_costs_the_same_comparison_as_a_wrong_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    made = await world.make()
    compared: list[tuple[int, int]] = []
    original = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    for token_id in ("0" * 32, made.token.token_id):
        with pytest.raises(NotAuthenticated):
            await world.ask(f"cb_{token_id}_{'A' * 43}")

    # Under the pepper and without one, each time.
    assert compared == [(32, 32), (32, 32), (40, 40), (32, 40)]


async def test_a_revoked_token_is_good_for_five_seconds_at_most() -> None:
    world = World()
    made = await world.make()
    await world.ask(made.text)
    await world.tokens.revoke(made.token.token_id)

    world.now += 4.9
    await world.ask(made.text)
    world.now += 0.2
    with pytest.raises(NotAuthenticated):
        await world.ask(made.text)


async def test_a_known_token_is_not_looked_up_for_every_request() -> None:
    world = World()
    made = await world.make()

    for _ in range(10):
        await world.ask(made.text)

    assert world.store.finds == 1


async def test_a_token_expires_although_it_is_remembered() -> None:
    world = World()
    await world.make()  # the first one takes longer: the fingerprint of the pepper is made
    made = await world.make(expires_in=timedelta(milliseconds=300))
    await world.ask(made.text)

    time.sleep(0.31)  # noqa: ASYNC251  (the wall clock is what a token goes by)

    with pytest.raises(NotAuthenticated):
        await world.ask(made.text)


async def test_use_is_noted_once_a_minute() -> None:
    world = World()
    made = await world.make()

    for _ in range(3):
        await world.ask(made.text)
    world.now += 59
    await world.ask(made.text)
    assert len(world.store.touches) == 1
    world.now += 2
    await world.ask(made.text)
    assert len(world.store.touches) == 2


async def test_a_note_that_cannot_be_written_fails_no_request() -> None:
    world = World()
    made = await world.make()
    world.store.is_down = True

    await world.ask(made.text)

    world.store.is_down = False
    await world.ask(made.text)
    assert len(world.store.touches) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"user_id": "", "scopes": ["read"]},
        {"user_id": "ann", "scopes": []},
        {"user_id": "ann", "scopes": ["everything"]},
        {"user_id": "ann", "scopes": ["read"], "domains": []},
        {"user_id": "ann", "scopes": ["read"], "domains": ["No"]},
        {"user_id": "ann", "scopes": ["read"], "expires_in": timedelta(0)},
        {"user_id": "ann", "scopes": ["read"], "expires_in": timedelta(days=5_000)},
        {"user_id": "ann", "scopes": ["read"], "label": ""},
    ],
)
async def test_a_token_that_cannot_be_meant_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"\w"):
        await World().tokens.create(**arguments)


async def test_revoking_what_is_not_there_says_so() -> None:
    world = World()
    with pytest.raises(InvalidInputError, match="32 of 0-9 and a-f"):
        await world.tokens.revoke("cb_secret")
    with pytest.raises(InvalidOperationError, match="no token"):
        await world.tokens.revoke("0" * 32)


async def test_the_store_in_memory_says_that_it_has_no_tokens() -> None:
    with pytest.raises(InvalidOperationError, match="needs PostgreSQL"):
        await fake_bus().tokens.page()


def test_the_pepper_is_in_no_text() -> None:
    assert "s3cret" not in repr(Settings(token_pepper="s3cret"))
    assert "s3cret" not in repr(HttpSettings(jwt_key="s3cret"))


# -- headers


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "cb_x")],
        [("authorization", "Basic cb_x")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer " + "x" * 9_000)],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
        [("x-api-key", "cb_x")],
    ],
)
def test_credentials_come_in_one_authorization_header_or_not_at_all(headers: Any) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    with pytest.raises(NotAuthenticated):
        bearer_of(Headers(raw=raw))


async def test_credentials_in_the_address_are_not_looked_at() -> None:
    async with client_of(app_of(fake_bus()), None) as client:
        for query in ("token=root", "access_token=root", "authorization=Bearer%20root"):
            problem(await client.get(f"/api/v1/whoami?{query}"), 401, "UNAUTHENTICATED")


async def test_without_a_caller_the_body_is_not_read() -> None:
    async with client_of(app_of(fake_bus()), None) as client:
        answer = await client.post(
            "/api/v1/commands", content=b"{", headers={"Content-Type": "application/json"}
        )

    problem(answer, 401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"] == 'Bearer realm="commandbus"'


# -- failures


def test_failures_are_counted_by_address_and_minute() -> None:
    now = 0.0
    failures = Minutes(clock=lambda: now)
    one, other = ("address", "a"), ("address", "b")
    assert [failures.add(one), failures.add(one), failures.add(other)] == [1, 2, 1]

    assert (failures.count(one), failures.count(other), failures.count(("user", "a"))) == (2, 1, 0)
    now = 59.0
    assert (failures.count(one), failures.seconds_left()) == (2, 1)
    now = 60.0
    assert failures.count(one) == 0


async def test_after_ten_failures_in_a_minute_the_wrong_tokens_of_an_address_must_wait() -> None:
    app = app_of(fake_bus())
    async with client_of(app, "wrong") as wrong, client_of(app) as right:
        for _ in range(10):
            problem(await wrong.get("/api/v1/whoami"), 401, "UNAUTHENTICATED")
        limited = await wrong.get("/api/v1/whoami")
        good = await right.get("/api/v1/whoami")

    body = problem(limited, 429, "RATE_LIMIT_EXCEEDED")
    assert (body["limit_type"], body["scope"]) == ("auth_failures", "address")
    assert (body["current_value"], body["max_value"], body["contact_admin"]) == (10, 10, False)
    assert limited.headers["retry-after"] == str(body["retry_after"])
    assert 1 <= body["retry_after"] <= 60
    assert good.status_code == 200


async def test_requests_without_credentials_do_not_count_as_failures() -> None:
    app = app_of(fake_bus())
    async with client_of(app, None) as nobody, client_of(app) as right:
        for _ in range(20):
            problem(await nobody.get("/api/v1/whoami"), 401, "UNAUTHENTICATED")
        assert (await right.get("/api/v1/whoami")).status_code == 200


# -- nobody


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Origin": "http://evil.example"}, 401),
        ({"Host": "evil.example:8080"}, 401),
    ],
)
async def test_without_authentication_pages_of_other_sites_are_kept_out(
    headers: dict[str, str], status: int
) -> None:
    app = create_app(fake_bus(), auth=NoAuth("dev"))
    async with client_of(app, None) as client:
        answer = await client.get("/api/v1/whoami", headers=headers)

    assert answer.status_code == status
    if status == 200:
        assert answer.json() == {"user_id": "dev", "scopes": sorted(EVERYTHING), "domains": None}


# -- JSON Web Tokens

KEY = "k" * 64


def claims(**changes: Any) -> dict[str, Any]:
    values = {"sub": "ann", "aud": "commandbus", "exp": time.time() + 60, "scope": "read send"}
    return {name: value for name, value in (values | changes).items() if value is not None}


async def prove(token: str, **options: Any) -> Any:
    auth = JwtAuth(KEY, audience="commandbus", **options)
    return await auth.authenticate(Headers({"Authorization": f"Bearer {token}"}))


async def test_a_jwt_proves_its_claims() -> None:
    caller = await prove(jwt.encode(claims(domains=["shop"]), KEY, "HS256"))
    other = await prove(jwt.encode(claims(scope=["admin", "openid"], domains="*"), KEY, "HS256"))

    assert (caller.user_id, caller.domains) == ("ann", {"shop"})
    assert caller.scopes == {Scope.READ, Scope.SEND}
    assert (other.scopes, other.domains) == ({Scope.ADMIN}, None)


@pytest.mark.parametrize(
    "token",
    [
        jwt.encode(claims(), "x" * 32, "HS256"),
        jwt.encode(claims(), KEY, "HS512"),
        jwt.encode(claims(), "", "none"),
        jwt.encode(claims(exp=time.time() - 60), KEY, "HS256"),
        jwt.encode(claims(exp=None), KEY, "HS256"),
        jwt.encode(claims(sub=None), KEY, "HS256"),
        jwt.encode(claims(sub=""), KEY, "HS256"),
        jwt.encode(claims(aud="somebody"), KEY, "HS256"),
        jwt.encode(claims(aud=None), KEY, "HS256"),
        jwt.encode(claims(domains="shop"), KEY, "HS256"),
        jwt.encode(claims(domains=["NO"]), KEY, "HS256"),
        jwt.encode(claims(scope=7), KEY, "HS256"),
        "a.b.c",
    ],
)
async def test_a_jwt_that_is_wrong_in_any_way_is_refused(token: str) -> None:
    with pytest.raises(NotAuthenticated):
        await prove(token)


async def test_the_issuer_must_be_the_one_that_is_configured() -> None:
    assert await prove(jwt.encode(claims(iss="us"), KEY, "HS256"), issuer="us")
    with pytest.raises(NotAuthenticated):
        await prove(jwt.encode(claims(iss="them"), KEY, "HS256"), issuer="us")
    with pytest.raises(NotAuthenticated):
        await prove(jwt.encode(claims(), KEY, "HS256"), issuer="us")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (HttpSettings(auth="jwt"), "COMMANDBUS_HTTP_JWT_KEY"),
        (HttpSettings(auth="jwt", jwt_key="short"), "too short"),
        (HttpSettings(auth="jwt", jwt_key=KEY, jwt_audience=""), "jwt_audience"),
        (HttpSettings(auth="jwt", jwt_key="no pem", jwt_algorithm="RS256"), r"RS256|PEM"),
    ],
)
def test_a_jwt_set_up_that_cannot_work_is_refused(settings: HttpSettings, says: str) -> None:
    with pytest.raises(InvalidSettingError, match=says) as refused:
        JwtAuth.of(settings)
    assert "no pem" not in str(refused.value)


def test_an_algorithm_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="HS256, RS256 or ES256"):
        HttpSettings(jwt_algorithm="none")
    with pytest.raises(InvalidSettingError, match="HS256, RS256 or ES256"):
        JwtAuth(KEY, algorithm="none", audience="a")


def test_without_pyjwt_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(InvalidSettingError, match=r"commandbus\[jwt\]"):
        JwtAuth(KEY, audience="a")
