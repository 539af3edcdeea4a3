"""Two sessions at once: whoever comes second waits, and nobody waits in a circle."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

LOW, MIDDLE, HIGH = (UUID(int=n) for n in (1, 2, 3))


async def lapsed(db: Session) -> Held:
    """A lease that has run out without anybody noticing yet."""
    held = await db.put("IN_PROGRESS")
    await db.lapse(held)
    return held


async def test_a_finish_waits_for_a_receive_at_a_lapse_and_is_rejected(
    db: Session, session: Open
) -> None:
    held = await lapsed(db)
    receiver, finisher = await session(), await session()
    (taken,) = await receiver.receive(worker="w2")  # holds the message and the command
    finish = asyncio.create_task(finisher.settle("complete", held.item(data=None)))
    await db.until_blocked(finisher)
    await receiver.conn.commit()
    assert await finish == [held.command_id]
    await finisher.conn.commit()
    assert await db.settle("complete", taken.item(data=None)) == []
    assert len(await db.replies(held.command_id)) == 1


async def test_a_receive_steps_over_a_command_that_is_being_finished(
    db: Session, session: Open
) -> None:
    held = await lapsed(db)
    finisher = await session()
    assert await finisher.settle("complete", held.item(data=None)) == []
    assert await db.receive(worker="w2") == []  # does not wait
    await finisher.conn.commit()
    assert await db.status(held.command_id) == "COMPLETED"
    assert await db.receive(worker="w2") == []


async def test_a_receive_gets_the_command_when_the_finish_is_rolled_back(
    db: Session, session: Open
) -> None:
    held = await lapsed(db)
    finisher = await session()
    await finisher.settle("complete", held.item(data=None))
    await finisher.conn.rollback()
    assert [h.command_id for h in await db.receive(worker="w2")] == [held.command_id]
    assert await db.replies(held.command_id) == []


async def test_a_finish_waits_for_the_receive_that_parks_its_command(
    db: Session, session: Open
) -> None:
    (command_id,) = await db.send(max_attempts=1)
    (held,) = await db.receive()
    await db.value("select commandbus.confirm_start(%s, %s, 1)", DOMAIN, command_id)
    await db.lapse(held)
    receiver, finisher = await session(), await session()
    assert await receiver.receive(worker="w2") == []  # parks it: its only attempt is used up
    finish = asyncio.create_task(finisher.settle("complete", held.item(data=None)))
    await db.until_blocked(finisher)
    await receiver.conn.commit()
    assert await finish == [command_id]
    await finisher.conn.commit()
    assert await db.status(command_id) == "IN_TROUBLESHOOTING_QUEUE"
    assert await db.replies(command_id) == []


async def test_an_extension_waits_for_a_receive_at_a_lapse_and_moves_nothing(
    db: Session, session: Open
) -> None:
    held = await lapsed(db)
    receiver, keeper = await session(), await session()
    await receiver.receive(worker="w2", vt=60)
    extend = asyncio.create_task(
        keeper.rows(
            "select commandbus.extend_leases(%s, %s, 9000) as id", DOMAIN, Jsonb([held.item()])
        )
    )
    await db.until_blocked(keeper)
    await receiver.conn.commit()
    assert [row["id"] for row in await extend] == [held.command_id]
    await keeper.conn.commit()
    assert not await db.value(
        f"select vt > now() + interval '1 hour' from pgmq.q_{DOMAIN}__commands"
    )


async def test_a_receive_steps_over_a_lease_that_is_being_extended(
    db: Session, session: Open
) -> None:
    held = await lapsed(db)
    keeper = await session()
    stale = await keeper.rows(
        "select commandbus.extend_leases(%s, %s, 60)", DOMAIN, Jsonb([held.item()])
    )
    assert stale == []
    assert await db.receive(worker="w2") == []
    await keeper.conn.commit()
    assert await db.receive(worker="w2") == []
    assert await db.settle("complete", held.item(data=None)) == []


@pytest.mark.parametrize("verb", ["operator_retry(%s, %s)", "operator_cancel(%s, %s, 'why')"])
async def test_an_operator_waits_for_the_worker_that_parks_the_command(
    db: Session, session: Open, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    worker, operator = await session(), await session()
    await worker.settle("park", held.item(reason="PERMANENT", **FAILURE))
    act = asyncio.create_task(operator.rows(f"select commandbus.{verb}", DOMAIN, [held.command_id]))
    await db.until_blocked(operator)
    await worker.conn.commit()
    await act
    await operator.conn.commit()
    assert await db.status(held.command_id) in {"PENDING", "CANCELED"}
    assert await db.rows("select * from commandbus.command_bus_troubleshooting") == []


async def test_an_operator_is_refused_when_the_worker_it_waited_for_finishes(
    db: Session, session: Open
) -> None:
    held = await db.put("IN_PROGRESS")
    worker, operator = await session(), await session()
    await worker.settle("complete", held.item(data=None))
    act = asyncio.create_task(
        operator.rows("select commandbus.operator_cancel(%s, %s, 'why')", DOMAIN, [held.command_id])
    )
    await db.until_blocked(operator)
    await worker.conn.commit()
    with pytest.raises(psycopg.Error, match="it is COMPLETED") as info:
        await act
    assert info.value.sqlstate == "CB003"
    assert len(await db.replies(held.command_id)) == 1


async def test_a_late_finish_waits_for_the_operator_and_is_rejected_after_the_next_lease(
    db: Session, session: Open
) -> None:
    (command_id,) = await db.send(max_attempts=1)
    (held,) = await db.receive()
    await db.value("select commandbus.confirm_start(%s, %s, 1)", DOMAIN, command_id)
    await db.lapse(held)
    await db.receive(worker="w2")  # parks it; the first worker is still running
    operator, finisher = await session(), await session()
    await operator.rows("select commandbus.operator_cancel(%s, %s, 'why')", DOMAIN, [command_id])
    stale = await finisher.settle("complete", held.item(data=None))
    assert stale == [command_id]
    await finisher.conn.commit()
    await operator.conn.commit()
    assert await db.status(command_id) == "CANCELED"
    assert [reply["outcome"] for reply in await db.replies(command_id)] == ["CANCELED"]


@pytest.mark.parametrize("second", ["operator_cancel(%s, %s, 'why')", "operator_retry(%s, %s)"])
async def test_of_two_operators_one_wins_and_the_other_is_refused(
    db: Session, session: Open, second: str
) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    one, two = await session(), await session()
    await one.rows("select commandbus.operator_complete(%s, %s)", DOMAIN, [held.command_id])
    act = asyncio.create_task(two.rows(f"select commandbus.{second}", DOMAIN, [held.command_id]))
    await db.until_blocked(two)
    await one.conn.commit()
    with pytest.raises(psycopg.Error) as info:
        await act
    assert info.value.sqlstate == "CB003"
    assert await db.status(held.command_id) == "COMPLETED"
    assert len(await db.replies(held.command_id)) == 1


async def test_a_cancel_waits_for_a_receive_and_is_refused(db: Session, session: Open) -> None:
    (command_id,) = await db.send()
    receiver, canceler = await session(), await session()
    await receiver.receive()
    act = asyncio.create_task(
        canceler.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    )
    await db.until_blocked(canceler)
    await receiver.conn.commit()
    with pytest.raises(psycopg.Error, match="leased by a worker"):
        await act
    assert await db.status(command_id) == "IN_PROGRESS"


async def test_a_receive_steps_over_a_command_that_is_being_canceled(
    db: Session, session: Open
) -> None:
    (command_id,) = await db.send()
    canceler = await session()
    await canceler.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    assert await db.receive() == []
    await canceler.conn.commit()
    assert await db.receive() == []
    assert await db.status(command_id) == "CANCELED"


async def test_two_finishes_of_overlapping_groups_wait_for_each_other_in_one_order(
    db: Session, session: Open
) -> None:
    # One blocks the middle message. If messages were locked in the order of the call, the first
    # would hold the last and want the first, while the second holds the first and wants the last.
    await db.send(uuid4(), uuid4(), uuid4())
    low, middle, high = await db.receive()
    blocker, one, two = await session(), await session(), await session()
    await blocker.rows(
        f"select 1 from pgmq.q_{DOMAIN}__commands where msg_id = %s for update", middle.msg_id
    )
    first = asyncio.create_task(
        one.settle("complete", *(h.item(data=None) for h in (high, middle, low)))
    )
    await db.until_blocked(one)
    second = asyncio.create_task(two.settle("complete", *(h.item(data=None) for h in (low, high))))
    await db.until_blocked(two)
    await blocker.conn.rollback()
    assert await first == []
    await one.conn.commit()
    assert await second == []  # a repeat: the leases are over
    await two.conn.commit()
    for held in (low, middle, high):
        assert len(await db.replies(held.command_id)) == 1


async def test_two_groups_that_finish_two_batches_wait_for_each_other_in_one_order(
    db: Session, session: Open
) -> None:
    batches = sorted([await db.batch(), await db.batch(), await db.batch()])
    held: list[list[Held]] = []
    for batch in batches:
        await db.send(uuid4(), uuid4(), batch_id=batch)
        held.append(await db.receive())
    blocker, one, two = await session(), await session(), await session()
    await blocker.rows(
        "select 1 from commandbus.command_bus_batch where batch_id = %s for update", batches[1]
    )
    first = asyncio.create_task(
        one.settle("complete", *(held[n][0].item(data=None) for n in (2, 1, 0)))
    )
    await db.until_blocked(one)
    second = asyncio.create_task(
        two.settle("complete", *(held[n][1].item(data=None) for n in (0, 2)))
    )
    await db.until_blocked(two)
    await blocker.conn.rollback()
    assert await first == []
    await one.conn.commit()
    assert await second == []
    await two.conn.commit()
    done = [(await db.batch_row(batch))["completed_count"] for batch in batches]
    assert done == [2, 1, 2]


async def test_a_mixed_group_takes_the_batches_of_all_its_outcomes_in_one_order(
    db: Session, session: Open
) -> None:
    """Found by F13, seed 1: first those of the completed, then those of the parked: a circle."""
    low, high = sorted([await db.batch(), await db.batch()])
    first, parked = await db.put("IN_PROGRESS", low), await db.put("IN_PROGRESS", low)
    second, completed = await db.put("IN_PROGRESS", high), await db.put("IN_PROGRESS", high)
    one, other = await session(), await session()
    await one.settle("complete", first.item(data=None))  # holds the lower batch
    document = {
        "complete": [completed.item(data=None)],
        "park": [parked.item(reason="PERMANENT", **FAILURE)],
    }
    mixed = asyncio.create_task(
        other.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(document))
    )
    await db.until_blocked(other)
    await one.settle("complete", second.item(data=None))  # nobody holds the higher one
    await one.conn.commit()
    await mixed
    await other.conn.commit()
    counted = [await db.batch_row(batch) for batch in (low, high)]
    assert [row["completed_count"] for row in counted] == [1, 2]
    assert [row["in_troubleshooting_count"] for row in counted] == [1, 0]


async def test_the_last_two_of_a_batch_finish_at_once_and_it_is_completed_once(
    db: Session, session: Open
) -> None:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    left, right = await db.receive()
    one, two = await session(), await session()
    await one.settle("complete", left.item(data=None))
    second = asyncio.create_task(two.settle("fail", right.item(**FAILURE)))
    await db.until_blocked(two)
    await one.conn.commit()
    await second
    await two.conn.commit()
    assert (await db.batch_row(batch))["status"] == "COMPLETED_WITH_FAILURES"
    assert (await db.events(batch)).count("BATCH_COMPLETED") == 1


@pytest.mark.parametrize("scope", ["domain", "global"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_second_send_of_an_id_waits_for_the_first(
    db: Session, session: Open, scope: str, ends: str
) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    await db.value("select commandbus.change_setting('command_id_scope', %s)", scope)
    one, two = await session(), await session()
    assert await one.offer(LOW) == []
    second = asyncio.create_task(two.offer(HIGH, LOW))
    await db.until_blocked(two)
    await getattr(one.conn, ends)()
    assert await second == ([LOW] if ends == "commit" else [])
    await two.conn.commit()
    assert len(await db.queued()) == (1 if ends == "commit" else 2)


@pytest.mark.parametrize("scope", ["domain", "global"])
async def test_sends_of_overlapping_ids_wait_for_each_other_in_one_order(
    db: Session, session: Open, scope: str
) -> None:
    # As above: were ids inserted (or locked) in the order of the call, this would be a circle.
    await db.value("select commandbus.ensure_domain('payments')")
    await db.value("select commandbus.change_setting('command_id_scope', %s)", scope)
    blocker, one, two = await session(), await session(), await session()
    await blocker.offer(MIDDLE)
    first = asyncio.create_task(one.offer(HIGH, MIDDLE, LOW))
    await db.until_blocked(one)
    second = asyncio.create_task(two.offer(LOW, HIGH))
    await db.until_blocked(two)
    await blocker.conn.rollback()
    assert await first == []
    await one.conn.commit()
    assert set(await second) == {LOW, HIGH}


async def test_a_second_send_of_a_global_id_into_another_domain_waits_too(
    db: Session, session: Open
) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    await db.value("select commandbus.ensure_domain('orders')")
    await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    one, two = await session(), await session()
    two.domain = "orders"
    await one.offer(LOW)
    second = asyncio.create_task(two.offer(LOW))
    await db.until_blocked(two)
    await one.conn.commit()
    assert await second == [LOW]


async def test_a_send_into_a_batch_waits_for_the_finish_that_closes_it_and_is_refused(
    db: Session, session: Open
) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    worker, sender = await session(), await session()
    await worker.settle("complete", held.item(data=None))
    send = asyncio.create_task(sender.send(batch_id=batch))
    await db.until_blocked(sender)
    await worker.conn.commit()
    with pytest.raises(psycopg.Error, match="is finished") as info:
        await send
    assert info.value.sqlstate == "CB003"
    row = await db.batch_row(batch)
    assert (row["total_count"], row["completed_count"]) == (1, 1)


async def test_two_first_sends_into_a_new_domain_create_its_queues_once(
    db: Session, session: Open
) -> None:
    one, two = await session(), await session()
    await one.offer(LOW)  # creates the queues, uncommitted
    second = asyncio.create_task(two.offer(HIGH))
    await db.until_blocked(two)
    await one.conn.commit()
    assert await second == []
    await two.conn.commit()
    assert len(await db.queued()) == 2


HELD: dict[str, dict[str, Any]] = {
    "complete_commands(%s, %s)": {"data": None},
    "retry_commands(%s, %s)": {"delay_seconds": 1, **FAILURE},
    "park_commands(%s, %s)": {"reason": "PERMANENT", **FAILURE},
    "fail_commands(%s, %s)": FAILURE,
    "release_commands(%s, %s)": {},
    "snooze_commands(%s, %s)": {"delay_seconds": 1},
    "discard_commands(%s, %s)": {"reason": "why"},
    "extend_leases(%s, %s, 60)": {},
}


@pytest.mark.parametrize("call", HELD)
async def test_whoever_ends_or_extends_a_lease_locks_the_message_before_the_command(
    db: Session, session: Open, call: str
) -> None:
    # A receive holds the message first and then wants the command. Whoever waited for the message
    # with the command in hand would close the circle.
    held = await lapsed(db)
    reader, other = await session(), await session()
    await reader.rows(f"select msg_id from pgmq.read('{DOMAIN}__commands', 60, 1)")
    act = asyncio.create_task(
        other.rows(f"select commandbus.{call}", DOMAIN, Jsonb([held.item(**HELD[call])]))
    )
    await db.until_blocked(other)
    await reader.rows(
        "select 1 from commandbus.command_bus_command where command_id = %s for update nowait",
        held.command_id,
    )
    await reader.conn.rollback()
    assert await act == []


async def test_settling_locks_all_messages_before_the_first_command(
    db: Session, session: Open
) -> None:
    await db.send(uuid4(), uuid4())
    first, second = await db.receive()
    reader, other = await session(), await session()
    await reader.rows(
        f"select 1 from pgmq.q_{DOMAIN}__commands where msg_id = %s for update", second.msg_id
    )
    document = {"complete": [first.item(data=None)], "fail": [second.item(**FAILURE)]}
    act = asyncio.create_task(
        other.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(document))
    )
    await db.until_blocked(other)
    await reader.rows("select 1 from commandbus.command_bus_command for update nowait")
    await reader.conn.rollback()
    assert await act == []


async def test_a_cancel_locks_the_message_before_the_command(db: Session, session: Open) -> None:
    (command_id,) = await db.send()
    reader, other = await session(), await session()
    await reader.rows(f"select msg_id from pgmq.read('{DOMAIN}__commands', 60, 1)")
    act = asyncio.create_task(
        other.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    )
    await db.until_blocked(other)
    await reader.rows("select 1 from commandbus.command_bus_command for update nowait")
    await reader.conn.rollback()
    await act
    await other.conn.commit()
    assert await db.status(command_id) == "CANCELED"
