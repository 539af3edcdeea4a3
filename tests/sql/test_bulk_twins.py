"""Bulk operations of one domain, while another has the same ids and the same failure groups."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.clones import clone
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_twins_apart import OTHER, hold_all_rows, of_the_other

PARKED = {"reason": "PERMANENT", **FAILURE}


async def parked(db: Session) -> UUID:
    """Parked in a batch in ours, and the same in the other domain."""
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    held = await db.put("IN_PROGRESS", await db.batch())
    await db.settle("park", held.item(**PARKED))
    await clone(db, OTHER)
    return held.command_id


async def start(
    db: Session, verb: str = "retry", everything: bool = True, **conditions: Any
) -> Any:
    return await db.value(
        "select commandbus.start_bulk(%s, %s, %s, %s, %s, null, 'ann', %s)",
        uuid4(), DOMAIN, verb, Jsonb(conditions), Jsonb({"reason": "why"}), everything,
    )  # fmt: skip


async def items(db: Session) -> list[tuple[Any, ...]]:
    rows = await db.rows("select * from commandbus.command_bus_bulk_item order by item_no")
    return [(row["command_id"], row["outcome"], row["detail"]) for row in rows]


@pytest.mark.parametrize("verb", ["retry", "cancel", "complete"])
async def test_a_bulk_operation_acts_in_its_own_domain_and_waits_for_no_other(
    db: Session, session: Open, verb: str
) -> None:
    command_id = await parked(db)
    before = await of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    operation = await start(db, verb)
    assert await items(db) == [(command_id, None, None)]
    await db.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    assert await items(db) == [(command_id, "done", None)]
    assert await of_the_other(db) == before
    assert len(await db.queued()) == (verb == "retry")


async def test_what_is_previewed_is_of_one_domain(db: Session) -> None:
    await parked(db)
    rows = await db.rows("select matched from commandbus.preview_bulk(%s)", DOMAIN)
    assert rows == [{"matched": 1}]


async def test_the_error_code_and_the_batch_of_a_filter_are_looked_up_in_the_domain(
    db: Session,
) -> None:
    await parked(db)
    await db.rows(
        "update commandbus.command_bus_failure_group set error_code = 'X' where domain = %s", OTHER
    )
    theirs = await db.value(
        "select batch_id from commandbus.command_bus_batch where domain = %s", OTHER
    )
    chosen: list[dict[str, Any]] = [{"error_code": "X"}, {"batch_id": str(theirs)}]
    for conditions in chosen:
        with pytest.raises(psycopg.Error, match="nothing in troubleshooting"):
            await start(db, **conditions)


async def test_everything_is_what_the_domain_has(db: Session) -> None:
    await parked(db)
    with pytest.raises(psycopg.Error, match="this matches everything"):
        await start(db, everything=False, command_type="Debit")


async def test_the_expected_total_is_compared_with_what_the_domain_has(db: Session) -> None:
    await parked(db)
    starting = (
        "select commandbus.start_bulk(%s, %s, 'retry', p_everything => true,"
        " p_expected_total => %s)"
    )
    operation = uuid4()
    before = await db.everything()
    for expected in (0, 2, -1):
        with pytest.raises(psycopg.Error, match=f"matches 1 commands now, not {expected}") as info:
            await db.value(starting, operation, DOMAIN, expected)
        assert info.value.sqlstate == "CB009"
    assert await db.everything() == before
    assert await items(db) == []
    assert await db.value(starting, operation, DOMAIN, 1) == operation
    # Again: the same operation, which freezes nothing, so that no number is compared.
    assert await db.value(starting, operation, DOMAIN, 2) == operation
    assert await db.value(starting, uuid4(), DOMAIN, 2) == operation
    assert len(await items(db)) == 1


async def test_a_payload_that_only_the_other_domain_has_is_lost(db: Session) -> None:
    command_id = await parked(db)
    await db.rows("delete from commandbus.command_bus_payload_archive where domain = %s", DOMAIN)
    await db.rows(f"delete from pgmq.a_{DOMAIN}__commands")
    await db.rows("select * from commandbus.run_bulk_chunk(%s)", await start(db))
    assert await items(db) == [(command_id, "failed", "the payload is no longer archived")]


async def test_what_was_decided_meanwhile_is_skipped_though_its_twin_still_waits(
    db: Session,
) -> None:
    command_id = await parked(db)
    operation = await start(db)
    await db.rows("select commandbus.operator_cancel(%s, %s, 'no')", DOMAIN, [command_id])
    await db.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    assert await items(db) == [(command_id, "skipped", "it is CANCELED")]


async def test_an_executor_is_given_an_operation_of_its_domain(db: Session) -> None:
    await parked(db)
    operation = await start(db)
    following = "select commandbus.next_bulk(%s, 'w1')"
    assert await db.value(following, OTHER) is None
    assert await db.value(following, DOMAIN) == operation


async def test_an_operation_that_is_over_is_neither_found_again_nor_gone_on_with(
    db: Session,
) -> None:
    await parked(db)
    operation = await start(db)
    await db.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    assert await db.value("select commandbus.next_bulk(%s, null)", DOMAIN) is None
    (held,) = await db.receive()
    await db.settle("park", held.item(**PARKED))
    assert await start(db) != operation
    for verb in ("stop_bulk(%s)", "resume_bulk(%s)"):
        with pytest.raises(psycopg.Error, match="is finished"):
            await db.rows(f"select commandbus.{verb}", operation)


async def test_a_stopped_operation_is_stopped_once_and_acts_on_nothing(db: Session) -> None:
    command_id = await parked(db)
    operation = await start(db)
    for verb in ("stop_bulk(%s)", "stop_bulk(%s)"):
        await db.rows(f"select commandbus.{verb}", operation)
    assert await db.value("select commandbus.next_bulk(%s, null)", DOMAIN) is None
    await db.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    assert await items(db) == [(command_id, None, None)]
    for verb in ("resume_bulk(%s)", "resume_bulk(%s)"):
        await db.rows(f"select commandbus.{verb}", operation)
    events = [e for e in await db.events(operation) if e != "BULK_STARTED"]
    assert events == ["BULK_STOPPED", "BULK_RESUMED"]


async def test_a_chunk_that_somebody_is_at_is_left_to_him(db: Session, session: Open) -> None:
    await parked(db)
    operation = await start(db)
    first = await session()
    await first.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    (row,) = await db.rows("select * from commandbus.run_bulk_chunk(%s)", operation)
    assert (row["status"], row["acted"]) == ("running", 0)
    await first.conn.commit()
    assert await db.value("select done from commandbus.command_bus_bulk_operation") == 1
