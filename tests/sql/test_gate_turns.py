"""Who waits at a limit goes by level, aged, and among equals by when it was sent."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.sql.helpers import DOMAIN, Held, Session
from tests.sql.test_gates import complete, limit, sent, waiting


async def turns(db: Session, held: list[Held]) -> list[UUID]:
    """The order in which all that waits gets the one place."""
    found: list[UUID] = []
    while held:
        await complete(db, *held)
        held = await db.receive()
        found += [each.command_id for each in held]
    return found


async def older(db: Session, seconds: int, *ids: UUID) -> None:
    """These were sent longer ago."""
    for table, at in (("command", "queued_at"), ("command", "created_at")):
        await db.rows(
            f"update commandbus.command_bus_{table} set {at} = {at} - make_interval(secs => %s)"
            " where command_id = any(%s)",
            seconds, list(ids),
        )  # fmt: skip


async def test_a_higher_level_that_comes_later_goes_first_at_a_full_limit(db: Session) -> None:
    await limit(db, max_running=1)
    plain = await sent(db, 3)
    held = await db.receive()
    assert [each.command_id for each in held] == plain[:1]
    low = await sent(db, 2, priority=-1)
    high = await sent(db, 2, priority=2)
    assert await db.receive() == []
    assert set(await waiting(db)) == {*plain[1:], *low, *high}
    assert await turns(db, held) == [*high, *plain[1:], *low]


async def test_the_first_place_goes_to_the_highest_level_of_what_is_due(db: Session) -> None:
    await limit(db, max_running=1)
    plain = await sent(db, 3)
    (high,) = await sent(db, 1, priority=1)
    held = await db.receive()
    assert [each.command_id for each in held] == [high]
    assert await turns(db, held) == plain


async def test_a_low_level_ages_while_it_waits(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    held = await db.receive()
    low = await sent(db, 2, priority=-2)
    await older(db, 150, low[0])
    await older(db, 100, low[1])
    (plain,) = await sent(db, 1)
    (high,) = await sent(db, 1, priority=1)
    assert await db.receive() == []
    assert await turns(db, held) == [high, low[0], plain, low[1]]


async def test_equals_go_in_the_order_in_which_they_were_sent(db: Session) -> None:
    await limit(db, max_running=1)
    ids = [*await sent(db, 4, priority=1), *await sent(db, 4, priority=1)]
    held = await db.receive(3)
    for _ in range(4):
        assert await db.receive(3) == []
    assert [held[0].command_id, *await turns(db, held)] == ids


async def test_one_that_was_delayed_waits_as_long_as_since_it_was_due(db: Session) -> None:
    await limit(db, max_running=1)
    (first,) = await sent(db, 1)
    held = await db.receive()
    (delayed,) = await sent(db, 1, delay_seconds=300)
    (sent_later,) = await sent(db, 1)
    await db.rows("update pgmq.q_payments__commands set vt = now() where vt > now() + '200 s'")
    assert await db.receive(1) == []
    assert await db.receive(1) == []
    assert held[0].command_id == first
    assert await turns(db, held) == [sent_later, delayed]


@pytest.mark.parametrize("worth", [0, 60])
async def test_another_level_while_it_waits_is_another_turn(db: Session, worth: int) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value("select commandbus.set_level_seconds(%s, %s)", DOMAIN, worth)
    await limit(db, max_running=1)
    ids = await sent(db, 5)
    held = await db.receive()
    await db.rows("select commandbus.set_priority(%s, %s, 1)", DOMAIN, [ids[3]])
    await db.rows("select commandbus.set_priority(%s, %s, -1)", DOMAIN, [ids[1]])
    expected = [ids[3], ids[2], ids[4], ids[1]] if worth else ids[1:]
    assert await turns(db, held) == expected


async def test_a_level_never_changes_the_order_within_a_key(db: Session) -> None:
    await limit(db, max_running=1)
    await sent(db, 1)
    held = await db.receive()
    first = await sent(db, 2, ordering_key="a")
    (urgent,) = await sent(db, 1, ordering_key="a", priority=2)
    assert await db.receive() == []
    await db.rows("select commandbus.set_priority(%s, %s, 2)", DOMAIN, [first[1]])
    assert await turns(db, held) == [*first, urgent]


async def test_a_level_goes_before_others_of_another_gate_too(db: Session) -> None:
    await limit(db, None, max_running=1)
    await limit(db, by_key=True, max_running=1)
    await sent(db, 1)
    held = await db.receive()
    await sent(db, 2, limit_key="a")
    (high,) = await sent(db, 1, type="Credit", priority=1)
    assert await db.receive() == []
    await complete(db, *held)
    assert [each.command_id for each in await db.receive()] == [high]


async def test_one_behind_hundreds_that_another_limit_stops_runs_with_the_next_receive(
    db: Session,
) -> None:
    await limit(db, None, max_running=1)
    await limit(db, "Debit", max_running=1)
    await sent(db, 1)
    assert len(await db.receive()) == 1
    stopped = await sent(db, 250)
    (free,) = await sent(db, 1, type="Credit")
    assert await db.receive(300) == []
    assert set((await waiting(db)).values()) == {"l:d"}
    await limit(db, None, max_running=3)
    assert [each.command_id for each in await db.receive(10)] == [free]
    assert set((await waiting(db)).values()) == {"l:t:Debit"}
    assert {*(await waiting(db))} == {*stopped}
