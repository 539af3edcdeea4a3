"""One HTTP service over two databases, and one that is down."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from commandbus.access.model import Scope
from commandbus.errors import DatabaseUnavailableError
from commandbus.http import HttpSettings, TokenAuth, create_app
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardMap, SpanningBus
from tests.http_world import app_of, client_of, problem

pytestmark = pytest.mark.postgres

#: Nobody listens there.
DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"
QUICK = Settings(connect_timeout_seconds=2)
API = "/api/v1"


def shards_of(dsn: str, empty_dsn: str, home: str = "one") -> ShardMap:
    return ShardMap(
        {"one": dsn, "two": empty_dsn, "down": DOWN},
        {"payments": "one", "mail": "two", "lost": "down", "approvals": "one"}, home=home,
    )  # fmt: skip


@pytest.fixture
async def client(dsn: str, empty_dsn: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        SpanningBus.over(shards_of(dsn, empty_dsn), settings=QUICK) as bus,
        client_of(app_of(bus)) as client,
    ):
        yield client


async def send(client: httpx2.AsyncClient, domain: str) -> httpx2.Response:
    body = {"domain": domain, "command_type": "Do", "command_id": str(new_id()), "data": {}}
    return await client.post(f"{API}/commands", json=body)


async def test_only_the_domains_of_a_shard_that_is_down_are_refused(
    client: httpx2.AsyncClient,
) -> None:
    for domain in ("payments", "mail"):
        assert (await send(client, domain)).status_code == 202
    refused = problem(await send(client, "lost"), 503, "UNAVAILABLE")
    assert "shard down does not answer" in refused["detail"]
    assert (await client.get("/readyz")).json()["checks"]["database"] == "ok"


async def test_merged_answers_name_the_shard_that_is_missing(client: httpx2.AsyncClient) -> None:
    for domain in ("payments", "mail", "payments"):
        await send(client, domain)
    found, cursor = [], None
    for _ in range(3):
        params = {"limit": "1"} if cursor is None else {"limit": "1", "cursor": cursor}
        page = await client.get(f"{API}/commands", params=params)
        assert page.headers["x-missing-shards"] == "down"
        found += page.json()["items"]
        cursor = page.json()["next_cursor"]
    assert sorted(each["domain"] for each in found) == ["mail", "payments", "payments"]
    for path in ("overview", "domains", "workers", "audit", "failure-groups", "doctor",
                 "schedules", "bulk", "loads", "chores", "audit/people", "approvals"):  # fmt: skip
        answer = await client.get(f"{API}/{path}")
        assert answer.status_code in {200, 404}, (path, answer.text)
        if answer.status_code == 200:
            assert answer.headers["x-missing-shards"] == "down", path
    # What is of one shard needs no other.
    for path in ("domains/mail/waiting", "settings"):
        assert "x-missing-shards" not in (await client.get(f"{API}/{path}")).headers, path
    metrics = (await client.get("/metrics")).text
    assert 'domain="mail"' in metrics
    assert 'domain="payments"' in metrics
    assert 'commandbus_shard_up{shard="one"} 1.0' in metrics
    assert 'commandbus_shard_up{shard="down"} 0.0' in metrics


async def test_what_is_of_one_database_is_refused_with_an_explanation(
    client: httpx2.AsyncClient,
) -> None:
    refused = problem(await client.get(f"{API}/audit/seals"), 409, "CONFLICT")
    assert "each database seals its own audit" in refused["detail"]


async def test_a_known_token_is_accepted_while_the_shard_that_has_it_is_down(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SpanningBus.over(shards_of(dsn, empty_dsn), settings=QUICK) as bus:
        made = await bus.tokens.create("ann", list(Scope))
        other = await bus.tokens.create("bob", list(Scope))
        now = 0.0
        auth = TokenAuth(bus.tokens, outage_seconds=60, clock=lambda: now)
        app = create_app(bus, auth=auth, settings=HttpSettings(), console=False)
        async with client_of(app, None) as client:
            ann = {"Authorization": f"Bearer {made.text}"}
            assert (await client.get(f"{API}/whoami", headers=ann)).status_code == 200

            async def down(name: str) -> None:
                raise DatabaseUnavailableError(f"shard {name!r}: gone")

            monkeypatch.setattr(bus.sharded, "answering", down)
            now = 30.0
            assert (await client.get(f"{API}/whoami", headers=ann)).status_code == 200
            bob = {"Authorization": f"Bearer {other.text}"}
            problem(await client.get(f"{API}/whoami", headers=bob), 503, "UNAVAILABLE")
            now = 61.0
            problem(await client.get(f"{API}/whoami", headers=ann), 503, "UNAVAILABLE")


async def test_the_console_says_that_it_is_not_there(dsn: str, empty_dsn: str) -> None:
    async with (
        SpanningBus.over(shards_of(dsn, empty_dsn), settings=QUICK) as bus,
        client_of(create_app(bus), None) as client,
    ):
        for path in ("/console", "/console/commands"):
            page = await client.get(path)
            assert page.status_code == 501
            assert "There is no console here" in page.text
