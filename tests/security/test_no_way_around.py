"""A command type that a batch type names goes through that batch type, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from commandbus import CommandBus
from commandbus.access.model import EVERYTHING, Scope
from commandbus.errors import GovernedTypeError, InvalidOperationError, PermissionDeniedError
from commandbus.governance.types import BatchType
from commandbus.models import AuditEventType
from tests.http_world import app_of, caller, client_of, problem
from tests.integration.http_farm import Farm, farm_on
from tests.integration.http_shop import work_off
from tests.security.parking import parking
from tests.waiting import until, working

#: Everything that a token can have by any name but one.
MALLORY = caller(*EVERYTHING, user="mallory")
BREAKER = caller("send", "operate", "bypass-governance", user="breaker")
DELETE = {"domain": "vms", "command_type": "DeleteVM", "data": {"name": "web-1"}}


@pytest.fixture
async def farm(dsn: str) -> AsyncIterator[Farm]:
    elsewhere = caller(*EVERYTHING, user="far", domains=("other",))
    more = {"mallory": MALLORY, "breaker": BREAKER, "elsewhere": elsewhere}
    async with farm_on(dsn, more=more) as made:
        await made.bus._store.ensure_domain("vms")
        yield made


@pytest.fixture
async def mallory(farm: Farm) -> AsyncIterator[httpx2.AsyncClient]:
    async with farm.client("mallory") as client:
        yield client


@pytest.fixture
async def breaker(farm: Farm) -> AsyncIterator[httpx2.AsyncClient]:
    async with farm.client("breaker") as client:
        yield client


async def commands(conn: AsyncConnection) -> int:
    cursor = await conn.execute("select count(*) from commandbus.command_bus_command")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def bypasses(conn: AsyncConnection) -> list[Any]:
    cursor = await conn.execute(
        "select command_id, actor, details_json ->> 'how' from commandbus.command_bus_audit"
        " where event_type = 'GOVERNANCE_BYPASSED' order by audit_id"
    )
    return await cursor.fetchall()


def refused(answer: httpx2.Response, *batch_types: str) -> None:
    body = problem(answer, 403, "PERMISSION_DENIED")
    assert body["scope"] == "bypass-governance"
    assert body["batch_types"] == list(batch_types)
    for name in batch_types:
        assert name in body["detail"]
    assert "POST /api/v1/" in body["detail"]


async def test_a_governed_command_cannot_be_sent(
    mallory: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    refused(await mallory.post("/api/v1/commands", json=DELETE), "BATCH_DELETE")
    assert await commands(conn) == 0


async def test_a_governed_command_cannot_hide_in_a_batch_of_others(
    mallory: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    free = {"command_type": "Look", "data": {}}
    body = {"commands": [*[free] * 99, {"command_type": "DeleteVM", "data": {"name": "web-1"}}]}
    refused(await mallory.post("/api/v1/command-batches/vms", json=body), "BATCH_DELETE")
    assert await commands(conn) == 0
    body["commands"][-1] = free
    assert (await mallory.post("/api/v1/command-batches/vms", json=body)).status_code == 202


async def test_a_decision_cannot_be_sent_as_a_command(mallory: httpx2.AsyncClient) -> None:
    decision = {"ticket_id": str(uuid4()), "decision": "approve"}
    body = {"domain": "approvals", "command_type": "DecideTicket", "data": decision}
    refused(await mallory.post("/api/v1/commands", json=body), "BATCH_APPROVE")


async def test_the_name_of_a_governed_type_is_free_in_other_domains(
    mallory: httpx2.AsyncClient,
) -> None:
    body = {**DELETE, "domain": "attic"}
    assert (await mallory.post("/api/v1/commands", json=body)).status_code == 202


async def test_a_caller_of_another_domain_learns_nothing_of_what_is_governed(farm: Farm) -> None:
    async with farm.client("elsewhere") as far:
        known = await far.post("/api/v1/commands", json=DELETE)
        unknown = await far.post("/api/v1/commands", json={**DELETE, "command_type": "Nothing"})
        batch = {"commands": [{"command_type": "DeleteVM", "data": {}}]}
        other = await far.post("/api/v1/command-batches/vms", json=batch)
    first = problem(known, 404, "NOT_FOUND")
    assert first["detail"] == problem(unknown, 404, "NOT_FOUND")["detail"]
    assert first["detail"] == problem(other, 404, "NOT_FOUND")["detail"]


# -- another process, which declared nothing


@pytest.mark.parametrize("how", ["request", "worker", "register"])
async def test_a_service_that_declared_nothing_refuses_what_another_process_declared(
    farm: Farm, dsn: str, how: str
) -> None:
    if how == "request":
        async with farm.client("ada") as ada:
            assert (await ada.get("/api/v1/whoami")).status_code == 200
    elif how == "register":
        await farm.bus.governance.register()
    else:
        async with working(farm.bus, "vms"):
            types = farm.bus.governance.governed_types
            await until(lambda: _is_registered(types), "the types of the worker")
    async with CommandBus.connect(dsn) as bare:
        assert [each.name for each in bare.governance.types.all()] == ["BATCH_APPROVE"]
        app = app_of(bare, mallory=MALLORY)
        async with client_of(app, "mallory") as client:
            refused(await client.post("/api/v1/commands", json=DELETE), "BATCH_DELETE")


async def _is_registered(types: Any) -> bool:
    return len(await types("vms")) == 5


async def test_a_registration_waits_for_sends_on_their_way_and_stops_those_after_it(
    farm: Farm, dsn: str, conn: AsyncConnection
) -> None:
    who = Jsonb({"user": "mallory", "may_bypass": False})
    command = Jsonb({"command_id": str(uuid4()), "type": "DeleteVM", "data": {}})
    async with await AsyncConnection.connect(dsn) as sender:
        await sender.execute(
            "select * from commandbus.send_for('vms', %s, '{x}', %s)", (command, who)
        )
        registering = asyncio.create_task(farm.bus.governance.register())
        query = (
            "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )

        async def is_waiting() -> bool:
            row = await (await conn.execute(query.encode())).fetchone()
            return row is not None and row[0] > 0

        await until(is_waiting, "the registration to wait")
        await sender.commit()
        await registering
    async with farm.client("mallory") as client:
        refused(await client.post("/api/v1/commands", json=DELETE), "BATCH_DELETE")


# -- loads


async def stopped_load(bus: CommandBus, created_by: str | None) -> UUID:
    """A load that stopped after its first row."""

    async def rows() -> AsyncIterator[dict[str, Any]]:
        yield {"command_type": "Look", "data": {"n": 1}}
        raise OSError("gone")

    done = await bus.loads.load("vms", rows(), checkpoint_size=1, created_by=created_by)
    assert (done.status, done.tasks_committed) == ("partial_success", 1)
    return done.batch_id


async def test_a_load_cannot_be_continued_with_governed_rows(
    farm: Farm, mallory: httpx2.AsyncClient, breaker: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    batch = await stopped_load(farm.bus, None)
    look = {"command_type": "Look", "data": {"n": 1}}
    rows = [look, {"command_type": "DeleteVM", "data": {"name": "web-1"}}]
    url = f"/api/v1/command-batches/vms/{batch}/resume"
    refused(await mallory.post(url, json={"rows": rows}), "BATCH_DELETE")
    assert await commands(conn) == 1
    answer = await breaker.post(url, json={"rows": rows})
    assert answer.json()["status"] == "success"
    ((_, actor, how),) = await bypasses(conn)
    assert (actor, how) == ("breaker", "load")


async def test_only_its_owner_and_operators_continue_a_load(farm: Farm) -> None:
    batch = await stopped_load(farm.bus, "ann")
    app = app_of(farm.bus, ann=caller("send"), eve=caller("send", user="eve"))
    rows = [{"command_type": "Look", "data": {"n": 1}}]
    url = f"/api/v1/command-batches/vms/{batch}/resume"
    async with client_of(app, "eve") as eve, client_of(app, "ann") as ann:
        right = await eve.post(url, json={"rows": rows})
        wrong = await eve.post(url, json={"rows": [{"command_type": "Look", "data": {"n": 2}}]})
        first = problem(right, 403, "PERMISSION_DENIED")
        assert first["detail"] == problem(wrong, 403, "PERMISSION_DENIED")["detail"]
        assert (await ann.post(url, json={"rows": rows})).json()["status"] == "success"


@pytest.mark.parametrize("reply_to", ["vms.commands", "other.commands", "vms.dispatch"])
async def test_no_reply_can_be_made_to_land_among_commands(
    farm: Farm, mallory: httpx2.AsyncClient, conn: AsyncConnection, reply_to: str
) -> None:
    for body in ({**DELETE, "command_type": "Look", "reply_to": reply_to},):
        problem(await mallory.post("/api/v1/commands", json=body), 400, "INVALID_REQUEST")
    item = {"command_type": "Look", "data": {}, "reply_to": reply_to}
    answer = await mallory.post("/api/v1/command-batches/vms", json={"commands": [item]})
    problem(answer, 400, "INVALID_REQUEST")
    batch = await stopped_load(farm.bus, None)
    rows = [{"command_type": "Look", "data": {"n": 1}}, item]
    answer = await mallory.post(f"/api/v1/command-batches/vms/{batch}/resume", json={"rows": rows})
    assert answer.json()["status"] == "partial_success"
    assert await commands(conn) == 1


@pytest.mark.parametrize("reply_to", ["other.replies", "fresh.replies", "billing", "@inbox"])
async def test_the_rows_of_a_caller_cannot_send_replies_to_queues_elsewhere(
    farm: Farm, conn: AsyncConnection, reply_to: str
) -> None:
    await farm.bus._store.ensure_domain("other")
    near = caller("send", "operate", user="near", domains=("vms",))
    batch = await stopped_load(farm.bus, None)
    first = {"command_type": "Look", "data": {"n": 1}}
    url = f"/api/v1/command-batches/vms/{batch}/resume"
    async with client_of(app_of(farm.bus, near=near), "near") as client:
        rows: list[dict[str, Any]] = [first, {**first, "reply_to": reply_to}]
        answer = (await client.post(url, json={"rows": rows})).json()
        assert (answer["status"], answer["line"]) == ("partial_success", 2)
        assert "reply_to" in answer["error"]
        assert await commands(conn) == 1
        cursor = await conn.execute("select queue_name::text from pgmq.meta")
        queues = {name for (name,) in await cursor.fetchall()}
        assert not queues & {"fresh__replies", "billing"}
        rows[1:] = [
            {"command_type": "Look", "data": {}, "reply_to": own}
            for own in ("vms.replies", "", None)
        ]
        assert (await client.post(url, json={"rows": rows})).json()["status"] == "success"


# -- commands that are there, of a governed type, in no governed batch


async def parked(bus: CommandBus) -> UUID:
    """A governed command that the application itself sent, and that has failed."""
    command_id = uuid4()
    await bus.send("vms", "DeleteVM", command_id, {"name": "web-1"}, actor="app")
    leases = await bus._store.receive("vms", vt_seconds=60, quantity=9, worker="t", limits={})
    assert [lease.command_id for lease in leases] == [command_id]
    await bus._store.settle("vms", [parking(leases[0])])
    return command_id


async def test_an_edit_of_a_governed_command_that_nobody_could_approve_is_refused(
    farm: Farm, mallory: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    command_id = await parked(farm.bus)
    url = f"/api/v1/troubleshooting/vms/{command_id}/retry"
    edited = {"reason": "better", "payload": {"name": "db-1"}}
    refused(await mallory.post(url, json=edited), "BATCH_DELETE")
    assert (await farm.bus.troubleshooting.require("vms", command_id)).data == {"name": "web-1"}
    # The same content again is no new content.
    same = {"reason": "again", "payload": {"name": "web-1"}}
    assert (await mallory.post(url, json=same)).status_code == 200
    assert await bypasses(conn) == []


async def test_an_edit_with_the_right_is_done_and_in_the_audit(
    farm: Farm, breaker: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    command_id = await parked(farm.bus)
    edited = {"reason": "better", "payload": {"name": "db-1"}}
    answer = await breaker.post(f"/api/v1/troubleshooting/vms/{command_id}/retry", json=edited)
    assert answer.status_code == 200
    assert await bypasses(conn) == [(command_id, "breaker", "edit")]


@pytest.mark.parametrize("chosen", [{"command_type": "DeleteVM"}, {"command_ids": True}])
async def test_a_bulk_edit_of_governed_commands_is_refused_whole(
    farm: Farm, mallory: httpx2.AsyncClient, breaker: httpx2.AsyncClient, conn: AsyncConnection,
    chosen: dict[str, Any],
) -> None:  # fmt: skip
    command_id = await parked(farm.bus)
    if "command_ids" in chosen:
        chosen = {"command_ids": [str(command_id)]}
    body = {
        "verb": "retry", "filter": {"domain": "vms", **chosen}, "everything": True,
        "edit": {"merge_patch": {"name": "db-1"}}, "operation_id": str(uuid4()),
    }  # fmt: skip
    refused(await mallory.post("/api/v1/bulk-operations", json=body), "BATCH_DELETE")
    assert (await mallory.get("/api/v1/bulk-operations")).json()["items"] == []
    for _ in range(2):  # the second is a repeat of the first
        answer = await breaker.post("/api/v1/bulk-operations", json=body)
        assert answer.status_code == 202
    assert await bypasses(conn) == [(command_id, "breaker", "edit")]


async def test_a_bulk_edit_that_began_before_its_type_was_governed_does_not_go_on(
    farm: Farm, mallory: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    ids = [uuid4() for _ in range(3)]
    for command_id in ids:
        kind = "Look" if command_id == ids[0] else "Wipe"
        await farm.bus.send("vms", kind, command_id, {"name": "web-1"})
    leases = await farm.bus._store.receive("vms", vt_seconds=60, quantity=9, worker="t", limits={})
    await farm.bus._store.settle("vms", [parking(lease) for lease in leases])
    body = {
        "verb": "retry", "filter": {"domain": "vms"}, "everything": True, "rate": 0.0001,
        "edit": {"merge_patch": {"name": "db-1"}},
    }  # fmt: skip
    answer = await mallory.post("/api/v1/bulk-operations", json=body)
    assert answer.status_code == 202, answer.text
    url = f"/api/v1/bulk-operations/{answer.json()['operation_id']}"
    assert (await mallory.post(f"{url}/stop")).status_code == 200
    farm.bus.governance.declare(
        BatchType(name="BATCH_WIPE", domain="vms", command_type="Wipe", max_size=1)
    )
    await farm.bus.governance.register()
    assert (await mallory.post(f"{url}/resume", json={"rate": 1_000_000})).status_code == 200
    done = await farm.bus.bulk.run(answer.json()["operation_id"])
    assert (done.done, done.failed) == (1, 2)
    assert "on_behalf" not in done.arguments
    for item in (await mallory.get(f"{url}/items")).json()["items"]:
        command = await farm.bus.search.require("vms", UUID(item["command_id"]))
        if command.command_type == "Wipe":
            assert command.status == "IN_TROUBLESHOOTING_QUEUE"
            assert "must be submitted as BATCH_WIPE" in item["detail"]
        else:
            assert (command.status, item["outcome"]) == ("PENDING", "done")


async def test_decisions_without_new_content_stay_with_operators(
    farm: Farm, mallory: httpx2.AsyncClient
) -> None:
    url = "/api/v1/troubleshooting/vms"
    retried = await mallory.post(f"{url}/{await parked(farm.bus)}/retry", json={"reason": "r"})
    assert retried.status_code == 200
    await work_off(farm.bus, "vms")
    for verb in ("cancel", "complete"):
        answer = await mallory.post(f"{url}/{await parked(farm.bus)}/{verb}", json={"reason": "r"})
        assert answer.status_code == 200


# -- the right


async def test_a_send_by_the_right_is_in_the_audit_once(
    breaker: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    command_id = uuid4()
    body = {**DELETE, "command_id": str(command_id)}
    assert (await breaker.post("/api/v1/commands", json=body)).json()["is_repeat"] is False
    assert (await breaker.post("/api/v1/commands", json=body)).json()["is_repeat"] is True
    assert await bypasses(conn) == [(command_id, "breaker", "send")]


async def test_a_batch_by_the_right_is_in_the_audit_for_its_governed_commands(
    breaker: httpx2.AsyncClient, conn: AsyncConnection
) -> None:
    governed, free = uuid4(), uuid4()
    items = [
        {"command_type": "DeleteVM", "data": {"name": "web-1"}, "command_id": str(governed)},
        {"command_type": "Look", "data": {}, "command_id": str(free)},
    ]
    answer = await breaker.post("/api/v1/command-batches/vms", json={"commands": items})
    assert answer.status_code == 202
    assert await bypasses(conn) == [(governed, "breaker", "batch")]


async def test_the_right_is_in_no_other_and_holds_in_its_domains_only(farm: Farm) -> None:
    assert not any(
        caller(scope).may(Scope.BYPASS_GOVERNANCE)
        for scope in Scope
        if scope is not Scope.BYPASS_GOVERNANCE
    )
    assert all(caller("admin").may(scope) for scope in EVERYTHING)
    bound = caller("send", "bypass-governance", domains=("other",))
    assert not farm.bus.governance.on_behalf_of(bound, "vms").may_bypass
    assert farm.bus.governance.on_behalf_of(bound, "other").may_bypass


async def test_the_right_to_send_is_not_the_right_to_submit(farm: Farm) -> None:
    app = app_of(farm.bus, sender=caller("send"), submitter=caller("submit"))
    body = {"operation": "create", "items": [{"name": "web-1"}]}
    async with client_of(app, "sender") as sender, client_of(app, "submitter") as submitter:
        denied = await sender.post("/api/v1/vms/batch", json=body)
        assert problem(denied, 403, "PERMISSION_DENIED")["scope"] == "submit"
        assert (await submitter.post("/api/v1/vms/batch", json=body)).status_code == 202
        free = {**DELETE, "command_type": "Look"}
        denied = await submitter.post("/api/v1/commands", json=free)
        assert problem(denied, 403, "PERMISSION_DENIED")["scope"] == "send"
        assert (await sender.post("/api/v1/commands", json=free)).status_code == 202


# -- the library, and types that are declared no more


async def test_the_library_in_the_application_is_free(farm: Farm, conn: AsyncConnection) -> None:
    await farm.bus.governance.register()
    command_id = await farm.bus.send("vms", "DeleteVM", uuid4(), {"name": "web-1"}, actor="cron")
    (event,) = await farm.bus.get_audit_trail("vms", command_id)
    assert (event.event_type, event.actor) == ("SENT", "cron")
    assert await bypasses(conn) == []


async def test_a_type_that_is_declared_no_more_is_removed_by_an_administrator(
    farm: Farm, dsn: str, conn: AsyncConnection
) -> None:
    await farm.bus.governance.register()
    async with CommandBus.connect(dsn) as bare:
        with pytest.raises(PermissionDeniedError):
            await bare.governance.remove_governed_type(
                caller("operate"), "vms", "DeleteVM", "BATCH_DELETE"
            )
        with pytest.raises(InvalidOperationError, match="declared in this program"):
            await farm.bus.governance.remove_governed_type(
                MALLORY, "vms", "DeleteVM", "BATCH_DELETE"
            )
        await bare.governance.remove_governed_type(MALLORY, "vms", "DeleteVM", "BATCH_DELETE")
        with pytest.raises(InvalidOperationError, match="does not govern"):
            await bare.governance.remove_governed_type(MALLORY, "vms", "DeleteVM", "BATCH_DELETE")
        sent = await bare.governance.send(MALLORY, "vms", "DeleteVM", uuid4(), {"name": "web-1"})
        assert not sent.is_repeat
    # Who still declares it still refuses.
    with pytest.raises(GovernedTypeError):
        await farm.bus.governance.send(MALLORY, "vms", "DeleteVM", uuid4(), {"name": "web-1"})
    page = await farm.bus.search.audit(event_types=[AuditEventType.GOVERNED_TYPE_REMOVED])
    (event,) = page.items
    assert (event.domain, event.actor) == ("vms", "mallory")
    assert event.details == {"command_type": "DeleteVM", "batch_type": "BATCH_DELETE"}


# -- no route is forgotten

#: Fields of a request that can bring content, or a command type, into a queue of commands.
CONTENT = {"command_type", "data", "rows", "payload", "edit", "items", "commands"}
#: The operations with such fields: each is tried above, or only looks.
KNOWN = {
    "send_command", "create_command_batch", "resume_load", "retry_parked", "start_bulk",
    "put_schedule",  # in test_schedules
    # These look, or choose among what is there.
    "preview_bulk", "preview_edit",
}  # fmt: skip


def _fields(document: dict[str, Any], schema: Any, seen: frozenset[str] = frozenset()) -> set[str]:
    found: set[str] = set()
    if isinstance(schema, dict):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            found |= _fields(document, document["components"]["schemas"][name], seen | {name})
        found |= set(schema.get("properties", {}))
        for part in schema.values():
            found |= _fields(document, part, seen)
    elif isinstance(schema, list):
        for part in schema:
            found |= _fields(document, part, seen)
    return found


async def test_every_route_that_takes_content_is_known_here_or_submits(farm: Farm) -> None:
    document = farm.app.openapi()
    found = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if _fields(document, operation.get("requestBody", {})) & CONTENT
    }
    assert {each for each in found if not each.startswith("submit_")} == KNOWN
