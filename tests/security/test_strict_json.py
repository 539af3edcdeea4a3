"""Bodies that two readers could understand in two ways are refused, wherever they stand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from commandbus.http.strict import AmbiguousJsonError, strict_json
from tests.http_world import client_of, problem
from tests.security.people import ORDERS_PATH, World, world_on

API = "/api/v1"
JSON = {"Content-Type": "application/json"}
#: The standard library guesses the encoding of bytes, and reads the last two without a complaint.
BODIES = (
    b'{"zz":1,"zz":2}', b'{"zz":NaN}', b"\xef\xbb\xbf{}", '{"zz":1,"zz":2}'.encode("utf-16-le"),
    "{}".encode("utf-32-be"),
)  # fmt: skip


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with world_on(dsn) as made:
        yield made


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}', b'{"a":{"b":[{"c":1,"c":2}]}}', b'[{"a":1,"\\u0061":2}]', b'{"":1,"":2}',
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":-1e999}',
        b'\xef\xbb\xbf{"a":1}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"\\udfff":1}',
        b'{"a":"\\ud800\\ud800"}', '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32"),
        '{"a":1}'.encode("utf-16-le"), '{"a":1}'.encode("utf-16-be"), '{"a":1}'.encode("utf-32-le"),
        '{"a":1}'.encode("utf-32-be"), b'{"a":1}\x00', b'{"a":"\x00"}',
        b'{"a":' + b"9" * 5_000 + b"}", b"[" * 100_000 + b"]" * 100_000,
    ],
)  # fmt: skip
def test_what_is_ambiguous_is_refused(body: bytes) -> None:
    with pytest.raises(AmbiguousJsonError):
        strict_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"A":2}', b'[{"a":1},{"a":1}]', b'{"a":{"a":{"a":1}}}', b'"\\ud83d\\ude00"',
        b"1e308", b"9007199254740993", '{"ä":"😀"}'.encode(), b'{"a":"\\\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_plain_is_read_as_the_standard_library_reads_it(body: bytes) -> None:
    assert strict_json(body) == json.loads(body)


async def test_every_body_of_the_service_is_read_strictly(world: World) -> None:
    """From the document: no route with a body takes the same key twice."""
    ids = {
        "domain": "shop", "command_id": world.child, "batch_id": world.batch, "user_id": "ann",
        "operation_id": world.bulk, "token_id": world.token, "sequence_no": 1,
        "name": "nightly", "ordering_key": "account:42", "command_type": "Work",
        "fingerprint": world.fingerprint,
    }  # fmt: skip
    checked = 0
    async with client_of(world.app) as client:
        for path, methods in world.app.openapi()["paths"].items():
            for method, operation in methods.items():
                if "requestBody" not in operation:
                    continue
                for body in BODIES:
                    answer = await client.request(
                        method, path.format(**ids), content=body, headers=JSON
                    )
                    assert answer.status_code == 400, f"{method} {path} {body!r} {answer.text}"
                    assert "cannot be used" in answer.json()["detail"], f"{method} {path}"
                    checked += 1
    assert checked > 60


async def test_a_submission_with_a_key_twice_says_so_and_creates_nothing(world: World) -> None:
    body = b'{"items":[{"n":1,"n":2}]}'
    async with client_of(world.app, "owner") as client:
        before = (await client.get(f"{API}/batches")).json()
        answer = await client.post(ORDERS_PATH, content=body, headers=JSON)
        assert "twice" in problem(answer, 400, "INVALID_BATCH_REQUEST")["detail"]
        assert (await client.get(f"{API}/batches")).json() == before


@pytest.mark.parametrize("value", [True, "5", 5.0, 5.5, [5], {}, "true"])
async def test_a_limit_is_a_number_and_nothing_that_looks_like_one(
    world: World, value: Any
) -> None:
    async with client_of(world.app) as client:
        url = f"{API}/admin/rate-limits/users/ann"
        for name in ("max_pending_batches", "max_pending_children", "cooldown_seconds"):
            problem(await client.put(url, json={name: value}), 400, "INVALID_REQUEST")
        url = f"{API}/admin/rate-limits/exemptions"
        body = {"user_id": "ann", "reason": "x", "expires_at": value}
        problem(await client.post(url, json=body), 400, "INVALID_REQUEST")
        body = {"domain": "shop", "command_type": "Work", "data": {}, "max_attempts": value}
        problem(await client.post(f"{API}/commands", json=body), 400, "INVALID_REQUEST")


async def test_unknown_fields_and_wrong_words_of_a_decision_are_refused(world: World) -> None:
    url = f"{API}/batches/{world.waiting}/decision"
    async with client_of(world.app) as client:
        for body in (
            {"decision": "approve", "extra": 1}, {"decision": True}, {"decision": 1},
            {"decision": "APPROVE"}, {"decision": ["approve"]},
            {"decision": "approve", "reason": 1},
        ):  # fmt: skip
            assert (await client.post(url, json=body)).status_code == 400, body
        found = (await client.get(f"{API}/batches/{world.waiting}")).json()
    assert found["status"] == "PENDING_APPROVAL"
