"""Schedules over HTTP: who may do what with which, and no way around governance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus.access.model import EVERYTHING
from commandbus.schedules.firing import Firing
from tests.http_world import caller, problem
from tests.integration.http_farm import Farm, farm_on

MALLORY = caller(*EVERYTHING, user="mallory")
BREAKER = caller("send", "operate", "read", "bypass-governance", user="breaker")
SENDER = caller("send", "read", user="sam")
OTHER_SENDER = caller("send", "read", user="sue")
OPERATOR = caller("send", "operate", "read", "read-payload", user="olaf")
URL = "/api/v1/schedules/vms/nightly"
FREE = {"command_type": "Look", "data": {"n": 1}, "every_seconds": 3600}
GOVERNED = {"command_type": "DeleteVM", "data": {"name": "web-1"}, "every_seconds": 3600}


@pytest.fixture
async def farm(dsn: str) -> AsyncIterator[Farm]:
    more = {
        "mallory": MALLORY, "breaker": BREAKER, "sam": SENDER, "sue": OTHER_SENDER,
        "olaf": OPERATOR, "elsewhere": caller(*EVERYTHING, user="e", domains=("other",)),
    }  # fmt: skip
    async with farm_on(dsn, more=more) as made:
        await made.bus._store.ensure_domain("vms")
        yield made


async def counts(conn: AsyncConnection) -> list[Any]:
    cursor = await conn.execute(
        "select (select count(*) from commandbus.command_bus_command),"
        " (select array_agg(s order by s.schedule_id) from commandbus.command_bus_schedule s)::text"
    )
    return await cursor.fetchall()


async def due_now(conn: AsyncConnection) -> None:
    await conn.execute(
        "update commandbus.command_bus_schedule"
        " set next_tick_at = now() - interval '1 s', look_at = now() - interval '1 s'"
    )


def refused(answer: httpx2.Response) -> None:
    body = problem(answer, 403, "PERMISSION_DENIED")
    assert body["scope"] == "bypass-governance"
    assert body["batch_types"] == ["BATCH_DELETE"]


@pytest.mark.parametrize("who", ["mallory", "breaker"])
async def test_a_governed_type_can_neither_be_scheduled_nor_take_the_place_of_another(
    farm: Farm, conn: AsyncConnection, who: str
) -> None:
    async with farm.client(who) as client:
        refused(await client.put(URL, json=GOVERNED))
        assert (await client.put(URL, json=FREE)).status_code == 200
        before = await counts(conn)
        refused(await client.put(URL, json=GOVERNED))
        assert await counts(conn) == before


@pytest.mark.parametrize("who", ["mallory", "breaker"])
async def test_a_schedule_that_an_application_put_for_a_governed_type_is_not_replaced(
    farm: Farm, conn: AsyncConnection, who: str
) -> None:
    await farm.bus.schedules.put("vms", "nightly", "DeleteVM", {"name": "old"}, every=3600)
    before = await counts(conn)
    async with farm.client(who) as client:
        refused(await client.put(URL, json=FREE))
        refused(await client.put(URL, json=GOVERNED))
    assert await counts(conn) == before


async def test_a_governed_type_is_triggered_by_none_but_those_who_may_pass_by(
    farm: Farm, conn: AsyncConnection
) -> None:
    await farm.bus.schedules.put("vms", "nightly", "DeleteVM", {"name": "old"}, every=3600)
    before = await counts(conn)
    async with farm.client("mallory") as client:
        refused(await client.post(f"{URL}/trigger"))
    assert await counts(conn) == before
    async with farm.client("breaker") as client:
        answer = await client.post(f"{URL}/trigger")
    assert answer.status_code == 202
    trail = await farm.bus.get_audit_trail("vms", answer.json()["command_id"])
    assert [(each.event_type, each.actor) for each in trail] == [
        ("SENT", "breaker"), ("GOVERNANCE_BYPASSED", "breaker"),
    ]  # fmt: skip


async def test_what_was_put_before_its_type_was_governed_is_paused_and_never_sent(
    farm: Farm, conn: AsyncConnection
) -> None:
    # As if this service had not known the type when it was put.
    async with farm.client("breaker") as client:
        assert (await client.put(URL, json=FREE)).status_code == 200
    await conn.execute("update commandbus.command_bus_schedule set command_type = 'DeleteVM'")
    await farm.bus.governance.register()
    await due_now(conn)
    await Firing(farm.bus._store).step()
    found = await farm.bus.schedules.require("vms", "nightly")
    assert (found.status, found.paused_by, found.put_for) == ("paused", None, "breaker")
    assert "governed" in str(found.pause_reason)
    async with farm.client("breaker") as client:
        assert (await client.post(f"{URL}/resume", json={"catch_up": True})).status_code == 200
    await Firing(farm.bus._store).step()
    assert (await counts(conn))[0][0] == 0
    assert (await farm.bus.schedules.require("vms", "nightly")).status == "paused"


async def test_a_sender_replaces_its_own_schedule_and_an_operator_all(
    farm: Farm, conn: AsyncConnection
) -> None:
    async with farm.client("sam") as sam, farm.client("sue") as sue, farm.client("olaf") as olaf:
        assert (await sam.put(URL, json=FREE)).status_code == 200
        assert (await sam.put(URL, json=FREE | {"data": {"n": 2}})).status_code == 200
        before = await counts(conn)
        denied = problem(await sue.put(URL, json=FREE), 403, "PERMISSION_DENIED")
        assert denied["scope"] == "operate"
        for verb in ("pause", "resume", "trigger"):
            body = {"json": {"reason": "x"}} if verb == "pause" else {}
            assert (await sam.post(f"{URL}/{verb}", **body)).status_code == 403  # type: ignore[arg-type]
        assert (await sam.delete(URL)).status_code == 403
        assert await counts(conn) == before
        shown = (await olaf.put(URL, json=FREE | {"data": {"n": 3}})).json()
        assert (shown["put_for"], shown["version"]) == ("olaf", 3)
        assert problem(await sam.put(URL, json=FREE), 403, "PERMISSION_DENIED")


async def test_the_schedules_of_applications_are_replaced_by_operators_only(farm: Farm) -> None:
    await farm.bus.schedules.put("vms", "nightly", "Look", {}, every=3600)
    async with farm.client("sam") as sam, farm.client("olaf") as olaf:
        assert (await sam.put(URL, json=FREE)).status_code == 403
        assert (await olaf.put(URL, json=FREE)).status_code == 200


async def test_another_domain_has_nothing_that_a_caller_may_see(farm: Farm) -> None:
    await farm.bus.schedules.put("vms", "nightly", "Look", {}, every=3600)
    async with farm.client("elsewhere") as far:
        answers = [
            await far.get(URL), await far.put(URL, json=FREE), await far.delete(URL),
            await far.post(f"{URL}/pause", json={"reason": "x"}), await far.post(f"{URL}/resume"),
            await far.post(f"{URL}/trigger"), await far.get("/api/v1/schedules?domain=vms"),
        ]  # fmt: skip
        assert [each.status_code for each in answers] == [404] * 7
        assert (await far.get("/api/v1/schedules")).json()["items"] == []


async def test_the_life_of_a_schedule_over_http_has_its_actor_in_the_audit(farm: Farm) -> None:
    async with farm.client("olaf") as olaf:
        made = (await olaf.put(URL, json=FREE)).json()
        assert (made["status"], made["created_by"], made["data"]) == ("active", "olaf", None)
        assert (await olaf.put(URL, json=FREE)).json() == made
        paused = await olaf.post(f"{URL}/pause", json={"reason": "token=abc123 leaked"})
        assert paused.json()["paused_by"] == "olaf"
        assert "abc123" not in paused.text
        key = str(uuid4())
        for _ in range(2):
            sent = await olaf.post(f"{URL}/trigger", headers={"Idempotency-Key": key})
            assert (sent.status_code, sent.json()["command_id"]) == (202, key)
        clash = {"json": {"command_id": str(uuid4())}, "headers": {"Idempotency-Key": key}}
        assert (await olaf.post(f"{URL}/trigger", **clash)).status_code == 400  # type: ignore[arg-type]
        assert (await olaf.post(f"{URL}/resume")).json()["status"] == "active"
        listed = (await olaf.get("/api/v1/schedules?domain=vms")).json()["items"]
        assert [each["name"] for each in listed] == ["nightly"]
        assert (await olaf.delete(URL)).status_code == 204
        assert problem(await olaf.delete(URL), 404, "NOT_FOUND")
        assert problem(await olaf.get(URL), 404, "NOT_FOUND")
    trail = await farm.bus.get_audit_trail("vms", made["schedule_id"])
    assert [(each.event_type, each.actor) for each in trail] == [
        ("SCHEDULE_PUT", "olaf"), ("SCHEDULE_PAUSED", "olaf"), ("SCHEDULE_TRIGGERED", "olaf"),
        ("SCHEDULE_RESUMED", "olaf"), ("SCHEDULE_DELETED", "olaf"),
    ]  # fmt: skip
    assert "abc123" not in str(trail)


async def test_payloads_are_masked_and_shown_to_those_who_may_and_not_written_back(
    farm: Farm,
) -> None:
    secret = FREE | {"data": {"password": "hunter2", "n": 1}}
    async with farm.client("olaf") as olaf, farm.client("sam") as sam:
        put = await olaf.put(URL, json=secret)
        shown = await olaf.get(f"{URL}?payload=true")
        assert shown.json()["data"]["n"] == 1
        for answer in (put, shown, await olaf.get("/api/v1/schedules?domain=vms")):
            assert "hunter2" not in answer.text
        assert (await sam.get(URL)).json()["data"] is None
        assert (await sam.get(f"{URL}?payload=true")).status_code == 403
        back = await olaf.put(URL, json=FREE | {"data": shown.json()["data"]})
        assert back.status_code == 400
        assert "write the secret" in back.json()["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "0 6 * * *"}, {"every_seconds": 0.5}, {"every_seconds": "60"},
        {"every_seconds": None}, {"every_seconds": None, "cron": "0 0 30 2 *"},
        {"every_seconds": None, "cron": "0 6 * * *", "timezone": "Mars/Olympus"},
        {"every_seconds": None, "at": "2030-01-01T00:00:00"}, {"every_seconds": None, "at": 5},
        {"every_seconds": None, "at": "2020-01-01T00:00:00Z"}, {"missed": "never"},
        {"jitter_seconds": 60, "expires_in_seconds": 60}, {"priority": 9}, {"nonsense": 1},
        {"jitter_seconds": 1, "ordering_key": "k"}, {"timezone": "UTC"},
    ],
)  # fmt: skip
async def test_a_bad_request_is_refused_and_changes_nothing(
    farm: Farm, conn: AsyncConnection, change: dict[str, Any]
) -> None:
    before = await counts(conn)
    async with farm.client("olaf") as olaf:
        assert (await olaf.put(URL, json=FREE | change)).status_code in {400, 422}
    assert await counts(conn) == before


async def test_a_preview_over_http_shows_ticks_and_refuses_nonsense(farm: Farm) -> None:
    url = "/api/v1/schedules/preview"
    async with farm.client("sam") as sam:
        query = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "count": "3"}
        assert len((await sam.get(url, params=query)).json()["ticks"]) == 3
        for bad in ({}, {"cron": "nonsense"}, {"every_seconds": "0"}, query | {"count": "0"}):
            assert (await sam.get(url, params=bad)).status_code in {400, 422}
