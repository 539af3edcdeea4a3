"""Cancel of commands that are stored but not queued: nothing of them is left to be looked at."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session


async def stored_batch(
    db: Session, pattern: str = "two_phase", number: int = 2
) -> tuple[UUID, list[UUID]]:
    batch_id, ids = uuid4(), sorted(uuid4() for _ in range(number))
    commands = [{"command_id": str(i), "type": "Debit", "data": {"n": 1}} for i in ids]
    await db.value(
        "select commandbus.create_stored_batch(%s, %s, %s, 'b', null, 'ann', null, false, %s)",
        DOMAIN, batch_id, Jsonb(commands), pattern,
    )  # fmt: skip
    return batch_id, ids


async def cancel(db: Session, *ids: UUID) -> None:
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why', 'ann')", DOMAIN, list(ids))


async def payloads(db: Session) -> set[Any]:
    rows = await db.rows("select command_id from commandbus.command_bus_payload_archive")
    return {row["command_id"] for row in rows}


@pytest.mark.parametrize(
    ("pattern", "dispatch_status"), [("two_phase", "failed"), ("optimistic", "queued")]
)
async def test_a_canceled_stored_command_leaves_no_payload_and_is_not_waited_for(
    db: Session, pattern: str, dispatch_status: str
) -> None:
    batch_id, (first, second) = await stored_batch(db, pattern)
    await cancel(db, first)

    row = await db.command(first)
    assert (row["status"], row["dispatch_status"]) == ("CANCELED", dispatch_status)
    assert await payloads(db) == {second}
    assert (await db.replies(first))[0]["outcome"] == "CANCELED"
    queued = await db.value(
        "select cardinality(commandbus.queue_stored(%s, %s,"
        " array['pending_queue', 'pending_retry', 'queued', 'failed']))",
        DOMAIN, [first, second],
    )  # fmt: skip
    assert queued == 1
    (leased,) = await db.receive()
    assert leased.command_id == second
    await db.settle("complete", leased.item(data=None))
    assert (await db.batch_row(batch_id))["status"] == "COMPLETED_WITH_FAILURES"


async def test_recovery_does_not_look_at_what_was_canceled(db: Session) -> None:
    _, ids = await stored_batch(db)
    await cancel(db, *ids)
    waiting = await db.value(
        "select count(*) from commandbus.command_bus_command"
        " where dispatch_status in ('pending_queue', 'pending_retry')"
    )
    assert waiting == 0
    await db.rows("select * from commandbus.recover_dispatch('payments', interval '0')")
    assert await db.queued() == []


async def test_the_payload_is_kept_where_payloads_are_kept(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    _, (first, second) = await stored_batch(db)
    await cancel(db, first)
    assert await payloads(db) == {first, second}


async def test_the_payload_of_a_queued_command_goes_to_the_archive_as_ever(db: Session) -> None:
    _, ids = await stored_batch(db)
    await db.value("select commandbus.queue_stored(%s, %s, array['pending_queue'])", DOMAIN, ids)
    await cancel(db, *ids)
    assert len(await db.archived()) == 2
    assert (await db.command(ids[0]))["dispatch_status"] == "queued"


async def test_a_payload_that_was_kept_of_a_queued_command_stays(db: Session) -> None:
    _, ids = await stored_batch(db, number=1)
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await db.value("select commandbus.queue_stored(%s, %s, array['pending_queue'])", DOMAIN, ids)
    await db.value("select commandbus.change_setting('payload_archive', 'off')")
    await cancel(db, *ids)
    assert await payloads(db) == set(ids)


async def test_what_is_canceled_while_a_receive_turns_it_away_is_not_leased(
    db: Session, session: Open
) -> None:
    (command_id,) = await db.send()
    # Without a number the cancel locks no message, and the receive comes as far as the command.
    await db.rows("update commandbus.command_bus_command set msg_id = null, attempts = 3")
    operator, receiver = await session(), await session()
    await operator.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    receive = asyncio.create_task(receiver.receive(limits={"Debit": 3}))
    await db.until_blocked(receiver)
    await operator.conn.commit()
    assert await receive == []
    await receiver.conn.commit()
    row = await db.command(command_id)
    assert (row["status"], row["leased_by"], row["lease_epoch"]) == ("CANCELED", None, 0)
