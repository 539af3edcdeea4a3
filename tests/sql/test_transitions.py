"""Every arrow between states: allowed from where it starts, refused elsewhere, harmless twice."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus.models import CommandStatus
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

PARKED = "IN_TROUBLESHOOTING_QUEUE"

#: Verb of a worker -> where it leads. All start from a lease.
OUTCOMES: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("COMPLETED", {"data": {"ok": True}}),
    "retry": ("PENDING", {"delay_seconds": 30, **FAILURE}),
    "park": (PARKED, {"reason": "EXHAUSTED", **FAILURE}),
    "fail": ("FAILED", FAILURE),
    "release": ("PENDING", {}),
    "snooze": ("PENDING", {"delay_seconds": 30}),
    "discard": ("CANCELED", {"reason": "void"}),
}
#: Verb of an operator -> where it may start, and where it leads.
OPERATOR: dict[str, tuple[str, str, str]] = {
    "operator_retry": (PARKED, "PENDING", "select commandbus.operator_retry(%s, %s, 'eve')"),
    "operator_cancel": (
        PARKED, "CANCELED", "select commandbus.operator_cancel(%s, %s, 'why', 'eve')",
    ),
    "operator_complete": (
        PARKED, "COMPLETED", """select commandbus.operator_complete(%s, %s, '{"x": 1}', 'eve')""",
    ),
    "cancel_commands": (
        "PENDING", "CANCELED", "select commandbus.cancel_commands(%s, %s, 'why', 'eve')",
    ),
}  # fmt: skip


async def operate(db: Session, verb: str, *ids: UUID) -> None:
    await db.rows(OPERATOR[verb][2], DOMAIN, list(ids))


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_moves_a_leased_command_to_its_state(db: Session, verb: str) -> None:
    target, item = OUTCOMES[verb]
    held = await db.put("IN_PROGRESS")
    assert await db.settle(verb, held.item(**item)) == []
    row = await db.command(held.command_id)
    assert row["status"] == target
    assert (row["leased_by"], row["lease_expires_at"]) == (None, None)


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_changes_nothing_when_the_command_is_not_leased(
    db: Session, verb: str
) -> None:
    for status in (s for s in CommandStatus if s != "IN_PROGRESS"):
        held = await db.put(status)
        before = await db.everything()
        await db.settle(verb, held.item(**OUTCOMES[verb][1]))
        assert await db.everything() == before, status


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_of_a_lost_lease_is_rejected_and_recorded(db: Session, verb: str) -> None:
    held = await db.put("IN_PROGRESS")
    await db.lapse(held)
    (taken,) = await db.receive(worker="w2")
    before = await db.everything(but=["audit"])
    stale = await db.settle(verb, held.item(**OUTCOMES[verb][1]))
    assert stale == [held.command_id]
    assert await db.everything(but=["audit"]) == before
    assert (await db.events(held.command_id))[-1] == "STALE_RESULT_REJECTED"
    assert await db.details(held.command_id, "STALE_RESULT_REJECTED") == {"lease_epoch": 1}
    assert await db.settle("complete", taken.item(data=None)) == []


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_of_a_lease_yet_to_come_is_rejected(db: Session, verb: str) -> None:
    held = await db.put("IN_PROGRESS")
    held.lease_epoch += 1
    before = await db.everything(but=["audit"])
    assert await db.settle(verb, held.item(**OUTCOMES[verb][1])) == [held.command_id]
    assert await db.everything(but=["audit"]) == before


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_said_twice_counts_once_and_is_not_called_stale(
    db: Session, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    item = held.item(**OUTCOMES[verb][1])
    assert await db.settle(verb, item) == []
    before = await db.everything()
    assert await db.settle(verb, item) == []
    assert await db.everything() == before


@pytest.mark.parametrize("first", OUTCOMES)
async def test_a_lease_ends_only_once_whatever_is_said_later(db: Session, first: str) -> None:
    for second in OUTCOMES:
        held = await db.put("IN_PROGRESS")
        await db.settle(first, held.item(**OUTCOMES[first][1]))
        before = await db.everything()
        await db.settle(second, held.item(**OUTCOMES[second][1]))
        assert await db.everything() == before, second


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_an_outcome_of_an_unknown_command_or_another_domain_changes_nothing(
    db: Session, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    await db.value("select commandbus.ensure_domain('orders')")
    before = await db.everything()
    stranger = Held(uuid4(), held.msg_id, 1)
    assert await db.settle(verb, stranger.item(**OUTCOMES[verb][1])) == []
    db.domain = "orders"
    assert await db.settle(verb, held.item(**OUTCOMES[verb][1])) == []
    assert await db.everything() == before


@pytest.mark.parametrize("verb", OUTCOMES)
async def test_in_a_group_only_the_lost_leases_are_rejected(db: Session, verb: str) -> None:
    await db.send(*(uuid4() for _ in range(3)))
    first, lost, last = await db.receive()
    await db.lapse(lost)
    await db.receive(worker="w2")
    item = OUTCOMES[verb][1]
    stale = await db.settle(verb, *(h.item(**item) for h in (last, lost, first)))
    assert stale == [lost.command_id]
    assert await db.status(first.command_id) == OUTCOMES[verb][0]
    assert await db.status(last.command_id) == OUTCOMES[verb][0]
    assert (await db.command(lost.command_id))["leased_by"] == "w2"


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_moves_a_command_from_the_one_state_it_may(
    db: Session, verb: str
) -> None:
    source, target, _ = OPERATOR[verb]
    held = await db.put(source)
    await operate(db, verb, held.command_id)
    assert await db.status(held.command_id) == target
    actor = await db.value(
        "select actor from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id desc limit 1",
        held.command_id,
    )
    assert actor == "eve"


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_is_refused_in_every_other_state(db: Session, verb: str) -> None:
    for status in (s for s in CommandStatus if s != OPERATOR[verb][0]):
        held = await db.put(status)
        before = await db.everything()
        refusal = rf"cannot \w+ command {held.command_id}: it is"
        with pytest.raises(psycopg.Error, match=refusal) as info:
            await operate(db, verb, held.command_id)
        assert info.value.sqlstate == "CB003"
        assert await db.everything() == before, status


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_said_twice_is_refused_the_second_time(
    db: Session, verb: str
) -> None:
    held = await db.put(OPERATOR[verb][0])
    await operate(db, verb, held.command_id)
    before = await db.everything()
    with pytest.raises(psycopg.Error) as info:
        await operate(db, verb, held.command_id)
    assert info.value.sqlstate == "CB003"
    assert await db.everything() == before


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_is_refused_for_an_unknown_command(db: Session, verb: str) -> None:
    await db.put(OPERATOR[verb][0])
    before = await db.everything()
    missing = uuid4()
    with pytest.raises(psycopg.Error, match=f"no command {missing}") as info:
        await operate(db, verb, missing)
    assert (info.value.sqlstate, info.value.diag.message_detail) == ("CB002", str(missing))
    assert await db.everything() == before


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_moves_all_of_a_group_or_none(db: Session, verb: str) -> None:
    bad = await db.put("COMPLETED")
    good = await db.put(OPERATOR[verb][0])
    before = await db.everything()
    with pytest.raises(psycopg.Error) as info:
        await operate(db, verb, good.command_id, bad.command_id)
    assert info.value.sqlstate == "CB003"
    assert await db.everything() == before


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_returns_what_it_moved_when_it_is_not_strict(
    db: Session, verb: str
) -> None:
    bad = await db.put("COMPLETED")
    good = await db.put(OPERATOR[verb][0])
    missing = uuid4()
    arguments = {
        "operator_retry": "'eve', true",
        "operator_cancel": "'why', 'eve'",
        "operator_complete": "'{}', 'eve'",
        "cancel_commands": "'why', 'eve'",
    }[verb]
    rows = await db.rows(
        f"select commandbus.{verb}(%s, %s, {arguments}, false) as id",
        DOMAIN, [good.command_id, bad.command_id, missing],
    )  # fmt: skip
    assert [row["id"] for row in rows] == [good.command_id]
    assert await db.status(bad.command_id) == "COMPLETED"
    assert await db.rows(
        f"select commandbus.{verb}(%s, %s, {arguments}, false) as id", DOMAIN, [missing]
    ) == []  # fmt: skip


@pytest.mark.parametrize("verb", OPERATOR)
async def test_an_operators_verb_does_not_reach_into_another_domain(db: Session, verb: str) -> None:
    held = await db.put(OPERATOR[verb][0])
    before = await db.everything()
    with pytest.raises(psycopg.Error) as info:
        await db.rows(OPERATOR[verb][2], "orders", [held.command_id])
    assert info.value.sqlstate == "CB002"
    assert await db.everything() == before
