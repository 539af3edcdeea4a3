"""Limits over HTTP: exact when many ask at once, told in full, changed by administrators."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg

from tests.http_world import caller, problem
from tests.integration.http_farm import LIMITS, POWER, VMS, create, farm_on, on_machines

PENDING = "select count(*) from commandbus.command_bus_batch where is_pending"


async def pending(conn: psycopg.AsyncConnection[Any]) -> int:
    row = await (await conn.execute(PENDING)).fetchone()
    assert row is not None
    return int(row[0])


def metric(text: str, name: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return {line[len(name) : line.index("}") + 1]: float(line.split()[-1]) for line in lines}


async def test_of_fifty_requests_at_once_of_one_user_exactly_three_are_accepted(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with farm_on(dsn) as farm, farm.client("ada") as ada, farm.client("root") as root:
        answers = await asyncio.gather(*(ada.post(VMS, json=create(f"vm{n}")) for n in range(50)))
        figures = (await root.get("/metrics")).text
        status = (await root.get(f"{LIMITS}/status")).json()

    assert Counter(each.status_code for each in answers) == {202: 3, 429: 47}
    assert await pending(conn) == 3
    for each in answers:
        if each.status_code == 429:
            body = problem(each, 429, "RATE_LIMIT_EXCEEDED")
            assert (body["limit_type"], body["scope"]) == ("user_pending_batches", "user")
            assert (body["current_value"], body["max_value"]) == (3, 3)
            assert body["contact_admin"] is True
            assert each.headers["retry-after"] == str(body["retry_after"])
            assert '"user_pending_batches";r=0' in each.headers["ratelimit"]
    assert metric(figures, "batch_submit_total") == {
        '{batch_type="BATCH_CREATE",result="accepted"}': 3,
        '{batch_type="BATCH_CREATE",result="limited"}': 47,
    }
    assert metric(figures, "rate_limit_rejections_total") == {
        '{limit_type="user_pending_batches"}': 47
    }
    (ada_state,) = status["users"]
    assert (ada_state["user_id"], ada_state["limits"][0]["current_value"]) == ("ada", 3)
    # Those that were refused are counted at the door too, maybe in two minutes.
    cursor = await conn.execute(
        "select sum(current_value) from commandbus.rate_limit_counter"
        " where limit_type = 'global_api_requests'"
    )
    assert await cursor.fetchone() == (51,)


async def test_of_two_hundred_users_at_once_exactly_a_hundred_are_accepted(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    users = {f"user{n}": caller("submit", user=f"user{n}") for n in range(200)}
    async with farm_on(dsn, more=users) as farm, farm.client("root") as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    VMS, json=create(f"vm-{who}"), headers={"Authorization": f"Bearer {who}"}
                )
                for who in users
            )
        )

    assert Counter(each.status_code for each in answers) == {202: 100, 429: 100}
    assert await pending(conn) == 100
    refused = next(each.json() for each in answers if each.status_code == 429)
    assert (refused["limit_type"], refused["scope"]) == ("global_pending_batches", "global")
    assert (refused["max_value"], refused["contact_admin"]) == (100, False)


async def test_a_repeat_is_answered_while_its_user_is_throttled(dsn: str) -> None:
    key = str(uuid4())
    async with farm_on(dsn, user_cooldown_seconds=120) as farm, farm.client("ada") as ada:
        first = await ada.post(VMS, json=create("a", request_id=key))
        throttled = await ada.post(VMS, json=create("b"))
        again = await ada.post(VMS, json=create("a", request_id=key))

    body = problem(throttled, 429, "RATE_LIMIT_EXCEEDED")
    assert (body["limit_type"], body["max_value"]) == ("user_cooldown", 120)
    assert 0 < body["retry_after"] <= 120
    assert f'"user_cooldown";r=0;t={body["retry_after"]}' in throttled.headers["ratelimit"]
    assert again.status_code == 202
    assert again.json()["batch_id"] == first.json()["batch_id"]


async def test_what_could_never_pass_is_no_matter_of_waiting(dsn: str) -> None:
    many = [f"vm{n}" for n in range(40)]
    async with farm_on(dsn) as farm, farm.client("ada") as ada, farm.client("root") as root:
        refused = await ada.post(POWER, json=on_machines("start", *many))
        changed = await root.put(f"{LIMITS}/users/ada", json={"max_pending_children": 50})
        checked = await ada.post(POWER, json=on_machines("start", *many))

    body = problem(refused, 400, "BATCH_SIZE_EXCEEDED")
    assert (body["max_value"], body["contact_admin"]) == (30, True)
    assert changed.json()["max_pending_children"] == 50
    assert changed.json()["updated_by"] == "root"
    # The limit lets it pass now, so the items are looked at.
    assert problem(checked, 400, "INVALID_BATCH_REQUEST")["errors"][0]["index"] == 0


async def test_an_exemption_lifts_the_limits_of_a_user_until_it_is_taken_back(dsn: str) -> None:
    async with farm_on(dsn) as farm, farm.client("ada") as ada, farm.client("root") as root:
        form = {"user_id": "ada", "reason": "moves house, password=hunter2"}
        made = await root.post(f"{LIMITS}/exemptions", json=form)
        accepted = [(await ada.post(VMS, json=create(name))).status_code for name in "abcd"]
        status = (await root.get(f"{LIMITS}/status")).json()
        ended = await root.delete(f"{LIMITS}/exemptions/ada")
        again = await root.delete(f"{LIMITS}/exemptions/ada")
        refused = await ada.post(VMS, json=create("e"))
        past = await root.post(
            f"{LIMITS}/exemptions", json={**form, "expires_at": "2001-01-01T00:00:00Z"}
        )
        denied = await ada.post(f"{LIMITS}/exemptions", json=form)

    assert made.status_code == 201
    assert (made.json()["exempted_by"], made.json()["expires_at"]) == ("root", None)
    assert "hunter2" not in made.text
    assert accepted == [202] * 4
    assert [each["user_id"] for each in status["exemptions"]] == ["ada"]
    assert (ended.status_code, ended.content) == (204, b"")
    problem(again, 404, "NOT_FOUND")
    problem(refused, 429, "RATE_LIMIT_EXCEEDED")
    problem(past, 400, "INVALID_REQUEST")
    problem(denied, 403, "PERMISSION_DENIED")


async def test_limits_of_a_user_are_changed_in_part_and_taken_back_as_a_whole(dsn: str) -> None:
    user = "https%3A%2F%2Fissuer.example%2Fann"  # as some issuers name their users
    async with farm_on(dsn) as farm, farm.client("root") as root:
        first = await root.put(f"{LIMITS}/users/{user}", json={"max_pending_batches": 9})
        second = await root.put(f"{LIMITS}/users/{user}", json={"cooldown_seconds": 0})
        status = (await root.get(f"{LIMITS}/status")).json()
        none = await root.put(f"{LIMITS}/users/{user}", json={})
        after = (await root.get(f"{LIMITS}/status")).json()
        wrong = await root.put(f"{LIMITS}/users/ada", json={"max_pending_batches": -1})

    assert first.json()["user_id"] == "https://issuer.example/ann"
    assert (second.json()["max_pending_batches"], second.json()["cooldown_seconds"]) == (9, 0)
    assert [each["user_id"] for each in status["overrides"]] == ["https://issuer.example/ann"]
    assert none.json()["max_pending_batches"] is None
    assert after["overrides"] == []
    problem(wrong, 400, "INVALID_REQUEST")


async def test_refused_forms_and_denied_callers_are_counted_as_submissions(dsn: str) -> None:
    async with farm_on(dsn) as farm, farm.client("ada") as ada, farm.client("root") as root:
        await ada.post("/api/v1/approvals/batch", json={"items": []})
        await root.post("/api/v1/approvals/batch", json={"items": [], "x": 1})
        await ada.post(VMS, json=create(*(f"vm{n}" for n in range(11))))
        await ada.post(VMS, json={"operation": "no", "items": []})
        figures = (await root.get("/metrics")).text

    assert metric(figures, "batch_submit_total") == {
        '{batch_type="BATCH_APPROVE",result="denied"}': 1,
        '{batch_type="BATCH_APPROVE",result="invalid"}': 1,
        '{batch_type="BATCH_CREATE",result="too_large"}': 1,
        '{batch_type="other",result="invalid"}': 1,
    }
