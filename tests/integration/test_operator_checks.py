"""What the doctor found last, what people did, what an id is: kept, and shown to who may see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import InvalidOperationError
from commandbus.models import AuditEventType, Viewer
from tests.http_world import app_of, caller, client_of, problem
from tests.waiting import until

DOMAIN = "payments"
STRANGER = Viewer(owner="ann", sees_access=False)


async def get(client: Any, path: str) -> Any:
    response = await client.get(f"/api/v1{path}")
    assert response.status_code == 200, response.text
    return response.json()


async def parked(bus: CommandBus, conn: psycopg.AsyncConnection[Any], domain: str) -> UUID:
    """A command of which the doctor will say that its message is still in the queue."""
    command_id = uuid4()
    await bus.send(domain, "Debit", command_id, {})
    await conn.execute(
        "update commandbus.command_bus_command set status = 'COMPLETED' where command_id = %s",
        (command_id,),
    )
    return command_id


async def test_a_result_of_the_doctor_is_there_for_who_looks_later(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    nothing = await bus.upkeep.runs.last()
    assert (nothing.last, nothing.newer, nothing.is_running) == (None, None, False)
    command_id = await parked(bus, conn, DOMAIN)
    found = await bus.upkeep.doctor(operator="ann")
    last = (await bus.upkeep.runs.last()).last
    assert last is not None
    assert (last.actor, last.is_fix, last.is_healthy) == ("ann", False, False)
    assert tuple(last.findings) == found.findings
    assert str(command_id) in {place for each in last.fixable for place in each.examples}

    app = app_of(bus, few=caller("read", domains=("orders",)), op=caller("read", "operate"))
    async with client_of(app) as root, client_of(app, "few") as few, client_of(app, "op") as op:
        shown = await get(root, "/doctor")
        assert "MESSAGE_OF_ENDED" in {each["code"] for each in shown["fixable"]}
        hidden = await get(few, "/doctor")
        assert (hidden["last"]["findings"], hidden["fixable"]) == ([], [])
        problem(await few.post("/api/v1/doctor/runs"), 403, "PERMISSION_DENIED")
        form = {"run_id": last.run_id, "reason": "a test"}
        problem(await op.post("/api/v1/doctor/fixes", json=form), 403, "PERMISSION_DENIED")
        problem(
            await root.post("/api/v1/doctor/fixes", json={**form, "run_id": last.run_id + 9}),
            409, "CONFLICT",
        )  # fmt: skip
        begun = await root.post("/api/v1/doctor/fixes", json=form)
        assert begun.status_code == 202, begun.text

        async def is_fixed() -> Any:
            state = await get(root, "/doctor")
            return state if state["last"]["run_id"] == begun.json()["run_id"] else None

        fixed = await until(is_fixed)
        assert (fixed["last"]["is_fix"], fixed["last"]["reason"]) == (True, "a test")
        assert [each["domain"] for each in fixed["last"]["repairs"]] == [DOMAIN]
        assert "MESSAGE_OF_ENDED" not in {each["code"] for each in fixed["fixable"]}
    events = (await bus.search.people(actor="root")).items
    assert {each.event_type for each in events} == {"DOCTOR_REPAIR"}
    assert any((each.details or {}).get("reason") == "a test" for each in events)


async def test_there_is_one_run_at_a_time_and_a_dead_one_does_not_count(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    runs = bus.upkeep.runs
    await conn.execute("select commandbus.begin_check('doctor', null, 'eve')")
    assert (await runs.last()).is_running
    with pytest.raises(InvalidOperationError, match=r"going on since .* begun by eve"):
        await runs.start()
    with pytest.raises(InvalidOperationError, match="has not run yet"):
        await runs.fix(1, "why")
    await conn.execute(
        "update commandbus.command_bus_check_run set touched_at = now() - interval '2 minutes'"
    )
    newer = (await runs.last()).newer
    assert newer is not None
    assert not newer.is_running
    app = app_of(bus)
    async with client_of(app) as root:
        begun = await root.post("/api/v1/doctor/runs", json={"full": True})
        assert begun.status_code == 202, begun.text

        async def has_ended() -> bool:
            return (await get(root, "/doctor"))["last"] is not None

        await until(has_ended)
    first = await conn.execute(
        "select error from commandbus.command_bus_check_run order by run_id limit 1"
    )
    assert await first.fetchone() == ("its process ended before it did",)
    last = (await runs.last()).last
    assert last is not None
    with pytest.raises(InvalidOperationError, match="nothing that was found can be repaired"):
        await runs.fix(last.run_id, "why")


async def test_a_run_that_ends_while_somebody_looks_is_the_last_result(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = await conn.execute("select commandbus.begin_check('doctor', null, 'eve')")
    row = await cursor.fetchone()
    assert row is not None
    kind = type(bus._store.gateway)
    read = kind.row

    async def read_and_end(*args: Any, **more: Any) -> Any:
        found = await read(*args, **more)
        await conn.execute("select commandbus.finish_check(%s, '{}')", row)
        return found

    monkeypatch.setattr(kind, "row", read_and_end)
    found = await bus.upkeep.runs.last()
    assert found.last is not None
    assert (found.last.run_id, found.newer) == (row[0], None)


async def test_a_run_that_fails_says_why(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    run = await bus.upkeep.runs.start(domain="payments", operator="ann")
    await bus.upkeep.runs.close()
    rows = await conn.execute(
        "select finished_at is not null, error from commandbus.command_bus_check_run"
        " where run_id = %s",
        (run.run_id,),
    )
    assert await rows.fetchone() == (True, "the service ended before the run did")


async def test_what_people_did_is_listed_with_one_line_for_many_commands(bus: CommandBus) -> None:
    ids = [uuid4() for _ in range(5)]
    for each in ids:
        await bus.send(DOMAIN, "Debit", each, {}, actor="ann")
    for each in ids:
        await bus.cancel(DOMAIN, each, "a test", operator="ann")
    await bus.send("orders", "Debit", uuid4(), {})
    await bus.pause(DOMAIN, reason="a test", operator="bob")
    await bus.pause("orders", reason="a test", operator="bob")
    page = await bus.search.people()
    assert [(each.event_type, each.actor, each.events) for each in page.items] == [
        ("PAUSED", "bob", 1), ("PAUSED", "bob", 1), ("CANCELED", "ann", 5),
    ]  # fmt: skip
    (only,) = (await bus.search.people(domains=[DOMAIN], actor="ann")).items
    assert only.ts >= only.first_ts
    first = await bus.search.people(limit=1)
    then = await bus.search.people(limit=2, cursor=first.next_cursor)
    assert [each.audit_id for each in (*first.items, *then.items)] == [
        each.audit_id for each in page.items
    ]
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert (await bus.search.people(since=soon)).items == []
    assert (
        len((await bus.search.people(until=soon, event_types=[AuditEventType.PAUSED])).items) == 2
    )
    app = app_of(bus, few=caller("read", domains=("orders",)))
    async with client_of(app, "few") as few:
        items = (await get(few, "/audit/people"))["items"]
        assert [each["domain"] for each in items] == ["orders"]


async def test_a_walk_through_what_people_did_says_how_far_it_came(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for domain in ("aa", "bb", "cc"):
        await bus.send(domain, "Debit", uuid4(), {})
        await bus.pause(domain, reason="a test", operator="bob")
    monkeypatch.setattr("commandbus.commands.people.PEOPLE_SCAN", 2)
    page = await bus.search.people(actor="nobody")
    assert page.items == []
    assert page.searched_to is not None
    assert (await bus.search.people(actor="nobody", cursor=page.next_cursor)).searched_to is None


async def test_an_id_is_told_to_be_what_it_is(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    command_id, shared = uuid4(), uuid4()
    await bus.send(DOMAIN, "Debit", command_id, {}, correlation_id=shared)
    load = await bus.loads.load(DOMAIN, [{"command_type": "Debit", "data": {}}])

    async def kinds(some_id: UUID, **more: Any) -> list[str]:
        return [each.kind for each in await bus.search.identify(some_id, **more)]

    assert await kinds(command_id) == ["command"]
    assert await kinds(load.batch_id) == ["batch"]
    assert await kinds(uuid4()) == []
    assert await kinds(command_id, domains=["orders"]) == []
    await conn.execute(
        "update commandbus.command_bus_batch set batch_type = 'T', created_by = 'eve'"
    )
    assert await kinds(load.batch_id) == ["ticket"]
    assert await kinds(load.batch_id, viewer=STRANGER) == []
    async with client_of(app_of(bus)) as root:
        (item,) = (await get(root, f"/ids/{command_id}"))["items"]
        assert item == {"kind": "command", "domain": DOMAIN, "status": "PENDING"}
        (item,) = (await get(root, f"/ids/{shared}"))["items"]
        assert item == {"kind": "correlation", "domain": DOMAIN, "status": None}
        problem(await root.get(f"/api/v1/ids/{uuid4()}"), 404, "NOT_FOUND")


async def test_settings_chores_retention_and_seals_are_shown_without_secrets(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await bus.upkeep.set_retention("audit", timedelta(days=1))
    await bus.upkeep.set_retention("audit", timedelta(days=2), domain="orders")
    await bus.send(DOMAIN, "Debit", uuid4(), {})
    for chore in ("prune workers", "recover dispatch of orders"):
        await conn.execute("select commandbus.claim_chore(%s, interval '1 second')", (chore,))
    app = app_of(bus, few=caller("read", domains=(DOMAIN,)))
    async with client_of(app) as root, client_of(app, "few") as few:
        assert len((await get(root, "/chores"))["items"]) == 2
        assert [each["name"] for each in (await get(few, "/chores"))["items"]] == ["prune workers"]
        rules = [
            each for each in (await get(few, "/retention"))["items"] if each["kind"] == "audit"
        ]
        assert [(each["domain"], each["keep_seconds"]) for each in rules] == [(None, 86_400.0)]
        shown = await get(root, "/settings")
        assert {each["name"] for each in shown["of_database"]} >= {"payload_archive"}
        assert shown["of_process"]["token_pepper"] in {"", "(set, not shown)"}
        assert shown["of_service"]["jwt_key"] == ""
        problem(await few.get("/api/v1/settings"), 403, "PERMISSION_DENIED")
        seals = await get(few, "/audit/seals")
        assert (seals["seal_number"], seals["verified"], seals["has_more"]) == (None, None, False)
        assert seals["unsealed"] > 0
        await bus.upkeep.seal_audit()
        await bus.upkeep.verify_audit()
        seals = await get(few, "/audit/seals")
        assert seals["verified"]["is_intact"] is True
        assert seals["seal_number"] == 1
