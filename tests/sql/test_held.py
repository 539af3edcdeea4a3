"""Commands that are stored before they are queued: each gets one message, whoever asks."""

from __future__ import annotations

from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_held_cancel import hold

QUEUE = "select commandbus.queue_held(%s, %s, array['pending_queue', 'pending_retry', 'queued'])"


async def test_a_held_command_that_is_named_twice_gets_one_message(db: Session) -> None:
    _, (first, second) = await hold(db)
    assert await db.value(QUEUE, DOMAIN, [first, second, first]) == [first, second]
    assert len(await db.queued()) == 2


async def test_a_message_that_comes_twice_in_one_call_is_adopted_once(db: Session) -> None:
    _, (first, _) = await hold(db)
    envelope = {"command_id": str(first)}
    rows = await db.rows(
        "select verdict from commandbus.adopt_messages(%s, %s) order by n",
        DOMAIN, Jsonb([envelope, envelope, {"command_id": str(uuid4())}]),
    )  # fmt: skip
    assert [row["verdict"] for row in rows] == ["adopted", "known", "refused"]
    assert len(await db.queued()) == 1
