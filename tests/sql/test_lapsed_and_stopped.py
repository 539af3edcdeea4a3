"""A command whose worker died, and which then waits at a limit or is paused, is nobody's: operators
end and move it as they do with all that waits, and a late result is refused."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from uuid import UUID

import pytest

from tests.sql.helpers import DOMAIN, Held, Session
from tests.sql.test_gates import findings, limit, places, sent, waiting

PAUSES = {
    "type, and read since": "pause_type('payments', 'Debit', 'it kills its workers')",
    "type": "pause_type('payments', 'Debit', 'it kills its workers')",
    "domain": "pause_domain('payments', 'it kills its workers')",
}
paused = pytest.mark.parametrize("how", [*PAUSES])


async def stopped(db: Session, how: str, **more: Any) -> Held:
    """A command whose worker died; then an operator has paused it, because of that."""
    await sent(db, 1, **more)
    (held,) = await db.receive()
    await db.lapse(held)
    await db.value(f"select commandbus.{PAUSES[how]}")
    if how.endswith("since"):
        assert await db.receive() == []
        assert await waiting(db) == {held.command_id: "l:t:Debit"}
    return held


async def resume(db: Session, how: str) -> None:
    ends = "resume_domain('payments')" if how == "domain" else "resume_type('payments', 'Debit')"
    await db.value(f"select commandbus.{ends}")


async def row(db: Session, command_id: UUID) -> dict[str, Any]:
    (found,) = await db.rows(
        "select status, leased_by, attempts, lapses, priority from commandbus.command_bus_command"
        " where command_id = %s", command_id,
    )  # fmt: skip
    return found


@paused
async def test_what_a_dead_worker_had_can_be_canceled_while_it_is_paused(
    db: Session, how: str
) -> None:
    held = await stopped(db, how)
    await db.rows(
        "select commandbus.cancel_commands(%s, %s, 'why', 'ann')", DOMAIN, [held.command_id]
    )
    assert (await db.events(held.command_id))[-2:] == ["LEASE_EXPIRED", "CANCELED"]
    assert await db.settle("complete", held.item(data=None)) == [held.command_id]
    assert await db.status(held.command_id) == "CANCELED"
    assert await waiting(db) == {}
    assert await findings(db) == []


@paused
async def test_a_request_to_cancel_ends_at_once_what_is_paused_and_nobodys(
    db: Session, how: str
) -> None:
    held = await stopped(db, how)
    asked = await db.rows(
        "select commandbus.request_cancel(%s, %s, 'why', 'ann')", DOMAIN, [held.command_id]
    )
    assert (asked, await db.status(held.command_id)) == ([], "CANCELED")


@paused
async def test_what_a_dead_worker_had_gets_another_time_and_level_while_it_is_paused(
    db: Session, how: str
) -> None:
    held = await stopped(db, how)
    ids = [held.command_id]
    await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, ids)
    await db.rows(
        "select commandbus.reschedule_commands(%s, %s, p_delay_seconds => 3600)", DOMAIN, ids
    )
    assert await waiting(db) == {}
    await db.rows(
        "select commandbus.reschedule_commands(%s, %s, p_delay_seconds => 0)", DOMAIN, ids
    )
    assert (await row(db, ids[0]))["priority"] == 1
    await resume(db, how)
    assert [again.command_id for again in await db.receive()] == ids


@paused
async def test_what_a_dead_worker_had_expires_while_it_is_paused(db: Session, how: str) -> None:
    held = await stopped(db, how, expires_in_seconds=60)
    await db.rows(
        "update commandbus.command_bus_command set expires_at = clock_timestamp(),"
        " lease_expires_at = least(lease_expires_at, clock_timestamp())"
    )
    await db.rows("update commandbus.command_bus_expiry set look_at = clock_timestamp()")
    await db.value("select commandbus.end_expired()")
    assert (await db.events(held.command_id))[-2:] == ["LEASE_EXPIRED", "EXPIRED"]
    assert await db.status(held.command_id) == "CANCELED"


@pytest.mark.parametrize("how", ["type", "domain"])
async def test_a_lease_that_holds_is_left_alone_by_a_pause(db: Session, how: str) -> None:
    await sent(db, 1)
    (held,) = await db.receive()
    await db.value(f"select commandbus.{PAUSES[how]}")
    cancel = "select commandbus.cancel_commands(%s, %s, 'why', null, false) as id"
    assert await db.rows(cancel, DOMAIN, [held.command_id]) == []
    assert await db.settle("complete", held.item(data=None)) == []


async def test_a_lapsed_lease_without_a_pause_is_still_its_workers(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    (held,) = await db.receive()
    await db.lapse(held)
    cancel = "select commandbus.cancel_commands(%s, %s, 'why', null, false) as id"
    assert await db.rows(cancel, DOMAIN, [held.command_id]) == []
    assert await db.settle("complete", held.item(data=None)) == []


@paused
@pytest.mark.parametrize("every", [False, True])
async def test_a_lapse_before_a_wait_counts_as_one_without(
    db: Session, how: str, every: bool
) -> None:
    held = await stopped(db, how)
    await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [held.command_id])
    await resume(db, how)
    count = ["Debit"] if every else []
    (again,) = await db.rows(
        "select * from commandbus.receive_commands(%s, 30, 10, 'w2', p_count_every => %s)",
        DOMAIN, count,
    )  # fmt: skip
    assert again["attempt"] == 1 + every
    assert (await row(db, held.command_id))["lapses"] == 1
    assert (await db.events(held.command_id)).count("LEASE_EXPIRED") == 1


async def test_a_suspect_that_was_started_alone_uses_an_attempt_also_if_it_waits_then(
    db: Session,
) -> None:
    held = await stopped(db, "domain")
    await db.rows("update commandbus.command_bus_command set started_alone = true")
    await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [held.command_id])
    await resume(db, "domain")
    (again,) = await db.receive()
    assert again.row["attempt"] == 2


async def test_the_last_start_of_many_lapses_is_not_lost_by_a_wait(db: Session) -> None:
    held = await stopped(db, "domain")
    await db.rows("update commandbus.command_bus_command set lapses = 9")
    await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [held.command_id])
    assert (await row(db, held.command_id))["lapses"] == 10
    await resume(db, "domain")
    (again,) = await db.receive()
    await db.lapse(again)
    assert await db.receive() == []
    assert await db.status(held.command_id) == "IN_TROUBLESHOOTING_QUEUE"


async def test_a_lapsed_one_that_waits_and_has_no_attempt_left_is_parked_as_lapsed(
    db: Session,
) -> None:
    held = await stopped(db, "type, and read since", max_attempts=1)
    assert (await row(db, held.command_id))["status"] == "PENDING"
    await resume(db, "type")
    found = await db.rows(
        "select * from commandbus.receive_commands(%s, 30, 10, 'w2', p_count_every => null)", DOMAIN
    )
    assert found == []
    (why,) = await db.rows(
        "select details_json ->> 'code' as code from commandbus.command_bus_audit"
        " where command_id = %s and event_type = 'FAILED'", held.command_id,
    )  # fmt: skip
    assert why["code"] == "LEASE_EXPIRED"


async def test_a_marked_command_takes_no_place_and_no_token_to_be_canceled(db: Session) -> None:
    await limit(db, max_running=5, rate=1, per=3600, burst=2)
    marked, other = await sent(db, 2)
    (held,) = await db.receive(1)
    await db.rows("select commandbus.request_cancel(%s, %s, 'why')", DOMAIN, [marked])
    await db.lapse(held)
    assert [each.command_id for each in await db.receive()] == [other]
    assert await db.status(marked) == "CANCELED"
    assert await places(db) == ["l:t:Debit"]


async def test_the_head_of_a_key_whose_worker_died_can_be_canceled_and_the_next_has_its_turn(
    db: Session,
) -> None:
    held = await stopped(db, "type, and read since", ordering_key="a")
    (behind,) = await sent(db, 1, ordering_key="a")
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [held.command_id])
    await resume(db, "type")
    assert [each.command_id for each in await db.receive()] == [behind]


async def test_who_waited_with_a_lease_before_the_upgrade_has_none_after_it(db: Session) -> None:
    held = await stopped(db, "type, and read since")
    await db.rows(
        "update commandbus.command_bus_command"
        " set status = 'IN_PROGRESS', leased_by = 'w', lapses = 0, lease_epoch = 2"
    )
    folder = files("commandbus").joinpath("database", "sql", "migrations")
    await db.rows(folder.joinpath("0027_lapsed_and_waiting.sql").read_text(encoding="utf-8"))
    shown = await row(db, held.command_id)
    assert (shown["status"], shown["leased_by"], shown["lapses"]) == ("PENDING", None, 1)
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [held.command_id])
    assert await db.status(held.command_id) == "CANCELED"
