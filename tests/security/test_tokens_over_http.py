"""Tokens over HTTP: each user their own; nobody becomes somebody else."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from psycopg import AsyncConnection

from commandbus import CommandBus
from commandbus.access.model import NewToken
from commandbus.errors import InvalidInputError
from commandbus.http import HttpSettings, create_app
from commandbus.http.auth.tokens import TokenAuth
from tests.http_world import client_of, problem

API = "/api/v1/tokens"


@pytest.fixture
def app(bus: CommandBus) -> FastAPI:
    # What is accepted is remembered for longer than a test takes.
    auth = TokenAuth(bus.tokens, cache_seconds=3_600)
    return create_app(bus, auth=auth, settings=HttpSettings())


async def made(bus: CommandBus, user: str, *scopes: str, **more: Any) -> NewToken:
    return await bus.tokens.create(user, scopes, **more)


def come_with(app: FastAPI, token: NewToken) -> httpx2.AsyncClient:
    return client_of(app, token.text)


async def listed(client: httpx2.AsyncClient, **params: str) -> set[str]:
    items = (await client.get(API, params=params)).json()["items"]
    return {item["token_id"] for item in items}


@pytest.mark.parametrize(
    "user", ["ada ", "\tada", "ada\n", "ad\u200ba", "a\u00a0da", "\u202eada", "ade\u0301"]
)
async def test_nobody_gets_a_second_name_that_looks_like_the_first(
    bus: CommandBus, user: str
) -> None:
    with pytest.raises(InvalidInputError, match="as it is read"):
        await made(bus, user, "approve")
    for name in ("ada", "Ada Byron", "auth0|ada", "ad\u00e9", "https://issuer/users/7"):
        assert (await made(bus, name, "approve")).token.user_id == name


async def test_each_user_sees_their_own_and_an_administrator_of_all_domains_everyones(
    app: FastAPI, bus: CommandBus
) -> None:
    ada = await made(bus, "ada", "send")
    other = await made(bus, "ada", "read", domains=["shop"])
    bob = await made(bus, "bob", "operate", "approve")
    near = await made(bus, "nell", "admin", domains=["shop"])
    root = await made(bus, "root", "admin")
    own = {ada.token.token_id, other.token.token_id}
    async with come_with(app, ada) as client:
        assert await listed(client) == own
        assert await listed(client, user_id="bob") == set()
        problem(await client.get(f"{API}/{bob.token.token_id}"), 404, "NOT_FOUND")
        shown = (await client.get(f"{API}/{ada.token.token_id}")).json()
        assert (shown["user_id"], shown["scopes"]) == ("ada", ["send"])
        assert ada.text not in str(shown)
    async with come_with(app, near) as client:
        assert await listed(client) == {near.token.token_id}
        problem(await client.post(f"{API}/{ada.token.token_id}/revoke"), 404, "NOT_FOUND")
    async with come_with(app, root) as client:
        assert own | {bob.token.token_id} <= await listed(client)
        assert await listed(client, user_id="ada") == own


async def test_a_revoked_token_is_refused_at_once_where_it_was_revoked(
    app: FastAPI, bus: CommandBus
) -> None:
    ada, root = await made(bus, "ada", "read"), await made(bus, "root", "admin")
    told: list[str] = []
    app.state.commandbus.revocations.subscribe(told.append)
    async with come_with(app, ada) as hers, come_with(app, root) as client:
        assert (await hers.get("/api/v1/whoami")).status_code == 200
        answer = await client.post(f"{API}/{ada.token.token_id}/revoke")
        assert answer.json()["revoked_at"] is not None
        assert (await hers.get("/api/v1/whoami")).status_code == 401
        again = await client.post(f"{API}/{ada.token.token_id}/revoke")
        assert again.json()["revoked_at"] == answer.json()["revoked_at"]
        assert await listed(client, user_id="ada") == set()
        assert await listed(client, user_id="ada", include_ended="true") == {ada.token.token_id}
    assert told == [ada.token.token_id] * 2


async def test_a_token_rotates_itself_with_the_same_rights_and_end(
    app: FastAPI, bus: CommandBus, conn: AsyncConnection[Any]
) -> None:
    ada = await made(bus, "ada", "send", domains=["shop"], label="till")
    async with come_with(app, ada) as client:
        answer = await client.post(f"{API}/{ada.token.token_id}/rotate")
        assert answer.status_code == 200, answer.text
        assert (await client.get(API)).status_code == 401
    body = answer.json()
    details = body["details"]
    assert (details["user_id"], details["scopes"], details["domains"], details["label"]) == (
        "ada", ["send"], ["shop"], "till",
    )  # fmt: skip
    async with client_of(app, body["token"]) as client:
        assert await listed(client) == {details["token_id"]}
    rows = await (
        await conn.execute(
            "select actor, details_json ->> 'new_token_id' from commandbus.command_bus_audit"
            " where event_type = 'TOKEN_ROTATED'"
        )
    ).fetchall()
    assert rows == [("ada", details["token_id"])]


async def test_with_an_overlap_the_old_one_stays_good_and_cannot_be_rotated_again(
    app: FastAPI, bus: CommandBus
) -> None:
    ada = await made(bus, "ada", "read")
    url = f"{API}/{ada.token.token_id}/rotate"
    async with come_with(app, ada) as client:
        assert (await client.post(url, json={"overlap_seconds": 600})).status_code == 200
        assert (await client.get("/api/v1/whoami")).status_code == 200
        shown = (await client.get(f"{API}/{ada.token.token_id}")).json()
        assert shown["expires_at"] is not None
        problem(await client.post(url, json={"overlap_seconds": 600}), 409, "CONFLICT")
        for wrong in (-1, 86_401, True, "5", 1.5):
            body = {"overlap_seconds": wrong}
            problem(await client.post(url, json=body), 400, "INVALID_REQUEST")


async def test_nobody_rotates_the_token_of_another_user_and_is_told_why(
    app: FastAPI, bus: CommandBus
) -> None:
    ada, root = await made(bus, "ada", "approve"), await made(bus, "root", "admin")
    bob = await made(bus, "bob", "operate")
    async with come_with(app, root) as client:
        refused = await client.post(f"{API}/{ada.token.token_id}/rotate")
        assert "act as that user" in problem(refused, 403, "PERMISSION_DENIED")["detail"]
    async with come_with(app, bob) as client:
        problem(await client.post(f"{API}/{ada.token.token_id}/rotate"), 404, "NOT_FOUND")
    async with come_with(app, ada) as client:
        assert (await client.get(f"{API}/{ada.token.token_id}")).status_code == 200


async def test_a_weak_token_does_not_get_the_rights_of_a_strong_one_of_its_user(
    app: FastAPI, bus: CommandBus
) -> None:
    weak = await made(bus, "ada", "read", domains=["shop"])
    for more in (
        await made(bus, "ada", "read"),
        await made(bus, "ada", "read", "approve", domains=["shop"]),
        await made(bus, "ada", "admin", domains=["shop"]),
        await made(bus, "ada", "read", domains=["shop", "bank"]),
    ):
        async with come_with(app, weak) as client:
            refused = await client.post(f"{API}/{more.token.token_id}/rotate")
            problem(refused, 403, "PERMISSION_DENIED")
        async with come_with(app, more) as client:
            shown = (await client.get(f"{API}/{more.token.token_id}")).json()
            assert shown["revoked_at"] is None
    same = await made(bus, "ada", "read", domains=["shop"])
    async with come_with(app, weak) as client:
        assert (await client.post(f"{API}/{same.token.token_id}/rotate")).status_code == 200


async def test_none_is_made_over_http(app: FastAPI, bus: CommandBus) -> None:
    root = await made(bus, "root", "admin")
    async with come_with(app, root) as client:
        answer = await client.post(API, json={"user_id": "ada", "scopes": ["admin"]})
        assert answer.status_code == 405
        for wrong in ("x", "0" * 31, "G" * 32, "0" * 33):
            assert (await client.get(f"{API}/{wrong}")).status_code == 400
