"""Keys of which one command at a time is sent: their guards, and sessions that meet at them."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

WAITING: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "skip"}
REPLACING: dict[str, Any] = {"unique_while": "waiting", "on_duplicate": "replace"}


def command(key: str | None = "k", **more: Any) -> dict[str, Any]:
    named = {} if key is None else {"unique_key": key, "on_duplicate": "skip"}
    return {"command_id": str(uuid4()), "type": "Debit", "data": {"n": 1}} | named | more


async def offer(db: Session, *commands: dict[str, Any], **more: Any) -> list[tuple[str, UUID]]:
    """What became of each."""
    rows = await db.rows(
        "select * from commandbus.offer_unique(%s, %s, %s, %s, %s) order by n",
        db.domain, Jsonb(list(commands)), more.get("batch_id"), more.get("actor"),
        more.get("skips_known", False),
    )  # fmt: skip
    return [(row["verdict"], row["command_id"]) for row in rows]


async def first(db: Session, **more: Any) -> UUID:
    [(verdict, command_id)] = await offer(db, command(**more))
    assert verdict == "sent"
    return command_id


async def keys(db: Session) -> dict[str, UUID]:
    rows = await db.rows("select unique_key, command_id from commandbus.command_bus_unique")
    return {row["unique_key"]: row["command_id"] for row in rows}


# -- guards


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"unique_key": ""}, "1 to 200"),
        ({"unique_while": "done"}, "waiting, open"),
        ({"unique_while": 0}, "waiting, open"),
        ({"unique_while": True}, "waiting, open"),
        ({"on_duplicate": "ignore"}, "refuse, skip or replace"),
        ({"on_duplicate": "replace"}, "only a command that waits"),
        ({"on_duplicate": "replace", "unique_while": 5}, "only a command that waits"),
        ({**REPLACING, "ordering_key": "o"}, "ordering key"),
        ({"max_wait_seconds": 5}, "without on_duplicate replace"),
        ({**REPLACING, "max_wait_seconds": 5, "delay_seconds": 9}, "less than delay_seconds"),
        ({**REPLACING, "max_wait_seconds": 0}, "less than delay_seconds"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    db: Session, more: dict[str, Any], match: str
) -> None:
    await db.send()
    before = await db.everything()
    with pytest.raises(psycopg.Error, match=match) as raised:
        await offer(db, command(**more))
    assert raised.value.sqlstate == "CB012"
    assert await db.everything() == before
    assert await keys(db) == {}


async def test_a_replacement_is_sent_alone_and_into_no_batch(db: Session) -> None:
    with pytest.raises(psycopg.Error, match="sent alone"):
        await offer(db, command(**REPLACING), command(None))
    with pytest.raises(psycopg.Error, match="batch"):
        await offer(db, command(**REPLACING), batch_id=await db.batch())


async def test_a_refusal_leaves_no_key_behind(db: Session) -> None:
    held = await first(db, key="b")
    before = await db.everything()
    refused = command("b", on_duplicate="refuse")
    assert await offer(db, command("a"), refused, command("c")) == [("refused", held)]
    known = command("d", command_id=str(held))
    assert await offer(db, command("e"), known) == [("known", held)]
    assert await db.everything() == before
    assert await keys(db) == {"b": held}


async def test_send_commands_says_who_holds_the_key(db: Session) -> None:
    held = await first(db)
    with pytest.raises(psycopg.Error, match=f"'k' .* held by command {held}") as raised:
        await db.send(unique_key="k")
    assert raised.value.sqlstate == "CB017"
    assert raised.value.diag.message_detail is not None
    with pytest.raises(psycopg.Error) as raised:
        await db.send(held, unique_key="other")
    assert raised.value.sqlstate == "CB001"
    count = await db.value(
        "select commandbus.send_commands(%s, %s)", DOMAIN, Jsonb([command("k"), command("x")])
    )
    assert count == 1


async def test_one_command_is_sent_from_psql(db: Session) -> None:
    send = "select commandbus.send_unique(%s, 'Debit', %s, '{}', 'k', %s, %s)"
    one = uuid4()
    assert await db.value(send, DOMAIN, one, "1 hour", "skip") == one
    assert await db.value(send, DOMAIN, uuid4(), "waiting", "skip") == one
    with pytest.raises(psycopg.Error) as raised:
        await db.value(send, DOMAIN, uuid4(), "open", "refuse")
    assert raised.value.sqlstate == "CB017"
    with pytest.raises(psycopg.Error, match="unique_key"):
        await db.value("select commandbus.send_unique(%s, 'D', %s, '{}', null)", DOMAIN, uuid4())
    with pytest.raises(psycopg.Error) as raised:
        await db.value("select commandbus.send_unique(%s, 'D', %s, '{}', 'x')", DOMAIN, one)
    assert raised.value.sqlstate == "CB001"


async def test_known_ids_are_named_by_their_places(db: Session) -> None:
    (known,) = await db.send()
    twice = command(None)
    places = await db.value(
        "select commandbus.offer_new(%s, %s)",
        DOMAIN, Jsonb([command(None), command(None, command_id=str(known)), twice, twice]),
    )  # fmt: skip
    assert places == [2, 4]
    assert await db.value("select commandbus.offer_new(%s, '[]')", DOMAIN) == []
    assert len(await db.queued()) == 3


async def test_a_sender_that_meets_another_one_leaves_out_what_that_one_sent(
    db: Session, session: Open
) -> None:
    both, mine = command(None), command(None)
    other, me = await session(), await session()
    await other.rows("select commandbus.offer_new(%s, %s)", DOMAIN, Jsonb([both]))
    offering = asyncio.create_task(
        me.value("select commandbus.offer_new(%s, %s)", DOMAIN, Jsonb([mine, both]))
    )
    await db.until_blocked(me)
    await other.conn.commit()
    assert await offering == [2]
    await me.conn.commit()
    assert len(await db.queued()) == 2
    assert await db.events(UUID(mine["command_id"])) == ["SENT"]


# -- sessions that meet


@pytest.mark.parametrize("how", [{"unique_while": 600}, {"unique_while": "open"}, WAITING])
async def test_of_many_senders_at_once_one_is_accepted(
    db: Session, session: Open, how: dict[str, Any]
) -> None:
    await db.send()
    senders = [await session() for _ in range(12)]

    async def send(sender: Session) -> tuple[str, UUID]:
        [found] = await offer(sender, command(**how))
        await sender.conn.commit()
        return found

    found = await asyncio.gather(*(send(sender) for sender in senders))
    assert sorted(verdict for verdict, _ in found) == ["sent", *["skipped"] * 11]
    assert len({command_id for _, command_id in found}) == 1
    assert len(await db.queued()) == 2


async def test_the_second_sender_of_a_new_key_waits_and_goes_first_if_the_other_rolls_back(
    db: Session, session: Open
) -> None:
    one, two = await session(), await session()
    await offer(one, command())
    offering = asyncio.create_task(offer(two, command()))
    await db.until_blocked(two)
    await one.conn.rollback()
    [(verdict, mine)] = await offering
    await two.conn.commit()
    assert verdict == "sent"
    assert await keys(db) == {"k": mine}


async def test_one_call_with_many_keys_meets_nobody_in_a_circle(db: Session, session: Open) -> None:
    await db.send()
    names = [f"k{n}" for n in range(20)]
    await offer(db, *(command(name, unique_while=600) for name in names[::3]))
    senders = [await session() for _ in range(6)]

    async def send(number: int, sender: Session) -> None:
        for turn in range(10):
            order = names[number:] + names[:number]
            if (number + turn) % 2:
                order.reverse()
            await offer(sender, *(command(name, unique_while="waiting") for name in order))
            await sender.conn.commit()

    await asyncio.gather(*(send(number, sender) for number, sender in enumerate(senders)))
    assert len(await db.queued()) == 21


async def test_transactions_that_take_keys_in_opposite_orders_deadlock_and_one_goes_on(
    db: Session, session: Open
) -> None:
    await db.send()  # makes the domain
    one, two = await session(), await session()
    await offer(one, command("a"))
    await offer(two, command("b"))
    waiting = [
        asyncio.create_task(offer(one, command("b"))),
        asyncio.create_task(offer(two, command("a"))),
    ]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
    failed = [task for task in done if task.exception() is not None]
    [loser] = failed
    assert isinstance(loser.exception(), psycopg.errors.DeadlockDetected)
    await (one if loser is waiting[0] else two).conn.rollback()
    winner = waiting[1] if loser is waiting[0] else waiting[0]
    assert [verdict for verdict, _ in await winner] == ["sent"]
    await (two if loser is waiting[0] else one).conn.commit()
    assert len(await db.queued()) == 3
    assert set(await keys(db)) == {"a", "b"}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("how", [{"unique_while": "open"}, WAITING])
async def test_an_old_snapshot_does_not_take_an_ended_command_for_an_open_one(
    db: Session, session: Open, level: str, how: dict[str, Any]
) -> None:
    await first(db, **how)
    sender = await session()
    await sender.rows(f"set transaction isolation level {level}")
    await sender.rows("select count(*) from commandbus.command_bus_command")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    with pytest.raises(psycopg.errors.SerializationFailure):
        await offer(sender, command(**how))
    await sender.conn.rollback()
    assert [verdict for verdict, _ in await offer(db, command(**how))] == ["sent"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_key_that_was_taken_after_the_snapshot_is_not_taken_twice(
    db: Session, session: Open, level: str
) -> None:
    await db.send()
    sender = await session()
    await sender.rows(f"set transaction isolation level {level}")
    await sender.rows("select count(*) from commandbus.command_bus_command")
    await first(db, unique_while=600)
    with pytest.raises(psycopg.errors.SerializationFailure):
        await offer(sender, command(unique_while=600))


async def test_a_waiting_command_is_not_leased_before_the_sender_that_relies_on_it_commits(
    db: Session, session: Open
) -> None:
    held = await first(db, **WAITING)
    sender = await session()
    assert await offer(sender, command(**WAITING)) == [("skipped", held)]
    assert await db.receive() == []  # steps over it, and does not wait
    await sender.conn.commit()
    assert [each.command_id for each in await db.receive()] == [held]


async def test_a_sender_that_meets_a_receive_sends_a_new_one_and_holds_up_no_outcome(
    db: Session, session: Open
) -> None:
    held = await first(db, **WAITING)
    receiver, sender = await session(), await session()
    (lease,) = await receiver.receive()
    offering = asyncio.create_task(offer(sender, command(**REPLACING)))
    await db.until_blocked(sender)
    await receiver.conn.commit()
    [(verdict, new)] = await offering
    assert (verdict, new != held) == ("sent", True)
    # The sender is still in its transaction: the outcome must not wait for it.
    assert await db.settle("complete", lease.item(data=None)) == []
    await sender.conn.commit()
    assert await keys(db) == {"k": new}


async def test_a_receive_that_is_rolled_back_leaves_the_waiting_command_to_be_replaced(
    db: Session, session: Open
) -> None:
    held = await first(db, **WAITING)
    receiver, sender = await session(), await session()
    await receiver.receive()
    offering = asyncio.create_task(offer(sender, command(**REPLACING, data={"n": 2})))
    await db.until_blocked(sender)
    await receiver.conn.rollback()
    assert await offering == [("replaced", held)]
    await sender.conn.commit()
    [message] = await db.queued()
    assert message["message"]["data"] == {"n": 2}


async def test_a_worker_that_sends_with_a_key_waits_for_it_before_it_locks_messages(
    db: Session, session: Open
) -> None:
    await db.send()
    (lease,) = await db.receive()
    sender, worker = await session(), await session()
    held = (await offer(sender, command()))[0][1]
    outcomes = {
        "complete": [lease.item(data=None)],
        "send": [
            {
                "by": str(lease.command_id),
                "lease_epoch": lease.lease_epoch,
                "domain": DOMAIN,
                "commands": [command()],
            }
        ],
    }
    settling = asyncio.create_task(
        worker.rows("select * from commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(outcomes))
    )
    await db.until_blocked(worker)
    await db.rows(
        f"select 1 from pgmq.q_{DOMAIN}__commands where msg_id = %s for update nowait",
        lease.msg_id,
    )
    await sender.conn.commit()
    await settling
    await worker.conn.commit()
    assert await keys(db) == {"k": held}
    assert await db.status(lease.command_id) == "COMPLETED"
    assert len(await db.queued()) == 1


async def test_a_handler_that_has_lost_its_lease_leaves_no_key(db: Session) -> None:
    await db.send()
    (lease,) = await db.receive()
    outcomes = {
        "complete": [lease.item(data=None) | {"lease_epoch": 99}],
        "send": [
            {
                "by": str(lease.command_id),
                "lease_epoch": 99,
                "domain": DOMAIN,
                "commands": [command()],
            }
        ],
    }
    await db.rows("select * from commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(outcomes))
    assert await keys(db) == {}


# -- replacing


async def test_a_replacement_changes_payload_and_time_and_nothing_else(db: Session) -> None:
    held = await first(db, **WAITING, correlation_id=str(uuid4()), priority=2, max_attempts=7)
    before, [queued] = await db.command(held), await db.queued()
    found = await offer(
        db,
        command(**REPLACING, data={"password": "hunter2"}, delay_seconds=60, expires_in_seconds=90),
        actor="ann",
    )
    assert found == [("replaced", held)]
    after, [message] = await db.command(held), await db.queued()
    assert message["message"] == queued["message"] | {"data": {"password": "hunter2"}}
    assert (message["msg_id"], message["is_visible"]) == (queued["msg_id"], False)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"deliver_at", "expires_at", "updated_at"}
    details = await db.details(held, "REPLACED")
    assert details.keys() == {"offered_id", "deliver_at", "expires_at"}
    assert await db.value(
        "select count(*) from commandbus.command_bus_expiry where command_id = %s", held
    )
    await offer(db, command(**REPLACING))
    [message] = await db.queued()
    assert message["is_visible"]
    assert (await db.command(held))["expires_at"] is None
    assert await db.value("select count(*) from commandbus.command_bus_expiry") == 0


async def test_a_debounced_command_waits_no_longer_than_max_wait(db: Session) -> None:
    how: dict[str, Any] = {**REPLACING, "delay_seconds": 60, "max_wait_seconds": 100}
    held = await first(db, **how)
    await db.rows(
        "update commandbus.command_bus_unique set first_at = first_at - interval '70 seconds'"
    )
    await offer(db, command(**how))
    due = "select extract(epoch from vt - clock_timestamp()) from pgmq.q_payments__commands"
    assert 25 < await db.value(due) < 31
    await db.rows(
        "update commandbus.command_bus_unique set first_at = first_at - interval '70 seconds'"
    )
    assert await offer(db, command(**how)) == [("replaced", held)]
    [message] = await db.queued()
    assert message["is_visible"]
    # From now on its place among what is due stays.
    await offer(db, command(**how, data={"n": 9}))
    [again] = await db.queued()
    assert again["vt"] == message["vt"]
    assert again["message"]["data"] == {"n": 9}
    (lease,) = await db.receive()
    assert lease.command_id == held
    assert [verdict for verdict, _ in await offer(db, command(**how))] == ["sent"]


async def test_what_waits_without_a_time_gets_none_by_a_replacement(db: Session) -> None:
    await first(db, **WAITING)
    await db.rows("update pgmq.q_payments__commands set vt = 'infinity'")
    await offer(db, command(**REPLACING, delay_seconds=5))
    assert await db.value("select vt = 'infinity' from pgmq.q_payments__commands")


async def test_a_command_of_a_batch_or_of_another_sender_is_not_replaced(db: Session) -> None:
    batch = await db.batch()
    [(_, held)] = await offer(db, command(**WAITING), batch_id=batch)
    before = await db.everything()
    with pytest.raises(psycopg.Error, match="belongs to a batch") as raised:
        await offer(db, command(**REPLACING))
    assert raised.value.sqlstate == "CB003"
    assert await db.everything() == before
    await offer(db, command("mine", **WAITING))
    with pytest.raises(psycopg.Error, match="another sender") as raised:
        await db.rows(
            "select * from commandbus.offer_unique(%s, %s, null, 'eve', false, 'eve')",
            DOMAIN, Jsonb([command("mine", **REPLACING)]),
        )  # fmt: skip
    assert raised.value.sqlstate == "CB003"
    assert held in (await keys(db)).values()


async def test_a_rescheduled_command_still_holds_its_key(db: Session) -> None:
    held = await first(db, **WAITING)
    await db.rows("update pgmq.q_payments__commands set vt = clock_timestamp() + interval '1 hour'")
    assert await offer(db, command(**WAITING)) == [("skipped", held)]


# -- keys that nobody needs


async def test_keys_that_are_over_are_removed_and_the_others_stay(db: Session) -> None:
    for name in ("done", "open", "parked", "gone"):
        await offer(db, command(name))
    leases = {each.command_id: each for each in await db.receive()}
    held = await keys(db)
    await db.settle("complete", leases[held["done"]].item(data=None))
    await db.settle("park", leases[held["parked"]].item(reason="PERMANENT", **FAILURE))
    await db.rows("delete from commandbus.command_bus_command where command_id = %s", held["gone"])
    await offer(db, command("past", unique_while=0.001), command("later", unique_while=600))
    prune = "select commandbus.prune_unique()"
    assert await db.value(prune) == 1  # the others are not looked at yet
    assert set(await keys(db)) == {"done", "open", "parked", "gone", "later"}
    await db.rows("update commandbus.command_bus_unique set look_at = clock_timestamp()")
    assert await db.value(prune) == 5
    assert set(await keys(db)) == {"open", "parked", "later"}
    assert await db.value(prune) == 0


async def test_a_key_that_a_sender_has_is_not_removed(db: Session, session: Open) -> None:
    await first(db, unique_while=0.001)
    sender = await session()
    await offer(sender, command(unique_while=600))
    assert await db.value("select commandbus.prune_unique()") == 0
    await sender.conn.commit()
    assert len(await keys(db)) == 1


# -- with ordering keys


async def test_a_command_with_both_keys_waits_for_its_turn_and_a_refusal_leaves_neither(
    db: Session,
) -> None:
    head = await first(db, key="a", ordering_key="o")
    behind = await first(db, key="b", ordering_key="o")
    assert await offer(db, command("b", ordering_key="other")) == [("skipped", behind)]
    refused = command("b", ordering_key="third", on_duplicate="refuse")
    assert await offer(db, refused) == [("refused", behind)]
    rows = await db.rows("select ordering_key, head from commandbus.command_bus_key")
    assert [(row["ordering_key"], row["head"]) for row in rows] == [("o", head)]
    assert [each.command_id for each in await db.receive()] == [head]


async def test_a_replacement_begins_anew_with_its_attempts(db: Session) -> None:
    held = await first(db, **WAITING)
    (lease,) = await db.receive()
    await db.settle("retry", lease.item(delay_seconds=60, **FAILURE))
    await db.rows("update commandbus.command_bus_command set lapses = 1, started_alone = true")
    assert await offer(db, command(**REPLACING, data={"n": 2})) == [("replaced", held)]
    after = await db.command(held)
    new = {"attempts": 0, "lapses": 0, "started_alone": False, "snoozes": None}
    new |= {"last_error_type": None, "last_error_code": None, "last_error_msg": None}
    assert {name: after[name] for name in new} == new
    (again,) = await db.receive()
    assert again.row["attempt"] == 1
