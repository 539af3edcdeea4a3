"""A limit is set while commands run, end, wait or back off: what has a place from the beginning."""

from __future__ import annotations

from uuid import UUID, uuid4

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session

SET = "select commandbus.set_limit(%s, 'Debit', p_max_running => 1)"


async def places(db: Session) -> list[UUID]:
    rows = await db.rows("select command_id from commandbus.command_bus_slot order by 1")
    return [row["command_id"] for row in rows]


async def test_what_backs_off_has_no_place(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.settle("retry", held.item(delay_seconds=600, **FAILURE))
    await db.value(SET, DOMAIN)
    assert await places(db) == []


async def test_what_has_lapsed_and_waits_has_no_place(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    await db.lapse(held)
    assert await db.receive() == []
    await db.value(SET, DOMAIN)
    assert await places(db) == []


async def test_what_is_just_ending_has_no_place_and_is_not_waited_for(
    db: Session, session: Open
) -> None:
    held = await db.put("IN_PROGRESS")
    worker = await session()
    await worker.settle("complete", held.item(data=None))
    await db.rows("set lock_timeout = '2s'")
    await db.value(SET, DOMAIN)
    await worker.conn.commit()
    assert await places(db) == []


async def test_what_runs_keeps_its_place_when_a_limit_comes_again(db: Session) -> None:
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    await db.value(SET, DOMAIN)
    held = await db.put("IN_PROGRESS")
    await db.value("select commandbus.clear_limit(%s, 'Debit')", DOMAIN)
    await db.value(SET, DOMAIN)
    assert await places(db) == [held.command_id]


async def test_a_twin_that_runs_elsewhere_has_no_place_here(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.settle("retry", held.item(delay_seconds=600, **FAILURE))
    db.domain = "orders"
    await db.send(held.command_id)
    assert len(await db.receive()) == 1
    await db.value(SET, DOMAIN)
    assert await places(db) == []


async def test_a_place_of_a_twin_elsewhere_is_not_ours(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    db.domain = "orders"
    await db.send(held.command_id)
    await db.value(SET, "orders")
    await db.receive()
    assert await places(db) == [held.command_id]
    found = await db.rows(
        "select o_leased[1], o_had[1] from commandbus.gates_of(%s, now(), %s, %s)",
        DOMAIN, [held.msg_id], [held.command_id],
    )  # fmt: skip
    assert found == [{"o_leased": True, "o_had": None}]


async def test_a_gate_that_another_session_has_is_full_though_its_twin_elsewhere_is_free(
    db: Session, session: Open
) -> None:
    for domain in ("orders", DOMAIN):
        db.domain = domain
        held = await db.put("IN_PROGRESS")
        await db.value(SET, domain)
        await db.settle("release", held.item())
        (again,) = await db.receive()
        await db.settle("complete", again.item(data=None))
        await db.send()
    other = await session()
    await other.rows(
        "select 1 from commandbus.command_bus_gate where domain = %s for update", DOMAIN
    )
    await db.rows("set lock_timeout = '2s'")
    assert await db.receive() == []
    await other.conn.rollback()
    assert len(await db.receive()) == 1


async def test_each_domain_has_its_own_limit_of_a_type(db: Session) -> None:
    limits = {"orders": 3, DOMAIN: 1, "third": 2}
    for db.domain, most in limits.items():
        await db.value("select commandbus.ensure_domain(%s)", db.domain)
        await db.value(
            "select commandbus.set_limit(%s, 'Debit', p_max_running => %s)", db.domain, most
        )
        await db.send(*(uuid4() for _ in range(4)))
    for db.domain, most in limits.items():
        assert len(await db.receive()) == most


async def test_what_lapses_and_waits_takes_no_lease_from_its_twin_elsewhere(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    twins = Session(db.conn, "orders")
    await twins.send(held.command_id)
    (other,) = await twins.receive()
    await db.value("select commandbus.pause_type(%s, 'Debit', 'why')", DOMAIN)
    await db.lapse(held)
    assert await db.receive() == []
    assert await twins.settle("complete", other.item(data=None)) == []
    assert await db.settle("complete", held.item(data=None)) == [held.command_id]
