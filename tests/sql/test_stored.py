"""Commands that are stored before they are queued: each gets one message, whoever asks."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_cancel_of_stored import stored_batch

QUEUE = "select commandbus.queue_stored(%s, %s, array['pending_queue', 'pending_retry', 'queued'])"


async def test_a_stored_command_that_is_named_twice_gets_one_message(db: Session) -> None:
    _, (first, second) = await stored_batch(db)
    assert await db.value(QUEUE, DOMAIN, [first, second, first]) == [first, second]
    assert len(await db.queued()) == 2


async def test_a_message_that_comes_twice_in_one_call_is_adopted_once(db: Session) -> None:
    _, (first, _) = await stored_batch(db)
    envelope = {"command_id": str(first)}
    rows = await db.rows(
        "select verdict from commandbus.adopt_messages(%s, %s) order by n",
        DOMAIN, Jsonb([envelope, envelope, {"command_id": str(uuid4())}]),
    )  # fmt: skip
    assert [row["verdict"] for row in rows] == ["adopted", "known", "refused"]
    assert len(await db.queued()) == 1


#: What must not be queued, nor marked, whatever else the row says.
NOT_TO_BE_SENT = ("status = 'CANCELED'", "msg_id = 77", "dispatch_status = 'awaiting_approval'")
TRIES = [
    "mark_dispatched(%s, %s)",
    "mark_dispatch_failed(%s, %s, 'no answer')",
    "mark_dispatch_failed(%s, %s, 'no answer', 1)",
    "queue_stored(%s, %s, array['pending_queue'])",
    "stored_messages(%s, %s)",
    "adopt_messages(%s, (select jsonb_agg(jsonb_build_object('command_id', i))"
    " from unnest(%s::uuid[]) i))",
    "recover_dispatch(%s, (cardinality(%s::uuid[]) > 9)::int * interval '1 day')",
]


async def store_what_must_stay(db: Session, pattern: str = "two_phase") -> list[UUID]:
    _, ids = await stored_batch(db, pattern, len(NOT_TO_BE_SENT))
    for command_id, change in zip(ids, NOT_TO_BE_SENT, strict=True):
        await db.rows(
            f"update commandbus.command_bus_command set {change} where command_id = %s", command_id
        )
    return ids


@pytest.mark.parametrize("query", TRIES)
@pytest.mark.parametrize("pattern", ["two_phase", "optimistic"])
async def test_what_ended_or_has_a_message_or_waits_for_approval_stays_as_it_is(
    db: Session, query: str, pattern: str
) -> None:
    ids = await store_what_must_stay(db, pattern)
    before = await db.everything()
    rows = await db.rows(f"select * from commandbus.{query}", DOMAIN, ids)
    assert await db.everything() == before
    if query.startswith("stored_messages"):
        assert rows == []


async def test_a_dispatch_looks_for_its_number_among_what_can_be_queued(db: Session) -> None:
    batch, ids = await stored_batch(db, number=5)
    for command_id, change in zip(
        ids, (*NOT_TO_BE_SENT[::2], "dispatch_status = 'queued'"), strict=False
    ):
        await db.rows(
            f"update commandbus.command_bus_command set {change} where command_id = %s", command_id
        )
    dispatch = "select commandbus.dispatch_commands(%s, %s, array['pending_queue', 'queued'], 1)"
    assert [await db.value(dispatch, DOMAIN, batch) for _ in range(3)] == [1, 1, 0]


async def test_two_dispatchers_share_what_is_stored(db: Session, session: Open) -> None:
    batch, ids = await stored_batch(db, number=2)
    other = await session()
    dispatch = "select commandbus.dispatch_commands(%s, %s, array['pending_queue'], 1)"
    assert await other.value(dispatch, DOMAIN, batch) == 1
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    assert await db.value(dispatch, DOMAIN, batch) == 1
    assert await db.value(QUEUE, DOMAIN, ids) == []
    await other.conn.commit()
    assert len(await db.queued()) == 2
