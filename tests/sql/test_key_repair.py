"""The doctor and keys: what is wrong is found, repaired once, and in the right order; lists."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from psycopg import errors

from tests.sql.helpers import DOMAIN, Session
from tests.sql.keyed import (
    assert_nothing_left,
    drain,
    key_row,
    park,
    send_keyed,
    set_policy,
    waiting,
)


async def findings(db: Session) -> list[tuple[str, str]]:
    query = "select code, subject from commandbus.check_keys(%s) order by 1, 2"
    rows = await db.rows(query, DOMAIN)
    return [(row["code"], row["subject"]) for row in rows]


async def repair(db: Session) -> int:
    return len(await db.rows("select commandbus.repair_keys(%s, 'doc')", DOMAIN))


async def test_nothing_is_wrong_with_keys_at_work(db: Session) -> None:
    await send_keyed(db, "a", "a", "b", None)
    await db.receive()
    assert await findings(db) == []
    assert await repair(db) == 0


async def test_a_key_that_stands_goes_on(db: Session) -> None:
    first, second = await send_keyed(db, "a", "a")
    ended = "update commandbus.command_bus_command set status = 'CANCELED' where command_id = %s"
    await db.rows(ended, first)  # by somebody who does not know of keys
    assert await findings(db) == [("KEY_STANDS", "a")]
    assert await repair(db) == 1
    assert await findings(db) == []
    assert (await key_row(db, "a"))["head"] == second
    assert await repair(db) == 0


async def test_a_key_that_nobody_needs_is_removed(db: Session) -> None:
    await send_keyed(db, "b")
    await db.rows(
        "insert into commandbus.command_bus_key (domain, ordering_key, head) values (%s, 'a', %s)",
        DOMAIN, uuid4(),
    )  # fmt: skip
    assert await repair(db) == 1
    await drain(db)
    await assert_nothing_left(db)


async def test_a_lost_place_is_given_back_by_its_number(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")
    await db.rows("delete from commandbus.command_bus_waiting where command_id = %s", ids[1])
    assert await findings(db) == [("KEY_PLACE_LOST", str(ids[1]))]
    assert await repair(db) == 1
    assert await waiting(db, "a") == ids[1:]
    assert await findings(db) == []
    assert "DOCTOR_REPAIR" in await db.events(ids[1])
    assert await drain(db) == ids
    await assert_nothing_left(db)


async def test_a_head_that_is_out_of_the_way_becomes_due(db: Session) -> None:
    ids = await send_keyed(db, "a", "a")
    await db.rows("update pgmq.q_payments__commands set vt = 'infinity'")
    assert await findings(db) == [("KEY_PLACE_LOST", str(ids[0]))]
    assert await repair(db) == 1
    assert await drain(db) == ids
    await assert_nothing_left(db)


async def test_places_of_ended_commands_are_removed(db: Session) -> None:
    (first,) = await send_keyed(db, "a")
    stray = (await db.put("CANCELED")).command_id
    await db.rows(
        "insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)"
        " values (%s, 'k:a', 1, 1, %s)",
        DOMAIN, stray,
    )  # fmt: skip
    assert await findings(db) == [("KEY_PLACE_UNKNOWN", str(stray))]
    assert await repair(db) == 1
    assert await drain(db) == [first]
    await assert_nothing_left(db)


async def test_a_lost_row_of_a_key_comes_back_with_its_order(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")
    await db.rows("delete from commandbus.command_bus_key")
    assert len(await findings(db)) == 3
    await repair(db)
    assert await findings(db) == []
    assert await drain(db) == ids
    await assert_nothing_left(db)


async def test_a_blocked_key_is_told_and_not_repaired(db: Session) -> None:
    first, _ = await send_keyed(db, "a", "a")
    await park(db, *await db.receive())
    assert await findings(db) == [("KEY_BLOCKED", f"a by {first}")]
    assert await repair(db) == 0
    figures = await db.rows("select * from commandbus.key_figures(%s)", DOMAIN)
    assert (figures[0]["open_keys"], figures[0]["blocked_keys"]) == (1, 1)
    assert figures[0]["blocked_seconds"] >= 0


# -- what operators see and do


async def listed(db: Session, query: str = "list_keys(%s)") -> list[tuple[str, bool, int]]:
    rows = await db.rows(f"select * from commandbus.{query}", DOMAIN)
    return [(row["ordering_key"], row["is_blocked"], row["waiting"]) for row in rows]


async def test_blocked_keys_are_listed_first(db: Session) -> None:
    await send_keyed(db, "a", "a", "b", "c", "c", "c")
    (held,) = [h for h in await db.receive() if (await key_row(db, "c"))["head"] == h.command_id]
    await park(db, held)
    assert await listed(db) == [("c", True, 2), ("a", False, 1), ("b", False, 0)]
    assert await listed(db, "list_keys(%s, true)") == [("c", True, 2)]
    assert await listed(db, "list_keys(%s, false)") == [("a", False, 1), ("b", False, 0)]
    after = "list_keys(%s, null, null, false, null, 'a')"
    assert await listed(db, after) == [("b", False, 0)]


async def test_a_key_shows_its_commands_in_their_order(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")
    rows = await db.rows("select * from commandbus.show_key(%s, 'a')", DOMAIN)
    assert [(row["place"], row["command_id"]) for row in rows] == list(enumerate(ids))
    assert await db.rows("select * from commandbus.show_key(%s, 'b')", DOMAIN) == []


async def test_a_command_says_what_is_before_it(db: Session) -> None:
    ids = await send_keyed(db, "a", "a", "a")

    async def text(command_id: UUID) -> str | None:
        return await db.value("select commandbus.waiting_text(%s, %s)", DOMAIN, command_id)

    assert await text(ids[0]) is None
    assert await text(ids[2]) == f"number 2 behind {ids[0]} of key a"
    await park(db, *await db.receive())
    assert await text(ids[1]) == (
        f"number 1 behind {ids[0]} of key a, which is parked and blocks it"
    )


async def test_stepping_over_lets_the_next_go_and_is_audited(db: Session) -> None:
    first, second = await send_keyed(db, "a", "a")
    await park(db, *await db.receive())
    skip = "select commandbus.skip_key(%s, 'a', 'ana', 'because')"
    assert await db.value(skip, DOMAIN) == first
    assert await db.status(first) == "IN_TROUBLESHOOTING_QUEUE"
    details = await db.details(first, "KEY_SKIPPED")
    assert details == {"ordering_key": "a", "reason": "because"}
    assert await drain(db) == [second]
    await assert_nothing_left(db)


async def test_stepping_over_is_refused_where_nothing_blocks(db: Session) -> None:
    skip = "select commandbus.skip_key(%s, 'a', 'ana')"
    with pytest.raises(errors.DatabaseError, match="no open commands"):
        await db.value(skip, DOMAIN)
    first, _ = await send_keyed(db, "a", "a")
    with pytest.raises(errors.DatabaseError, match="not blocked"):
        await db.value(skip, DOMAIN)
    await park(db, *await db.receive())
    with pytest.raises(errors.DatabaseError, match="not blocked by"):
        await db.value("select commandbus.skip_key(%s, 'a', 'ana', null, %s)", DOMAIN, uuid4())
    assert await db.value(skip, DOMAIN) == first
    with pytest.raises(errors.DatabaseError, match="not blocked"):
        await db.value(skip, DOMAIN)


async def test_the_policy_is_checked_audited_and_set_once(db: Session) -> None:
    assert await db.value("select commandbus.key_policy(%s)", DOMAIN) == "block"
    with pytest.raises(errors.DatabaseError, match="not block or skip"):
        await set_policy(db, "jump")
    for _ in range(2):
        await set_policy(db, "skip")
    assert await db.value("select commandbus.key_policy(%s)", DOMAIN) == "skip"
    count = "select count(*) from commandbus.command_bus_audit where event_type = 'KEY_POLICY_SET'"
    assert await db.value(count) == 1
