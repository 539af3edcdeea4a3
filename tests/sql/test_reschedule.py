"""Another time for what nobody has begun: what moves, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_cancel_of_stored import stored_batch

RESCHEDULE = (
    "select commandbus.reschedule_commands(%s, %s::uuid[], p_delay_seconds => %s,"
    " p_actor => 'ann', p_is_strict => %s) as id"
)
QUEUE = "pgmq.q_payments__commands"


async def reschedule(
    db: Session, *ids: UUID, seconds: float = 0, is_strict: bool = True
) -> list[UUID]:
    rows = await db.rows(RESCHEDULE, DOMAIN, list(ids), seconds, is_strict)
    return [row["id"] for row in rows]


async def due_in(db: Session) -> list[float]:
    rows = await db.rows(
        f"select extract(epoch from vt - clock_timestamp())::float8 as s from {QUEUE} order by vt"
    )
    return [row["s"] for row in rows]


async def waits(db: Session, command_id: UUID, gate: str) -> None:
    """As if the command waited at a gate."""
    await db.rows(
        "insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " select domain, %s, 1, msg_id, command_id from commandbus.command_bus_command"
        " where command_id = %s",
        gate, command_id,
    )  # fmt: skip
    await db.rows(
        f"update {QUEUE} set vt = 'infinity' where message ->> 'command_id' = %s", str(command_id)
    )


async def test_a_delayed_command_is_sent_now(db: Session) -> None:
    (sent,) = await db.send(delay_seconds=60)
    assert await db.receive() == []

    assert await reschedule(db, sent) == [sent]
    assert [held.command_id for held in await db.receive()] == [sent]


async def test_the_audit_has_the_old_and_the_new_time(db: Session) -> None:
    (sent,) = await db.send(delay_seconds=60)
    was = await db.value(f"select commandbus.iso8601(vt) from {QUEUE}")
    await reschedule(db, sent, seconds=3_600)

    new = await db.value(f"select commandbus.iso8601(vt) from {QUEUE}")
    assert await db.details(sent, "RESCHEDULED") == {"from": was, "to": new}
    assert 3_500 < (await due_in(db))[0] <= 3_600
    assert (await db.command(sent))["deliver_at"] is not None
    assert await db.value(
        "select actor from commandbus.command_bus_audit where event_type = 'RESCHEDULED'"
    ) == "ann"  # fmt: skip


async def test_a_time_in_the_past_is_now(db: Session) -> None:
    (sent,) = await db.send(delay_seconds=60)
    await db.rows(
        "select commandbus.reschedule_commands(%s, %s, '2001-01-01T00:00:00Z')", DOMAIN, [sent]
    )
    assert -5 < (await due_in(db))[0] <= 0


async def test_one_that_backs_off_starts_now_and_keeps_its_attempts(db: Session) -> None:
    (sent,) = await db.send()
    (held,) = await db.receive()
    await db.settle("retry", held.item(delay_seconds=600, **FAILURE))
    await reschedule(db, sent)

    (again,) = await db.receive()
    assert (again.command_id, again.row["attempt"]) == (sent, 2)


async def test_a_second_time_is_as_good_as_the_first(db: Session) -> None:
    (sent,) = await db.send()
    for seconds in (60.0, 120.0, 120.0):
        await reschedule(db, sent, seconds=seconds)
    assert 100 < (await due_in(db))[0] <= 120
    assert (await db.events(sent)).count("RESCHEDULED") == 3


async def test_what_is_named_twice_moves_once(db: Session) -> None:
    (sent,) = await db.send()
    assert await reschedule(db, sent, sent, seconds=60) == [sent]
    assert (await db.events(sent)).count("RESCHEDULED") == 1


@pytest.mark.parametrize(
    "status", ["COMPLETED", "FAILED", "CANCELED", "IN_TROUBLESHOOTING_QUEUE", "IN_PROGRESS"]
)
async def test_what_was_begun_or_has_ended_is_refused(db: Session, status: str) -> None:
    held = await db.put(status)
    (free,) = await db.send()
    before = await db.everything()
    with pytest.raises(psycopg.Error, match="only a command that is PENDING can be") as refused:
        await reschedule(db, free, held.command_id, seconds=60)
    assert refused.value.sqlstate == "CB003"
    assert await db.everything() == before
    assert await reschedule(db, free, held.command_id, seconds=60, is_strict=False) == [free]


async def test_what_a_worker_has_is_refused_though_it_shows_as_pending(db: Session) -> None:
    await db.send()
    (held,) = await db.receive(mark=False)
    with pytest.raises(psycopg.Error, match="leased by a worker"):
        await reschedule(db, held.command_id, seconds=60)


async def test_an_unknown_command_is_not_found(db: Session) -> None:
    await db.send()
    with pytest.raises(psycopg.Error, match="no command") as refused:
        await reschedule(db, uuid4())
    assert refused.value.sqlstate == "CB002"


async def test_a_domain_without_a_queue_has_nothing_to_move(db: Session) -> None:
    rows = await db.rows(RESCHEDULE, "nowhere", [uuid4()], 0, False)
    assert rows == []


async def test_one_that_would_expire_before_is_refused(db: Session) -> None:
    (sent,) = await db.send(expires_in_seconds=60)
    with pytest.raises(psycopg.Error, match=r"it expires at .*, before the new time") as refused:
        await reschedule(db, sent, seconds=61)
    assert refused.value.sqlstate == "CB003"
    await reschedule(db, sent, seconds=30)
    assert await reschedule(db, sent, seconds=61, is_strict=False) == []


async def test_one_behind_others_of_its_key_is_refused(db: Session) -> None:
    (sent,) = await db.send()
    await waits(db, sent, "k:account:42")
    with pytest.raises(psycopg.Error, match="behind others of its ordering key"):
        await reschedule(db, sent)
    assert await reschedule(db, sent, is_strict=False) == []
    assert await db.value("select count(*) from commandbus.command_bus_waiting") == 1
    assert await db.value(
        "select commandbus.waiting_text(%s, %s)", DOMAIN, sent
    ) == "number 1 behind others of key account:42"  # fmt: skip


async def test_one_at_a_limit_leaves_it_and_asks_again_when_it_is_due(db: Session) -> None:
    (sent,) = await db.send()
    await waits(db, sent, "t:Debit")
    await reschedule(db, sent, seconds=60)

    assert await db.value("select count(*) from commandbus.command_bus_waiting") == 0
    assert 55 < (await due_in(db))[0] <= 60
    assert (await db.details(sent, "RESCHEDULED"))["from"] is None


async def test_one_that_is_just_being_let_in_at_a_limit_is_refused(
    db: Session, session: Open
) -> None:
    (sent,) = await db.send()
    await waits(db, sent, "t:Debit")
    other = await session()
    await other.rows("select 1 from commandbus.command_bus_waiting for update")
    with pytest.raises(psycopg.Error, match="being started"):
        await reschedule(db, sent)
    await other.conn.rollback()
    assert (await db.events(sent)) == ["SENT"]


async def test_what_is_only_stored_is_queued_with_its_new_time(db: Session) -> None:
    _, ids = await stored_batch(db, number=2)
    await reschedule(db, ids[0], seconds=3_600)
    assert (await db.details(ids[0], "RESCHEDULED"))["from"] is None
    await db.rows("select commandbus.queue_pending(%s, %s)", DOMAIN, ids)

    now, later = await due_in(db)
    assert now <= 0
    assert 3_500 < later <= 3_600


async def test_a_stored_command_with_a_key_cannot_be_delayed(db: Session) -> None:
    _, (sent,) = await stored_batch(db, number=1)
    await db.rows("update commandbus.command_bus_command set ordering_key = 'a'")
    with pytest.raises(psycopg.Error, match="has an ordering key, and is not queued yet"):
        await reschedule(db, sent, seconds=60)
    assert await reschedule(db, sent, seconds=0) == [sent]


@pytest.mark.parametrize(
    "arguments",
    [
        "p_delay_seconds => 1, p_deliver_at => now()",
        "p_actor => 'ann'",
        "p_delay_seconds => -1",
        "p_delay_seconds => 1e9",
        "p_delay_seconds => 'nan'",
        "p_deliver_at => now() + interval '400 days'",
        "p_deliver_at => 'infinity'",
    ],
)
async def test_a_time_that_cannot_be_is_refused(db: Session, arguments: str) -> None:
    (sent,) = await db.send()
    before = await db.everything()
    with pytest.raises(psycopg.Error) as refused:
        await db.rows(f"select commandbus.reschedule_commands(%s, %s, {arguments})", DOMAIN, [sent])
    assert refused.value.sqlstate == "CB012"
    assert await db.everything() == before


async def test_of_a_receive_and_a_reschedule_at_once_one_wins(db: Session, session: Open) -> None:
    """Whoever has the message first: leased and refused, or later and not leased."""
    for _ in range(10):
        (sent,) = await db.send()
        one, other = await session(), await session()

        async def receive(who: Session = one) -> int:
            found = await who.receive()
            await who.conn.commit()
            return len(found)

        async def move(who: Session = other, command_id: UUID = sent) -> int:
            moved = await who.rows(RESCHEDULE, DOMAIN, [command_id], 600, False)
            await who.conn.commit()
            return len(moved)

        assert sum(await asyncio.gather(receive(), move())) == 1


async def test_an_expired_command_ends_once_whoever_comes_first(db: Session, session: Open) -> None:
    """Receives and the chore at the very moment of the expiry: one end, one reply."""
    sessions = [await session() for _ in range(4)]
    for turn in range(8):
        sent = await db.send(*(uuid4() for _ in range(5)), expires_in_seconds=0.05)

        async def ends(who: Session, is_chore: bool, ids: list[UUID] = sent) -> list[UUID]:
            leased: list[UUID] = []
            while True:
                if is_chore:
                    await who.value("select commandbus.end_expired()")
                else:
                    leased += [h.command_id for h in await who.receive(1)]
                await who.conn.commit()
                open_ = await who.value(
                    "select count(*) from commandbus.command_bus_command"
                    " where command_id = any(%s) and status = 'PENDING'",
                    ids,
                )
                await who.conn.commit()
                if not open_:
                    return leased

        jobs: list[Any] = [ends(who, n % 2 == 0) for n, who in enumerate(sessions)]
        begun = [c for found in await asyncio.wait_for(asyncio.gather(*jobs), 30) for c in found]
        assert len(begun) == len(set(begun))
        for command_id in sent:
            events = await db.events(command_id)
            replies = await db.replies(command_id)
            if command_id in begun:
                assert (events, replies) == (["SENT", "RECEIVED"], []), turn
            else:
                assert events == ["SENT", "EXPIRED"]
                assert [r["error"]["code"] for r in replies] == ["EXPIRED"]
