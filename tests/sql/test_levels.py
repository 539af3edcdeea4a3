"""Priority: levels, aging at the read, and what changes them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import FAILURE, Session

QUEUE = "pgmq.q_payments__commands"


async def waited(db: Session, seconds: float, *ids: UUID) -> None:
    """As if these had been due for so long."""
    await db.rows(
        f"update {QUEUE} set vt = clock_timestamp() - make_interval(secs => %s)"
        " where (message ->> 'command_id')::uuid = any(%s)",
        seconds,
        list(ids),
    )


async def headers(db: Session, command_id: UUID) -> Any:
    return await db.value(
        f"select headers from {QUEUE} where message ->> 'command_id' = %s", str(command_id)
    )


async def taken(db: Session, quantity: int = 1, **options: Any) -> set[UUID]:
    return {held.command_id for held in await db.receive(quantity, **options)}


async def test_the_higher_level_goes_first(db: Session) -> None:
    (low,) = await db.send(priority=-1)
    (plain,) = await db.send()
    (high,) = await db.send(priority=2)

    assert [await taken(db) for _ in range(4)] == [{high}, {plain}, {low}, set()]


async def test_a_lower_level_goes_first_once_it_has_waited_longer_by_what_its_level_is_worth(
    db: Session,
) -> None:
    (low,) = await db.send(priority=-2)
    (high,) = await db.send(priority=2)
    await waited(db, 239, low)
    await waited(db, 0.5, high)
    assert await taken(db) == {high}
    (other,) = await db.send(priority=2)
    await waited(db, 241, low)
    await waited(db, 0.5, other)

    assert await taken(db) == {low}


async def test_a_group_is_filled_across_levels_in_their_order(db: Session) -> None:
    low = await db.send(*(uuid4() for _ in range(3)), priority=-1)
    plain = await db.send(*(uuid4() for _ in range(3)))
    high = await db.send(*(uuid4() for _ in range(3)), priority=1)

    assert await taken(db, 5) >= set(high)
    assert await taken(db, 5) >= set(low)
    assert await taken(db, 5) == set()
    assert len({*low, *plain, *high}) == 9


async def test_without_worth_levels_are_ignored(db: Session) -> None:
    (plain,) = await db.send()
    (high,) = await db.send(priority=2)
    await waited(db, 2, plain)
    await waited(db, 1, high)
    await db.value("select commandbus.set_level_seconds('payments', 0, 'ann')")

    assert [await taken(db), await taken(db)] == [{plain}, {high}]
    assert await db.value(
        "select count(*) from commandbus.command_bus_audit"
        " where event_type = 'LEVELS_CHANGED' and actor = 'ann'"
    ) == 1  # fmt: skip


@pytest.mark.parametrize("seconds", [-1, None, 1e9, float("nan")])
async def test_a_worth_that_is_none_is_refused(db: Session, seconds: float | None) -> None:
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.set_level_seconds('payments', %s)", seconds)

    assert info.value.sqlstate == "CB012"


async def test_what_comes_back_keeps_its_level(db: Session) -> None:
    (high,) = await db.send(priority=1)
    (held,) = await db.receive()
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    assert await headers(db, high) == {"priority": 1}
    (held,) = await db.receive()
    await db.settle("release", held.item())
    assert await headers(db, high) == {"priority": 1}
    (held,) = await db.receive()
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    await db.value("select commandbus.operator_retry('payments', %s)", [high])

    assert await headers(db, high) == {"priority": 1}


async def test_the_look_at_the_head_leaves_low_levels_out(db: Session) -> None:
    (low,) = await db.send(priority=-1)
    (plain,) = await db.send()

    assert await taken(db, 1, from_head=True) == {plain}
    assert await taken(db, 1, from_head=True) == {low}  # by its level, not by the head


async def test_types_that_are_left_out_are_left_out_at_every_level(db: Session) -> None:
    await db.send(priority=2)
    (other,) = await db.send(priority=-2, type="Credit")

    rows = await db.rows(
        "select command_id from commandbus.receive_commands("
        "'payments', 60, 5, 'w1', p_except => array['Debit'])"
    )
    assert [row["command_id"] for row in rows] == [other]


async def test_a_level_that_another_program_wrote_is_found_at_the_head(db: Session) -> None:
    (sent,) = await db.send()
    await db.rows(f'update {QUEUE} set headers = \'{{"trace": "x"}}\'')

    assert await taken(db) == set()
    assert await taken(db, 1, from_head=True) == {sent}


async def test_one_look_says_that_something_with_a_level_is_due(db: Session) -> None:
    await db.send(priority=-2)

    assert await db.rows("select commandbus.due_domains(array['payments']) as d") == [
        {"d": "payments"}
    ]
    assert await db.value("select commandbus.next_due('payments')") == 0


async def test_the_level_of_what_waits_can_be_changed(db: Session) -> None:
    first, second = await db.send(uuid4(), uuid4())
    await db.value("select commandbus.set_priority('payments', %s, 2, 'ann')", [second])
    assert await taken(db) == {second}
    await db.value("select commandbus.set_priority('payments', %s, -1)", [first])
    await db.value("select commandbus.set_priority('payments', %s, 0, 'ann')", [first])

    assert await headers(db, first) is None
    assert await db.rows(
        "select details_json as d, actor from commandbus.command_bus_audit"
        " where event_type = 'PRIORITY_CHANGED' order by audit_id"
    ) == [
        {"d": {"from": 0, "to": 2}, "actor": "ann"},
        {"d": {"from": 0, "to": -1}, "actor": None},
        {"d": {"from": -1, "to": 0}, "actor": "ann"},
    ]


async def test_the_same_level_again_changes_nothing(db: Session) -> None:
    (sent,) = await db.send(priority=1)
    await db.value("select commandbus.set_priority('payments', %s, 1)", [sent])

    assert await db.value(
        "select count(*) from commandbus.command_bus_audit where event_type = 'PRIORITY_CHANGED'"
    ) == 0  # fmt: skip


async def test_the_level_of_what_a_worker_has_cannot_be_changed(db: Session) -> None:
    leased, waiting = await db.send(uuid4(), uuid4())
    await db.receive(1)
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.set_priority('payments', %s, 1)", [leased, waiting])

    assert info.value.sqlstate == "CB003"
    assert await headers(db, waiting) is None


@pytest.mark.parametrize("level", [3, -3, None])
async def test_a_level_that_is_none_is_refused(db: Session, level: int | None) -> None:
    (sent,) = await db.send()
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.set_priority('payments', %s, %s)", [sent], level)

    assert info.value.sqlstate == "CB012"


async def test_two_receivers_share_what_has_a_level(db: Session, session: Open) -> None:
    sent = await db.send(*(uuid4() for _ in range(10)), priority=1)
    other = await session()
    first = await taken(other, 5)
    second = await taken(db, 10)
    await other.conn.commit()

    assert first & second == set()
    assert first | second <= set(sent)
    assert first | second | await taken(db, 10) == set(sent)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_low_backlog_is_not_stepped_over_by_each_read(db: Session, analyzed: bool) -> None:
    await db.rows("select commandbus.ensure_domain('payments')")
    await db.rows(f"alter table {QUEUE} set (autovacuum_enabled = false)")
    await db.send(priority=1)
    await db.send()
    await taken(db, 5)  # plans are made while the queue is small
    await db.value(
        "select commandbus.send_commands('payments', (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit', 'priority', -2))"
        " from generate_series(1, 20000)))"
    )
    if analyzed:
        await db.rows(f"analyze {QUEUE}")
    await db.send(*(uuid4() for _ in range(50)))
    before = await fetched(db)
    for _ in range(5):
        assert len(await taken(db, 10)) == 10
    after = await fetched(db)

    assert after[0] == before[0]
    assert after[1] - before[1] < 1_000


async def fetched(db: Session) -> tuple[int, int]:
    await db.value("select pg_stat_force_next_flush()")
    (row,) = await db.rows(
        "select seq_tup_read as s, idx_tup_fetch as i from pg_stat_user_tables"
        " where relid = %s::regclass",
        QUEUE,
    )
    return row["s"], row["i"]


async def has_levels(db: Session) -> bool:
    found: bool = await db.value("select has_levels from commandbus.command_bus_flow")
    return found


async def aged(db: Session, hours: float) -> None:
    """As if nobody had touched the row of the domain for so long."""
    await db.rows(
        "update commandbus.command_bus_flow"
        " set updated_at = clock_timestamp() - make_interval(mins => cast(%s as int))", hours * 60,
    )  # fmt: skip


async def tend(db: Session) -> int:
    changed: int = await db.value("select commandbus.tend_levels()")
    return changed


async def test_a_domain_without_levels_for_two_hours_is_read_without_them(db: Session) -> None:
    (high,) = await db.send(priority=1)
    await aged(db, 3)
    assert (await tend(db), await has_levels(db)) == (0, True)  # a message has one
    assert await taken(db) == {high}
    await db.rows(f"delete from {QUEUE}")
    await aged(db, 1.9)
    assert (await tend(db), await has_levels(db)) == (0, True)  # it may have one at any moment
    await aged(db, 2.1)
    assert (await tend(db), await has_levels(db)) == (1, False)
    assert await tend(db) == 0


async def test_a_domain_is_read_with_levels_again_from_the_next_one_on(db: Session) -> None:
    await db.send(priority=1)
    await db.rows(f"delete from {QUEUE}")
    await aged(db, 3)
    await tend(db)
    (plain,) = await db.send()
    (low,) = await db.send(priority=-1)
    assert await has_levels(db)
    assert [await taken(db) for _ in range(3)] == [{plain}, {low}, set()]


async def test_a_level_that_comes_out_of_a_long_transaction_is_found_again(
    db: Session, session: Open
) -> None:
    """Its sender saw that the domain uses levels, hours before its commit."""
    await db.send(priority=1)
    await db.rows(f"delete from {QUEUE}")
    sender = await session()
    (low,) = await sender.send(priority=-2)
    await aged(db, 3)
    assert (await tend(db), await has_levels(db)) == (1, False)
    await sender.conn.commit()
    assert await taken(db) == set()
    assert (await tend(db), await has_levels(db)) == (1, True)
    assert await taken(db) == {low}


@pytest.mark.parametrize(("hours", "is_written"), [(0.9, False), (1.1, True)])
async def test_a_send_with_a_level_says_so_at_most_once_an_hour(
    db: Session, hours: float, is_written: bool
) -> None:
    await db.send(priority=1)
    await aged(db, hours)
    before = await db.value("select updated_at from commandbus.command_bus_flow")
    await db.send(priority=1)
    after = await db.value("select updated_at from commandbus.command_bus_flow")
    assert (after > before) is is_written
