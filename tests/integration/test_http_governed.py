"""Governed batches over HTTP: each endpoint of 003 at its path, and what each of them refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus.demo import vms
from tests.http_world import problem
from tests.integration.http_farm import (
    APPROVALS,
    BATCHES,
    POWER,
    VMS,
    Farm,
    create,
    ended,
    farm_on,
    on_machines,
)

LOOSE: dict[str, Any] = {"max_user_pending_batches": 50, "max_user_pending_children": 500}


@pytest.fixture
async def farm(dsn: str) -> AsyncIterator[Farm]:
    async with farm_on(dsn, **LOOSE) as opened:
        yield opened


async def counted(conn: psycopg.AsyncConnection[Any]) -> tuple[Any, ...]:
    """How many batches, commands and events there are."""
    row = await (
        await conn.execute(
            "select (select count(*) from commandbus.command_bus_batch),"
            " (select count(*) from commandbus.command_bus_command),"
            " (select count(*) from commandbus.command_bus_audit)"
        )
    ).fetchone()
    assert row is not None
    return row


async def test_machines_are_created_switched_and_after_an_approval_deleted(farm: Farm) -> None:
    async with farm.workers(), farm.client("ada") as ada, farm.client("petra") as petra:
        made = await ada.post(VMS, json=create("a", "b"))
        assert (await ended(ada, made.json()["status_url"]))["status"] == "COMPLETED"

        switched = await ada.post(POWER, json=on_machines("start", "a", "b"))
        assert switched.status_code == 202
        url = switched.headers["location"]
        assert url.startswith(f"{VMS}/")
        assert (await ended(ada, url))["success_count"] == 2

        asked = await ada.post(VMS, json=on_machines("delete", "a"))
        ticket = asked.json()
        assert ticket["status"] == "PENDING_APPROVAL"
        assert ticket["links"]["decision"] == f"{BATCHES}/{ticket['batch_id']}/decision"
        decision = {"ticket_id": ticket["batch_id"], "decision": "approve"}
        approval = await petra.post(APPROVALS, json={"items": [decision]})
        assert approval.status_code == 202
        assert approval.json()["batch_type"] == "BATCH_APPROVE"
        assert (await ended(petra, approval.headers["location"]))["status"] == "COMPLETED"
        gone = await ended(ada, ticket["status_url"])

    assert (gone["status"], gone["decided_by"]) == ("COMPLETED", "petra")
    assert [(each["name"], each["is_running"]) for each in await vms.list_machines(farm.bus)] == [
        ("b", True)
    ]


async def test_a_submission_tells_where_to_look_and_when(farm: Farm) -> None:
    async with farm.client("ada") as ada:
        made = await ada.post(VMS, json=create("a", reason="needed"))
        shown = (await ada.get(made.json()["status_url"])).json()

    body = made.json()
    assert made.status_code == 202
    assert made.headers["location"] == body["status_url"] == f"{VMS}/{body['batch_id']}"
    assert made.headers["retry-after"] == str(body["retry_after_seconds"]) == "2"
    assert '"user_pending_batches";r=49' in made.headers["ratelimit"]
    assert '"user_pending_children";q=500' in made.headers["ratelimit-policy"]
    assert (shown["reason"], shown["created_by"], shown["child_count"]) == ("needed", "ada", 1)
    assert [(c["sequence_no"], c["status"]) for c in shown["children"]] == [(1, "PENDING")]


async def test_a_repeat_gets_the_batch_that_is_there(
    farm: Farm, conn: psycopg.AsyncConnection[Any]
) -> None:
    key = str(uuid4())
    async with farm.client("ada") as ada:
        first = await ada.post(VMS, json=create("a", request_id=key))
        before = await counted(conn)
        again = await ada.post(VMS, json=create("a"), headers={"Idempotency-Key": key})
        quoted = await ada.post(VMS, json=create("a"), headers={"Idempotency-Key": f'"{key}"'})
        general = await ada.post(
            BATCHES,
            json={"batch_type": "BATCH_CREATE", "items": [{"name": "a"}], "request_id": key},
        )
        other = await ada.post(VMS, json=create("b", request_id=key))
        both = await ada.post(
            VMS, json=create("a", request_id=key), headers={"Idempotency-Key": str(uuid4())}
        )

    for each in (again, quoted, general):
        assert each.status_code == 202
        assert each.json()["batch_id"] == first.json()["batch_id"]
        assert each.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert "with another body" in problem(other, 400, "INVALID_BATCH_REQUEST")["detail"]
    assert "differ" in problem(both, 400, "INVALID_BATCH_REQUEST")["detail"]
    assert await counted(conn) == before


GOOD = {"name": "good"}


WRONG: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"operation": "create", "items": []}, "INVALID_BATCH_REQUEST", {}),
    ({"operation": "create"}, "INVALID_BATCH_REQUEST", {}),
    ({"operation": "create", "items": {}}, "INVALID_BATCH_REQUEST", {}),
    ({"operation": "explode", "items": [GOOD]}, "INVALID_BATCH_REQUEST", {}),
    ({"items": [GOOD]}, "INVALID_BATCH_REQUEST", {}),
    ({**create("good"), "surprise": 1}, "INVALID_BATCH_REQUEST", {}),
    ({**create("good"), "request_id": "not-a-uuid"}, "INVALID_BATCH_REQUEST", {}),
    (create(*(f"vm{n}" for n in range(11))), "BATCH_SIZE_EXCEEDED", {"max_value": 10}),
    ({"operation": "create", "items": [GOOD, 3]}, "INVALID_BATCH_REQUEST", {"index": 1}),
    (
        {"operation": "create", "items": [GOOD, {"name": "x", "cpu": "hunter2"}]},
        "INVALID_BATCH_REQUEST",
        {"index": 1, "pointer": "#/items/1/cpu"},
    ),
    (create("good", "good"), "INVALID_BATCH_REQUEST", {"pointer": "#/items/1/name"}),
]


async def test_what_is_wrong_is_refused_with_its_place_and_nothing_is_created(
    farm: Farm, conn: psycopg.AsyncConnection[Any]
) -> None:
    before = await counted(conn)
    async with farm.client("ada") as ada:
        for body, code, expected in WRONG:
            answer = await ada.post(VMS, json=body)
            found = problem(answer, 400, code)
            assert "hunter2" not in answer.text
            merged = {**found, **(found.get("errors") or [{}])[0]}
            assert {name: merged.get(name) for name in expected} == expected, body
    assert await counted(conn) == before


async def test_a_batch_of_any_type_goes_by_its_name(farm: Farm) -> None:
    async with farm.client("ada") as ada, farm.client("petra") as petra:
        made = await ada.post(
            BATCHES, json={"batch_type": "BATCH_CREATE", "items": [{"name": "a"}]}
        )
        unknown = await ada.post(BATCHES, json={"batch_type": "BATCH_CREATED", "items": [{}]})
        denied = await ada.post(BATCHES, json={"batch_type": "BATCH_APPROVE", "items": [{}]})
        only_approves = await petra.post(
            BATCHES, json={"batch_type": "BATCH_CREATE", "items": [{"name": "x"}]}
        )
        types = (await ada.get("/api/v1/batch-types")).json()["items"]

    assert made.headers["location"] == f"{BATCHES}/{made.json()['batch_id']}"
    assert "BATCH_CREATE" in problem(unknown, 400, "INVALID_BATCH_REQUEST")["detail"]
    assert problem(denied, 403, "PERMISSION_DENIED")["scope"] == "approve"
    assert problem(only_approves, 403, "PERMISSION_DENIED")["scope"] == "submit"
    (found,) = [each for each in types if each["name"] == "BATCH_CREATE"]
    assert (found["submit_url"], found["operation"], found["max_size"]) == (VMS, "create", 10)
    assert found["item_schema"]["required"] == ["name"]
    assert found["example"]["name"] == "web-1"


async def test_batches_of_others_and_of_another_path_are_not_there(farm: Farm) -> None:
    async with (
        farm.client("ada") as ada,
        farm.client("bob") as bob,
        farm.client("olga") as olga,
        farm.client("far") as far,
    ):
        made = (await ada.post(VMS, json=create("a"))).json()
        batch_id = made["batch_id"]
        why = {"reason": "no"}
        for client in (bob, far):
            for base in (VMS, BATCHES):
                problem(await client.get(f"{base}/{batch_id}"), 404, "NOT_FOUND")
                problem(await client.post(f"{base}/{batch_id}/retry"), 404, "NOT_FOUND")
                problem(await client.post(f"{base}/{batch_id}/cancel", json=why), 404, "NOT_FOUND")
            problem(await client.get(f"{BATCHES}/{batch_id}/children"), 404, "NOT_FOUND")
            problem(await client.get(f"{BATCHES}/{batch_id}/events"), 404, "NOT_FOUND")
            assert (await client.get(BATCHES)).json()["items"] == []
        problem(await ada.get(f"{APPROVALS}/{batch_id}"), 404, "NOT_FOUND")
        problem(await olga.post(f"{APPROVALS}/{batch_id}/retry"), 404, "NOT_FOUND")
        problem(await olga.post(f"{APPROVALS}/{batch_id}/cancel", json=why), 404, "NOT_FOUND")
        assert (await olga.get(APPROVALS)).json()["items"] == []
        for base in (VMS, BATCHES):
            (seen,) = (await olga.get(base)).json()["items"]
            assert seen["batch_id"] == batch_id


async def test_lists_go_page_by_page_and_can_be_narrowed(farm: Farm) -> None:
    async with farm.client("ada") as ada:
        made = [(await ada.post(VMS, json=create(name))).json()["batch_id"] for name in "abc"]
        first = (await ada.get(VMS, params={"limit": 2})).json()
        rest = (await ada.get(VMS, params={"limit": 2, "cursor": first["next_cursor"]})).json()
        none = (await ada.get(VMS, params={"batch_type": "BATCH_APPROVE"})).json()
        ended_ones = (await ada.get(BATCHES, params={"status": "COMPLETED"})).json()

    assert [each["batch_id"] for each in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None
    assert none["items"] == ended_ones["items"] == []


async def test_children_go_page_by_page_and_by_status(farm: Farm) -> None:
    async with farm.client("ada") as ada:
        url = (await ada.post(VMS, json=create(*"abcde"))).json()["status_url"]
        first = (await ada.get(url, params={"limit": 2})).json()
        none = (await ada.get(url, params={"status": "FAILED"})).json()
        children = f"{BATCHES}/{first['batch_id']}/children"
        same = (await ada.get(children, params={"limit": 2, "cursor": first["next_cursor"]})).json()
        last = (await ada.get(url, params={"limit": 2, "cursor": same["next_cursor"]})).json()

    assert [child["sequence_no"] for child in first["children"]] == [1, 2]
    assert [child["sequence_no"] for child in same["items"]] == [3, 4]
    assert [child["sequence_no"] for child in last["children"]] == [5]
    assert (last["next_cursor"], none["children"]) == (None, [])


async def test_a_double_click_retries_once_and_only_what_failed(farm: Farm) -> None:
    async with farm.workers(), farm.client("ada") as ada:
        await ended(ada, (await ada.post(VMS, json=create("a", "b"))).json()["status_url"])
        await ended(
            ada, (await ada.post(POWER, json=on_machines("start", "a"))).json()["status_url"]
        )
        url = (await ada.post(POWER, json=on_machines("restart", "a", "b"))).json()["status_url"]
        half = await ended(ada, url)
    assert half["status"] == "PARTIAL_SUCCESS"
    assert half["children"][1]["error_message"] == "b is off; start it instead"
    assert half["links"]["retry"] == f"{url}/retry"

    async with farm.client("ada") as ada:  # nobody works: what is sent stays
        answers = await asyncio.gather(*(ada.post(f"{url}/retry") for _ in range(5)))
        again = (await ada.get(url)).json()
    assert {each.status_code for each in answers} == {202}
    assert sorted(each.json()["retried"] for each in answers) == [[], [], [], [], [2]]
    assert (again["status"], again["children"][1]["attempt_count"]) == ("IN_PROGRESS", 2)


async def test_what_is_pending_can_be_canceled_with_a_reason(farm: Farm) -> None:
    async with farm.client("ada") as ada, farm.client("olga") as olga:
        own = (await ada.post(VMS, json=create("a"))).json()
        other = (await ada.post(VMS, json=create("b"))).json()
        canceled = await ada.post(own["links"]["cancel"], json={"reason": "by mistake"})
        by_olga = await olga.post(f"{VMS}/{other['batch_id']}/cancel", json={"reason": "no"})
        without = await ada.post(own["links"]["cancel"], json={})

    assert canceled.json()["status"] == by_olga.json()["status"] == "CANCELED"
    assert "cancel" not in canceled.json()["links"]
    problem(without, 400, "INVALID_REQUEST")


async def test_one_batch_is_decided_by_somebody_else_and_only_once(farm: Farm) -> None:
    async with farm.workers(), farm.client("ada") as ada:
        await ended(ada, (await ada.post(VMS, json=create("a"))).json()["status_url"])
    async with (
        farm.client("ada") as ada,
        farm.client("petra") as petra,
        farm.client("root") as root,
    ):
        ticket = (await ada.post(VMS, json=on_machines("delete", "a"))).json()
        decide = ticket["links"]["decision"]
        refused = await ada.post(decide, json={"decision": "approve"})
        silent = await petra.post(decide, json={"decision": "reject"})
        rejected = await petra.post(decide, json={"decision": "reject", "reason": "keep it"})
        same = await petra.post(decide, json={"decision": "reject", "reason": "keep it"})
        other = await root.post(decide, json={"decision": "approve"})
        own = (await root.post(VMS, json=on_machines("delete", "a"))).json()
        by_itself = await root.post(own["links"]["decision"], json={"decision": "approve"})

    problem(refused, 403, "PERMISSION_DENIED")
    problem(silent, 400, "INVALID_REQUEST")
    assert rejected.json()["status"] == same.json()["status"] == "CANCELED"
    assert rejected.json()["decision_reason"] == "keep it"
    problem(other, 409, "CONFLICT")
    assert "somebody else" in problem(by_itself, 409, "CONFLICT")["detail"]


async def test_bad_approvals_are_refused_with_their_place(farm: Farm) -> None:
    items = [
        {"ticket_id": str(uuid4()), "decision": "approve"},
        {"ticket_id": str(uuid4()), "decision": "maybe"},
        {"ticket_id": str(uuid4()), "decision": "reject"},
    ]
    async with farm.client("petra") as petra, farm.client("ada") as ada:
        answers = [
            await petra.post(APPROVALS, json={"items": items}),
            await petra.post(APPROVALS, json={"items": [items[0], items[2]]}),
        ]
        denied = await ada.post(APPROVALS, json={"items": items})

    pointers = [
        [error["pointer"] for error in problem(answer, 400, "INVALID_BATCH_REQUEST")["errors"]]
        for answer in answers
    ]
    # What does not fit the type comes first; the others need the database.
    assert pointers == [["#/items/1/decision"], ["#/items/0/ticket_id", "#/items/1/reason"]]
    problem(denied, 403, "PERMISSION_DENIED")
