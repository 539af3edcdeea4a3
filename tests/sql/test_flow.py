"""When a command may start: its time, its expiry, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_cancel_of_stored import stored_batch

QUEUE = "pgmq.q_payments__commands"


async def due_in(db: Session, command_id: UUID) -> float:
    seconds: float = await db.value(
        f"select extract(epoch from vt - clock_timestamp())::float8 from {QUEUE}"
        " where message ->> 'command_id' = %s",
        str(command_id),
    )
    return seconds


async def expired(db: Session, *ids: UUID) -> None:
    """As if the time of these were over."""
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp() - interval '1 ms'"
        " where command_id = any(%s)",
        list(ids),
    )
    await db.rows(
        "update commandbus.command_bus_expiry set look_at = clock_timestamp()"
        " where command_id = any(%s)",
        list(ids),
    )


async def test_a_delayed_command_is_due_after_its_delay_by_the_clock_of_the_database(
    db: Session,
) -> None:
    (sent,) = await db.send(delay_seconds=60)

    assert await db.receive() == []
    assert 55 < await due_in(db, sent) <= 60
    assert 55 < await db.value("select commandbus.next_due('payments')") <= 60
    assert (await db.command(sent))["status"] == "PENDING"


async def test_a_time_in_the_past_is_now(db: Session) -> None:
    (early,) = await db.send(deliver_at="2001-01-01T00:00:00Z")

    assert -5 < await due_in(db, early) <= 0
    assert [held.command_id for held in await db.receive()] == [early]


async def test_the_audit_says_when_it_was_to_start(db: Session) -> None:
    (sent,) = await db.send(
        deliver_at="2001-01-01T00:00:00Z", priority=1, limit_key="c", expires_in_seconds=60
    )
    details = await db.value(
        "select details_json from commandbus.command_bus_audit where command_id = %s", sent
    )

    assert details.pop("expires_at")
    assert details == {
        "deliver_at": "2001-01-01T00:00:00.000000Z", "priority": 1, "limit_key": "c",
    }  # fmt: skip


BAD: dict[str, dict[str, Any]] = {
    "both times": {"deliver_at": "2026-01-01T00:00:00Z", "delay_seconds": 1},
    "both expiries": {"expires_at": "2100-01-01T00:00:00Z", "expires_in_seconds": 1},
    "a negative delay": {"delay_seconds": -1},
    "more than a year": {"delay_seconds": 4e7},
    "a time in a hundred years": {"deliver_at": "2126-01-01T00:00:00Z"},
    "an expiry in the past": {"expires_at": "2001-01-01T00:00:00Z"},
    "an expiry in a hundred years": {"expires_at": "2126-01-01T00:00:00Z"},
    "an expiry of nothing": {"expires_in_seconds": 0},
    "an expiry before the delivery": {"delay_seconds": 60, "expires_in_seconds": 60},
    "a level too high": {"priority": 3},
    "an empty key": {"ordering_key": ""},
    "a long key": {"limit_key": "k" * 201},
    "a key and a delay": {"ordering_key": "k", "delay_seconds": 1},
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("how", ["send", "store"])
async def test_what_cannot_be_is_refused_and_nothing_is_stored(
    db: Session, case: str, how: str
) -> None:
    document = Jsonb([{"command_id": str(uuid4()), "type": "Debit"} | BAD[case]])
    query = {
        "send": "select commandbus.send_commands('payments', %s)",
        "store": "select commandbus.store_commands('payments', %s, null, 'pending_queue')",
    }[how]
    with pytest.raises(psycopg.Error) as info:
        await db.value(query, document)

    assert info.value.sqlstate == "CB012"
    assert info.value.diag.message_hint
    assert await db.value("select count(*) from commandbus.command_bus_command") == 0


async def test_an_expired_command_is_not_begun_but_ended_by_the_receive_that_finds_it(
    db: Session,
) -> None:
    batch = await db.batch()
    (late,) = await db.send(expires_in_seconds=60, batch_id=batch)
    await expired(db, late)

    assert await db.receive() == []
    row = await db.command(late)
    assert (row["status"], row["attempts"], row["leased_by"]) == ("CANCELED", 0, None)
    reply = await db.value("select message from pgmq.q_payments__replies")
    assert (reply["outcome"], reply["error"]["code"]) == ("CANCELED", "EXPIRED")
    events = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        late,
    )
    assert [event["event_type"] for event in events] == ["SENT", "EXPIRED"]
    assert await db.value(
        "select canceled_count from commandbus.command_bus_batch where batch_id = %s", batch
    ) == 1  # fmt: skip


async def test_a_receive_that_begins_a_batch_leaves_ends_in_others_to_the_next(db: Session) -> None:
    """Two receives that begin one batch each, and end in the other's, would wait for each other."""
    begun, other = await db.batch(), await db.batch()
    (running,) = await db.send(batch_id=begun)
    (late,) = await db.send(expires_in_seconds=60, batch_id=other)
    (alone,) = await db.send(expires_in_seconds=60)
    await expired(db, late, alone)

    assert [lease.command_id for lease in await db.receive()] == [running]
    assert (await db.command(alone))["status"] == "CANCELED"
    row = await db.command(late)
    assert (row["status"], row["leased_by"], row["lease_epoch"]) == ("PENDING", None, 0)
    assert await due_in(db, late) <= 0

    assert await db.receive() == []
    assert (await db.command(late))["status"] == "CANCELED"
    assert (await db.batch_row(other))["canceled_count"] == 1


async def test_what_is_left_to_the_next_receive_keeps_a_message_that_another_program_has_put(
    db: Session,
) -> None:
    _, (late, _) = await stored_batch(db, "optimistic")
    (running,) = await db.send(batch_id=await db.batch())
    document = {"command_id": str(late), "type": "Debit", "data": {}}
    await db.rows("select pgmq.send('payments__commands', %s)", Jsonb(document))
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp()"
        " where command_id = %s", late,
    )  # fmt: skip

    assert [lease.command_id for lease in await db.receive()] == [running]
    assert await db.status(late) == "PENDING"
    assert await db.receive() == []
    assert await db.status(late) == "CANCELED"


async def test_receives_that_begin_batches_crosswise_do_not_wait_for_each_other(
    db: Session, session: Open
) -> None:
    first, second = sorted([await db.batch(), await db.batch()])
    (one,) = await db.send(batch_id=second)
    (late_one,) = await db.send(expires_in_seconds=60, batch_id=first)
    (two,) = await db.send(batch_id=first)
    (late_two,) = await db.send(expires_in_seconds=60, batch_id=second)
    await expired(db, late_one, late_two)

    other = await session()
    async with db.conn.transaction():
        assert [lease.command_id for lease in await db.receive(quantity=2)] == [one]
        async with other.conn.transaction():
            await other.rows("set local lock_timeout = '2s'")
            assert [lease.command_id for lease in await other.receive(quantity=2)] == [two]
    assert await db.receive() == []
    assert {(await db.command(late))["status"] for late in (late_one, late_two)} == {"CANCELED"}


async def test_the_doctor_knows_that_expired_commands_are_canceled(db: Session) -> None:
    (late,) = await db.send(expires_in_seconds=60)
    await expired(db, late)
    assert await db.receive() == []
    assert await db.rows("select * from commandbus.check_audit()") == []
    assert await db.rows("select * from commandbus.check_replies()") == []


async def test_the_chore_ends_what_expired_and_nobody_has(db: Session) -> None:
    delayed, kept = await db.send(uuid4(), uuid4(), delay_seconds=60, expires_in_seconds=120)
    await expired(db, delayed)

    assert await db.value("select commandbus.end_expired()") == 1
    assert (await db.command(delayed))["status"] == "CANCELED"
    assert (await db.command(kept))["status"] == "PENDING"
    assert await db.value("select commandbus.end_expired()") == 0
    assert await db.value("select count(*) from commandbus.command_bus_expiry") == 1
    assert await db.value("select count(*) from pgmq.q_payments__replies") == 1


async def test_a_running_command_does_not_expire_but_its_retry_does(db: Session) -> None:
    (late,) = await db.send(expires_in_seconds=60)
    (held,) = await db.receive()
    await expired(db, late)
    await db.value("select commandbus.end_expired()")
    assert (await db.command(late))["status"] == "IN_PROGRESS"
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))

    assert await db.receive() == []
    assert (await db.command(late))["status"] == "CANCELED"


async def test_a_lapsed_lease_of_an_expired_command_ends_it_and_fences_the_worker(
    db: Session,
) -> None:
    (late,) = await db.send(expires_in_seconds=60)
    (held,) = await db.receive()
    await expired(db, late)
    await db.lapse(held)

    assert await db.receive() == []
    assert (await db.command(late))["status"] == "CANCELED"
    assert await db.settle("complete", held.item(data=None)) == [late]


async def test_the_retry_of_an_operator_lifts_the_expiry(db: Session) -> None:
    (late,) = await db.send(expires_in_seconds=60)
    (held,) = await db.receive()
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    await expired(db, late)
    await db.value("select commandbus.end_expired()")
    assert (await db.command(late))["status"] == "IN_TROUBLESHOOTING_QUEUE"
    await db.value("select commandbus.operator_retry('payments', %s)", [late])

    assert "lifted_expiry" in await db.value(
        "select details_json from commandbus.command_bus_audit"
        " where event_type = 'OPERATOR_RETRY' and command_id = %s",
        late,
    )
    assert [held.command_id for held in await db.receive()] == [late]


async def test_one_command_by_hand_takes_the_options(db: Session) -> None:
    sent = await db.value(
        "select commandbus.send_command('payments', 'Debit', %s, p_delay => interval '1 hour',"
        " p_expires_at => now() + interval '2 hours', p_priority => 1, p_limit_key => 'c')",
        uuid4(),
    )

    assert 3_500 < await due_in(db, sent) <= 3_600
    row = await db.command(sent)
    assert (row["priority"], row["limit_key"]) == (1, "c")


async def test_expired_commands_end_domain_by_domain(db: Session) -> None:
    other = Session(db.conn, "shipping")
    late = [*await db.send(uuid4(), uuid4(), expires_in_seconds=60),
            *await other.send(uuid4(), expires_in_seconds=60)]  # fmt: skip
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp() - interval '1 s'"
    )
    await db.rows("update commandbus.command_bus_expiry set look_at = clock_timestamp()")
    # One transaction has the locks of one domain.
    found = [await db.value("select commandbus.end_expired()") for _ in range(3)]
    assert sorted(found) == [0, 1, 2]
    assert found[2] == 0
    rows = await db.rows(
        "select status from commandbus.command_bus_command where command_id = any(%s)", late
    )
    assert {row["status"] for row in rows} == {"CANCELED"}


async def test_what_is_expired_and_leased_is_not_looked_at_over_and_over(db: Session) -> None:
    await db.send(expires_in_seconds=60)
    (held,) = await db.receive()
    await db.lapse(held)
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp() - interval '1 s',"
        " lease_expires_at = clock_timestamp() - interval '1 s'"
    )
    await db.rows("update commandbus.command_bus_expiry set look_at = clock_timestamp()")
    assert await db.value("select commandbus.end_expired()") == 1
    assert await db.value(
        "select look_at > clock_timestamp() + interval '3 s' from commandbus.command_bus_expiry"
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"priority": 40_000}, "priority is not from -2 to 2"),
        ({"priority": 1e30}, "priority is not from -2 to 2"),
        ({"priority": 1.5}, "priority is not from -2 to 2"),
        ({"delay_seconds": 1e300}, "delay_seconds is not from 0"),
        ({"delay_seconds": -1e300}, "delay_seconds is not from 0"),
        ({"expires_in_seconds": 1e300}, "expires_in_seconds is not from 0.001"),
    ],
)
async def test_a_number_beyond_all_bounds_is_refused_by_its_name(
    db: Session, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(psycopg.DatabaseError, match=problem) as caught:
        await db.send(**values)
    assert caught.value.sqlstate == "CB012"


async def test_a_delay_that_no_number_holds_is_refused_by_its_name(db: Session) -> None:
    with pytest.raises(psycopg.DatabaseError, match="delay_seconds is not from 0"):
        await db.value(
            "select commandbus.send_commands(%s, jsonb_build_array(jsonb_build_object("
            "'command_id', %s::text, 'type', 'Debit', 'delay_seconds', 1e400)))",
            DOMAIN, str(uuid4()),
        )  # fmt: skip


async def test_level_0_is_no_level(db: Session) -> None:
    (sent,) = await db.send(priority=0)
    rows = await db.rows(
        "select c.priority, f.has_levels from commandbus.command_bus_command c"
        " left join commandbus.command_bus_flow f using (domain) where c.command_id = %s", sent,
    )  # fmt: skip
    assert [(row["priority"], row["has_levels"] or False) for row in rows] == [(None, False)]
