"""One edit for many parked commands, on a real database: previewed, applied once, audited."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus, HandlerContext
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.privacy.secrets import Secret
from commandbus.troubleshooting import BulkFilter, BulkOperation, BulkVerb, JsonPatch, MergePatch
from tests.integration.looking import another_bus, rows, value
from tests.parking import MISCOUNTED, SETTLE
from tests.waiting import working

Conn = psycopg.AsyncConnection[Any]
SHOP = BulkFilter("shop")
EURO = MergePatch({"currency": "EUR"})
EDITED = (
    "select command_id, actor, details_json -> 'edited' from commandbus.command_bus_audit"
    " where event_type = 'OPERATOR_RETRY' order by audit_id"
)


async def park(
    bus: CommandBus, conn: Conn, payloads: list[dict[str, Any]], *, code: str = "WRONG_CURRENCY"
) -> list[UUID]:
    ids = [uuid4() for _ in payloads]
    for command_id, data in zip(ids, payloads, strict=True):
        await bus.send("shop", "Pay", command_id, data)
    params = {"domain": "shop", "count": len(ids), "code": code, "message": "no"}
    await conn.execute(SETTLE, params)
    return ids


async def queued(conn: Conn) -> list[Any]:
    queue = await value(conn, "select 'q_' || commandbus.physical_queue('shop.commands')")
    found = await rows(conn, f"select message -> 'data' from pgmq.{queue}")
    return sorted((row[0] for row in found), key=lambda data: data["n"])


async def edit(bus: CommandBus, change: Any, **options: Any) -> BulkOperation:
    started = await bus.bulk.start(
        BulkVerb.RETRY, SHOP, edit=change, everything=True, operator="ann", **options
    )
    return await bus.bulk.run(started.operation_id)


async def test_199_wrong_values_are_one_call(bus: CommandBus, conn: Conn) -> None:
    ids = await park(bus, conn, [{"n": n, "currency": "EURO"} for n in range(199)])
    [group] = await bus.troubleshooting.groups("shop")
    chosen = BulkFilter("shop", group=group.fingerprint)

    preview = await bus.bulk.preview_edit(chosen, EURO, examples=2)
    assert (preview.total, preview.looked_at, preview.changed) == (199, 199, 199)
    assert (preview.unchanged, preview.failed, len(preview.examples)) == (0, 0, 2)
    assert preview.examples[0].changes == {
        "changed": [{"path": "data.currency", "from": '"EURO"', "to": '"EUR"'}]
    }
    assert await queued(conn) == []

    started = await bus.bulk.start(BulkVerb.RETRY, chosen, edit=EURO, operator="ann")
    ended = await bus.bulk.run(started.operation_id)

    assert (ended.status, ended.done, ended.edited_paths) == ("finished", 199, ("/currency",))
    assert await queued(conn) == [{"n": n, "currency": "EUR"} for n in range(199)]
    found = await rows(conn, EDITED)
    assert sorted(row[0] for row in found) == sorted(ids)
    assert {row[1] for row in found} == {"ann"}
    assert all(row[2]["changes"] == {"paths": ["data.currency"]} for row in found)
    assert await value(conn, MISCOUNTED) == 0


async def test_what_the_patch_does_not_suit_stays_parked_with_the_reason(
    bus: CommandBus, conn: Conn
) -> None:
    payloads: list[dict[str, Any]] = [
        {"n": 0, "currency": "EURO"}, {"n": 1, "currency": "USD"}, {"n": 2},
        {"n": 3, "currency": "EURO"},
    ]  # fmt: skip
    ids = await park(bus, conn, payloads)
    patch = JsonPatch(
        [
            {"op": "test", "path": "/currency", "value": "EURO"},
            {"op": "replace", "path": "/currency", "value": "EUR"},
        ]
    )
    preview = await bus.bulk.preview_edit(SHOP, patch)
    assert (preview.changed, preview.unchanged, preview.failed) == (2, 0, 2)
    assert preview.failures == {
        "operation 1 (test '/currency'): the value there is another one": 1,
        "operation 1 (test '/currency'): there is nothing at this path": 1,
    }

    ended = await edit(bus, patch)

    assert (ended.done, ended.skipped, ended.failed) == (2, 0, 2)
    left = await bus.troubleshooting.page("shop")
    assert {item.command_id for item in left.items} == {ids[1], ids[2]}
    assert [each["currency"] for each in await queued(conn)] == ["EUR", "EUR"]
    items = await bus.bulk.page_items(ended.operation_id)
    details = {item.command_id: item.detail for item in items.items}
    assert "another one" in str(details[ids[1]])
    assert "nothing at this path" in str(details[ids[2]])


async def test_what_an_edit_leaves_as_it_is_is_sent_again_and_not_called_edited(
    bus: CommandBus, conn: Conn
) -> None:
    await park(bus, conn, [{"n": 0, "currency": "EUR"}])
    assert (await bus.bulk.preview_edit(SHOP, EURO)).unchanged == 1
    assert (await edit(bus, EURO)).done == 1
    assert [row[2] for row in await rows(conn, EDITED)] == [None]


async def test_two_executors_and_a_stop_edit_each_payload_once(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    # An operation that is not the same if it is done twice.
    await park(bus, conn, [{"n": n, "marks": []} for n in range(250)])
    mark = JsonPatch([{"op": "add", "path": "/marks/-", "value": "x"}])
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=mark, everything=True, rate=2_000)

    async def stop(now: BulkOperation) -> None:
        if now.is_running:
            await bus.bulk.stop(now.operation_id)

    stopped = await bus.bulk.run(started.operation_id, on_progress=stop)
    assert (stopped.status, stopped.done) == ("stopped", 100)
    await bus.bulk.resume(started.operation_id)
    async with another_bus(dsn) as other:
        one, two = await asyncio.gather(
            bus.bulk.run(started.operation_id), other.bulk.run(started.operation_id)
        )
    assert (one.done, two.done) == (250, 250)
    assert [each["marks"] for each in await queued(conn)] == [["x"]] * 250


async def test_a_process_that_dies_between_reading_and_acting_has_changed_nothing(
    bus: CommandBus, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await park(bus, conn, [{"n": n, "marks": []} for n in range(3)])
    mark = JsonPatch([{"op": "add", "path": "/marks/-", "value": "x"}])
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=mark, everything=True)

    def die(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("commandbus.troubleshooting.bulk_run._chunk_document", die)
        with pytest.raises(KeyboardInterrupt):
            await bus.bulk.run(started.operation_id)
    assert (await bus.bulk.require(started.operation_id)).acted == 0
    assert (await bus.bulk.run(started.operation_id)).done == 3
    assert [each["marks"] for each in await queued(conn)] == [["x"]] * 3


async def test_a_command_that_was_decided_on_meanwhile_is_skipped(
    bus: CommandBus, conn: Conn
) -> None:
    ids = await park(bus, conn, [{"n": n} for n in range(3)])
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=EURO, everything=True)
    await bus.troubleshooting.cancel("shop", ids[0], "not wanted")
    await bus.troubleshooting.retry("shop", ids[1])
    await conn.execute(SETTLE, {"domain": "shop", "count": 1, "code": "AGAIN", "message": "no"})
    ended = await bus.bulk.run(started.operation_id)
    assert (ended.done, ended.skipped, ended.failed) == (1, 2, 0)
    assert await queued(conn) == [{"n": 2, "currency": "EUR"}]


async def test_a_payload_that_is_gone_or_too_deep_fails_alone(bus: CommandBus, conn: Conn) -> None:
    gone, _ = await park(bus, conn, [{"n": 0}, {"n": 1}])
    deep = '{"n": 2, "d": ' + "[" * 600 + "]" * 600 + "}"
    await conn.execute(
        "select commandbus.send_commands('shop', jsonb_build_array(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Pay', 'data', %s::jsonb)))",
        (deep,),
    )
    await conn.execute(SETTLE, {"domain": "shop", "count": 1, "code": "X", "message": "no"})
    queue = await value(conn, "select 'a_' || commandbus.physical_queue('shop.commands')")
    await conn.execute(
        f"delete from pgmq.{queue} where message ->> 'command_id' = %s".encode(), (str(gone),)
    )
    await conn.execute("delete from commandbus.command_bus_payload_archive")
    copies = JsonPatch([{"op": "copy", "from": "", "path": "/all"}])
    preview = await bus.bulk.preview_edit(SHOP, copies)
    assert (preview.changed, preview.failed) == (1, 2)
    failures = {example.command_id: example.failure for example in preview.examples}
    assert failures[gone] == "the payload is no longer archived"
    assert "nested too deeply" in str(preview.failures)
    ended = await edit(bus, copies)
    assert (ended.done, ended.failed) == (1, 2)
    details = {
        item.command_id: item.detail
        for item in (await bus.bulk.page_items(ended.operation_id)).items
    }
    assert details[gone] == "the payload is no longer archived"


async def test_the_audit_names_some_of_many_paths(bus: CommandBus, conn: Conn) -> None:
    await park(bus, conn, [{"n": 0}])
    await edit(bus, MergePatch({f"field{n}": n for n in range(30)}))
    [(_, _, edited)] = await rows(conn, EDITED)
    assert edited["changes"]["paths"] == [*(f"data.field{n}" for n in range(20)), "…"]


async def test_secrets_are_shown_nowhere_and_kept_no_longer_than_needed(
    bus: CommandBus, conn: Conn
) -> None:
    await bus_declares_iban(bus)
    await park(bus, conn, [{"n": 0, "iban": "DE-OLD", "password": "hunter2", "note": "x"}])
    edits = [
        MergePatch({"iban": "DE-OLD", "note": "y"}), MergePatch({"iban": "DE-NEW", "note": "y"}),
    ]  # fmt: skip
    shown = [(await bus.bulk.preview_edit(SHOP, each)).examples[0].changes for each in edits]
    assert shown[0] == shown[1]  # a guess is not confirmed
    assert shown[0]["secret"] == ["/iban"]
    assert "DE-" not in repr(shown)

    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=edits[1], everything=True)
    assert "DE-NEW" not in repr(started)
    assert await value(conn, "select arguments::text from commandbus.command_bus_bulk_operation")
    ended = await bus.bulk.run(started.operation_id)
    assert ended.edited_paths == ("/iban", "/note")
    kept = await value(conn, "select arguments::text from commandbus.command_bus_bulk_operation")
    assert "DE-NEW" not in kept
    trail = await value(
        conn, "select string_agg(details_json::text, ' ') from commandbus.command_bus_audit"
    )
    assert "DE-" not in trail
    assert "hunter2" not in trail
    assert (await queued(conn))[0]["iban"] == "DE-NEW"
    assert (await queued(conn))[0]["password"] == "hunter2"


async def bus_declares_iban(bus: CommandBus) -> None:
    gateway = bus._store.gateway
    await gateway.ensure_domain("shop")
    await gateway.rows(
        "select {schema}.declare_secrets('shop', cast(%s as jsonb))", ('{"Pay": ["iban"]}',)
    )


@dataclass
class Payment:
    n: int
    currency: str
    iban: Annotated[str, Secret] = ""


async def test_the_handlers_payload_type_and_the_limits_hold_for_an_edit_too(
    bus: CommandBus, conn: Conn
) -> None:
    async def pay(command: Any, context: HandlerContext) -> None:
        """Nothing to do."""

    bus.register_handler("shop", "Pay", pay, payload_type=Payment)
    await park(bus, conn, [{"n": 0, "currency": "EURO", "iban": "x" * 100}])
    for change, why in (
        (MergePatch({"currency": 5}), "currency must be text"),
        (MergePatch({"currency": "x" * 262_100}), "at most 262,144"),
        (JsonPatch([{"op": "add", "path": "", "value": [1]}]), "must be a dict"),
    ):
        preview = await bus.bulk.preview_edit(SHOP, change)
        assert (preview.failed, why in str(preview.failures)) == (1, True)
    ended = await edit(bus, MergePatch({"currency": 5}))
    assert (ended.done, ended.failed) == (0, 1)


async def test_numbers_that_python_would_round_are_not_touched(bus: CommandBus, conn: Conn) -> None:
    await bus.send("shop", "Pay", uuid4(), {"n": 0})
    exact = "0.12345678901234567890123"
    await conn.execute(  # as a client that sends through SQL does
        "select commandbus.send_commands('shop', jsonb_build_array(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Pay', 'data', %s::jsonb)))",
        (f'{{"n": 1, "x": {exact}}}',),
    )
    await conn.execute(SETTLE, {"domain": "shop", "count": 2, "code": "X", "message": "no"})
    ended = await edit(bus, EURO)
    assert (ended.done, ended.failed) == (1, 1)
    [left] = (await bus.troubleshooting.page("shop")).items
    kept = await bus._store.get_payload("shop", left.command_id)
    assert exact in str(kept)


async def test_the_workers_of_the_domain_apply_an_edit(bus: CommandBus, conn: Conn) -> None:
    seen: list[Any] = []

    async def pay(command: Any, context: HandlerContext) -> None:
        seen.append(command.data)

    await park(bus, conn, [{"n": n} for n in range(3)])
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=EURO, everything=True)
    bus.register_handler("shop", "Pay", pay)
    async with working(bus, "shop"):
        async with asyncio.timeout(30):
            while len(seen) < 3:
                await asyncio.sleep(0.02)
    assert all(data["currency"] == "EUR" for data in seen)
    assert (await bus.bulk.require(started.operation_id)).done == 3


async def test_an_executor_that_knows_no_edits_is_refused_and_gets_none(
    bus: CommandBus, conn: Conn
) -> None:
    await park(bus, conn, [{"n": 0}])
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=EURO, everything=True)
    assert await value(conn, "select commandbus.next_bulk('shop', 'old')") is None
    with pytest.raises(psycopg.Error, match="edits payloads, and this process cannot"):
        await conn.execute(
            "select * from commandbus.run_bulk_chunk(%s, 500, 'old')", (started.operation_id,)
        )
    # And one that says nothing about a command leaves it parked.
    await conn.execute(
        "select * from commandbus.run_bulk_chunk(%s, 500, 'new', %s::jsonb)",
        (started.operation_id, '{"first": 1, "edits": {}, "same": [], "refused": {}}'),
    )
    assert (await bus.bulk.require(started.operation_id)).failed == 1
    assert await queued(conn) == []


async def test_an_edit_that_makes_no_sense_is_refused(bus: CommandBus, conn: Conn) -> None:
    await park(bus, conn, [{"n": 0}])
    wrong: Any = {"currency": "EUR"}
    with pytest.raises(InvalidInputError, match="MergePatch or a JsonPatch"):
        await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=wrong)
    with pytest.raises(InvalidInputError, match="MergePatch or a JsonPatch"):
        await bus.bulk.preview_edit(SHOP, wrong)
    with pytest.raises(InvalidInputError, match="a cancel has no edit"):
        await bus.bulk.start(BulkVerb.CANCEL, SHOP, edit=EURO, reason="no")
    with pytest.raises(InvalidOperationError, match="matches 1 commands now, not 2"):
        await bus.bulk.start(BulkVerb.RETRY, SHOP, edit=EURO, everything=True, expected_total=2)


async def test_an_edit_that_was_started_through_sql_with_a_mistake_fails_its_items_only(
    bus: CommandBus, conn: Conn
) -> None:
    await park(bus, conn, [{"n": 0}])
    started = await value(
        conn,
        "select commandbus.start_bulk(gen_random_uuid(), 'shop', 'retry', '{}', %s::jsonb,"
        " null, 'ann', true)",
        '{"edit": {"patch": [{"op": "set"}], "paths": []}}',
    )
    ended = await bus.bulk.run(started)
    assert (ended.status, ended.failed) == ("finished", 1)
    [item] = (await bus.bulk.page_items(started)).items
    assert "operation 1 of the patch has op" in str(item.detail)
    with pytest.raises(psycopg.Error, match="only a retry has an edit"):
        await value(
            conn,
            "select commandbus.start_bulk(gen_random_uuid(), 'shop', 'complete', '{}', %s::jsonb,"
            " null, 'ann', true)",
            '{"edit": {"merge": {"a": 1}, "paths": []}}',
        )


async def test_a_repeat_is_the_same_operation_also_when_it_has_ended(
    bus: CommandBus, conn: Conn
) -> None:
    await park(bus, conn, [{"n": 0}])
    wanted = uuid4()
    first = await edit(bus, EURO, operation_id=wanted)
    again = await bus.bulk.start(
        BulkVerb.RETRY, SHOP, edit=EURO, everything=True, operation_id=wanted
    )
    assert (first.operation_id, again.operation_id, again.status) == (wanted, wanted, "finished")
    with pytest.raises(InvalidOperationError, match="with other content"):
        await bus.bulk.start(
            BulkVerb.RETRY, SHOP, edit=MergePatch({"currency": "USD"}), operation_id=wanted
        )
