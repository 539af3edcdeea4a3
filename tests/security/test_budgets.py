"""One caller cannot use up what others need: each budget at n and n + 1, beside another caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest
from starlette.datastructures import Headers

from commandbus.access.model import Caller, Scope
from commandbus.errors import RateLimitExceededError
from commandbus.http import HttpSettings, TokenAuth, create_app
from commandbus.http.auth.authenticators import NotAuthenticated
from commandbus.http.auth.lookups import MAX_MISSES, PACE_SECONDS, Lookups
from commandbus.http.budgets import MAX_KEYS, Budget, Budgets, Minutes, Places, Share
from commandbus.http.problems import Problem
from commandbus.testing import fake_bus, sent
from tests.http_world import app_of, caller, client_of, problem
from tests.unit.test_http_auth import World

JSON = {"Content-Type": "application/json"}
URL = "/api/v1/commands"
BATCHES = "/api/v1/command-batches/shop"
#: Half of what the user has is for one token.
ONE, TWO = (Caller("ann", frozenset(Scope), token_id=each) for each in ("one", "two"))
BOB = caller(*Scope, user="bob")


def command(**more: Any) -> dict[str, Any]:
    return {"domain": "shop", "command_type": "Work", "data": {}, **more}


def is_budget(answer: Any, limit_type: str, max_value: int) -> None:
    body = problem(answer, 429, "RATE_LIMIT_EXCEEDED")
    assert (body["limit_type"], body["max_value"]) == (limit_type, max_value)
    assert body["scope"] == limit_type.partition("_")[0]
    assert body["contact_admin"] is False
    assert answer.headers["retry-after"] == str(body["retry_after"])
    assert 1 <= body["retry_after"] <= 60


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is in two minutes."""
    monkeypatch.setattr(Minutes, "_minute", lambda _: 7)


@pytest.mark.usefixtures("still")
async def test_requests_are_counted_by_token_and_by_user_and_not_by_address() -> None:
    settings = HttpSettings(max_user_requests=6)
    app = app_of(fake_bus(), settings, one=ONE, two=TWO, bob=BOB)
    async with client_of(app, "one") as one, client_of(app, "two") as two:
        for client in (one, two):
            for _ in range(3):
                assert (await client.get("/api/v1/whoami")).status_code == 200
        is_budget(await one.get("/api/v1/whoami"), "token_requests", 3)
        assert (await one.get("/livez")).status_code == 200
    async with client_of(app, "bob") as bob:
        for _ in range(6):
            assert (await bob.get("/api/v1/whoami")).status_code == 200
        is_budget(await bob.get("/api/v1/whoami"), "user_requests", 6)


@pytest.mark.usefixtures("still")
async def test_a_flood_by_one_token_does_not_reach_the_count_of_all() -> None:
    counted: list[str] = []

    class Counting:
        is_available = True
        types = fake_bus().governance.types

        async def count_request(self, user_id: str) -> Any:
            counted.append(user_id)
            raise RateLimitExceededError(
                "global_api_requests", "global", 4, 3, 9, contact_admin=False
            )

    app = app_of(fake_bus(), HttpSettings(max_user_requests=4), one=ONE)
    layer = app.state.commandbus
    for each in app.user_middleware:
        if "governance" in each.kwargs:
            each.kwargs["governance"] = Counting()
    async with client_of(app, "one") as one:
        answers = [await one.get("/api/v1/whoami") for _ in range(20)]
    assert {each.status_code for each in answers} == {429}
    assert counted == ["ann", "ann"], "its own budget stops it first"
    assert layer.budgets.concurrency.taken == 0


@pytest.mark.usefixtures("still")
async def test_commands_are_counted_one_by_one_whether_sent_alone_or_in_batches() -> None:
    bus = fake_bus()
    app = app_of(bus, HttpSettings(max_user_commands=8), one=ONE, bob=BOB)
    batch = {"commands": [{"command_type": "Work", "data": {}}] * 3}
    async with client_of(app, "one") as one, client_of(app, "bob") as bob:
        assert (await one.post(BATCHES, json=batch)).status_code == 202
        assert (await one.post(URL, json=command())).status_code == 202
        is_budget(await one.post(URL, json=command()), "token_commands", 4)
        is_budget(await one.post(BATCHES, json=batch), "token_commands", 4)
        assert (await bob.post(URL, json=command())).status_code == 202
    assert len(sent(bus, "shop")) == 5


@pytest.mark.usefixtures("still")
async def test_what_is_larger_than_the_budget_passes_as_the_first_of_its_minute() -> None:
    app = app_of(fake_bus(), HttpSettings(max_user_commands=2), bob=BOB)
    batch = {"commands": [{"command_type": "Work", "data": {}}] * 5}
    async with client_of(app, "bob") as bob:
        assert (await bob.post(BATCHES, json=batch)).status_code == 202
        is_budget(await bob.post(BATCHES, json=batch), "user_commands", 2)


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_bytes_of_bodies_are_counted_also_of_those_that_are_refused(is_chunked: bool) -> None:
    app = app_of(fake_bus(), HttpSettings(max_user_body_bytes=4_096), one=ONE, bob=BOB)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 300

    def content() -> Any:
        return parts() if is_chunked else b"x" * 1_200

    async with client_of(app, "one") as one, client_of(app, "bob") as bob:
        problem(await one.post(URL, content=content(), headers=JSON), 400, "INVALID_REQUEST")
        limited = await one.post(URL, content=content(), headers=JSON)
        is_budget(limited, "token_body_bytes", 2_048)
        assert limited.headers["connection"] == "close"
        assert (await bob.post(URL, json=command())).status_code == 202


async def test_one_caller_gets_a_quarter_of_the_places_and_the_others_find_theirs() -> None:
    app = app_of(fake_bus(), HttpSettings(max_concurrency=8, max_long_polls=7), bob=BOB, cid=BOB)
    held, go_on = asyncio.Semaphore(0), asyncio.Event()

    @app.get("/api/v1/slow")
    async def slow() -> None:
        held.release()
        await go_on.wait()

    async with client_of(app, "bob") as bob, client_of(app) as other:
        waiting = [asyncio.create_task(bob.get("/api/v1/slow")) for _ in range(2)]
        for _ in waiting:
            await held.acquire()
        is_budget(await bob.get("/api/v1/whoami"), "user_concurrency", 2)
        assert (await other.get("/api/v1/whoami")).status_code == 200
        go_on.set()
        await asyncio.gather(*waiting)
        assert (await bob.get("/api/v1/whoami")).status_code == 200


async def test_a_slow_body_takes_one_of_few_places_and_gives_it_back() -> None:
    settings = HttpSettings(max_bodies=4, receive_timeout_seconds=30)
    app = app_of(fake_bus(), settings, bob=BOB)
    places = app.state.commandbus.budgets.bodies
    begun = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        begun.set()
        await asyncio.Event().wait()

    async with client_of(app, "bob") as bob, client_of(app) as other:
        slow = asyncio.create_task(bob.post(URL, content=slowly(), headers=JSON))
        await begun.wait()
        assert places.taken == 1
        is_budget(await bob.post(URL, json=command()), "user_bodies", 1)
        assert (await bob.get("/api/v1/whoami")).status_code == 200
        assert (await other.post(URL, json=command())).status_code == 202
        slow.cancel()
        with suppress(asyncio.CancelledError):
            await slow
    assert places.taken == 0


def test_when_all_places_are_taken_it_is_nobodys_fault() -> None:
    places = Places("waiting", 2, Share(1, 1), "all are taken")
    with places.place(BOB), places.place(caller(user="ann")):
        with pytest.raises(RateLimitExceededError), places.place(BOB):
            pass
        with pytest.raises(Problem) as full, places.place(caller(user="cid")):
            pass
    assert full.value.kind.status == 503
    assert places.taken == 0
    assert not places._taken_by, "who has gone is not remembered"


def test_a_share_is_never_nothing_and_the_smaller_one_is_named() -> None:
    assert Share.of(0.2, 0.1) == Share(1, 1)
    assert Share.of(100, 0.5) == Share(100, 50)
    budget = Budget("requests", Share(4, 2), clock=lambda: 30.0)
    budget.spend(ONE, 2)
    with pytest.raises(RateLimitExceededError) as limited:
        budget.spend(ONE)
    assert (limited.value.limit_type, limited.value.retry_after) == ("token_requests", 30)
    budget.spend(TWO, 2)
    with pytest.raises(RateLimitExceededError) as limited:
        budget.spend(Caller("ann", frozenset()))
    assert (limited.value.limit_type, limited.value.current_value) == ("user_requests", 4)


def test_what_clients_make_up_does_not_fill_the_memory() -> None:
    minutes = Minutes(clock=lambda: 0.0)
    for number in range(MAX_KEYS + 100):
        minutes.add(("address", str(number)))
    assert len(minutes._counts) == MAX_KEYS
    assert minutes.count(("address", "0")) == 0
    assert minutes.count(("address", str(MAX_KEYS + 99))) == 1


def test_by_default_one_user_leaves_room_below_the_limit_of_all_requests() -> None:
    settings = HttpSettings()
    assert settings.max_user_requests < 1_000
    budgets = Budgets(settings)
    assert budgets.concurrency._share == Share(50, 25)
    assert budgets.waiting._share == Share(25, 12)


# -- guessing tokens


def guess(number: int) -> Headers:
    return Headers({"Authorization": f"Bearer cb_{number:032x}_{'A' * 43}"})


async def test_guesses_are_looked_up_together_and_a_valid_token_with_them() -> None:
    world = World()
    made = await world.make()
    valid = Headers({"Authorization": f"Bearer {made.text}"})
    tries = [world.auth.authenticate(guess(number)) for number in range(300)]

    *refused, found = await asyncio.gather(
        *tries, world.auth.authenticate(valid), return_exceptions=True
    )

    assert {type(each) for each in refused} == {NotAuthenticated}
    assert found == made.token.caller()
    assert world.store.finds <= 2


async def test_an_id_that_was_just_unknown_is_not_looked_up_again() -> None:
    world = World()
    for _ in range(5):
        with pytest.raises(NotAuthenticated):
            await world.auth.authenticate(guess(1))
    assert world.store.finds == 1
    world.now += 5
    with pytest.raises(NotAuthenticated):
        await world.auth.authenticate(guess(1))
    assert world.store.finds == 2


async def test_look_ups_that_find_nothing_are_paced_and_a_valid_one_still_comes_through() -> None:
    now, pauses = 0.0, []
    known = cast("Any", object())

    async def find(ids: Any) -> Any:
        return {each: known for each in ids if each == "good"}

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    lookups = Lookups(find, clock=lambda: now, pause=pause)
    for number in range(MAX_MISSES + 1):
        assert await lookups.find(str(number)) is None
    assert pauses == []
    assert await lookups.find("good") is known
    assert pauses == [PACE_SECONDS]
    now = 1.0
    assert await lookups.find("good") is known
    assert pauses == [PACE_SECONDS]


async def test_a_failed_look_up_fails_for_all_who_wait_and_the_next_is_tried_anew() -> None:
    answers: list[Any] = [OSError("gone"), {"a": "found"}]

    async def find(ids: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lookups = Lookups(find)
    failed = await asyncio.gather(
        lookups.find("a"), lookups.find("a"), lookups.find("b"), return_exceptions=True
    )
    assert [type(each) for each in failed] == [OSError] * 3
    assert cast("Any", await lookups.find("a")) == "found"


async def test_a_valid_token_passes_beside_thousands_of_wrong_ones_from_its_address() -> None:
    world = World()
    made = await world.make()
    app = create_app(fake_bus(), auth=TokenAuth(world.tokens))
    async with client_of(app, made.text) as right:
        wrong = [
            right.get("/api/v1/whoami", headers={"Authorization": guess(number)["authorization"]})
            for number in range(15)
        ]
        answers = await asyncio.gather(*wrong)
        assert (await right.get("/api/v1/whoami")).status_code == 200
    assert {each.status_code for each in answers} == {401, 429}
