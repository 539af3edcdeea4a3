"""A look at the head of the queue takes from there what any receive may take, and no more."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

QUEUE = f"pgmq.q_{DOMAIN}__commands"


async def test_the_head_gives_as_many_as_were_asked_for_and_no_more(db: Session) -> None:
    ids = [(await db.send())[0] for _ in range(3)]
    assert [h.command_id for h in await db.receive(2, from_head=True)] == ids[:2]
    assert [h.command_id for h in await db.receive(2, from_head=True)] == ids[2:]


async def test_what_is_leased_stays_with_its_worker_although_it_stands_at_the_head(
    db: Session,
) -> None:
    await db.send()
    (held,) = await db.receive(worker="w1")
    (waits,) = await db.send()
    (other,) = await db.receive(worker="w2", from_head=True)
    assert other.command_id == waits
    assert (await db.command(held.command_id))["leased_by"] == "w1"


async def test_a_look_at_the_head_steps_over_what_somebody_holds(
    db: Session, session: Open
) -> None:
    await db.send()
    (second,) = await db.send()
    first = (await db.queued())[0]["msg_id"]
    await (await session()).rows(f"select 1 from {QUEUE} where msg_id = %s for update", first)
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    assert [h.command_id for h in await db.receive(1, from_head=True)] == [second]


async def test_the_head_is_the_thousand_oldest_and_behind_it_goes_what_waited_longest(
    db: Session,
) -> None:
    ids = await db.send(*(UUID(int=n) for n in range(1, 1003)))
    await db.rows(f"update {QUEUE} set vt = now() + interval '1 hour'")
    due = f"update {QUEUE} set vt = now() - %s * interval '1 minute' where msg_id = %s"
    *_, last_but_one, last = [row["msg_id"] for row in await db.queued()]
    await db.rows(due, 1, last_but_one)
    await db.rows(due, 2, last)
    assert [h.command_id for h in await db.receive(1, from_head=True)] == [ids[-1]]


@pytest.mark.parametrize("level", [0, 1])
async def test_a_lapsed_lease_is_found_behind_thousands_that_stand_aside(
    db: Session, level: int
) -> None:
    await db.send(*(UUID(int=n) for n in range(1, 1_003)))
    await db.rows(f"update {QUEUE} set vt = now() + interval '1 hour'")
    more: dict[str, Any] = {"priority": level} if level else {}
    (lapsed,) = await db.send(**more)
    (held,) = await db.receive(1)
    (retried,) = await db.send(**more)
    (again,) = await db.receive(1)
    backlog = await db.send(*(UUID(int=n) for n in range(2_000, 2_003)), **more)
    await db.settle("retry", again.item(delay_seconds=0, **FAILURE))
    await db.lapse(held)
    # Before those that have been due for longer; one that backs off is in their order.
    assert [h.command_id for h in await db.receive(2, from_head=True)] == [lapsed, backlog[0]]
    found = [h.command_id for h in await db.receive(10, from_head=True)]
    assert sorted(found) == sorted([*backlog[1:], retried])
