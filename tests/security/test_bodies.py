"""No body blocks the event loop, whatever is in it; and who has not said who it is sends none."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from fastapi.routing import iter_route_contexts

from commandbus.http import HttpSettings
from commandbus.http.json_cost import check_cost
from commandbus.http.problems import Problem
from commandbus.http.schemas.base import MAX_FIELDS, Form
from commandbus.testing import fake_bus, sent
from tests.http_world import app_of, client_of, problem
from tests.security.loop_steps import measured_steps

JSON = {"Content-Type": "application/json"}
URL = "/api/v1/commands"
BATCHES = "/api/v1/command-batches/shop"
RESUME = f"{BATCHES}/00000000-0000-4000-8000-000000000000/resume"
SIZE = HttpSettings().max_body_bytes
#: Seconds of CPU. A calm machine needs a quarter of it.
LONGEST_STEP = 0.2


def filled(start: bytes, unit: bytes, end: bytes) -> bytes:
    """As many units as fit into one body."""
    count = (SIZE - len(start) - len(end)) // (len(unit) + 1)
    return start + b",".join([unit] * count) + end


def fields() -> bytes:
    return b",".join(b'"f%d":1' % number for number in range(SIZE // 12))


COMMAND = b'{"domain":"shop","command_type":"Work","data":{"x":'
#: The worst that fits into one body, and how it is answered.
WORST: dict[str, tuple[str, bytes, int]] = {
    "unknown fields": (URL, b"{" + fields() + b"}", 400),
    "fields of a payload": (URL, COMMAND + b"{" + fields() + b"}}}", 400),
    "small numbers": (URL, filled(COMMAND + b"[", b"1", b"]}}"), 400),
    "empty texts": (URL, filled(COMMAND + b"[", b'""', b"]}}"), 400),
    "empty objects": (URL, filled(COMMAND + b"[", b"{}", b"]}}"), 400),
    "nests side by side": (URL, filled(COMMAND + b"[", b"[" * 30 + b"]" * 30, b"]}}"), 400),
    "a nest without an end": (URL, b"[" * SIZE, 400),
    "escapes": (URL, COMMAND + b'"' + b"\\u00e9" * (SIZE // 6 - 20) + b'"}}', 400),
    "escaped quotes": (URL, COMMAND + b'"' + b'\\"' * (SIZE // 2 - 50) + b'"}}', 400),
    "quotes": (URL, b'"' * SIZE, 400),
    "a number of 100,000 digits": (URL, COMMAND + b"1" * 100_000 + b"}}", 400),
    "numbers of 4,300 digits": (URL, filled(COMMAND + b"[", b"1" * 4_300, b"]}}"), 400),
    "nearly numbers": (URL, COMMAND + (b"1" * 399 + b"x") * 2_600 + b"}}", 400),
    "a fraction": (URL, COMMAND + b"1." + b"1" * (SIZE - 100) + b"}}", 400),
    "a long name": (URL, b'{"' + b"k" * (SIZE - 100) + b'":1}', 400),
    "wrong commands": (BATCHES, filled(b'{"commands":[', b"{}", b"]}"), 400),
    "10,000 wrong commands": (BATCHES, b'{"commands":[' + b",".join([b"{}"] * 10_000) + b"]}", 400),
    "unknown fields of a command": (BATCHES, b'{"commands":[{' + fields() + b"}]}", 400),
    "rows that are none": (RESUME, b'{"rows":[' + b",".join([b"1"] * 90_000) + b"]}", 400),
    "receipts": ("/api/v1/replies/shop/ack", filled(b'{"replies":[', b"{}", b"]}"), 400),
    "10,000 commands": (
        BATCHES,
        b'{"commands":[' + b",".join([b'{"command_type":"Work","data":{"n":1}}'] * 10_000) + b"]}",
        202,
    ),
}


@pytest.mark.parametrize("name", WORST)
async def test_no_body_keeps_the_event_loop_busy_for_long(name: str) -> None:
    url, content, status = WORST[name]
    assert len(content) <= SIZE
    async with client_of(app_of(fake_bus())) as client:
        await client.get("/api/v1/whoami")
        with measured_steps() as steps:
            answer = await asyncio.create_task(client.post(url, content=content, headers=JSON))
            await asyncio.sleep(0)
    assert answer.status_code == status, answer.text[:500]
    if name != "10,000 commands":  # the store in memory keeps all of them in one step
        assert steps.longest < LONGEST_STEP
        assert len(answer.content) < 10_000


async def test_memory_is_given_back_after_the_worst_bodies() -> None:
    async with client_of(app_of(fake_bus(), HttpSettings(max_user_body_bytes=10**9))) as client:

        async def all_of_them() -> None:
            for name in ("unknown fields", "small numbers", "wrong commands", "a long name"):
                url, content, _ = WORST[name]
                await client.post(url, content=content, headers=JSON)

        await all_of_them()
        tracemalloc.start()
        try:
            await all_of_them()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(3):
                await all_of_them()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 1_000_000


# -- the cost of a document


def cost(text: bytes, depth: int = 5, values: int = 10) -> str:
    try:
        check_cost(text, depth, values)
    except Problem as refused:
        return refused.detail
    return "fits"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[1,2,3,4,5,6,7,8,9,0]", "fits"),
        (b"[1,2,3,4,5,6,7,8,9,0,1]", "values"),
        (b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":0}', "fits"),
        (b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":0,"k":1}', "values"),
        (b'["' + b"," * 100 + b'"]', "fits"),
        (b'["\\"' + b"[,{" * 100 + b'"]', "fits"),
        (b'["\\\\",1,2,3,4,5,6,7,8,9]', "fits"),
        (b'["\\\\",1,2,3,4,5,6,7,8,9,0,1]', "values"),
        (b'"' * 100 + b"," * 20, "values"),
        (b"[[[[[1]]]]]", "fits"),
        (b"[[[[[[1]]]]]]", "deep"),
        (b'[{"a":[{"b":[1]}]}]', "fits"),
        (b'[{"a":[{"b":[{}]}]}]', "deep"),
        (b"[[[[[[", "deep"),
        (b"[" + b"1" * 400 + b"]", "fits"),
        (b"[" + b"1" * 401 + b"]", "number"),
        (b"[1." + b"1" * 399 + b"]", "number"),
        (b'["' + b"1" * 4_000 + b'"]', "fits"),
    ],
)
def test_the_cost_of_a_document_is_found_without_reading_it(text: bytes, says: str) -> None:
    assert says in cost(text)


def documents() -> Iterator[Any]:
    yield from ([], {}, [[]], [{}], {"a": []}, "x", 1, None)
    yield [1, [2, [3, {"a": "[[[[,,,,"}]]]
    yield {"a": {"b": {"c": {"d": ['"', "\\", '\\"', ","]}}}}


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_container = isinstance(value, dict | list)
    return is_container + max((depth_of(each) for each in inner), default=0)


@pytest.mark.parametrize("document", list(documents()))
def test_depth_is_that_of_the_document(document: Any) -> None:
    text, depth = json.dumps(document).encode(), depth_of(document)
    assert cost(text, depth=max(depth, 0), values=1_000) == "fits"
    if depth:
        assert "deep" in cost(text, depth=depth - 1, values=1_000)


# -- forms


def forms(kind: type[Form] = Form) -> Iterator[type[Form]]:
    for each in kind.__subclasses__():
        yield each
        yield from forms(each)


def test_every_list_in_a_form_stops_at_its_first_error() -> None:
    app_of(fake_bus())
    found = 0
    for form in forms():
        # Those of batch types only describe: what is validated is their base.
        if not form.__module__.startswith("commandbus") or form.__name__.startswith("Submit"):
            continue
        for name, field in form.model_fields.items():
            parts = get_args(field.annotation)
            kinds = [each for each in (field.annotation, *parts) if get_origin(each) is list]
            if not kinds or get_args(kinds[0]) == (Any,):
                continue
            found += 1
            described = [
                *field.metadata,
                *(m for p in parts for m in getattr(p, "__metadata__", ())),
            ]
            assert "fail_fast=True" in repr(described), f"{form.__name__}.{name}"
    assert found >= 4


async def test_an_object_with_too_many_fields_is_one_error() -> None:
    body = {f"f{number}": 1 for number in range(MAX_FIELDS + 1)}
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.post(URL, json=body)
        payload = {"domain": "shop", "command_type": "Work", "data": body}
        fits = await client.post(URL, json=payload)
    assert len(problem(answer, 400, "INVALID_REQUEST")["errors"]) == 1
    assert fits.status_code == 202, "a payload has the fields that it has"


# -- without a caller


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json", "/nowhere", "/", URL])
@pytest.mark.parametrize("headers", [{"content-length": "5"}, {"transfer-encoding": "chunked"}])
async def test_nobody_asks_for_the_body_of_a_request_without_credentials(
    path: str, headers: dict[str, str]
) -> None:
    bus = fake_bus()
    app = app_of(bus)
    messages: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        messages.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST" if path == URL else "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(b"host", b"127.0.0.1"), *raw],
    }  # fmt: skip
    await app(scope, receive, send)

    assert messages[0]["status"] in {200, 401, 404, 503}
    assert (b"connection", b"close") in messages[0]["headers"], "the rest of it is not waited for"
    assert app.state.commandbus.budgets.concurrency.taken == 0
    assert sent(bus, "shop") == []


def test_every_route_with_a_body_is_behind_the_gate() -> None:
    app = app_of(fake_bus())
    for context in iter_route_contexts(app.routes):
        route: Any = context
        if getattr(route, "body_field", None) is not None:
            assert str(route.path).startswith("/api/"), route.path
