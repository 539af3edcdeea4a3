"""Cursors: the service takes what it gave, from the one it gave it to, for the same search."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

import httpx2
import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidInputError
from commandbus.http.context import RequestInfo
from commandbus.http.reading import CursorMiddleware
from commandbus.paging import SIGN, cursor_of, position_of, read_key, read_moment, read_number
from tests.http_world import ADMIN, app_of, caller, client_of, problem
from tests.security.people import DOMAIN, ROOMY, World, world_on

API = "/api/v1"
#: Every listing that has a cursor, with enough in it for a second page.
LISTINGS = [
    "/commands?domain=shop", "/audit?domain=shop", "/troubleshooting?domain=shop",
    "/troubleshooting/shop", "/bulk-operations?domain=shop", "/command-batches/shop",
    "/command-batches/shop/{raw}/commands", "/commands/shop/{done}/audit", "/batches",
    "/batches/{batch}", "/batches/{batch}/children", "/orders/batch/{batch}", "/tokens",
    "/bulk-operations/{bulk}/items",
]  # fmt: skip
#: Positions that no listing gives: wrong types, out of range, far too long.
POSITIONS: list[list[Any]] = [
    [], [None], [True], [-1], [2**31], [2**62], [2**63 - 1], [2**63], [2**64], [10**400],
    [1.5], ["1"],
    ["x" * 5_000], [[]], [{}], ["2026-01-01T00:00:00", str(uuid4())],
    ["2026-01-01T00:00:00+00:00:00.5", str(uuid4())], ["0001-01-01T00:00:00+14:00", str(uuid4())],
    ["9999-12-31T23:59:59-14:00", str(uuid4())], ["2026-01-01T00:00:00+00:00", "zz"],
    ["2026-01-01T00:00:00+00:00", 7], ["2026-01-01T00:00:00+00:00", None], [None, None],
    [1, None, None], [1, "2026-01-01T00:00:00+00:00", str(uuid4())], [2**31 - 1, None, None],
    [1, 2, 3, 4],
]  # fmt: skip


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with world_on(dsn) as made:
        yield made


def urls(world: World) -> list[str]:
    ids = {
        "raw": world.shop.batch, "done": world.shop.done, "batch": world.batch, "bulk": world.bulk,
    }  # fmt: skip
    return [f"{API}{path}".format(**ids) for path in LISTINGS]


def listing(url: str) -> str:
    """Some listings have two addresses."""
    plain = url.replace("/troubleshooting?domain=", "/troubleshooting/")
    return plain.replace("/orders/batch/", "/batches/").removesuffix("/children")


async def get(client: httpx2.AsyncClient, url: str, **params: str) -> httpx2.Response:
    address, _, query = url.partition("?")
    return await client.get(address, params=dict(parse_qsl(query)) | params)


async def cursors(world: World, who: str = "root") -> dict[str, str]:
    """The first cursor of each listing that has two pages."""
    found = {}
    async with client_of(world.app, who) as client:
        for url in urls(world):
            page = (await get(client, url, limit="1")).json()
            if page["next_cursor"] is not None:
                found[url] = page["next_cursor"]
    return found


def key_of(bus: CommandBus) -> bytes:
    return bus.tokens.key_for("cursor")


async def test_a_cursor_leads_on_in_its_own_listing_and_nowhere_else(world: World) -> None:
    await world.bus.tokens.create("ada", ["read"])
    given = await cursors(world)
    assert len(given) >= len(LISTINGS) - 3
    async with client_of(world.app) as client:
        for url, cursor in given.items():
            for other in urls(world):
                answer = await get(client, other, limit="1", cursor=cursor)
                if listing(other) == listing(url):
                    assert answer.status_code == 200, f"{url} {other}"
                else:
                    problem(answer, 400, "INVALID_REQUEST")


async def test_the_cursor_of_another_user_is_refused(world: World) -> None:
    app = app_of(world.bus, ROOMY, eva=caller("admin", user="eva"))
    given = await cursors(world)
    async with client_of(app, "eva") as client:
        for url, cursor in given.items():
            problem(
                await get(client, url, limit="1", cursor=cursor),
                400, "INVALID_REQUEST",
            )  # fmt: skip


async def test_another_process_with_the_same_pepper_goes_on(world: World, dsn: str) -> None:
    given = await cursors(world)
    async with CommandBus.connect(dsn) as second, client_of(app_of(second)) as client:
        url = f"{API}/audit?domain=shop"
        answer = await get(client, url, limit="1", cursor=given[url])
    assert answer.status_code == 200


async def test_whatever_is_changed_in_a_cursor_it_is_refused_and_nothing_fails(
    world: World,
) -> None:
    given = await cursors(world)
    async with client_of(world.app) as client:
        for url, cursor in given.items():
            plain, _, signature = cursor.rpartition(".")
            values = json.loads(base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4)))
            forged = [
                base64.urlsafe_b64encode(json.dumps([values[0], *position]).encode()).decode()
                for position in POSITIONS
            ]
            bad = [
                plain, f"{plain}.", f".{signature}", f"{plain}.{signature[:-1]}0x",
                cursor.upper(), cursor + "A", "", ".", "..", "ä", "\ud800".encode(
                    "utf-8", "surrogatepass").decode("latin-1"), "x" * 999, "x" * 5_000,
                *(f"{text}.{signature}" for text in forged), *forged,
            ]  # fmt: skip
            for text in bad:
                answer = await get(client, url, limit="1", cursor=text)
                problem(answer, 400, "INVALID_REQUEST")


async def test_even_a_signed_position_that_no_listing_gives_is_refused(world: World) -> None:
    """Whoever knows the key: still no error of the database, and nothing that a search hides."""
    given = await cursors(world)
    signs: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        signs.append(SIGN.get())

    scope = {"type": "http", "state": {"commandbus": RequestInfo("r", ADMIN)}}
    await CursorMiddleware(inner, lambda: key_of(world.bus))(scope, None, None)  # type: ignore[arg-type]
    (sign,) = signs
    async with client_of(world.app) as client:
        for url, cursor in given.items():
            plain = cursor.rpartition(".")[0]
            digest = json.loads(base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4)))[0]
            for position in POSITIONS:
                text = json.dumps([digest, *position])
                forged = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
                answer = await get(client, url, limit="1", cursor=f"{forged}.{sign(forged)}")
                assert answer.status_code in {200, 400}, f"{url} {position} {answer.text}"


def test_a_library_cursor_is_plain_bound_and_never_an_error_of_another_kind() -> None:
    cursor = cursor_of([5], ("numbers", "a"))
    assert position_of(cursor, ("numbers", "a"), read_number) == 5
    with pytest.raises(InvalidInputError, match="another search"):
        position_of(cursor, ("numbers", "b"), read_number)
    for read in (read_number, read_key, read_moment):
        for position in POSITIONS:
            text = cursor_of(position, "x")
            try:
                position_of(text, "x", read)
            except InvalidInputError:
                continue


async def test_a_cursor_of_a_stranger_shows_a_stranger_nothing_more(world: World) -> None:
    async with client_of(world.app, "stranger") as client:
        for path in ("commands", "audit"):
            params: dict[str, Any] = {"domain": DOMAIN, "limit": 2}
            while True:
                page = (await client.get(f"{API}/{path}", params=params)).json()
                assert not {w for w in world.hidden if w in json.dumps(page["items"])}
                if page["next_cursor"] is None:
                    break
                params["cursor"] = page["next_cursor"]
