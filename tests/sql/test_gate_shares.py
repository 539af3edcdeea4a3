"""Who gets what gates have to give, what becomes of the others, and who is told of it."""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_gates import is_woken, limit, listening, places, sent, waiting

ONE = "select * from commandbus.share_gate(%s::uuid[], 'l:t:Debit', %s, %s::int, %s::float8, %s)"
MANY = (
    "select * from commandbus.share_gates(%s::uuid[], %s::text[], %s::jsonb[], '{l:t:Debit}',"
    " array[%s::boolean], array[%s::int], array[%s::float8], '{f}', array[%s::boolean], %s)"
)


async def test_one_gate_is_shared_as_one_of_several_would_be(db: Session) -> None:
    chance = random.Random(18)
    for _ in range(60):
        number = chance.randint(1, 6)
        ids = [uuid4() for _ in range(number)]
        is_open = chance.choice([True, True, False, None])
        room = chance.choice([None, -1, 0, 1, 3, 9])
        tokens = chance.choice([None, 0.0, 0.9999995, 1.5, 3.0, 9.0])
        free = chance.choice([-1, 0, 1, 4, 9])
        gates = [[None] * number, ["l:t:Debit"] * number, [None] * number]
        one = await db.rows(ONE, ids, is_open, room, tokens, free)
        many = await db.rows(
            MANY, ids, gates, [None] * number, is_open, room, tokens, tokens is None, free
        )
        assert one == many, (number, is_open, room, tokens, free)


@pytest.mark.parametrize(
    ("free", "is_short", "where"),
    [(0, True, "l:d"), (1, False, None)],
)
async def test_who_is_stopped_for_want_of_handlers_would_have_had_room(
    db: Session, free: int, is_short: bool, where: str | None
) -> None:
    found = await shared(db, room=[1, 1], free=free)
    assert (found["o_is_short"], found["o_stop"]) == (is_short, [where])


async def test_who_finds_no_room_waits_there_whatever_handlers_are_free(db: Session) -> None:
    found = await shared(db, room=[1, 0], free=0)
    assert (found["o_is_short"], found["o_stop"]) == (False, ["l:t:Debit"])


async def test_who_has_all_its_places_already_needs_no_free_handler(db: Session) -> None:
    """Its lease has lapsed: to make it wait would only give its places to others."""
    found = await shared(db, room=[0, 0], free=0, had='["l:d", "l:t:Debit"]')
    assert (found["o_stop"], found["o_given"], found["o_by"]) == ([None], 1, [])


async def shared(db: Session, *, room: list[int], free: int, had: str | None = None) -> Any:
    """One command with the gates of its domain and its type."""
    rows = await db.rows(
        "select * from commandbus.share_gates(%s::uuid[], '{{l:d},{l:t:Debit},{null}}',"
        " array[%s::jsonb], '{l:d,l:t:Debit}', '{t,t}', %s::int[], '{null,null}', '{f,f}',"
        " '{t,t}', %s)",
        [uuid4()], had, room, free,
    )  # fmt: skip
    return rows[0]


async def test_a_group_that_got_places_goes_to_its_worker_before_more_are_looked_at(
    db: Session,
) -> None:
    await limit(db, max_running=2)
    await sent(db, 30)
    assert len(await db.receive(5)) == 2
    assert len(await waiting(db)) == 3


async def test_what_has_no_limit_is_found_behind_five_groups_that_wait(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    await db.receive(1)
    await sent(db, 18)
    (other,) = await sent(db, 1, type="Credit")
    assert [held.command_id for held in await db.receive(4)] == [other]


async def test_all_handlers_are_for_those_who_wait_if_nothing_else_is_due(db: Session) -> None:
    await limit(db, max_running=4)
    await sent(db, 4)
    held = await db.receive(4)
    await sent(db, 9)
    assert await db.receive(9) == []
    assert len(await waiting(db)) == 9
    await db.settle("complete", *(each.item(data=None) for each in held))
    assert len(await db.receive(4)) == 4
    assert await places(db) == ["l:t:Debit"] * 4


@pytest.mark.parametrize(("running", "is_left"), [(4, True), (2, False)])
@pytest.mark.parametrize("have_waited", [True, False])
async def test_idle_workers_are_woken_only_if_a_receive_leaves_room(
    db: Session, session: Open, running: int, is_left: bool, have_waited: bool
) -> None:
    await limit(db, max_running=1)
    if have_waited:
        await sent(db, 1)
        (held,) = await db.receive(9)
        await sent(db, 8)
        assert await db.receive(9) == []
        await db.settle("complete", held.item(data=None))
    else:
        await sent(db, 8)
    await limit(db, max_running=running)
    await db.conn.commit()
    listener = await listening(session)
    got = await db.value(
        "select count(*) from commandbus.receive_commands(%s, 30, 9, 'w', p_places => 2)", DOMAIN
    )
    await db.conn.commit()
    assert got == 2
    assert await is_woken(listener) is is_left
