"""Ordering keys under concurrency: senders wait for their key only, workers never do."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.keyed import (
    assert_nothing_left,
    complete,
    drain,
    key_row,
    park,
    receive_ids,
    send_keyed,
    set_policy,
    waiting,
)


@pytest.fixture(autouse=True)
async def _domain(db: Session) -> None:
    """The queues and the mark, so that nobody waits for their making."""
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value("select commandbus.use_keys(%s)", DOMAIN)


async def test_an_end_does_not_wait_for_an_open_sender(db: Session, session: Open) -> None:
    (first,) = await send_keyed(db, "a")
    sender = await session()
    (second,) = await send_keyed(sender, "a")
    (held,) = await db.receive()
    await complete(db, held)  # the key is the sender's
    assert await receive_ids(db) == []
    await sender.conn.commit()
    assert await db.status(first) == "COMPLETED"
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_a_sender_that_rolls_back_leaves_the_key_to_the_next(
    db: Session, session: Open
) -> None:
    _, second = await send_keyed(db, "a", "a")
    sender = await session()
    await send_keyed(sender, "a")
    await complete(db, *await db.receive())
    assert await receive_ids(db) == []
    await sender.conn.rollback()
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_the_first_of_a_key_that_is_rolled_back_leaves_nothing(
    db: Session, session: Open
) -> None:
    sender, other = await session(), await session()
    await send_keyed(sender, "a", "a")
    task = asyncio.create_task(send_keyed(other, "a"))
    await db.until_blocked(other)
    await sender.conn.rollback()
    (only,) = await task
    await other.conn.commit()
    assert await drain(db) == [only]
    await assert_nothing_left(db)


async def test_numbers_follow_the_order_of_commits(db: Session, session: Open) -> None:
    first, second = await session(), await session()
    (one,) = await send_keyed(first, "a")
    task = asyncio.create_task(send_keyed(second, "a"))
    await db.until_blocked(second)
    await first.conn.commit()
    (two,) = await task
    await second.conn.commit()
    assert (await db.command(one))["key_seq"] < (await db.command(two))["key_seq"]
    assert await drain(db) == [one, two]


async def test_senders_of_other_keys_do_not_wait(db: Session, session: Open) -> None:
    first, second = await session(), await session()
    await send_keyed(first, "a")
    await second.rows("set lock_timeout = '2s'")
    await send_keyed(second, "b", None)
    await first.conn.commit()
    await second.conn.commit()


async def test_a_call_locks_its_keys_in_their_order(db: Session, session: Open) -> None:
    blocker, sender, prober = await session(), await session(), await session()
    await send_keyed(blocker, "b")
    task = asyncio.create_task(send_keyed(sender, "c", "b", "a"))
    await db.until_blocked(sender)
    await send_keyed(prober, "c")  # nobody has it yet
    await prober.conn.rollback()
    probe = asyncio.create_task(send_keyed(prober, "a"))
    await db.until_blocked(prober)
    await blocker.conn.rollback()
    await task
    await sender.conn.commit()
    await probe
    await prober.conn.commit()
    assert len(await drain(db)) == 4
    await assert_nothing_left(db)


async def test_an_end_that_meets_a_cancel_of_the_next_does_not_go_past_it(
    db: Session, session: Open
) -> None:
    _, second, third = await send_keyed(db, "a", "a", "a")
    operator = await session()
    await operator.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [second])
    await complete(db, *await db.receive())
    assert await receive_ids(db) == []  # not the third: the cancel may be undone
    await operator.conn.rollback()
    assert await drain(db) == [second, third]
    await assert_nothing_left(db)


async def test_an_end_that_meets_a_cancel_of_the_next_goes_on_after_it(
    db: Session, session: Open
) -> None:
    _, second, third = await send_keyed(db, "a", "a", "a")
    operator = await session()
    await operator.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [second])
    await complete(db, *await db.receive())
    await operator.conn.commit()
    assert await drain(db) == [third]
    await assert_nothing_left(db)


async def test_a_worker_in_repeatable_read_leaves_the_look_to_a_receive(
    db: Session, session: Open
) -> None:
    await send_keyed(db, "a")
    (held,) = await db.receive()
    worker = await session()
    await worker.rows("set transaction isolation level repeatable read")
    await worker.rows("select 1")  # its snapshot is taken
    (second,) = await send_keyed(db, "a")
    await complete(worker, held)
    await worker.conn.commit()
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_a_sender_in_repeatable_read_is_looked_after_by_a_receive(
    db: Session, session: Open
) -> None:
    await send_keyed(db, "a")
    (held,) = await db.receive()
    sender = await session()
    await sender.rows("set transaction isolation level repeatable read")
    await sender.rows("select 1")
    (second,) = await send_keyed(sender, "a")
    await complete(db, held)
    await sender.conn.commit()
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_a_sender_in_repeatable_read_that_comes_too_late_is_refused(
    db: Session, session: Open
) -> None:
    await send_keyed(db, "a", "a")
    sender = await session()
    await sender.rows("set transaction isolation level repeatable read")
    await sender.rows("select 1")
    await complete(db, *await db.receive())  # another one is the head now
    with pytest.raises(errors.SerializationFailure):
        await send_keyed(sender, "a")
    await sender.conn.rollback()
    assert len(await drain(db)) == 1


async def test_a_sender_looks_after_a_key_that_workers_never_get(
    db: Session, session: Open
) -> None:
    _, second = await send_keyed(db, "a", "a")
    sender = await session()
    await send_keyed(sender, "a")
    await complete(db, *await db.receive())
    await sender.conn.commit()
    after = await session()
    await send_keyed(after, "a")  # takes the key before any receive
    await after.conn.commit()
    assert (await key_row(db, "a"))["head"] == second


async def test_a_park_and_a_change_of_the_policy_leave_no_key_behind(
    db: Session, session: Open
) -> None:
    _, second = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    worker, operator = await session(), await session()
    await park(worker, held)
    task = asyncio.create_task(set_policy(operator, "skip"))
    await db.until_blocked(operator)  # until the park is known
    await worker.conn.commit()
    await task
    await operator.conn.commit()
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_a_park_does_not_wait_for_a_change_of_the_policy(db: Session, session: Open) -> None:
    _, second = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    operator = await session()
    await set_policy(operator, "skip")
    await db.rows("set lock_timeout = '2s'")
    await park(db, held)
    assert await receive_ids(db) == []
    await operator.conn.commit()
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_stepping_over_and_a_retry_of_the_blocker_happen_one_after_the_other(
    db: Session, session: Open
) -> None:
    first, second = await send_keyed(db, "a", "a")
    await park(db, *await db.receive())
    one, other = await session(), await session()
    await one.rows("select commandbus.skip_key(%s, 'a', 'ana')", DOMAIN)
    retry = "select commandbus.operator_retry(%s, %s)"
    task = asyncio.create_task(other.rows(retry, DOMAIN, [first]))
    await db.until_blocked(other)
    await one.conn.commit()
    await task
    await other.conn.commit()
    assert await drain(db) == [second, first]
    await assert_nothing_left(db)


async def test_a_retry_waits_for_a_sender_with_no_command_in_its_hands(
    db: Session, session: Open
) -> None:
    (first,) = await send_keyed(db, "a")
    await park(db, *await db.receive())
    sender, operator, other = await session(), await session(), await session()
    await send_keyed(sender, "a")
    retry = "select commandbus.operator_retry(%s, %s)"
    task = asyncio.create_task(operator.rows(retry, DOMAIN, [first]))
    await db.until_blocked(operator)
    await other.rows("set lock_timeout = '2s'")
    await other.rows("select commandbus.lock_commands(%s, %s)", DOMAIN, [first])
    await other.conn.commit()
    await sender.conn.commit()
    await task
    await operator.conn.commit()
    assert (await drain(db))[0] == first


async def test_a_handler_that_sends_waits_for_the_key_before_its_own_messages(
    db: Session, session: Open
) -> None:
    by = (await db.send(uuid4()))[0]
    (held,) = await db.receive()
    sender, worker, other = await session(), await session(), await session()
    await send_keyed(sender, "a")
    more = uuid4()
    outcomes = {
        "complete": [held.item(data=None)],
        "send": [
            {
                "by": str(by), "lease_epoch": held.lease_epoch, "domain": DOMAIN,
                "commands": [{"command_id": str(more), "type": "Debit", "ordering_key": "a"}],
            }
        ],
    }  # fmt: skip
    settle = "select commandbus.settle_commands(%s, %s)"
    task = asyncio.create_task(worker.rows(settle, DOMAIN, Jsonb(outcomes)))
    await db.until_blocked(worker)
    await other.rows("set lock_timeout = '2s'")
    await other.rows("select commandbus.lock_messages(%s, %s)", "payments.commands", [held.msg_id])
    await other.conn.commit()
    await sender.conn.commit()
    await task
    await worker.conn.commit()
    assert (await waiting(db, "a")) == [more]


async def test_a_key_goes_on_behind_a_duplicate_that_waited(db: Session, session: Open) -> None:
    first, second = await session(), await session()
    known = uuid4()

    def offer(by: Session, *ids: UUID) -> asyncio.Task[object]:
        commands = [{"command_id": str(i), "type": "Debit", "ordering_key": "a"} for i in ids]
        call = by.value("select commandbus.offer_commands(%s, %s)", DOMAIN, Jsonb(commands))
        return asyncio.create_task(call)

    assert await offer(first, known) == []
    task = offer(second, uuid4(), known)
    await db.until_blocked(second)
    await first.conn.commit()
    assert await task == [known]
    await second.conn.commit()
    assert await drain(db) == [known]
    await assert_nothing_left(db)
