"""The routes on a real database: each does what the library's verb does, by the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from commandbus import BatchCommand, CommandBus, Settings
from commandbus.http import HttpSettings
from commandbus.paging import cursor_of
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.http_world import app_of, caller, client_of, problem
from tests.integration.http_shop import Shop, fill, register
from tests.waiting import until, until_status, working


@pytest.fixture
async def client(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app_of(bus)) as opened:
        yield opened


@pytest.fixture
async def shop(bus: CommandBus) -> Shop:
    return await fill(bus)


async def pages(client: httpx2.AsyncClient, url: str, **params: Any) -> list[dict[str, Any]]:
    """All items of a listing, two at a time."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = params | {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        answer = await client.get(url, params=query)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["items"]) <= 2
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


# -- commands


async def test_a_running_command_shows_its_progress_and_is_canceled_on_request(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    form = {"domain": "shop", "command_type": "Work", "data": {}}
    url = (await client.post("/api/v1/commands", json=form)).headers["location"]
    async with bus.consumer("shop") as consumer:
        [leased] = await consumer.receive()
        assert (await client.get(url)).json()["progress"] is None
        await leased.progress(0.4, "page 4 of 10")
        told = (await client.get(url)).json()["progress"]
        assert (told["fraction"], told["message"]) == (0.4, "page 4 of 10")

        problem(await client.post(f"{url}/cancel", json={"reason": "why"}), 409, "CONFLICT")
        wrong = await client.post(f"{url}/cancel", json={"reason": "why", "running": "kill"})
        assert wrong.status_code == 400
        asking = {"reason": "why", "running": "request"}
        for _ in range(2):
            asked = await client.post(f"{url}/cancel", json=asking)
            assert (asked.status_code, asked.json()["status"]) == (202, "IN_PROGRESS")
        await leased.release()
    shown = (await client.get(url)).json()
    assert (shown["status"], shown["progress"]) == ("CANCELED", None)
    problem(await client.post(f"{url}/cancel", json=asking), 409, "CONFLICT")
    events = (await client.get(f"{url}/audit")).json()["items"]
    assert [(each["event_type"], each["actor"]) for each in events][2:] == [
        ("CANCEL_REQUESTED", "root"), ("CANCELED", "root"),
    ]  # fmt: skip


async def test_what_runs_of_a_batch_is_canceled_on_request(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    batch = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(3)])
    url = f"/api/v1/command-batches/shop/{batch}/cancel"
    async with bus.consumer("shop") as consumer:
        [leased] = await consumer.receive()
        done = await client.post(url, json={"reason": "why", "running": "request"})
        wanted = {"count": 3, "canceled": 2, "requested": 1}
        assert (done.status_code, done.json()) == (200, wanted)
        assert await leased.is_canceled()


async def test_a_command_is_sent_shown_searched_and_canceled(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    form = {"domain": "shop", "command_type": "Work", "data": {"n": 1}, "max_attempts": 7}
    sent = await client.post("/api/v1/commands", json=form)
    assert sent.status_code == 202
    assert sent.json()["status"] == "PENDING"
    assert sent.headers["retry-after"] == "2"
    url = sent.headers["location"]

    shown = (await client.get(url)).json()
    assert (shown["command_id"], shown["max_attempts"]) == (sent.json()["command_id"], 7)
    assert shown["payload"] is None
    found = (await client.get("/api/v1/commands", params={"domain": "shop"})).json()["items"]
    assert [item["command_id"] for item in found] == [shown["command_id"]]

    canceled = await client.post(f"{url}/cancel", json={"reason": "wrong shop"})
    assert canceled.json()["status"] == "CANCELED"
    again = await client.post(f"{url}/cancel", json={"reason": "wrong shop"})
    problem(again, 409, "CONFLICT")
    events = (await client.get(f"{url}/audit")).json()["items"]
    assert [(each["event_type"], each["actor"]) for each in events] == [
        ("SENT", "root"), ("CANCELED", "root"),
    ]  # fmt: skip


async def test_a_repeat_is_the_original_and_another_command_under_its_id_is_refused(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    form = {
        "domain": "shop", "command_type": "Work", "data": {"n": 1, "x": [1.5, None]},
        "command_id": str(uuid4()),
    }  # fmt: skip
    first = await client.post("/api/v1/commands", json=form)
    repeat = await client.post("/api/v1/commands", json=form)
    other_data = await client.post("/api/v1/commands", json=form | {"data": {"n": 2}})
    other_type = await client.post("/api/v1/commands", json=form | {"command_type": "Play"})

    assert (first.json()["is_repeat"], repeat.json()["is_repeat"]) == (False, True)
    assert repeat.status_code == 202
    assert repeat.headers["location"] == first.headers["location"]
    problem(other_data, 409, "CONFLICT")
    problem(other_type, 409, "CONFLICT")

    register(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", UUID(str(form["command_id"])), "COMPLETED")
    late = await client.post("/api/v1/commands", json=form)
    assert (late.status_code, late.json()["status"]) == (202, "COMPLETED")


async def test_many_repeats_at_once_create_one_command(
    conn: AsyncConnection, client: httpx2.AsyncClient
) -> None:
    form = {"domain": "shop", "command_type": "Work", "data": {}, "command_id": str(uuid4())}

    answers = await asyncio.gather(*(client.post("/api/v1/commands", json=form) for _ in range(20)))

    assert {answer.status_code for answer in answers} == {202}
    assert sum(not answer.json()["is_repeat"] for answer in answers) == 1
    rows = await conn.execute("select count(*) from commandbus.command_bus_command")
    assert await rows.fetchone() == (1,)


async def test_an_idempotency_key_is_the_id_of_the_command(client: httpx2.AsyncClient) -> None:
    key = str(uuid4())
    form = {"domain": "shop", "command_type": "Work", "data": {}}

    sent = await client.post("/api/v1/commands", json=form, headers={"Idempotency-Key": key})
    differing = await client.post(
        "/api/v1/commands",
        json=form | {"command_id": str(uuid4())},
        headers={"Idempotency-Key": key},
    )

    assert sent.json()["command_id"] == key
    problem(differing, 400, "INVALID_REQUEST")


async def test_payloads_are_for_those_who_may_read_them_and_secrets_for_nobody(
    bus: CommandBus, shop: Shop
) -> None:
    app = app_of(bus, reader=caller("read"), payloads=caller("read", "read-payload"))
    urls = [
        f"/api/v1/commands/shop/{shop.pending}",
        f"/api/v1/troubleshooting/shop/{shop.parked[0]}",
    ]

    async with client_of(app, "reader") as reader, client_of(app, "payloads") as payloads:
        for url in urls:
            assert (await reader.get(url)).json()["payload"] is None
            refused = await reader.get(url, params={"payload": "true"})
            assert problem(refused, 403, "PERMISSION_DENIED")["scope"] == "read-payload"
            shown = await payloads.get(url, params={"payload": "true"})
            assert shown.json()["payload"]["password"] == "[REDACTED]"
            assert shown.json()["payload"]["n"] in {1, 7}
        listed = await payloads.get("/api/v1/troubleshooting/shop", params={"payload": "true"})
        problem(
            await reader.get("/api/v1/troubleshooting/shop", params={"payload": "true"}), 403,
            "PERMISSION_DENIED",
        )  # fmt: skip

    assert [item["payload"]["n"] for item in listed.json()["items"]] == [1, 1, 1]
    assert "hunter2" not in listed.text


async def test_a_new_domain_is_made_only_by_those_who_are_bound_to_it_or_administer(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    app = app_of(
        bus, free=caller("send"), bound=caller("send", domains=("mine",)), admin=caller("admin")
    )
    form = {"command_type": "Work", "data": {}}

    async def send(who: str, domain: str) -> int:
        async with client_of(app, who) as client:
            answer = await client.post("/api/v1/commands", json=form | {"domain": domain})
            return answer.status_code

    assert await send("free", "fresh") == 404
    assert await send("bound", "mine") == 202
    assert await send("admin", "fresh") == 202
    assert await send("free", "fresh") == 202
    rows = await conn.execute("select count(*) from pgmq.meta")
    assert await rows.fetchone() == (4,)


# -- batches


async def test_a_batch_is_created_listed_and_waited_for(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    commands = [{"command_type": "Work", "data": {"n": n}} for n in range(5)]
    made = await client.post(
        "/api/v1/command-batches/shop",
        json={"name": "five", "commands": commands, "custom_data": {"token": "x", "a": 1}},
    )
    assert made.status_code == 202
    url = made.headers["location"]
    assert (await client.get(url)).json()["custom_data"] == {"token": "[REDACTED]", "a": 1}

    listed = await pages(client, f"{url}/commands")
    assert [item["command_id"] for item in listed] == made.json()["command_ids"]

    register(bus)
    async with working(bus, "shop"):
        ended = await client.get(url, headers={"Prefer": "wait=20"})
    assert ended.json()["status"] == "COMPLETED"
    assert ended.headers["preference-applied"] == "wait=20"
    assert ended.json()["completed_count"] == 5
    assert (await client.post(f"{url}/retry")).json() == {"count": 0}


async def test_a_batch_is_all_or_nothing(conn: AsyncConnection, client: httpx2.AsyncClient) -> None:
    known = str(uuid4())
    form = {"domain": "shop", "command_type": "Work", "data": {}, "command_id": known}
    await client.post("/api/v1/commands", json=form)

    answer = await client.post(
        "/api/v1/command-batches/shop",
        json={
            "commands": [
                {"command_type": "Work", "data": {}},
                {"command_type": "Work", "data": {}, "command_id": known},
            ]
        },
    )
    empty = await client.post("/api/v1/command-batches/shop", json={"commands": []})

    problem(answer, 409, "CONFLICT")
    problem(empty, 400, "INVALID_REQUEST")
    rows = await conn.execute("select count(*) from commandbus.command_bus_batch")
    assert await rows.fetchone() == (0,)


async def test_an_id_that_is_twice_in_a_batch_is_named_with_its_positions(
    client: httpx2.AsyncClient,
) -> None:
    one = {"command_type": "Work", "data": {}, "command_id": str(uuid4())}
    commands = [one, {"command_type": "Work", "data": {}}, one]
    answer = await client.post("/api/v1/command-batches/shop", json={"commands": commands})

    problem(answer, 409, "CONFLICT")
    assert answer.json()["detail"].startswith(
        f"the id {one['command_id']} is twice in this list (positions 1 and 3); nothing was created"
    )


async def stopped_load(bus: CommandBus) -> str:
    rows: list[Any] = [*({"n": n} for n in range(5)), "nonsense"]
    result = await bus.loads.load("shop", rows, command_type="Work", checkpoint_size=2)
    assert result.tasks_committed == 4
    return f"/api/v1/command-batches/shop/{result.batch_id}"


async def test_a_load_that_stopped_is_shown_and_sealed(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    url = await stopped_load(bus)
    load = (await client.get(f"{url}/load")).json()
    assert (load["status"], load["rows_committed"]) == ("failed", 4)
    assert load["actions"] == ["resume", "seal", "cancel"]
    for _ in range(2):
        sealed = await client.post(f"{url}/seal")
        assert (sealed.status_code, sealed.json()["status"]) == (200, "sealed")
        assert sealed.json()["actions"] == ["cancel"]
    assert (await client.get(url)).json()["total_count"] == 4
    plain = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})])
    problem(await client.post(f"/api/v1/command-batches/shop/{plain}/seal"), 409, "CONFLICT")
    problem(await client.get(f"/api/v1/command-batches/shop/{uuid4()}/load"), 404, "NOT_FOUND")


async def test_a_load_that_stopped_is_resumed_with_its_whole_source(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    url = await stopped_load(bus)
    other = await client.post(f"{url}/resume", json={"rows": [{"n": 7}] * 6})
    resumed = await client.post(f"{url}/resume", json={"rows": [{"n": n} for n in range(6)]})

    problem(other, 409, "CONFLICT")
    assert resumed.status_code == 200
    assert (resumed.json()["status"], resumed.json()["tasks_committed"]) == ("success", 6)
    assert (await client.get(url)).json()["total_count"] == 6


async def test_a_load_that_stopped_is_canceled_and_not_resumed(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    url = await stopped_load(bus)
    canceled = await client.post(f"{url}/cancel", json={"reason": "wrong file"})
    again = await client.post(f"{url}/resume", json={"rows": [{"n": n} for n in range(6)]})

    assert canceled.json() == {"count": 4, "canceled": 4, "requested": 0}
    problem(again, 409, "CONFLICT")
    assert "was canceled after 4 rows (wrong file)" in again.json()["detail"]
    assert (await client.get(url)).json()["status"] == "COMPLETED_WITH_FAILURES"


async def test_a_wait_that_is_over_shows_what_there_is(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    batch = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})])
    app = app_of(bus, HttpSettings(max_wait_seconds=0.1))
    async with client_of(app) as impatient:
        answer = await impatient.get(
            f"/api/v1/command-batches/shop/{batch}", headers={"Prefer": "wait=60"}
        )

    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
    assert answer.headers["preference-applied"] == "wait=0.1"


async def test_only_so_many_may_wait_at_once(bus: CommandBus) -> None:
    batch = await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})])
    settings = HttpSettings(max_long_polls=1, max_wait_seconds=5)
    app = app_of(bus, settings, bob=caller("read", user="bob"))
    url = f"/api/v1/command-batches/shop/{batch}"
    async with client_of(app) as client, client_of(app, "bob") as bob:
        waiting = asyncio.create_task(client.get(url, headers={"Prefer": "wait=5"}))
        while app.state.commandbus.polls.waiting == 0:
            await asyncio.sleep(0.005)
        again = await client.get(url, headers={"Prefer": "wait=5"})
        refused = await bob.get(url, headers={"Prefer": "wait=5"})
        plain = await client.get(url)
        await bus.batches.cancel("shop", batch, "enough")
        ended = await waiting

    assert problem(again, 429, "RATE_LIMIT_EXCEEDED")["limit_type"] == "user_waiting"
    problem(refused, 503, "UNAVAILABLE")
    assert plain.status_code == 200
    assert ended.json()["canceled_count"] == 1


async def test_batches_are_listed_by_key_newest_first(
    bus: CommandBus, client: httpx2.AsyncClient
) -> None:
    made = [await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})]) for _ in range(5)]
    late = uuid4()
    await bus.send("shop", "Work", late, {}, batch_id=made[0])

    listed = await pages(client, "/api/v1/command-batches/shop", status="PENDING")
    commands = await pages(client, f"/api/v1/command-batches/shop/{made[0]}/commands")

    assert [UUID(item["batch_id"]) for item in listed] == made[::-1]
    assert UUID(commands[-1]["command_id"]) == late
    assert len(commands) == 2
    problem(await client.get(f"/api/v1/command-batches/shop/{uuid4()}/commands"), 404, "NOT_FOUND")
    canceled = await client.post(
        f"/api/v1/command-batches/shop/{made[1]}/cancel", json={"reason": "no"}
    )
    assert canceled.json() == {"count": 1, "canceled": 1, "requested": 0}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/command-batches/shop", "/api/v1/troubleshooting/shop", "/api/v1/audit",
        "/api/v1/commands", "/api/v1/bulk-operations",
    ],
)  # fmt: skip
async def test_a_cursor_of_another_listing_is_refused(
    shop: Shop, client: httpx2.AsyncClient, path: str
) -> None:
    first = (await client.get("/api/v1/commands", params={"domain": "shop", "limit": 1})).json()
    answer = await client.get(path, params={"cursor": first["next_cursor"]})

    assert "another search" in problem(answer, 400, "INVALID_REQUEST")["detail"]


def forged(bound: object, *position: Any) -> str:
    """A cursor with the right digest and a position that no listing gives."""
    return cursor_of(list(position), bound)


@pytest.mark.parametrize(
    "position",
    [
        (), (1,), ("now", "x"), ("2026-01-01T00:00:00", str(uuid4())), (None, None),
        ("2026-01-01T00:00:00+00:00", 7), ({}, []), ("x", str(uuid4()), 1, 2),
    ],
)  # fmt: skip
async def test_a_forged_cursor_is_refused(client: httpx2.AsyncClient, position: Any) -> None:
    bus_batch = str(uuid4())
    cases = {
        "/api/v1/command-batches/shop": ("batches", "shop", None),
        "/api/v1/troubleshooting/shop": ("troubleshooting", "shop", None, None),
        f"/api/v1/command-batches/shop/{bus_batch}/commands": (
            "batch commands", "shop", bus_batch, None,
        ),
    }  # fmt: skip
    for url, bound in cases.items():
        for values in (position, (2**40, *position), (1, *position)):
            answer = await client.get(url, params={"cursor": forged(bound, *values)})
            problem(answer, 400, "INVALID_REQUEST")


# -- troubleshooting


async def test_what_is_parked_is_listed_by_key_longest_first(
    shop: Shop, client: httpx2.AsyncClient
) -> None:
    groups = (await client.get("/api/v1/failure-groups", params={"domain": "shop"})).json()["items"]
    fingerprint = groups[0]["fingerprint"]

    listed = await pages(client, "/api/v1/troubleshooting/shop", group=fingerprint)
    other = await pages(client, "/api/v1/troubleshooting/shop", command_type="Nothing")
    nothing = await client.get("/api/v1/troubleshooting/nowhere")
    assert await pages(client, "/api/v1/troubleshooting", group=fingerprint) == listed
    assert (
        await pages(client, "/api/v1/troubleshooting", domain="shop", group=fingerprint) == listed
    )

    assert {UUID(item["command_id"]) for item in listed} == set(shop.parked)
    assert [item["parked_at"] for item in listed] == sorted(item["parked_at"] for item in listed)
    assert (other, nothing.json()["items"]) == ([], [])
    assert (groups[0]["parked_count"], groups[0]["error_code"]) == (3, "NO_STOCK")


async def test_an_operator_decides_and_the_audit_knows_who_and_why(
    bus: CommandBus, shop: Shop, client: httpx2.AsyncClient
) -> None:
    first, second, third = (f"/api/v1/troubleshooting/shop/{each}" for each in shop.parked)

    retried = await client.post(
        f"{first}/retry", json={"reason": "stock is back", "payload": {"password": "x", "n": 2}}
    )
    canceled = await client.post(f"{second}/cancel", json={"reason": "too late"})
    completed = await client.post(
        f"{third}/complete", json={"reason": "done by hand", "result": {"by": "hand"}}
    )
    noted = await client.post(f"{third}/notes", json={"text": "ask ann"})
    gone = await client.get(first)
    again = await client.post(f"{second}/cancel", json={"reason": "too late"})

    assert (retried.json()["status"], canceled.json()["status"]) == ("PENDING", "CANCELED")
    assert (completed.json()["status"], noted.status_code) == ("COMPLETED", 204)
    problem(gone, 404, "NOT_FOUND")
    problem(again, 409, "CONFLICT")
    assert await bus.search.payload("shop", shop.parked[0]) == {"password": "[REDACTED]", "n": 2}
    for command_id, kinds in (
        (shop.parked[0], ["OPERATOR_RETRY", "NOTE"]),
        (shop.parked[1], ["OPERATOR_CANCEL"]),
        (shop.parked[2], ["OPERATOR_COMPLETE", "NOTE", "NOTE"]),
    ):
        events = [each for each in await bus.get_audit_trail(command_id) if each.actor == "root"]
        assert [each.event_type for each in events] == kinds


@pytest.mark.parametrize("verb", ["retry", "cancel", "complete"])
async def test_a_decision_needs_a_reason(shop: Shop, client: httpx2.AsyncClient, verb: str) -> None:
    url = f"/api/v1/troubleshooting/shop/{shop.parked[0]}/{verb}"
    for body in ({}, {"reason": ""}, {"reason": "  "}, {"reason": "a\x00b"}, {"reason": None}):
        problem(await client.post(url, json=body), 400, "INVALID_REQUEST")
    assert (await client.get(url.removesuffix(f"/{verb}"))).status_code == 200


# -- bulk


async def test_a_bulk_operation_is_previewed_started_once_stopped_and_resumed(
    bus: CommandBus, shop: Shop, client: httpx2.AsyncClient
) -> None:
    chosen = {"domain": "shop", "error_code": "NO_STOCK"}
    preview = (await client.post("/api/v1/bulk-operations/preview", json=chosen)).json()
    assert (preview["total"], preview["groups"][0]["matched"]) == (3, 3)

    form = {
        "verb": "cancel", "filter": chosen, "reason": "season is over", "everything": True,
        "operation_id": str(uuid4()), "rate": 0.0001, "expected_total": 2,
    }  # fmt: skip
    changed = await client.post("/api/v1/bulk-operations", json=form)
    assert "matches 3 commands now, not 2" in problem(changed, 409, "CONFLICT")["detail"]
    started = await client.post("/api/v1/bulk-operations", json=form | {"expected_total": 3})
    repeat = await client.post("/api/v1/bulk-operations", json=form | {"expected_total": 3})
    assert started.status_code == repeat.status_code == 202
    url = started.headers["location"]
    assert repeat.headers["location"] == url
    assert started.json()["actor"] == "root"

    assert (await client.post(f"{url}/stop")).json()["status"] == "stopped"
    assert (await client.post(f"{url}/resume", json={"rate": 1000})).json()["rate"] == 1000
    await bus.bulk.run(UUID(str(form["operation_id"])))
    ended = (await client.get(url)).json()
    items = await pages(client, f"{url}/items")
    assert (ended["status"], ended["done"]) == ("finished", 3)
    assert [each["item_no"] for each in items] == [1, 2, 3]
    assert await pages(client, f"{url}/items", outcome="failed") == []


async def test_an_edit_for_many_is_previewed_and_started(
    bus: CommandBus, shop: Shop, client: httpx2.AsyncClient
) -> None:
    chosen = {"domain": "shop", "error_code": "NO_STOCK"}
    edit = {"merge_patch": {"currency": "EUR"}}
    url, form = "/api/v1/bulk-operations", {"filter": chosen, "edit": edit, "examples": 1}
    for query, changes in (
        ({}, {"added": ["data.currency"]}),
        ({"payload": True}, {"added": [{"path": "data.currency", "to": '"EUR"'}]}),
    ):
        preview = (await client.post(f"{url}/preview-edit", json=form, params=query)).json()
        assert (preview["total"], preview["changed"], preview["failed"]) == (3, 3, 0)
        assert [each["changes"] for each in preview["examples"]] == [changes]

    start = {"verb": "retry", "filter": chosen, "edit": edit, "everything": True}
    started = (await client.post(url, json=start)).json()
    assert started["edited_paths"] == ["/currency"]
    await bus.bulk.run(UUID(started["operation_id"]))
    assert (await client.get(f"{url}/{started['operation_id']}")).json()["done"] == 3
    assert (await pages(client, url))[0]["edited_paths"] == ["/currency"]
    for wrong in ({}, {"merge_patch": {"a": 1}, "patch": []}, {"patch": [{"op": "set"}]}):
        problem(await client.post(url, json=start | {"edit": wrong}), 400, "INVALID_REQUEST")


async def test_bulk_operations_are_listed_page_by_page_newest_first(
    bus: CommandBus, shop: Shop, client: httpx2.AsyncClient
) -> None:
    made = [shop.bulk]
    for command_id in shop.parked[1:]:
        chosen = BulkFilter("shop", command_ids=(command_id,))
        operation = await bus.bulk.start(BulkVerb.RETRY, chosen, operator="ann", rate=0.0001)
        made.append(operation.operation_id)

    listed = await pages(client, "/api/v1/bulk-operations")
    stopped = await pages(client, "/api/v1/bulk-operations", status="stopped")

    assert [UUID(each["operation_id"]) for each in listed] == made[::-1]
    assert [UUID(each["operation_id"]) for each in stopped] == [shop.bulk]
    problem(await client.get(f"/api/v1/bulk-operations/{uuid4()}"), 404, "NOT_FOUND")


# -- replies


async def test_replies_are_leased_acknowledged_and_never_lost(
    bus: CommandBus, shop: Shop, client: httpx2.AsyncClient
) -> None:
    lease = "/api/v1/replies/shop/lease"
    first = (await client.post(lease, json={"limit": 2, "vt_seconds": 1})).json()["items"]
    others = (await client.post(lease, json={"vt_seconds": 600})).json()["items"]
    taken = {item["msg_id"] for item in others}
    assert len(first) == 2
    assert not {item["msg_id"] for item in first} & taken
    assert {item["outcome"] for item in first + others} == {"SUCCESS"}

    async def lapsed() -> list[dict[str, Any]]:
        answer = await client.post(lease, json={"vt_seconds": 600})
        return list(answer.json()["items"])

    again = await until(lapsed, "the lapse of the first lease")
    assert [item["msg_id"] for item in again] == [item["msg_id"] for item in first]

    def receipts(items: list[dict[str, Any]]) -> dict[str, Any]:
        return {"replies": [{k: item[k] for k in ("msg_id", "receipt")} for item in items]}

    late = await client.post("/api/v1/replies/shop/ack", json=receipts(first))
    assert late.json()["acknowledged"] == []
    assert sorted(late.json()["lost"]) == sorted(item["msg_id"] for item in first)
    done = await client.post("/api/v1/replies/shop/ack", json=receipts(again + others))
    assert done.json()["lost"] == []
    twice = await client.post("/api/v1/replies/shop/ack", json=receipts(again))
    assert twice.json()["acknowledged"] == []
    nothing = await client.post("/api/v1/replies/nowhere/lease", json={})
    assert nothing.json() == {"items": []}


# -- audit, domains, health, metrics


async def test_the_audit_is_searched_by_actor_and_kind(
    shop: Shop, client: httpx2.AsyncClient
) -> None:
    params = {"event_type": ["BULK_STARTED", "BULK_STOPPED"], "domain": "shop"}
    found = await pages(client, "/api/v1/audit", **params, oldest_first=True)
    by_ann = await pages(client, "/api/v1/audit", actor="ann")

    assert [each["event_type"] for each in found] == ["BULK_STARTED", "BULK_STOPPED"]
    assert [each["event_type"] for each in by_ann] == ["BULK_STARTED"]


async def test_a_domain_shows_how_much_is_where(shop: Shop, client: httpx2.AsyncClient) -> None:
    (item,) = (await client.get("/api/v1/domains")).json()["items"]

    assert (item["domain"], item["ready"], item["parked"]) == ("shop", 1, 3)
    assert item["delayed"] == 0


async def test_metrics_come_from_the_database(shop: Shop, client: httpx2.AsyncClient) -> None:
    text = (await client.get("/metrics")).text

    assert 'commandbus_queue_depth{domain="shop",state="ready"} 1.0' in text
    assert 'commandbus_tsq_depth{domain="shop"} 3.0' in text
    assert 'commandbus_db_pool_max{pool="caller"} 10.0' in text
    assert 'route="/metrics"' not in text  # answered after it was written


async def test_metrics_may_be_made_public(bus: CommandBus) -> None:
    app = app_of(bus, HttpSettings(metrics_public=True))
    async with client_of(app, None) as client:
        assert (await client.get("/metrics")).status_code == 200
    assert "x-scope" not in app.openapi()["paths"]["/metrics"]["get"]


async def test_readiness_follows_the_schema(
    bus: CommandBus, conn: AsyncConnection, client: httpx2.AsyncClient
) -> None:
    assert (await client.get("/readyz")).json() == {
        "status": "ok", "checks": {"database": "ok", "pool": "ok", "workers": "ok"},
    }  # fmt: skip
    assert (await client.get("/startupz")).status_code == 200
    await conn.execute("update commandbus.command_bus_migration set version = version + 9000")

    answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] == "needs a migration"
    assert answer.headers["retry-after"] == "2"
    assert (await client.get("/livez")).status_code == 200


async def test_without_a_database_routes_say_503_and_the_process_lives(
    server: Any, dsn: str
) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    settings = Settings(connect_timeout_seconds=0.2)
    async with (
        CommandBus.connect(dsn, settings=settings) as bus,
        client_of(app_of(bus)) as client,
    ):
        with server.admin() as admin:
            admin.execute(f'alter database "{name}" allow_connections false'.encode())
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,)
            )
            try:
                answer = await client.get("/api/v1/domains", timeout=30)
                ready = await client.get("/readyz", timeout=30)
                alive = await client.get("/livez")
            finally:
                admin.execute(f'alter database "{name}" allow_connections true'.encode())

    assert "does not answer" in problem(answer, 503, "UNAVAILABLE")["detail"]
    assert answer.headers["retry-after"] == "2"
    assert (ready.status_code, alive.status_code) == (503, 200)
