"""What happens a second time: replies, payloads and sends of a command that was there before."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.models.schedules import symptoms
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.tickets import submitted

PARK = {"reason": "PERMANENT", **FAILURE}


async def payloads(db: Session) -> dict[Any, Any]:
    rows = await db.rows("select * from commandbus.command_bus_payload_archive")
    return {row["command_id"]: row["payload_json"]["data"] for row in rows}


async def test_a_second_reply_in_the_inbox_takes_the_place_of_the_first(db: Session) -> None:
    batch = await db.batch()
    await db.send(uuid4(), batch_id=batch, reply_to="@inbox")
    (held,) = await db.receive()
    await db.settle("fail", held.item(**FAILURE))
    await db.value("select commandbus.retry_batch(%s, %s)", DOMAIN, batch)
    (held,) = await db.receive()
    assert await db.settle("complete", held.item(data=7)) == []
    (row,) = await db.rows("select reply from commandbus.command_bus_reply_inbox")
    assert (row["reply"]["outcome"], row["reply"]["data"]) == ("SUCCESS", 7)


async def test_only_what_is_parked_is_kept_in_the_payload_archive(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await db.send(uuid4(), uuid4())
    first, _ = await db.receive()
    await db.settle("park", first.item(**PARK))
    assert await payloads(db) == {first.command_id: {"n": 0}}


async def test_a_second_parking_keeps_the_payload_of_the_second_time(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    held = await db.put("IN_PROGRESS")
    await db.settle("park", held.item(**PARK))
    edit = {"data": {"n": 99}, "previous_msg_id": held.msg_id, "changes": {}}
    await db.rows(
        "select commandbus.operator_retry(%s, %s, 'ann', true, true, %s)",
        DOMAIN, [held.command_id], Jsonb({str(held.command_id): edit}),
    )  # fmt: skip
    (held,) = await db.receive()
    assert await db.settle("park", held.item(**PARK)) == []
    assert await payloads(db) == {held.command_id: {"n": 99}}


async def test_what_a_handler_sent_is_not_sent_again_when_its_outcome_is_said_twice(
    db: Session,
) -> None:
    held = await db.put("IN_PROGRESS")
    sent = {"command_id": str(uuid4()), "type": "Debit", "data": {}}
    send = {"by": str(held.command_id), "lease_epoch": 1, "domain": DOMAIN, "commands": [sent]}
    document = Jsonb({"retry": [held.item(delay_seconds=0, **FAILURE)], "send": [send]})
    for _ in range(2):
        await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, document)
    assert len(await db.queued()) == 2


async def test_an_id_that_is_used_again_after_retention_is_no_fault(db: Session) -> None:
    (command_id,) = await db.send()
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    await db.rows("select commandbus.prune_commands(%s, now() + interval '1 day', 100)", DOMAIN)
    await db.rows(f"select pgmq.purge_queue('{DOMAIN}__replies')")
    await db.send(command_id)
    assert await symptoms(db) == []


async def test_a_message_that_names_a_command_awaiting_approval_does_not_start_it(
    db: Session,
) -> None:
    ticket_id = await submitted(db, requires_approval=True)
    (row,) = await db.rows("select command_id from commandbus.command_bus_command")
    message = Jsonb({"command_id": str(row["command_id"]), "data": {"forged": True}})
    await db.value(f"select pgmq.send('{DOMAIN}__commands', %s)", message)

    assert await db.receive(limits={"Debit": 0}) == []
    assert await db.receive() == []
    assert await db.queued() == []
    found = await db.command(row["command_id"])
    assert (found["status"], found["msg_id"]) == ("PENDING", None)
    await db.value("select commandbus.decide_ticket(%s, %s, 'approve', 'bob')", DOMAIN, ticket_id)
    (held,) = await db.receive()
    assert held.row["data"] == '{"n": 0}'


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("complete", {"data": None}), ("fail", FAILURE), ("park", PARK), ("release", {}),
        ("retry", {"delay_seconds": 0, **FAILURE}), ("snooze", {"delay_seconds": 0}),
        ("discard", {"reason": "void"}),
    ],
)  # fmt: skip
async def test_an_outcome_counts_once_and_takes_only_its_own_message(
    db: Session, verb: str, more: dict[str, Any]
) -> None:
    await db.send(uuid4(), uuid4())
    first, second = await db.receive()
    assert await db.settle(verb, first.item(**more)) == []
    after = await db.everything()
    assert second.msg_id in [message["msg_id"] for message in await db.queued()]
    assert await db.settle(verb, first.item(**more)) == []
    assert await db.everything() == after
