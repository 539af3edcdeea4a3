"""What stands before the app: each limit at n and n + 1, and nothing reaches the bus beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from commandbus.http import HttpSettings
from commandbus.http.waiting import wait_of
from commandbus.testing import fake_bus, sent
from tests.http_world import app_of, client_of, problem

JSON = {"Content-Type": "application/json"}
URL = "/api/v1/commands"


def body_of(size: int) -> bytes:
    start = b'{"domain":"shop","command_type":"Work","data":{"x":"'
    return start + b"x" * (size - len(start) - 3) + b'"}}'


async def chunks(content: bytes, size: int = 500) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_may_be_as_large_as_the_limit_and_no_larger(is_chunked: bool) -> None:
    bus = fake_bus()
    app = app_of(bus, HttpSettings(max_body_bytes=2_048))

    def content(size: int) -> Any:
        return chunks(body_of(size)) if is_chunked else body_of(size)

    async with client_of(app) as client:
        fits = await client.post(URL, content=content(2_048), headers=JSON)
        too_large = await client.post(URL, content=content(2_049), headers=JSON)

    assert fits.status_code == 202
    problem(too_large, 413, "PAYLOAD_TOO_LARGE")
    assert too_large.headers["connection"] == "close"
    assert len(sent(bus, "shop")) == 1


async def test_a_body_that_is_announced_too_large_is_not_read_at_all() -> None:
    app = app_of(fake_bus(), HttpSettings(max_body_bytes=2_048))
    messages: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        messages.append(message)

    await app(_scope([(b"content-length", b"1000000")]), receive, send)

    assert messages[0]["status"] == 413


def _scope(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": URL, "raw_path": URL.encode(), "query_string": b"",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        "headers": [
            (b"host", b"127.0.0.1"), (b"authorization", b"Bearer root"),
            (b"content-type", b"application/json"), *headers,
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"5"), (b"content-length", b"6")],
        [(b"content-length", b"five")],
        [(b"content-length", "٣".encode())],
    ],
)
async def test_a_length_that_can_be_read_in_two_ways_is_refused(headers: Any) -> None:
    messages: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        messages.append(message)

    await app_of(fake_bus())(_scope(headers), receive, send)

    assert messages[0]["status"] == 400


async def test_a_client_that_goes_away_half_way_leaves_nothing() -> None:
    bus = fake_bus()
    messages: list[Any] = []
    parts = [
        {"type": "http.request", "body": body_of(100)[:50], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        messages.append(message)

    await app_of(bus)(_scope([(b"content-length", b"100")]), receive, send)

    assert messages == []
    assert sent(bus, "shop") == []


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    bus = fake_bus()
    app = app_of(bus, HttpSettings(receive_timeout_seconds=0.05))

    async def slowly() -> AsyncIterator[bytes]:
        yield body_of(100)[:50]
        await asyncio.Event().wait()

    async with client_of(app) as client:
        answer = await client.post(URL, content=slowly(), headers=JSON)

    problem(answer, 408, "REQUEST_TIMEOUT")
    assert answer.headers["connection"] == "close"


def nested(depth: int) -> bytes:
    # The body and `data` are two of them.
    inner = b'{"a":' * (depth - 3) + b"{}" + b"}" * (depth - 3)
    return b'{"domain":"shop","command_type":"Work","data":{"x":%s}}' % inner


async def test_json_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    app = app_of(fake_bus(), HttpSettings(max_json_depth=10))

    async with client_of(app) as client:
        fits = await client.post(URL, content=nested(10), headers=JSON)
        too_deep = await client.post(URL, content=nested(11), headers=JSON)
        absurd = await client.post(URL, content=b"[" * 100_000, headers=JSON)

    assert fits.status_code == 202
    assert "nested more than 10 deep" in problem(too_deep, 400, "INVALID_REQUEST")["detail"]
    problem(absurd, 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "text",
    [b'"[[[[[[[[[[[[[[["', b'"\\"[[[[[[[[[[[[[["', b"[" + b"[],{}," * 50 + b"[]]"],
)
async def test_brackets_in_texts_and_side_by_side_are_no_depth(text: bytes) -> None:
    app = app_of(fake_bus(), HttpSettings(max_json_depth=5))
    content = b'{"domain":"shop","command_type":"Work","data":{"x":%s}}' % text

    async with client_of(app) as client:
        assert (await client.post(URL, content=content, headers=JSON)).status_code == 202


@pytest.mark.parametrize(
    "content",
    [b'"' * 200_000, b'"\\' * 100_000, b"[" * 5 + b'"' + b"\\" * 200_001, b'["\\"' * 100_000],
)
@pytest.mark.timeout(10)
async def test_text_that_never_ends_is_refused_at_once(content: bytes) -> None:
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.post(URL, content=b"[[[[[" * 9 + content, headers=JSON)

    problem(answer, 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_that_is_not_said_to_be_json_is_refused(headers: dict[str, str]) -> None:
    bus = fake_bus()
    async with client_of(app_of(bus)) as client:
        answer = await client.post(URL, content=body_of(100), headers=headers)

    problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE")
    assert sent(bus, "shop") == []


async def test_headers_may_be_as_many_and_as_large_as_the_limit_and_no_more() -> None:
    app = app_of(fake_bus(), HttpSettings(max_header_bytes=2_000, max_header_count=20))

    async with client_of(app) as client:
        fits = await client.get("/livez", headers={"X-A": "x" * 1_000})
        too_large = await client.get("/livez", headers={"X-A": "x" * 2_000})
        too_many = await client.get("/livez", headers={f"X-{n}": "x" for n in range(20)})
        too_long = await client.get(f"/api/v1/audit?actor={'x' * 2_000}")

    assert fits.status_code == 200
    for answer in (too_large, too_many, too_long):
        problem(answer, 431, "HEADERS_TOO_LARGE")


async def test_more_requests_at_once_than_the_limit_are_sent_away_but_health_is_answered() -> None:
    bus = fake_bus()
    settings = HttpSettings(max_concurrency=2, max_long_polls=1, user_share=1)
    app = app_of(bus, settings)
    held, go_on = asyncio.Semaphore(0), asyncio.Event()

    @app.get("/api/v1/slow")
    async def slow() -> None:
        held.release()
        await go_on.wait()

    async with client_of(app) as client, client_of(app, "other") as other:
        waiting = [asyncio.create_task(client.get("/api/v1/slow")) for _ in range(2)]
        for _ in waiting:
            await held.acquire()
        wrong = await other.get("/api/v1/whoami")
        refused = await client.get("/api/v1/whoami")
        alive = await client.get("/livez")
        go_on.set()
        await asyncio.gather(*waiting)
        served = await client.get("/api/v1/whoami")

    problem(wrong, 401, "UNAUTHENTICATED")
    problem(refused, 429, "RATE_LIMIT_EXCEEDED")
    assert refused.headers["retry-after"] == "2"
    assert (alive.status_code, served.status_code) == (200, 200)


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0), ("", 0), ("wait=5", 5), ("respond-async, wait=7", 7), ("wait=600", 30),
        ("wait=-1", 0), ("await=5", 0), ('Wait = "3"', 3), ("wait=abc", 0),
    ],
)  # fmt: skip
def test_a_wait_is_read_from_prefer_and_cut(prefer: str | None, seconds: float) -> None:
    assert wait_of(prefer, 30) == seconds
