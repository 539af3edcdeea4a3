"""Errors as problems: one form, the right status, what to do next, and never a value."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import uuid4

import pytest
from fastapi import APIRouter

from commandbus import errors
from commandbus.access.model import Scope
from commandbus.governance import ItemError
from commandbus.http import create_app
from commandbus.http.auth.scopes import requires
from commandbus.http.problems import Kind, Problem, problem_of
from commandbus.http.routes.submissions import SubmissionRoute
from commandbus.testing import fake_bus, sent
from tests.http_world import app_of, client_of, problem

ID = uuid4()
ERRORS: list[tuple[Any, int, str]] = [
    (errors.InvalidInputError("no"), 400, "INVALID_REQUEST"),
    (errors.InvalidNameError("no"), 400, "INVALID_REQUEST"),
    (errors.InvalidBatchRequestError("no"), 400, "INVALID_BATCH_REQUEST"),
    (errors.BatchSizeExceededError(60, 50), 400, "BATCH_SIZE_EXCEEDED"),
    (errors.PermissionDeniedError("send"), 403, "PERMISSION_DENIED"),
    (errors.TicketNotFoundError(ID), 404, "NOT_FOUND"),
    (errors.CommandNotFoundError("shop", ID), 404, "NOT_FOUND"),
    (errors.BatchNotFoundError("shop", ID), 404, "NOT_FOUND"),
    (errors.BulkOperationNotFoundError(ID), 404, "NOT_FOUND"),
    (errors.DuplicateCommandError("shop", [ID]), 409, "CONFLICT"),
    (errors.InvalidOperationError("no"), 409, "CONFLICT"),
    (errors.PayloadLostError("no"), 409, "CONFLICT"),
    (errors.LeaseLostError("no"), 409, "CONFLICT"),
    (errors.DatabaseUnavailableError("password=x"), 503, "UNAVAILABLE"),
    (errors.SchemaTooOldError("no"), 503, "UNAVAILABLE"),
    (errors.DatabaseError("row (1, hunter2)"), 500, "INTERNAL_ERROR"),
    (errors.CommandBusError("hunter2"), 500, "INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS, ids=lambda each: type(each).__name__)
def test_each_error_of_the_library_has_its_problem(error: Any, status: int, code: str) -> None:
    found = problem_of(error)

    assert (found.kind.status, found.kind.name) == (status, code)
    assert "hunter2" not in found.detail
    assert ("Retry-After" in found.headers) == (status == 503)


def test_every_kind_has_a_title_and_a_status_of_an_error() -> None:
    for kind in Kind:
        assert kind.title
        assert 400 <= kind.status < 600
        assert Kind.of_status(kind.status).status == kind.status


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.INVALID_REQUEST), (404, Kind.NOT_FOUND), (418, Kind.INVALID_REQUEST),
        (422, Kind.INVALID_REQUEST), (429, Kind.RATE_LIMIT_EXCEEDED), (503, Kind.UNAVAILABLE),
    ],
)  # fmt: skip
def test_a_status_stands_for_its_general_kind(status: int, kind: Kind) -> None:
    assert Kind.of_status(status) is kind


def test_a_rate_limit_says_what_003_asks_for() -> None:
    error = errors.RateLimitExceededError("user_cooldown", "user", 1, 120, 77, contact_admin=True)

    found = problem_of(error)

    assert found.headers["Retry-After"] == "77"
    assert found.more == {
        "limit_type": "user_cooldown", "scope": "user", "current_value": 1, "max_value": 120,
        "retry_after": 77, "contact_admin": True,
    }  # fmt: skip


def test_items_are_named_by_index_and_pointer() -> None:
    error = errors.InvalidBatchRequestError(
        "two are wrong", [ItemError(3, "disk.size/gb", "too small"), ItemError(4, "", "not free")]
    )

    assert problem_of(error).more == {
        "errors": [
            {"pointer": "#/items/3/disk/size~1gb", "index": 3, "message": "too small"},
            {"pointer": "#/items/4", "index": 4, "message": "not free"},
        ],
        "error_count": 2,
    }


def test_a_thousand_wrong_items_are_cut_and_counted() -> None:
    wrong = [ItemError(n, "", "no") for n in range(1_000)]

    more = problem_of(errors.InvalidBatchRequestError("no", wrong)).more

    assert (len(more["errors"]), more["error_count"]) == (100, 1_000)


GOOD = {"domain": "shop", "command_type": "Work", "data": {}}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"domain": "S3CRET"}, "#/domain"),
        ({"domain": "a__b"}, "#/domain"),
        ({"command_type": "S3CRET!"}, "#/command_type"),
        ({"data": "S3CRET"}, "#/data"),
        ({"command_id": "S3CRET"}, "#/command_id"),
        ({"max_attempts": 0}, "#/max_attempts"),
        ({"status": "COMPLETED"}, "#/status"),
        ({"lease_epoch": 7}, "#/lease_epoch"),
    ],
)
async def test_a_wrong_or_unknown_field_is_named_and_its_value_is_not(
    change: dict[str, Any], pointer: str
) -> None:
    bus = fake_bus()
    async with client_of(app_of(bus)) as client:
        answer = await client.post("/api/v1/commands", json=GOOD | change)

    body = problem(answer, 400, "INVALID_REQUEST")
    assert [each["pointer"] for each in body["errors"]] == [pointer]
    assert "S3CRET" not in answer.text
    assert sent(bus, "shop") == []


@pytest.mark.parametrize(
    "data",
    [
        {"n": 2**60}, {"x": "\x00"}, {"\x00": 1}, {"x": "x" * 300_000},
    ],
)  # fmt: skip
async def test_a_payload_that_cannot_be_stored_is_refused_by_the_library_s_own_rules(
    data: Any,
) -> None:
    bus = fake_bus()
    async with client_of(app_of(bus)) as client:
        problem(await client.post("/api/v1/commands", json=GOOD | {"data": data}), 400,
                "INVALID_REQUEST")  # fmt: skip
    assert sent(bus, "shop") == []


@pytest.mark.parametrize("content", [b"", b"{", b"nope", b"[1,", b"\xff\xfe", b"{}x", b"NaN"])
async def test_what_is_not_json_is_refused(content: bytes) -> None:
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.post(
            "/api/v1/commands", content=content, headers={"Content-Type": "application/json"}
        )

    problem(answer, 400, "INVALID_REQUEST")


async def test_numbers_that_json_does_not_have_are_refused() -> None:
    bus = fake_bus()
    content = b'{"domain":"shop","command_type":"Work","data":{"x":NaN}}'
    async with client_of(app_of(bus)) as client:
        answer = await client.post(
            "/api/v1/commands", content=content, headers={"Content-Type": "application/json"}
        )

    problem(answer, 400, "INVALID_REQUEST")
    assert sent(bus, "shop") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=201", "limit=x", "cursor=%00", "cursor=zzz", "domain=No", "status=NO",
        "created_after=yesterday", "created_after=2026-01-01T00:00:00", "command_id=1",
        "created_after=2026-01-02T00:00:00Z&created_before=2026-01-01T00:00:00Z",
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_refused(query: str) -> None:
    async with client_of(app_of(fake_bus())) as client:
        problem(await client.get(f"/api/v1/commands?{query}"), 400, "INVALID_REQUEST")


async def test_a_method_that_a_path_does_not_know_says_which_it_does() -> None:
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.delete("/api/v1/whoami")

    problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET"


async def test_a_submission_has_a_code_of_its_own_for_a_wrong_form() -> None:
    router = APIRouter(route_class=SubmissionRoute)

    @router.post("/things")
    async def make(items: list[int], caller: Annotated[Any, requires(Scope.SEND)]) -> None: ...

    async with client_of(create_app(fake_bus(), routers=(router,)), None) as client:
        answer = await client.post("/api/v1/things", json=[1, "x"])

    assert problem(answer, 400, "INVALID_BATCH_REQUEST")["errors"][0]["pointer"] == "#/1"


async def test_a_problem_can_be_raised_anywhere() -> None:
    app = app_of(fake_bus())

    @app.get("/raise")
    async def refuse() -> None:
        raise Problem(Kind.CONFLICT, "not now", {"X-More": "1"}, {"answer": 42})

    async with client_of(app) as client:
        answer = await client.get("/raise")

    assert problem(answer, 409, "CONFLICT")["answer"] == 42
    assert answer.headers["x-more"] == "1"
