"""Schedules in SQL: what is allowed, refused, and harmless when it is asked for twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import Session
from tests.sql.schedules import BREAKER, USER, events, fire, fire_of, put, row, sent
from tests.sql.test_plans import read

GOVERNED = "CB011"


async def govern(db: Session, command_type: str = "Work") -> None:
    await db.rows(
        "select commandbus.register_batch_types(%s)",
        Jsonb([{"domain": db.domain, "command_type": command_type, "batch_type": "B",
                "requires_approval": True}]),
    )  # fmt: skip


async def snapshot(db: Session) -> list[Any]:
    return [
        await db.rows("select * from commandbus.command_bus_schedule order by 1"),
        await db.value("select count(*) from commandbus.command_bus_audit"),
        await db.value("select count(*) from commandbus.command_bus_command"),
    ]


# -- putting


async def test_a_put_creates_then_changes_then_is_the_same(db: Session) -> None:
    assert await put(db) == "created"
    first = await row(db)
    assert await put(db, version=1) == "same"
    assert await put(db, version=1, data={"n": 2}) == "changed"
    second = await row(db)
    assert (second["version"], second["data"]) == (2, {"n": 2})
    assert second["schedule_id"] == first["schedule_id"]
    assert second["next_tick_at"] == first["next_tick_at"]
    assert await events(db, first["schedule_id"]) == ["SCHEDULE_PUT", "SCHEDULE_PUT"]


async def test_a_put_moves_the_tick_only_if_the_times_are_others(db: Session) -> None:
    await put(db, due=100)
    first = await row(db)
    await put(db, version=1, due=50, overlap="allow")
    second = await row(db)
    assert second["next_tick_at"] == second["look_at"] == first["next_tick_at"]
    await put(db, version=2, due=50, every_seconds=61)
    third = await row(db)
    assert third["next_tick_at"] == third["look_at"] > first["next_tick_at"]
    assert third["counted_from"] > first["counted_from"]


@pytest.mark.parametrize("version", [None, 7])
async def test_a_put_by_somebody_who_saw_another_row_changes_nothing(
    db: Session, version: int | None
) -> None:
    await put(db)
    before = await snapshot(db)
    assert await put(db, version=version, data={"n": 9}) == "stale"
    assert await snapshot(db) == before


async def test_a_put_of_a_row_that_is_gone_changes_nothing(db: Session) -> None:
    assert await put(db, version=3) == "stale"
    assert await row(db) == {}


async def test_two_first_puts_at_once_make_one_schedule(db: Session, session: Open) -> None:
    one, other = await session(), await session()
    assert await put(one) == "created"
    waiting = asyncio.create_task(put(other))
    await db.until_blocked(other)
    await one.conn.commit()
    assert await waiting == "stale"
    await other.conn.commit()
    assert await db.value("select count(*) from commandbus.command_bus_schedule") == 1


async def test_a_schedule_with_two_kinds_of_times_is_refused(db: Session) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await put(db, cron="* * * * *", timezone="UTC")


@pytest.mark.parametrize("whom", [USER, BREAKER])
async def test_a_governed_type_is_not_put_for_a_caller(db: Session, whom: dict[str, Any]) -> None:
    await govern(db)
    before = await snapshot(db)
    with pytest.raises(psycopg.Error) as caught:
        await put(db, whom=whom)
    assert caught.value.sqlstate == GOVERNED
    assert await snapshot(db) == before
    assert await put(db) == "created"  # an application may


@pytest.mark.parametrize("whom", [USER, BREAKER])
async def test_a_schedule_of_a_governed_type_is_not_replaced_for_a_caller(
    db: Session, whom: dict[str, Any]
) -> None:
    await govern(db)
    await put(db)
    before = await snapshot(db)
    with pytest.raises(psycopg.Error) as caught:
        await put(db, whom=whom, version=1, command_type="Free")
    assert caught.value.sqlstate == GOVERNED
    assert await snapshot(db) == before


async def test_a_type_that_only_the_service_declares_is_refused_too(db: Session) -> None:
    declared = [{"command_type": "Work", "batch_type": "B", "path": None}]
    with pytest.raises(psycopg.Error) as caught:
        await put(db, whom=USER | {"declared": declared})
    assert caught.value.sqlstate == GOVERNED


async def test_the_right_to_pass_by_is_not_stored(db: Session) -> None:
    await put(db, whom=BREAKER)
    assert (await row(db))["on_behalf"] == {"user": "ada", "declared": []}


async def test_an_application_that_puts_the_same_takes_a_schedule_over(db: Session) -> None:
    await put(db, whom=USER)
    assert await put(db, whom=USER, version=1) == "same"
    assert await put(db, version=1) == "changed"
    assert (await row(db))["on_behalf"] is None
    assert await put(db, whom=USER, version=2) == "same"
    assert (await row(db))["on_behalf"] is None


# -- firing


async def test_a_schedule_is_fired_once_and_moves_on(db: Session) -> None:
    await put(db)
    found = await row(db)
    asked = fire_of(found)
    assert await fire(db, asked) == [("fired", 1, 0)]
    after = await row(db)
    assert after["next_tick_at"] == after["look_at"] == found["next_tick_at"] + timedelta(hours=1)
    assert after["last_tick_at"] == found["next_tick_at"]
    assert str(after["last_command_id"]) == asked["ids"][0]
    assert after["version"] == found["version"]
    assert await fire(db, asked) == []
    assert await sent(db, found["schedule_id"]) == 1
    actor = await db.value(
        "select actor from commandbus.command_bus_audit where command_id = %s", asked["ids"][0]
    )
    assert actor == "schedule"


@pytest.mark.parametrize("what", ["version", "tick", "paused", "unknown", "early", "back"])
async def test_what_is_not_as_the_caller_saw_it_is_left_alone(db: Session, what: str) -> None:
    await put(db)
    found = await row(db)
    asked = fire_of(found)
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    if what == "version":
        asked["version"] = 2
    elif what == "tick":
        asked["expected"] = (found["next_tick_at"] - timedelta(seconds=1)).isoformat()
    elif what == "paused":
        await db.rows("update commandbus.command_bus_schedule set paused_at = now()")
    elif what == "unknown":
        asked["schedule_id"] = str(uuid4())
    elif what == "early":
        asked |= {"last": later, "next": None}
    else:
        asked["next"] = asked["last"]
    before = await snapshot(db)
    assert await fire(db, asked) == []
    assert await snapshot(db) == before


async def test_a_schedule_that_another_process_fires_just_now_is_skipped(
    db: Session, session: Open
) -> None:
    await db.send()  # the queue is there: creating it is not for two at once
    await put(db)
    await put(db, "y")
    found, free = await row(db), await row(db, "y")
    other = await session()
    assert await fire(other, fire_of(found)) == [("fired", 1, 0)]
    assert await fire(db, fire_of(found), fire_of(free)) == [("fired", 1, 0)]
    await other.conn.commit()
    assert await fire(db, fire_of(found)) == []
    assert await sent(db, found["schedule_id"]) == 1


async def test_a_replacement_waits_for_a_firing_and_then_sees_it(
    db: Session, session: Open
) -> None:
    await put(db)
    other = await session()
    await fire(other, fire_of(await row(db)))
    waiting = asyncio.create_task(put(db, version=1, data={"n": 2}))
    await other.conn.commit()
    assert await waiting == "changed"
    assert (await row(db))["last_tick_at"] is not None


@pytest.mark.parametrize("status", ["PENDING", "IN_PROGRESS", "IN_TROUBLESHOOTING_QUEUE"])
async def test_an_open_command_holds_the_next_tick_and_a_parked_one_does_not(
    db: Session, status: str
) -> None:
    await put(db, due=100)
    held = await db.put(status)
    await db.rows(
        "update commandbus.command_bus_schedule set last_command_id = %s", held.command_id
    )
    found = await row(db)
    if status == "IN_TROUBLESHOOTING_QUEUE":
        assert await fire(db, fire_of(found)) == [("fired", 1, 0)]
        return
    assert await fire(db, fire_of(found)) == [("fired", 0, 1)]
    after = await row(db)
    assert after["last_command_id"] == held.command_id
    assert after["last_tick_at"] == found["next_tick_at"]
    details = await db.value(
        "select details_json from commandbus.command_bus_audit"
        " where event_type = 'SCHEDULE_SKIPPED'"
    )
    assert details["open_command"] == str(held.command_id)


async def test_overlap_allow_sends_all_ticks_and_skip_the_first(db: Session) -> None:
    for name, overlap, expected in (("x", "allow", (3, 0)), ("y", "skip", (1, 2))):
        await put(db, name, due=40, overlap=overlap)
        found = await row(db, name)
        ticks = [found["next_tick_at"] + timedelta(seconds=n) for n in range(3)]
        asked = fire_of(found, ticks=ticks)
        assert await fire(db, asked) == [("fired", *expected)]
        last = str((await row(db, name))["last_command_id"])
        assert last == asked["ids"][expected[0] - 1]


async def test_ticks_that_are_all_missed_send_nothing_and_are_told(db: Session) -> None:
    await put(db, due=500)
    found = await row(db)
    asked = fire_of(found, ticks=[], missed={"count": 7, "made_up": 0})
    assert await fire(db, asked) == [("fired", 0, 0)]
    assert await events(db, found["schedule_id"]) == ["SCHEDULE_PUT", "SCHEDULE_MISSED"]


async def test_an_id_that_is_known_settles_its_tick_and_the_others_are_sent(db: Session) -> None:
    await put(db)
    await put(db, "y")
    (known,) = await db.send()
    one, other = await row(db), await row(db, "y")
    fires = [fire_of(one, ids=[str(known)]), fire_of(other)]
    assert sorted(await fire(db, *fires)) == [("fired", 1, 0), ("fired", 1, 0)]
    assert await sent(db, one["schedule_id"]) == 0
    assert await sent(db, other["schedule_id"]) == 1
    assert await db.value("select count(*) from pgmq.q_payments__commands") == 2


async def test_jitter_delays_the_command_by_a_hash_of_its_id(db: Session) -> None:
    for number in range(20):
        await put(db, f"x{number}", jitter_seconds=600)
        found = await row(db, f"x{number}")
        await fire(db, fire_of(found))
    rows = await db.rows(
        "select extract(epoch from c.deliver_at - s.last_tick_at) as late"
        " from commandbus.command_bus_command c"
        " join commandbus.command_bus_schedule s on s.schedule_id = c.correlation_id"
    )
    late = [float(each["late"]) for each in rows]
    assert all(0 <= each < 600 for each in late)
    assert len(set(late)) == 20
    assert max(late) - min(late) > 100


async def test_what_a_schedule_says_about_its_commands_is_sent_with_them(db: Session) -> None:
    await put(db, expires_in_seconds=600, priority=2, ordering_key="k", reply_to="payments.replies")
    await fire(db, fire_of(await row(db)))
    (command,) = await db.rows("select * from commandbus.command_bus_command")
    assert (command["priority"], command["ordering_key"]) == (2, "k")
    assert command["reply_queue"] == "payments.replies"
    assert command["expires_at"] > datetime.now(UTC)


# -- governance at the time of firing


async def test_a_schedule_that_was_put_over_http_is_paused_once_its_type_is_governed(
    db: Session,
) -> None:
    await put(db, whom=USER)
    await put(db, "own")
    await govern(db)
    found, own = await row(db), await row(db, "own")
    assert sorted(await fire(db, fire_of(found), fire_of(own))) == [
        ("fired", 1, 0), ("refused", 0, 0),
    ]  # fmt: skip
    after = await row(db)
    assert after["paused_at"] is not None
    assert "governed" in after["pause_reason"]
    assert after["next_tick_at"] == found["next_tick_at"]
    assert await sent(db, found["schedule_id"]) == 0
    assert await sent(db, own["schedule_id"]) == 1
    assert await events(db, found["schedule_id"]) == ["SCHEDULE_PUT", "SCHEDULE_PAUSED"]
    # Resumed, it is refused again; put by an application, it is not.
    await db.rows("select commandbus.resume_schedule(%s, 'x', 2, null, true)", db.domain)
    assert await fire(db, fire_of(await row(db))) == [("refused", 0, 0)]
    await put(db, version=4)
    version = (await row(db))["version"]
    await db.rows("select commandbus.resume_schedule(%s, 'x', %s, null, true)", db.domain, version)
    assert await fire(db, fire_of(await row(db))) == [("fired", 1, 0)]


async def test_a_registration_waits_for_a_firing_for_a_caller(db: Session, session: Open) -> None:
    await put(db, whom=USER)
    firing = await session()
    await fire(firing, fire_of(await row(db)))
    registering = asyncio.create_task(govern(db))
    await firing.conn.commit()
    await registering
    assert await sent(db, (await row(db))["schedule_id"]) == 1


# -- pause, resume, trigger, delete, fail


async def test_pause_and_resume_say_whether_there_was_something_to_do(db: Session) -> None:
    pause = "select commandbus.pause_schedule(%s, %s, 'why', 'ann')"
    resume = "select commandbus.resume_schedule(%s, 'x', %s, now() + interval '1 h', %s)"
    assert await db.value(pause, db.domain, "x") is False
    assert await db.value(resume, db.domain, 1, False) is None
    await put(db)
    assert await db.value(resume, db.domain, 1, False) == "same"
    assert await db.value(pause, db.domain, "x") is True
    paused = await row(db)
    assert (paused["version"], paused["paused_by"], paused["pause_reason"]) == (2, "ann", "why")
    assert await db.value(resume, db.domain, 1, False) == "stale"
    assert await db.value(resume, db.domain, 2, False) == "resumed"
    after = await row(db)
    assert (after["paused_at"], after["version"]) == (None, 3)
    assert after["next_tick_at"] == after["look_at"] > datetime.now(UTC)


async def test_a_resume_that_catches_up_stands_at_its_old_tick(db: Session) -> None:
    await put(db, due=500)
    tick = (await row(db))["next_tick_at"]
    await db.rows("select commandbus.pause_schedule(%s, 'x')", db.domain)
    await db.rows("select commandbus.resume_schedule(%s, 'x', 2, now(), true)", db.domain)
    after = await row(db)
    assert after["next_tick_at"] == after["look_at"] == tick


TRIGGER = "select commandbus.trigger_schedule(%s, 'x', %s, 'ann', %s)"


async def test_a_trigger_sends_once_for_an_id(db: Session) -> None:
    wanted = uuid4()
    assert await db.value(TRIGGER, db.domain, wanted, None) is None
    await put(db, jitter_seconds=600)
    before = await row(db)
    assert await db.value(TRIGGER, db.domain, wanted, None) == "sent"
    assert await db.value(TRIGGER, db.domain, wanted, None) == "repeat"
    (other,) = await db.send()
    assert await db.value(TRIGGER, db.domain, other, None) == "known"
    assert await row(db) == before | {"last_trigger_id": wanted}
    deliver_at = await db.value(
        "select deliver_at from commandbus.command_bus_command where command_id = %s", wanted
    )
    assert deliver_at is None


async def test_a_governed_type_is_triggered_only_by_who_may_pass_by(db: Session) -> None:
    await govern(db)
    await put(db)
    before = await snapshot(db)
    with pytest.raises(psycopg.Error) as caught:
        await db.value(TRIGGER, db.domain, uuid4(), Jsonb(USER))
    assert caught.value.sqlstate == GOVERNED
    assert await snapshot(db) == before
    wanted = uuid4()
    assert await db.value(TRIGGER, db.domain, wanted, Jsonb(BREAKER)) == "sent"
    rows = await db.rows(
        "select event_type, actor from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        wanted,
    )
    assert [(each["event_type"], each["actor"]) for each in rows] == [
        ("SENT", "ann"), ("GOVERNANCE_BYPASSED", "ada"),
    ]  # fmt: skip


async def test_a_schedule_is_deleted_once(db: Session) -> None:
    await put(db)
    schedule_id = (await row(db))["schedule_id"]
    delete = "select commandbus.delete_schedule(%s, 'x', 'ann')"
    assert await db.value(delete, db.domain) is True
    assert await db.value(delete, db.domain) is False
    assert await events(db, schedule_id) == ["SCHEDULE_PUT", "SCHEDULE_DELETED"]


async def test_a_schedule_that_cannot_be_fired_waits_and_says_why_once(db: Session) -> None:
    await put(db)
    found = await row(db)
    fail = "select commandbus.fail_schedule(%s, %s, %s, %s, 30)"
    args = (found["schedule_id"], 1, found["next_tick_at"])
    for error in ("no", "no", "other"):
        assert await db.value(fail, *args, error) is True
    after = await row(db)
    assert (after["last_error"], after["next_tick_at"]) == ("other", found["next_tick_at"])
    assert after["look_at"] > datetime.now(UTC) + timedelta(seconds=20)
    assert await events(db, args[0]) == ["SCHEDULE_PUT", "SCHEDULE_FAILED", "SCHEDULE_FAILED"]
    assert await db.rows("select * from commandbus.due_schedules(10)") == []
    for stale in (
        (args[0], 2, args[2]),
        (args[0], 1, args[2] - timedelta(1)),
        (uuid4(), *args[1:]),
    ):
        assert await db.value(fail, *stale, "no") is False
    await db.rows("update commandbus.command_bus_schedule set paused_at = now()")
    assert await db.value(fail, *args, "no") is False
    assert (await row(db))["last_error"] == "other"


# -- what is due


async def test_due_are_those_whose_time_has_come_and_that_are_not_paused(db: Session) -> None:
    await put(db, "due")
    await put(db, "later", due=-600)
    await put(db, "paused")
    await db.rows("select commandbus.pause_schedule(%s, 'paused')", db.domain)
    await put(db, "zone", every_seconds=None, cron="* * * * *", timezone="Asia/Tokyo")
    await put(db, "finished")
    await db.rows(
        "update commandbus.command_bus_schedule set next_tick_at = null, look_at = null"
        " where name = 'finished'"
    )
    ids = {
        each["name"]: each["schedule_id"]
        for each in await db.rows("select name, schedule_id from commandbus.command_bus_schedule")
    }

    async def due(*args: Any) -> set[Any]:
        marks = ", ".join(["%s"] * len(args))
        rows = await db.rows(f"select * from commandbus.due_schedules({marks})", *args)
        return {each["schedule_id"] for each in rows}

    assert await due(10) == {ids["due"], ids["zone"]}
    assert await due(10, ["Asia/Tokyo"]) == {ids["due"]}
    assert len(await due(1)) == 1


async def test_the_doctor_names_what_is_overdue(db: Session) -> None:
    await put(db, "fresh", due=50)
    await put(db, "late", due=70)
    await put(db, "fails", due=70)
    await db.rows(
        "update commandbus.command_bus_schedule set last_error = 'x' where name = 'fails'"
    )
    rows = await db.rows("select * from commandbus.check_schedules() order by subject")
    assert [(each["code"], each["subject"]) for each in rows] == [
        ("SCHEDULE_FAILS", "fails"), ("SCHEDULE_OVERDUE", "late"),
    ]  # fmt: skip
    assert await db.rows("select * from commandbus.check_schedules('elsewhere')") == []


async def test_the_payload_is_given_by_its_function_alone(db: Session) -> None:
    await put(db)
    await put(db, "y", data={"n": 2})
    rows = await db.rows("select * from commandbus.schedule_data(%s, '{x,y}')", db.domain)
    assert {each["name"]: each["data"] for each in rows} == {"x": {"n": 1}, "y": {"n": 2}}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_due_schedules_and_their_commands_are_found_by_index_among_many(
    db: Session, analyzed: bool
) -> None:
    for table in ("schedule", "command"):
        await db.rows(
            f"alter table commandbus.command_bus_{table} set (autovacuum_enabled = false)"
        )
    # The plans are made, and cached, while the tables are empty.
    await put(db, "first")
    await db.rows("select * from commandbus.due_schedules(10)")
    await fire(db, fire_of(await row(db, "first")))
    await db.value(
        "select commandbus.send_commands('payments', (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, 10000)))"
    )
    await db.rows(
        "insert into commandbus.command_bus_schedule (schedule_id, domain, name, command_type,"
        " data, reply_to, max_attempts, jitter_seconds, every_seconds, counted_from, missed,"
        " missed_cap, overlap, next_tick_at, look_at, created_at, updated_at)"
        " select gen_random_uuid(), 'payments', 'many' || n, 'Work', '{}', '', 3, 0, 60, now(),"
        " 'once', 100, 'skip', now() + interval '1 day', now() + interval '1 day', now(), now()"
        " from generate_series(1, 10000) n"
    )
    if analyzed:
        await db.rows("analyze commandbus.command_bus_schedule, commandbus.command_bus_command")
    await put(db)
    before = [await read(db, table) for table in ("schedule", "command")]
    (due,) = await db.rows("select * from commandbus.due_schedules(10)")
    found = await row(db)
    assert due["schedule_id"] == found["schedule_id"]
    looked = [await read(db, table) for table in ("schedule", "command")]
    assert await fire(db, fire_of(found)) == [("fired", 1, 0)]
    await db.rows(
        "update commandbus.command_bus_schedule set next_tick_at = now(), look_at = now()"
        " where schedule_id = %s", found["schedule_id"],
    )  # fmt: skip
    assert await fire(db, fire_of(await row(db))) == [("fired", 0, 1)]
    after = [await read(db, table) for table in ("schedule", "command")]
    assert looked[0][0] == before[0][0]
    for one, other in zip(before, after, strict=True):
        assert other[0] == one[0]
        assert other[1] - one[1] < 100
