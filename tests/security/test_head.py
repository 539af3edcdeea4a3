"""HEAD: wherever there is GET, with the same headers, without a body, and without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from commandbus.http.waiting import LongPolls
from tests.http_world import client_of
from tests.security.people import DOMAIN, World, world_on

API = "/api/v1"


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with world_on(dsn) as made:
        yield made


async def test_every_get_has_a_head_with_the_same_headers_and_no_body(world: World) -> None:
    ids = {
        "domain": DOMAIN, "command_id": world.child, "batch_id": world.batch, "user_id": "ann",
        "operation_id": world.bulk, "token_id": world.token, "name": "nightly",
        "ordering_key": "account:42", "command_type": "Work",
        "fingerprint": world.fingerprint, "some_id": world.child,
    }  # fmt: skip
    changing = {"x-request-id", "ratelimit", "ratelimit-policy"}
    checked = 0
    async with client_of(world.app) as client:
        for path, methods in world.app.openapi()["paths"].items():
            assert "head" not in methods
            if "get" not in methods:
                continue
            url = path.format(**ids)
            got, head = await client.get(url), await client.head(url)
            assert head.status_code == got.status_code, path
            assert head.content == b""
            names = [set(each.headers) - changing for each in (got, head)]
            assert names[0] == names[1], path
            for name in names[0] - {"content-length"}:
                assert got.headers[name] == head.headers[name], f"{path} {name}"
            checked += 1
    assert checked > 30


async def test_a_head_of_what_cannot_be_read_is_refused_as_a_get_is(world: World) -> None:
    async with client_of(world.app, "stranger") as bob, client_of(world.app, None) as nobody:
        url = f"{API}/batches/{world.batch}"
        for client, status in ((bob, 404), (nobody, 401)):
            answer = await client.head(url)
            assert (answer.status_code, answer.content) == (status, b"")
        refused = await bob.head(f"{API}/replies/{DOMAIN}/lease")
        assert (refused.status_code, refused.content) == (405, b"")
        assert "POST" in refused.headers["allow"]


async def test_a_head_neither_waits_nor_holds_a_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a HEAD takes a place")

    monkeypatch.setattr(LongPolls, "attended", refuse)
    async with client_of(world.app) as client:
        # The batch waits for an approval, so a GET would wait, or stream, for minutes.
        waiting = {"Prefer": "wait=60"}
        for url in (
            f"{API}/batches/{world.waiting}",
            f"{API}/command-batches/{DOMAIN}/{world.shop.batch}",
            f"{API}/batches/{world.waiting}/events",
            f"{API}/exports/commands?domain={DOMAIN}",
        ):
            answer = await client.head(url, headers=waiting)
            assert answer.status_code == 200, url
            assert "preference-applied" not in answer.headers


async def test_the_etag_of_a_head_is_good_for_a_get(world: World) -> None:
    url = f"{API}/batches/{world.batch}"
    async with client_of(world.app, "owner") as client:
        tag = (await client.head(url)).headers["etag"]
        assert (await client.get(url, headers={"If-None-Match": tag})).status_code == 304
        assert (await client.head(url, headers={"If-None-Match": tag})).status_code == 304
