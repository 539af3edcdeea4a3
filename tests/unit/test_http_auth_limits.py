"""Who asks, at the limits: lengths, times, how much is remembered; domains and gates."""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from commandbus import InvalidInputError, InvalidSettingError
from commandbus.access.tokens import is_live
from commandbus.http import HttpSettings, JwtAuth, TokenAuth
from commandbus.http.auth.authenticators import NotAuthenticated, bearer_of
from commandbus.http.auth.gate import path_below
from commandbus.http.auth.scopes import caller_of, reached_domain, refuse_domain
from commandbus.http.auth.tokens import remember
from commandbus.http.budgets import Minutes
from commandbus.http.problems import Problem
from commandbus.testing import fake_bus
from tests.http_world import app_of, caller, client_of, problem
from tests.unit.test_http_auth import KEY, World, claims, prove

# -- headers


def bearer(value: str) -> str:
    return bearer_of(Headers({"Authorization": value}))


def test_credentials_have_at_most_eight_kilobytes_and_stand_without_blanks() -> None:
    assert bearer("bEaReR " + "x" * 8_192) == "x" * 8_192
    assert bearer("Bearer   cb_x ") == "cb_x"
    with pytest.raises(NotAuthenticated):
        bearer("Bearer " + "x" * 8_193)


# -- what is remembered


def test_the_oldest_is_forgotten_when_there_are_ten_thousand() -> None:
    memory: OrderedDict[str, int] = OrderedDict()
    for number in range(10_000):
        remember(memory, str(number), number)
    assert len(memory) == 10_000
    remember(memory, "0", 7)  # used again: now the youngest
    remember(memory, "new", 8)
    assert len(memory) == 10_000
    assert "1" not in memory
    assert memory["0"] == 7


async def test_what_is_known_of_a_token_ends_at_its_time_and_is_forgotten_then() -> None:
    world = World()
    made = await world.make()
    await world.ask(made.text)
    assert set(world.auth._known) == {made.token.token_id}
    world.now += 5.0
    await world.ask(made.text)
    assert world.store.finds == 2
    await world.tokens.revoke(made.token.token_id)
    world.now += 5.0
    with pytest.raises(NotAuthenticated):
        await world.ask(made.text)
    assert world.auth._known == {}


async def test_a_token_that_is_gone_is_forgotten() -> None:
    world = World()
    made = await world.make()
    await world.ask(made.text)
    world.store.tokens.clear()
    world.now += 5.0
    with pytest.raises(NotAuthenticated):
        await world.ask(made.text)
    assert world.auth._known == {}


async def test_an_authenticator_remembers_for_five_seconds_unless_told_otherwise() -> None:
    world = World()
    made = await world.make()
    world.auth = TokenAuth(world.tokens, clock=lambda: world.now)
    for later, finds in ((0.0, 1), (4.75, 1), (0.25, 2)):
        world.now += later
        await world.ask(made.text)
        assert world.store.finds == finds


async def test_the_first_use_is_noted_at_once_and_the_next_after_a_minute() -> None:
    world = World()
    world.now = 0.0
    made = await world.make()
    for later, notes in ((0.0, 1), (59.75, 1), (0.25, 2)):
        world.now += later
        await world.ask(made.text)
        assert len(world.store.touches) == notes


# -- failures


@pytest.mark.parametrize(("now", "left"), [(0.0, 60), (59.5, 1), (60.0, 60), (61.5, 59)])
def test_seconds_are_left_until_the_next_minute(now: float, left: int) -> None:
    assert Minutes(clock=lambda: now).seconds_left() == left


# -- tokens


async def test_a_token_lives_for_ten_years_at_most() -> None:
    world = World()
    longest = timedelta(days=3_650)
    before = datetime.now(UTC)
    made = await world.make(expires_in=longest)
    assert made.token.expires_at is not None
    assert before + longest <= made.token.expires_at <= datetime.now(UTC) + longest
    with pytest.raises(InvalidInputError, match="3,650 days"):
        await world.make(expires_in=timedelta(days=3_650, microseconds=1))


async def test_the_user_and_the_label_of_a_token_have_two_hundred_characters_at_most() -> None:
    world = World()
    made = await world.tokens.create("u" * 200, ["read"], label="l" * 300)
    assert made.token.user_id == "u" * 200
    assert made.token.label == "l" * 199 + "…"
    with pytest.raises(InvalidInputError, match="at most 200 characters"):
        await world.tokens.create("u" * 201, ["read"])


async def test_tokens_are_listed_in_pages_that_can_be_meant() -> None:
    world = World()
    made = await world.make()
    assert (await world.tokens.page()).items == [made.token]
    with pytest.raises(InvalidSettingError, match="limit"):
        await world.tokens.page(limit=0)


async def test_a_page_of_tokens_has_a_hundred_unless_told_otherwise() -> None:
    world = World()
    for _ in range(101):
        await world.make()
    page = await world.tokens.page()
    assert len(page.items) == 100
    assert page.next_cursor is not None
    assert world.store.limits == [101]  # one more, to know whether there is a next page


async def test_the_time_of_revocation_is_returned() -> None:
    world = World()
    made = await world.make()
    revoked_at = await world.tokens.revoke(made.token.token_id)
    assert revoked_at == world.store.tokens[made.token.token_id].token.revoked_at


async def test_a_token_is_live_until_its_end_and_not_at_it() -> None:
    token = (await World().make(expires_in=timedelta(days=1))).token
    assert token.expires_at is not None
    assert is_live(token, token.expires_at - timedelta(microseconds=1))
    assert not is_live(token, token.expires_at)


async def test_an_unknown_id_is_compared_over_the_same_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[tuple[int, int]] = []
    original = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    with pytest.raises(NotAuthenticated):
        await World().ask(f"cb_{'0' * 32}_{'A' * 43}")
    assert set(lengths) == {(32, 32)}


# -- JSON Web Tokens


def test_a_key_has_thirty_two_bytes_at_least() -> None:
    JwtAuth("k" * 32, audience="a")
    with pytest.raises(InvalidSettingError, match="32 random bytes at least"):
        JwtAuth("k" * 31, audience="a")


async def test_two_clocks_may_differ_by_thirty_seconds() -> None:
    now = int(time.time())
    assert await prove(jwt.encode(claims(exp=now - 20), KEY, "HS256"))
    with pytest.raises(NotAuthenticated):
        await prove(jwt.encode(claims(exp=now - 30), KEY, "HS256"))


async def test_the_user_of_a_jwt_has_two_hundred_characters_at_most() -> None:
    proved = await prove(jwt.encode(claims(sub="u" * 200), KEY, "HS256"))
    assert proved.user_id == "u" * 200
    with pytest.raises(NotAuthenticated):
        await prove(jwt.encode(claims(sub="u" * 201), KEY, "HS256"))


async def test_a_jwt_without_a_scope_may_do_nothing() -> None:
    assert (await prove(jwt.encode(claims(scope=None), KEY, "HS256"))).scopes == frozenset()


async def test_the_settings_make_an_authenticator() -> None:
    settings = HttpSettings(auth="jwt", jwt_key=KEY, jwt_audience="us", jwt_issuer="them")
    auth = JwtAuth.of(settings)
    token = jwt.encode(claims(aud="us", iss="them"), KEY, "HS256")
    proved = await auth.authenticate(Headers({"Authorization": f"Bearer {token}"}))
    assert proved.user_id == "ann"


# -- domains


def test_the_domain_to_search_is_the_one_named_or_the_only_one() -> None:
    everywhere, one = caller("read"), caller("read", domains=("shop",))
    two = caller("read", domains=("shop", "bank"))
    assert reached_domain(everywhere, None) is None
    assert reached_domain(everywhere, "bank") == "bank"
    assert reached_domain(one, None) == "shop"
    assert reached_domain(two, "bank") == "bank"
    with pytest.raises(InvalidSettingError, match="bank, shop"):
        reached_domain(two, None)
    with pytest.raises(Problem):
        reached_domain(two, "club")
    with pytest.raises(Problem):
        refuse_domain(one, "bank")


def test_a_request_that_no_gate_has_seen_has_no_caller() -> None:
    with pytest.raises(Problem):
        caller_of(Request({"type": "http", "headers": []}))


# -- the gate


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/bus/api/v1/x", "/bus", "/api/v1/x"),
        ("/api/v1/x", "/bus", "/api/v1/x"),
        ("/api/v1/x", "", "/api/v1/x"),
    ],
)
def test_the_path_inside_the_app_is_what_is_guarded(path: str, root: str, below: str) -> None:
    assert path_below({"path": path, "root_path": root}) == below
    assert path_below({"path": "/x"}) == "/x"


async def test_the_tenth_failure_is_still_answered_as_one() -> None:
    app = app_of(fake_bus())
    async with client_of(app, "wrong") as wrong, client_of(app) as right:
        for _ in range(9):
            problem(await wrong.get("/api/v1/whoami"), 401, "UNAUTHENTICATED")
        assert (await right.get("/api/v1/whoami")).status_code == 200
