"""Ordering keys: one after the other, in the order of sending, in one session."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, FAILURE, Session
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


async def test_only_the_first_of_a_key_is_due(db: Session) -> None:
    first, second, third = await send_keyed(db, "a", "a", "a")
    other, free = await send_keyed(db, "b", None)
    assert await receive_ids(db) == [first, other, free]
    assert await waiting(db, "a") == [second, third]
    assert (await key_row(db, "a"))["head"] == first
    held_back = "select count(*) from pgmq.q_payments__commands where vt = 'infinity'"
    assert await db.value(held_back) == 2


async def test_each_end_lets_the_next_go_in_the_order_of_numbers(db: Session) -> None:
    sent = [await send_keyed(db, "a") for _ in range(5)]
    assert await drain(db) == [one for (one,) in sent]
    await assert_nothing_left(db)


async def test_numbers_grow_in_the_order_of_sending(db: Session) -> None:
    ids = await send_keyed(db, "b", "a", None, "a") + await send_keyed(db, "a")
    numbers = [(await db.command(i))["key_seq"] for i in ids]
    assert numbers[2] is None
    numbers.pop(2)
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4


async def test_a_lapsed_lease_keeps_the_turn(db: Session) -> None:
    first, second = await send_keyed(db, "a", "a")
    held = await db.receive()
    await db.lapse(*held)
    assert await receive_ids(db) == [first]
    assert await waiting(db, "a") == [second]


@pytest.mark.parametrize("verb", ["retry", "release"])
async def test_one_that_will_start_again_keeps_its_turn(db: Session, verb: str) -> None:
    first, _ = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    await db.settle(verb, held.item(delay_seconds=0, **FAILURE))
    assert await receive_ids(db) == [first]


async def test_one_that_failed_for_good_does_not_block(db: Session) -> None:
    _, second = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    await db.settle("fail", held.item(**FAILURE))
    assert await receive_ids(db) == [second]


async def test_a_parked_command_blocks_its_key_and_no_other(db: Session) -> None:
    first, _, _ = await send_keyed(db, "a", "a", "b")
    held = {h.command_id: h for h in await db.receive()}
    await park(db, held[first])
    assert await receive_ids(db) == []
    row = await key_row(db, "a")
    assert row == {"head": first, "blocked_by": first}
    assert (await key_row(db, "b"))["blocked_by"] is None


async def test_a_retried_blocker_goes_first_with_its_old_number(db: Session) -> None:
    first, second = await send_keyed(db, "a", "a")
    number = (await db.command(first))["key_seq"]
    await park(db, *await db.receive())
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [first])
    assert (await db.command(first))["key_seq"] == number
    assert await key_row(db, "a") == {"head": first, "blocked_by": None}
    assert await drain(db) == [first, second]
    await assert_nothing_left(db)


@pytest.mark.parametrize(
    "verb", ["operator_cancel(%s, %s, 'why')", "operator_complete(%s, %s, '{}')"]
)
async def test_ending_a_blocker_lets_the_next_go(db: Session, verb: str) -> None:
    first, second = await send_keyed(db, "a", "a")
    await park(db, *await db.receive())
    await db.rows(f"select commandbus.{verb}", DOMAIN, [first])
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_a_domain_may_step_over_what_is_parked(db: Session) -> None:
    await set_policy(db, "skip")
    first, second, third = await send_keyed(db, "a", "a", "a")
    (held,) = await db.receive()
    await park(db, held)
    assert await receive_ids(db) == [second]
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [first])
    numbers = [(await db.command(i))["key_seq"] for i in (second, third, first)]
    assert numbers == sorted(numbers)
    assert await waiting(db, "a") == [third, first]


async def test_stepping_over_in_general_frees_the_keys_that_are_blocked(db: Session) -> None:
    _, second = await send_keyed(db, "a", "a")
    await park(db, *await db.receive())
    await set_policy(db, "skip")
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_retrying_what_failed_enters_the_key_at_its_end(db: Session) -> None:
    batch = await db.batch()
    (first,) = await db.send(uuid4(), batch_id=batch, ordering_key="a")
    second, third = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    await db.settle("fail", held.item(**FAILURE))
    assert await db.value("select commandbus.retry_batch(%s, %s)", DOMAIN, batch) == 1
    assert await drain(db) == [second, third, first]
    await assert_nothing_left(db)


async def test_parked_ones_of_one_key_are_retried_in_the_order_in_which_they_were_sent(
    db: Session,
) -> None:
    await set_policy(db, "skip")
    # Neither their ids nor their places in their batches are in that order.
    ids = [UUID(int=2**100 - n) for n in range(6)]
    batches = [await db.batch(), await db.batch()]
    for n, command_id in enumerate(ids):
        for _ in range(3 - n // 2):
            await db.send(uuid4(), batch_id=batches[n % 2])
        await db.send(command_id, batch_id=batches[n % 2], ordering_key="a")
    while held := await db.receive():
        await park(db, *(each for each in held if each.command_id in ids))
        await complete(db, *(each for each in held if each.command_id not in ids))
    await assert_nothing_left(db)
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, sorted(ids))
    assert await drain(db) == ids
    await assert_nothing_left(db)


async def test_canceling_one_that_waits_leaves_the_others_in_order(db: Session) -> None:
    first, second, third = await send_keyed(db, "a", "a", "a")
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [second])
    assert await waiting(db, "a") == [third]
    assert await drain(db) == [first, third]
    await assert_nothing_left(db)


async def test_a_look_at_a_key_whose_head_is_open_blocks_nothing(db: Session) -> None:
    first, _ = await send_keyed(db, "a", "a")
    for expected in ([first], []):  # the head is due at first, then leased
        await db.rows("select commandbus.note_keys(%s, %s)", DOMAIN, ["a"])
        assert await receive_ids(db) == expected
        row = await key_row(db, "a")
        assert (row["head"], row["blocked_by"]) == (first, None)


async def test_canceling_the_head_and_the_next_lets_the_one_after_go(db: Session) -> None:
    first, second, third = await send_keyed(db, "a", "a", "a")
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [second, first])
    assert await drain(db) == [third]
    await assert_nothing_left(db)


async def test_an_expired_head_does_not_block(db: Session) -> None:
    await send_keyed(db, "a", expires_in_seconds=0.001)
    (second,) = await send_keyed(db, "a")
    assert await receive_ids(db) == []  # it ends by this look, and the next one becomes due
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_one_that_expires_while_it_waits_ends(db: Session) -> None:
    (first,) = await send_keyed(db, "a")
    (second,) = await send_keyed(db, "a", expires_in_seconds=0.001)
    await db.rows("select commandbus.end_expired()")
    assert await db.status(second) == "CANCELED"
    assert await drain(db) == [first]
    await assert_nothing_left(db)


async def test_a_duplicate_leaves_nothing_of_its_key(db: Session) -> None:
    (known,) = await db.send(uuid4())
    commands = [
        {"command_id": str(i), "type": "Debit", "ordering_key": key}
        for i, key in ((uuid4(), "a"), (known, "a"), (uuid4(), "b"))
    ]
    found = await db.value("select commandbus.offer_commands(%s, %s)", DOMAIN, Jsonb(commands))
    assert found == [known]
    await assert_nothing_left(db)


async def test_a_duplicate_leaves_a_key_that_is_in_use_as_it_is(db: Session) -> None:
    head, second = await send_keyed(db, "a", "a")
    commands = [
        {"command_id": str(i), "type": "Debit", "ordering_key": "a"} for i in (head, uuid4())
    ]
    found = await db.value("select commandbus.offer_commands(%s, %s)", DOMAIN, Jsonb(commands))
    assert found == [head]
    assert await waiting(db, "a") == [second]
    assert await drain(db) == [head, second]
    await assert_nothing_left(db)


async def test_stored_commands_take_their_place_when_they_are_queued(db: Session) -> None:
    stored = [uuid4() for _ in range(2)]
    commands = [{"command_id": str(i), "type": "Debit", "ordering_key": "a"} for i in stored]
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.rows(
        "select commandbus.create_stored_batch("
        "%s, %s, %s, null, null, null, null, false, 'two_phase')",
        DOMAIN, uuid4(), Jsonb(commands),
    )  # fmt: skip
    (sent,) = await send_keyed(db, "a")
    await db.rows("select commandbus.queue_pending(%s, %s)", DOMAIN, stored)
    assert await drain(db) == [sent, *stored]
    await assert_nothing_left(db)


async def test_a_handler_sends_to_its_own_key_behind_those_that_wait(db: Session) -> None:
    first, second = await send_keyed(db, "a", "a")
    (held,) = await db.receive()
    more = uuid4()
    outcomes = {
        "complete": [held.item(data=None)],
        "send": [
            {
                "by": str(first), "lease_epoch": held.lease_epoch, "domain": DOMAIN,
                "commands": [{"command_id": str(more), "type": "Debit", "ordering_key": "a"}],
            }
        ],
    }  # fmt: skip
    await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(outcomes))
    assert await drain(db) == [second, more]
    await assert_nothing_left(db)


async def test_what_a_handler_without_a_lease_sends_leaves_no_key(db: Session) -> None:
    (held,) = [await db.put("COMPLETED")]
    outcomes = {
        "complete": [held.item(data=None)],
        "send": [
            {
                "by": str(held.command_id), "lease_epoch": held.lease_epoch, "domain": "other",
                "commands": [{"command_id": str(uuid4()), "type": "Debit", "ordering_key": "a"}],
            }
        ],
    }  # fmt: skip
    await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(outcomes))
    await assert_nothing_left(db)


async def test_a_handler_that_ends_the_last_of_a_key_may_send_the_next(db: Session) -> None:
    (first,) = await send_keyed(db, "a")
    (held,) = await db.receive()
    more = uuid4()
    outcomes = {
        "complete": [held.item(data=None)],
        "send": [
            {
                "by": str(first), "lease_epoch": held.lease_epoch, "domain": DOMAIN,
                "commands": [{"command_id": str(more), "type": "Debit", "ordering_key": "a"}],
            }
        ],
    }  # fmt: skip
    await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(outcomes))
    assert (await key_row(db, "a"))["head"] == more
    assert await drain(db) == [more]
    await assert_nothing_left(db)


async def test_the_command_for_the_end_of_a_batch_has_no_key(db: Session) -> None:
    from psycopg import errors

    with pytest.raises(errors.Error, match="ordering_key"):
        await db.rows(
            "select commandbus.create_batch(%s, %s, '[]', p_on_complete => %s)",
            DOMAIN, uuid4(), Jsonb({"domain": DOMAIN, "type": "Done", "ordering_key": "a"}),
        )  # fmt: skip


async def test_a_lost_message_comes_back_in_its_place(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")
    for lost in (ids[0], ids[1]):
        row = await db.command(lost)
        await db.rows("select pgmq.archive('payments__commands', %s::bigint)", row["msg_id"])
    repaired = await db.rows("select commandbus.repair_lost_messages(%s)", DOMAIN)
    assert len(repaired) == 2
    assert await waiting(db, "a") == ids[1:]
    assert await drain(db) == ids
    await assert_nothing_left(db)


async def test_completing_twice_promotes_once(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")
    (held,) = await db.receive()
    await complete(db, held)
    await db.settle("complete", held.item(data=None))
    assert await waiting(db, "a") == [ids[2]]
    assert await receive_ids(db) == [ids[1]]
