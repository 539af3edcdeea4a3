"""What the HTTP service asks of the database beyond the library."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_lock_order import locks_in_order

PARKED = "IN_TROUBLESHOOTING_QUEUE"
REPLIES = f"{DOMAIN}.replies"
LEASE = "select * from commandbus.lease_replies(%s, %s, 10)"
ACKNOWLEDGE = "select commandbus.acknowledge_replies(%s, %s, %s) as msg_id"
PAGE = "select * from commandbus.page_troubleshooting(%s, null, null, null, %s, %s, %s)"


async def leased(db: Session, number: int, vt: int = 60) -> list[dict[str, Any]]:
    for _ in range(number):
        await db.put("COMPLETED")
    return await db.rows(LEASE, REPLIES, vt)


async def test_what_is_parked_comes_page_by_page_each_once(db: Session) -> None:
    ids = [(await db.put(PARKED)).command_id for _ in range(5)]
    found: list[Any] = []
    after: tuple[Any, Any] = (None, None)
    for _ in range(4):
        rows = await db.rows(PAGE, DOMAIN, *after, 2)
        found += [row["command_id"] for row in rows]
        if rows:
            after = (rows[-1]["parked_at"], rows[-1]["command_id"])
    assert sorted(found) == sorted(ids)


async def test_a_page_has_each_payload_with_its_command(db: Session) -> None:
    for n in range(3):
        await db.send(data={"mark": n})
        (held,) = await db.receive()
        await db.settle("park", held.item(reason="PERMANENT"))
    rows = await db.rows(PAGE, DOMAIN, None, None, 10)
    assert [row["data"] for row in rows] == [f'{{"mark": {n}}}' for n in range(3)]


async def test_a_domain_that_is_unknown_has_no_page_and_no_replies(db: Session) -> None:
    assert await db.rows(PAGE, "nowhere", None, None, 10) == []
    assert await db.rows(LEASE, "nowhere.replies", 60) == []
    assert await db.rows(ACKNOWLEDGE, "nowhere.replies", [1], [1]) == []


async def test_only_replies_that_are_named_with_their_receipt_go(db: Session) -> None:
    first, second, third = await leased(db, 3)
    gone = await db.rows(
        ACKNOWLEDGE, REPLIES, [first["msg_id"], second["msg_id"]], [first["receipt"], 77]
    )
    assert [row["msg_id"] for row in gone] == [first["msg_id"]]
    left = [row["msg_id"] for row in await db.queued("replies")]
    assert left == [second["msg_id"], third["msg_id"]]


async def test_a_receipt_that_is_lost_while_it_is_handed_in_counts_no_more(
    db: Session, session: Open
) -> None:
    (reply,) = await leased(db, 1, vt=0)
    reader, late = await session(), await session()
    await reader.rows(LEASE, REPLIES, 60)
    task = asyncio.create_task(
        late.rows(ACKNOWLEDGE, REPLIES, [reply["msg_id"]], [reply["receipt"]])
    )
    await db.until_blocked(late)
    await reader.conn.commit()
    assert await task == []
    await late.conn.commit()
    assert len(await db.queued("replies")) == 1


async def test_an_acknowledgement_locks_its_replies_in_order(db: Session, session: Open) -> None:
    rows = await leased(db, 3)
    numbers = [row["msg_id"] for row in reversed(rows)]
    place = (f"pgmq.q_{DOMAIN}__replies", "msg_id")
    await locks_in_order(
        db, session, place, numbers, lambda s: s.rows(ACKNOWLEDGE, REPLIES, numbers, [1, 1, 1])
    )


async def test_the_oldest_that_waits_is_one_that_could_be_received(db: Session) -> None:
    for _ in range(2):
        await db.send()
    leased, ready = [row["msg_id"] for row in await db.queued()]
    for msg_id, age in ((leased, 1000), (ready, 100)):
        await db.rows(
            f"update pgmq.q_{DOMAIN}__commands set enqueued_at = now() - %s * interval '1 second'"
            " where msg_id = %s",
            age, msg_id,
        )  # fmt: skip
    await db.receive(1)
    (row,) = await db.rows("select * from commandbus.domain_figures()")
    assert (row["ready"], row["delayed"]) == (1, 1)
    assert 100 <= row["oldest_seconds"] < 1000
