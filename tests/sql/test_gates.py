"""Limits of execution: who gets a place, who waits, and that nothing is left behind."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session


async def limit(db: Session, kind: str | None = "Debit", **values: Any) -> None:
    """Set a limit, by the arguments of set_limit without their p_."""
    names = "".join(f", p_{name} => %s" for name in values)
    await db.value(
        f"select commandbus.set_limit(%s, p_type => %s{names})", DOMAIN, kind, *values.values()
    )


async def sent(db: Session, count: int, **more: Any) -> list[UUID]:
    return await db.send(*(uuid4() for _ in range(count)), **more)


async def places(db: Session) -> list[str]:
    rows = await db.rows("select gate from commandbus.command_bus_slot order by gate")
    return [row["gate"] for row in rows]


async def waiting(db: Session) -> dict[UUID, str]:
    """Who waits, and where; each of them has a message that stands aside, and no other has."""
    rows = await db.rows("select command_id, gate, msg_id from commandbus.command_bus_waiting")
    aside = await db.rows(f"select msg_id from pgmq.q_{DOMAIN}__commands where vt = 'infinity'")
    assert sorted(row["msg_id"] for row in rows) == sorted(row["msg_id"] for row in aside)
    return {row["command_id"]: row["gate"] for row in rows}


async def findings(db: Session) -> list[str]:
    rows = await db.rows("select code from commandbus.check_gates() order by code")
    return [row["code"] for row in rows]


async def complete(db: Session, *held: Held) -> None:
    assert await db.settle("complete", *(h.item(data=None) for h in held)) == []


async def test_no_more_are_leased_than_a_limit_allows_and_the_others_wait(db: Session) -> None:
    await limit(db, max_running=2)
    ids = await sent(db, 5)
    held = await db.receive()
    assert [h.command_id for h in held] == ids[:2]
    assert await places(db) == ["l:t:Debit"] * 2
    assert set(await waiting(db)) == set(ids[2:])
    assert await db.receive() == []


async def test_a_place_that_is_free_again_goes_to_who_has_waited_longest(db: Session) -> None:
    await limit(db, max_running=2)
    ids = await sent(db, 5)
    held = await db.receive()
    await complete(db, held[0])
    (third,) = await db.receive()
    assert third.command_id == ids[2]
    later = await sent(db, 1)
    await complete(db, held[1], third)
    assert [h.command_id for h in await db.receive()] == ids[3:]
    assert set(await waiting(db)) == set(later)


async def test_what_has_no_limit_passes_those_who_wait(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 30)
    free = await sent(db, 3, type="Credit")
    held = await db.receive(4)
    # Five rounds of what is due: 4, then 3 each.
    for _ in range(3):
        held += await db.receive(4)
    assert [h.command_id for h in held if h.row["command_type"] == "Credit"] == free
    assert await places(db) == ["l:t:Debit"]


@pytest.mark.parametrize("verb", ["complete", "retry", "park", "fail", "release"])
async def test_every_end_of_a_lease_gives_the_place_back(db: Session, verb: str) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    (held,) = await db.receive()
    outcomes: dict[str, dict[str, Any]] = {
        "complete": {"data": None}, "retry": {"delay_seconds": 60, **FAILURE},
        "park": {"reason": "PERMANENT", **FAILURE}, "fail": FAILURE, "release": {},
    }  # fmt: skip
    values = outcomes[verb]
    await db.settle(verb, held.item(**values))
    assert await places(db) == []
    await db.settle(verb, held.item(**values))
    assert await findings(db) == []


async def test_a_lapsed_lease_is_leased_again_with_its_own_place(db: Session) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 2)
    (first,) = await db.receive()
    await db.lapse(first)
    (again,) = await db.receive(worker="w2")
    assert (again.command_id, again.lease_epoch) == (ids[0], 2)
    assert await places(db) == ["l:t:Debit"]
    assert await db.settle("complete", first.item(data=None)) == [ids[0]]
    assert await places(db) == ["l:t:Debit"]
    await complete(db, again)
    assert await places(db) == []


async def test_a_lapsed_lease_keeps_its_place_while_another_session_has_the_gate(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=2)
    ids = await sent(db, 2)
    first = (await db.receive(1))[0]
    await db.lapse(first)
    other = await session()
    await other.rows("select 1 from commandbus.command_bus_gate for update")
    # The second one finds the gate in other hands, and waits; the first needs nothing of it.
    assert [held.command_id for held in await db.receive()] == [ids[0]]
    assert set(await waiting(db)) == {ids[1]}


async def test_all_gates_of_a_command_must_have_room_and_one_that_waits_has_nothing(
    db: Session,
) -> None:
    await limit(db, None, max_running=3)
    await limit(db, max_running=2)
    await limit(db, by_key=True, max_running=1)
    a = await sent(db, 2, limit_key="a")
    b = await sent(db, 1, limit_key="b")
    c = await sent(db, 1, limit_key="c")
    d = await sent(db, 2, type="Credit")
    held = await db.receive()
    assert {h.command_id for h in held} == {a[0], b[0], d[0]}
    assert await waiting(db) == {a[1]: "l:k:Debit/a", c[0]: "l:t:Debit", d[1]: "l:d"}
    assert sorted(await places(db)) == sorted(
        ["l:d"] * 3 + ["l:t:Debit"] * 2 + ["l:k:Debit/a", "l:k:Debit/b"]
    )
    await complete(db, *held)
    assert {h.command_id for h in await db.receive()} == {a[1], c[0], d[1]}


async def test_commands_without_a_key_are_not_counted_by_key(db: Session) -> None:
    await limit(db, by_key=True, max_running=1)
    await sent(db, 3)
    assert len(await db.receive()) == 3
    assert await places(db) == []


async def test_a_gate_that_another_session_has_is_as_good_as_full(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=5)
    await sent(db, 1)
    other = await session()
    (first,) = await other.receive(1)
    ids = await sent(db, 2)
    assert await db.receive() == []
    assert set(await waiting(db)) == set(ids)
    await other.conn.commit()
    assert {h.command_id for h in await db.receive()} == set(ids)
    await complete(db, first)


async def test_a_rate_gives_a_burst_at_once_and_then_what_comes(db: Session) -> None:
    await limit(db, rate=2, per=3600, burst=3)
    ids = await sent(db, 6)
    held = await db.receive()
    assert [h.command_id for h in held] == ids[:3]
    assert await db.receive() == []
    await complete(db, *held)
    assert 1700 < await db.value("select commandbus.next_due(%s)", DOMAIN) <= 1800
    await db.rows(
        "update commandbus.command_bus_gate set refilled_at = refilled_at - interval '1 hour',"
        " ready_at = ready_at - interval '1 hour'"
    )
    assert await db.value("select commandbus.next_due(%s)", DOMAIN) == 0
    assert [h.command_id for h in await db.receive()] == ids[3:5]
    assert await places(db) == []


async def test_no_tokens_come_while_the_clock_is_behind(db: Session) -> None:
    await limit(db, rate=1, per=1, burst=2)
    await sent(db, 4)
    assert len(await db.receive()) == 2
    await db.rows(
        "update commandbus.command_bus_gate set refilled_at = refilled_at + interval '1 day'"
    )
    assert await db.receive() == []
    # For as long as the bucket takes to fill, not for a day.
    ahead = await db.value(
        "select extract(epoch from refilled_at - clock_timestamp())"
        " from commandbus.command_bus_gate"
    )
    assert ahead <= 2.0


async def test_a_lapsed_lease_that_finds_no_token_waits_without_places_and_is_fenced(
    db: Session,
) -> None:
    await limit(db, max_running=5, rate=1, per=3600, burst=1)
    (command_id,) = await sent(db, 1)
    (held,) = await db.receive()
    await db.lapse(held)
    assert await db.receive() == []
    assert await waiting(db) == {command_id: "l:t:Debit"}
    assert await places(db) == []
    extended = await db.rows(
        "select * from commandbus.extend_leases(%s, %s::jsonb, 60) as lost",
        DOMAIN, psycopg.types.json.Jsonb([held.item()]),
    )  # fmt: skip
    assert [row["lost"] for row in extended] == [command_id]
    assert await db.settle("complete", held.item(data=None)) == [command_id]
    assert await waiting(db) == {command_id: "l:t:Debit"}
    await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    (again,) = await db.receive()
    assert again.row["attempt"] == 1
    assert "LEASE_EXPIRED" in await db.events(command_id)


async def test_what_waits_can_be_cancelled_and_leaves_nothing(db: Session) -> None:
    await limit(db, max_running=1)
    ids = await sent(db, 3)
    (held,) = await db.receive()
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [ids[1]])
    assert set(await waiting(db)) == {ids[2]}
    await complete(db, held)
    assert [h.command_id for h in await db.receive()] == [ids[2]]


async def test_what_waits_can_expire(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    (late,) = await sent(db, 1, expires_in_seconds=0.001)
    await db.receive(1)
    (soon,) = await sent(db, 1, expires_in_seconds=30)
    assert await db.receive() == []
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp()"
        " where expires_at is not null"
    )
    await db.rows("update commandbus.command_bus_expiry set look_at = clock_timestamp()")
    await db.value("select commandbus.end_expired()")
    assert await db.status(soon) == await db.status(late) == "CANCELED"
    assert await waiting(db) == {}


async def test_gated_commands_are_not_leased_ahead_of_free_handlers(db: Session) -> None:
    await limit(db, max_running=10)
    gated = await sent(db, 4)
    free = await sent(db, 2, type="Credit")
    rows = await db.rows(
        "select command_id from commandbus.receive_commands(%s, 60, 6, 'w1', p_places => 1)", DOMAIN
    )
    assert {row["command_id"] for row in rows} == {gated[0], *free}
    rows = await db.rows(
        "select command_id from commandbus.receive_commands(%s, 60, 6, 'w2', p_places => 3)", DOMAIN
    )
    assert [row["command_id"] for row in rows] == gated[1:]


async def test_a_new_limit_counts_what_runs_and_a_lower_one_stops_nothing(db: Session) -> None:
    ids = await sent(db, 4)
    running = await db.receive(3)
    await limit(db, max_running=3)
    assert len(await places(db)) == 3
    assert await db.receive() == []
    await limit(db, max_running=1)
    await complete(db, *running[:2])
    assert await db.receive() == []
    assert await db.status(running[2].command_id) == "IN_PROGRESS"
    await complete(db, running[2])
    assert [h.command_id for h in await db.receive()] == [ids[3]]


async def test_a_new_limit_counts_a_lease_that_has_lapsed_and_is_extended_late(db: Session) -> None:
    await sent(db, 2)
    (running,) = await db.receive(1)
    await db.lapse(running)
    await limit(db, max_running=1)
    lost = await db.rows(
        "select commandbus.extend_leases(%s, %s, 60)", DOMAIN, Jsonb([running.item()])
    )
    assert lost == []
    assert await db.receive() == []
    assert len(await places(db)) == 1


async def test_removing_a_limit_makes_its_waiters_due_in_chunks(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 6)
    await db.receive(6)
    assert len(await waiting(db)) == 5
    assert await db.value("select commandbus.clear_limit(%s, 'Debit', p_actor => 'ada')", DOMAIN)
    assert not await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    assert await db.value("select commandbus.release_waiting(%s, 3)", DOMAIN) == 3
    assert await db.value("select commandbus.tend_gates(%s)", DOMAIN) == 2
    assert await db.value("select commandbus.tend_gates(%s)", DOMAIN) == 0
    assert await waiting(db) == {}
    assert len(await db.receive()) == 5
    assert await db.value("select has_rules from commandbus.command_bus_flow")
    await db.rows("update commandbus.command_bus_flow set updated_at = now() - interval '1 hour'")
    await db.value("select commandbus.tend_gates(%s)", DOMAIN)
    assert not await db.value("select has_rules from commandbus.command_bus_flow")
    assert not await db.rows("select * from commandbus.command_bus_gate")


async def test_waiters_of_a_removed_limit_are_leased_before_any_chore(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 6)
    await db.receive(6)
    await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    assert len(await db.receive()) == 5
    assert await waiting(db) == {}


async def test_waiters_of_a_type_that_goes_on_are_leased_and_wait_no_more(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    await sent(db, 3)
    assert await db.receive() == []
    await db.value("select commandbus.resume_type(%s, 'Debit')", DOMAIN)
    assert len(await db.receive()) == 3
    assert await waiting(db) == {}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_running": 0}, "that is a pause"),
        ({"rate": 0}, "that is a pause"),
        ({"max_running": -1}, "from 1 to"),
        ({"rate": -1}, "the rate is not"),
        ({}, "neither max_running nor a rate"),
        ({"max_running": 1, "per": 2.0}, "parts of a rate"),
        ({"rate": 1, "burst": 0.5}, "burst is not"),
        ({"rate": 1, "per": 0}, "per 0.001 seconds"),
        ({"kind": "a b", "max_running": 1}, "not well formed"),
        ({"kind": None, "by_key": True, "max_running": 1}, "needs a command type"),
    ],
)
async def test_a_limit_that_cannot_be_is_refused_and_changes_nothing(
    db: Session, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(psycopg.Error, match=says) as refused:
        await limit(db, **values)
    assert refused.value.sqlstate == "CB012"
    assert not await db.rows("select * from commandbus.command_bus_flow_rule")


async def test_changes_of_limits_are_in_the_audit(db: Session) -> None:
    await limit(db, max_running=2, actor="ada", reason="slow bank")
    await limit(db, max_running=3, actor="bob")
    await db.value("select commandbus.clear_limit(%s, 'Debit', p_actor => 'eve')", DOMAIN)
    rows = await db.rows(
        "select event_type, actor, details_json from commandbus.command_bus_audit order by audit_id"
    )
    assert [(row["event_type"], row["actor"]) for row in rows] == [
        ("EXECUTION_LIMIT_SET", "ada"), ("EXECUTION_LIMIT_SET", "bob"),
        ("EXECUTION_LIMIT_CLEARED", "eve"),
    ]  # fmt: skip
    assert rows[0]["details_json"] == {
        "type": "Debit", "limit": {"max_running": 2}, "reason": "slow bank",
    }  # fmt: skip
    assert rows[1]["details_json"]["before"] == {"max_running": 2}


async def test_limits_are_listed_with_what_they_are_up_to(db: Session) -> None:
    await limit(db, max_running=9, rate=0.1, burst=9)
    await limit(db, by_key=True, max_running=1)
    await sent(db, 3, limit_key="a")
    await sent(db, 3, limit_key="b")
    await db.receive()
    rows = await db.rows("select * from commandbus.list_limits(%s)", DOMAIN)
    assert [(r["by_key"], r["running"], r["waiting"]) for r in rows] == [
        (False, 2, 0), (True, 2, 4),
    ]  # fmt: skip
    assert 6.9 < rows[0]["tokens"] < 8
    keys = await db.rows("select * from commandbus.list_limit_keys(%s, 'Debit')", DOMAIN)
    assert [(k["limit_key"], k["running"], k["waiting"]) for k in keys] == [
        ("a", 1, 2),
        ("b", 1, 2),
    ]
    said = await db.value(
        "select commandbus.waiting_text(domain, command_id) from commandbus.command_bus_waiting"
        " order by seq limit 1"
    )
    assert said.startswith("limit Debit of key a, 1 of 1, since 20")


async def test_above_read_committed_nothing_is_leased_under_a_limit(
    db: Session, session: Open
) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    other = await session()
    await other.conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    with pytest.raises(psycopg.Error, match="read committed"):
        await other.receive()


async def test_the_doctor_repairs_what_waits_for_nothing_and_places_that_nobody_has(
    db: Session,
) -> None:
    await limit(db, max_running=1)
    first, second, third = await sent(db, 3)
    await db.receive(3)
    await db.rows("delete from commandbus.command_bus_waiting where command_id = %s", second)
    await db.rows(
        f"update pgmq.q_{DOMAIN}__commands set vt = now() where msg_id ="
        " (select msg_id from commandbus.command_bus_waiting where command_id = %s)",
        third,
    )
    await db.rows(
        "update commandbus.command_bus_command set leased_by = null, status = 'PENDING'"
        " where command_id = %s",
        first,
    )
    assert await findings(db) == [
        "PLACE_WITHOUT_LEASE", "WAITING_FOR_NOTHING", "WAITING_WITHOUT_MESSAGE",
    ]  # fmt: skip
    repaired = await db.rows("select commandbus.repair_waiting(%s, 'ann') as id", DOMAIN)
    assert {row["id"] for row in repaired} == {str(second), str(third)}
    places_freed = await db.rows("select commandbus.repair_places(%s, 'ann') as id", DOMAIN)
    assert [row["id"] for row in places_freed] == [str(first)]
    assert await findings(db) == []
    assert not await db.rows("select commandbus.repair_waiting(%s)", DOMAIN)
    assert not await db.rows("select commandbus.repair_places(%s)", DOMAIN)
    assert "DOCTOR_REPAIR" in await db.events(second)


async def test_a_type_that_is_paused_until_a_time_is_resumed_by_itself(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value(
        "select commandbus.pause_type(%s, 'Debit', 'why', clock_timestamp() + interval '1 hour')",
        DOMAIN,
    )
    ids = await sent(db, 2)
    (credit,) = await sent(db, 1, type="Credit")
    assert [held.command_id for held in await db.receive()] == [credit]
    await limit(db, max_running=5)  # does not end the pause
    assert await db.receive() == []
    await db.rows("update commandbus.command_bus_flow_rule set paused_until = clock_timestamp()")
    assert {held.command_id for held in await db.receive()} == set(ids)
    await db.value("select commandbus.tend_gates(%s)", DOMAIN)
    assert await db.value("select paused_at from commandbus.command_bus_flow_rule") is None
    assert not await db.value("select commandbus.resume_type(%s, 'Debit')", DOMAIN)
    events = await db.rows(
        "select event_type from commandbus.command_bus_audit where event_type in"
        " ('PAUSED', 'RESUMED') order by audit_id"
    )
    assert [row["event_type"] for row in events] == ["PAUSED", "RESUMED"]


async def listening(session: Open) -> Session:
    """A session that hears what an idle worker of the domain would."""
    listener = await session()
    await listener.rows("select commandbus.worker_heartbeat('w9', %s, true, 1, 0)", DOMAIN)
    channel = await listener.value("select commandbus.channel(%s)", DOMAIN)
    await listener.rows(f'listen "{channel}"')
    await listener.conn.commit()
    return listener


async def is_woken(listener: Session) -> bool:
    return bool([each async for each in listener.conn.notifies(timeout=0.3, stop_after=1)])


@pytest.mark.parametrize("has_limit", [True, False])
async def test_an_end_by_an_operator_wakes_a_worker_where_there_are_limits(
    db: Session, session: Open, has_limit: bool
) -> None:
    if has_limit:
        await limit(db, max_running=1)
    _, waits = await sent(db, 2)
    await db.receive(1)
    listener = await listening(session)
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [waits])
    await db.conn.commit()
    assert await is_woken(listener) is has_limit


@pytest.mark.parametrize("has_limit", [True, False])
async def test_a_receive_that_ends_what_a_dead_worker_had_wakes_another_for_its_place(
    db: Session, session: Open, has_limit: bool
) -> None:
    """It may find nothing that it could lease itself: what waits has another type, or more."""
    if has_limit:
        await limit(db, max_running=1)
    (first,) = await sent(db, 1)
    await db.receive(1)
    await db.rows("select commandbus.request_cancel(%s, %s, 'why')", DOMAIN, [first])
    await db.rows(f"update pgmq.q_{DOMAIN}__commands set vt = clock_timestamp()")
    listener = await listening(session)
    assert await db.receive(1) == []
    await db.conn.commit()
    assert await places(db) == []
    assert await is_woken(listener) is has_limit
