"""Counters of batches, and when a batch is done."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, FAILURE, Session


def shape(row: dict[str, Any]) -> tuple[str, int, int, int, int, int]:
    return (
        row["status"], row["total_count"], row["completed_count"], row["failed_count"],
        row["canceled_count"], row["in_troubleshooting_count"],
    )  # fmt: skip


async def test_a_batch_counts_what_is_sent_into_it(db: Session) -> None:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    await db.send(batch_id=batch)
    assert shape(await db.batch_row(batch)) == ("PENDING", 3, 0, 0, 0, 0)


async def test_a_batch_does_not_count_a_refused_duplicate(db: Session) -> None:
    batch = await db.batch()
    (known,) = await db.send(batch_id=batch)
    with pytest.raises(psycopg.Error):
        await db.send(uuid4(), known, batch_id=batch)
    assert (await db.batch_row(batch))["total_count"] == 1


async def test_a_batch_starts_once_with_the_first_receive(db: Session) -> None:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    await db.receive(1)
    started = (await db.batch_row(batch))["started_at"]
    assert started is not None
    await db.receive(1)
    row = await db.batch_row(batch)
    assert (row["status"], row["started_at"]) == ("IN_PROGRESS", started)
    assert (await db.events(batch)).count("BATCH_STARTED") == 1


@pytest.mark.parametrize("mark", [True, False])
async def test_counters_do_not_depend_on_the_mark_in_progress(db: Session, mark: bool) -> None:
    batch = await db.batch()
    await db.send(*(uuid4() for _ in range(4)), batch_id=batch)
    done, failed, parked, retried = await db.receive(mark=mark)
    await db.settle("complete", done.item(data=None))
    await db.settle("fail", failed.item(**FAILURE))
    await db.settle("park", parked.item(reason="PERMANENT", **FAILURE))
    await db.settle("retry", retried.item(delay_seconds=60, **FAILURE))
    assert shape(await db.batch_row(batch)) == ("IN_PROGRESS", 4, 1, 1, 0, 1)


async def test_what_waits_for_an_operator_holds_the_batch_open(db: Session) -> None:
    batch = await db.batch()
    parked = await db.put("IN_TROUBLESHOOTING_QUEUE", batch)
    assert shape(await db.batch_row(batch)) == ("IN_PROGRESS", 1, 0, 0, 0, 1)
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [parked.command_id])
    assert shape(await db.batch_row(batch)) == ("IN_PROGRESS", 1, 0, 0, 0, 0)
    (again,) = await db.receive()
    await db.settle("complete", again.item(data=None))
    assert shape(await db.batch_row(batch)) == ("COMPLETED", 1, 1, 0, 0, 0)
    assert (await db.events(batch)) == ["BATCH_STARTED", "BATCH_COMPLETED"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("operator_cancel(%s, %s, 'x')", ("COMPLETED_WITH_FAILURES", 1, 0, 0, 1, 0)),
        ("operator_complete(%s, %s)", ("COMPLETED", 1, 1, 0, 0, 0)),
    ],
)
async def test_an_operator_who_ends_the_last_command_ends_the_batch(
    db: Session, call: str, expected: tuple[Any, ...]
) -> None:
    batch = await db.batch()
    parked = await db.put("IN_TROUBLESHOOTING_QUEUE", batch)
    await db.rows(f"select commandbus.{call}", DOMAIN, [parked.command_id])
    row = await db.batch_row(batch)
    assert shape(row) == expected
    assert row["completed_at"] is not None
    assert (await db.events(batch)).count("BATCH_COMPLETED") == 1


async def test_a_batch_of_canceled_commands_ends_without_having_started(db: Session) -> None:
    batch = await db.batch()
    ids = await db.send(uuid4(), uuid4(), batch_id=batch)
    await db.rows("select commandbus.cancel_commands(%s, %s, 'x')", DOMAIN, ids)
    row = await db.batch_row(batch)
    assert shape(row) == ("COMPLETED_WITH_FAILURES", 2, 0, 0, 2, 0)
    assert row["started_at"] == row["completed_at"]


async def test_a_batch_that_is_not_sealed_stays_open_when_all_have_ended(db: Session) -> None:
    batch = await db.batch(total_sealed=False)
    await db.put("COMPLETED", batch)
    assert (await db.batch_row(batch))["status"] == "IN_PROGRESS"


async def test_a_group_moves_each_batch_by_its_own_number(db: Session) -> None:
    one, two = await db.batch(), await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=one)
    await db.send(batch_id=two)
    await db.send()
    await db.settle("complete", *(h.item(data=None) for h in await db.receive()))
    assert shape(await db.batch_row(one)) == ("COMPLETED", 2, 2, 0, 0, 0)
    assert shape(await db.batch_row(two)) == ("COMPLETED", 1, 1, 0, 0, 0)


async def test_a_send_is_refused_into_a_batch_that_does_not_exist_here(db: Session) -> None:
    batch = await db.batch()
    db.domain = "orders"
    await db.value("select commandbus.ensure_domain('orders')")
    before = await db.everything()
    for missing in (uuid4(), batch):  # the second is there, but in another domain
        with pytest.raises(psycopg.Error) as info:
            await db.send(batch_id=missing)
        assert (info.value.sqlstate, info.value.diag.message_detail) == ("CB004", str(missing))
    assert await db.everything() == before


async def test_a_send_is_refused_into_a_batch_that_is_finished(db: Session) -> None:
    batch = await db.batch()
    await db.put("COMPLETED", batch)
    before = await db.everything()
    with pytest.raises(psycopg.Error, match="is finished") as info:
        await db.send(batch_id=batch)
    assert info.value.sqlstate == "CB003"
    assert "new batch" in (info.value.diag.message_hint or "")
    assert await db.everything() == before


async def test_a_batch_completed_is_audited_with_its_counts(db: Session) -> None:
    batch = await db.batch()
    await db.put("COMPLETED", batch)
    assert await db.details(batch, "BATCH_COMPLETED") == {
        "status": "COMPLETED", "total": 1, "completed": 1, "failed": 0, "canceled": 0,
    }  # fmt: skip


async def numbered(db: Session, number: int) -> UUID:
    """A batch that knows the order of its commands."""
    batch_id = uuid4()
    commands = [{"command_id": str(uuid4()), "type": "Debit"} for _ in range(number)]
    await db.value("select commandbus.create_batch(%s, %s, %s)", DOMAIN, batch_id, Jsonb(commands))
    return batch_id


async def test_a_cancel_looks_for_its_number_among_what_can_be_canceled(db: Session) -> None:
    batch_id = await numbered(db, 3)
    _, second = await db.receive(2, mark=False)  # both are PENDING still, and leased
    await db.settle("complete", second.item(data=None))
    cancel = "select commandbus.cancel_batch(%s, %s, 'why', null, 1)"
    assert [await db.value(cancel, DOMAIN, batch_id) for _ in range(2)] == [1, 0]


async def test_a_retry_looks_for_its_number_among_what_failed(db: Session) -> None:
    batch_id = await numbered(db, 2)
    first, second = await db.receive()
    await db.settle("complete", first.item(data=None))
    await db.settle("fail", second.item(**FAILURE))
    retry = "select commandbus.retry_batch(%s, %s, null, 1)"
    assert [await db.value(retry, DOMAIN, batch_id) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("batch_type", [None, "ORDERS"])
@pytest.mark.parametrize("is_ended", [False, True])
async def test_the_batch_of_another_domain_cannot_be_joined(
    db: Session, batch_type: str | None, is_ended: bool
) -> None:
    batch_id = await db.batch()
    await db.rows(
        "update commandbus.command_bus_batch set batch_type = %s, created_by = 'ann',"
        " completed_at = case when %s then now() end",
        batch_type, is_ended,
    )  # fmt: skip
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.join_batch('orders', %s, 1)", batch_id)
    assert info.value.sqlstate == "CB004"


@pytest.mark.parametrize("domain", [DOMAIN, "orders"])
@pytest.mark.parametrize("query", ["cancel_batch(%s, %s, 'why')", "retry_batch(%s, %s)"])
async def test_a_batch_that_is_not_there_can_neither_be_canceled_nor_retried(
    db: Session, query: str, domain: str
) -> None:
    batch_id = await db.batch() if domain != DOMAIN else uuid4()
    await db.send()
    with pytest.raises(psycopg.Error) as info:
        await db.value(f"select commandbus.{query}", domain, batch_id)
    assert info.value.sqlstate == "CB004"


async def test_a_governed_batch_cannot_be_joined(db: Session) -> None:
    batch_id = await db.batch()
    await db.rows("update commandbus.command_bus_batch set batch_type = 'X', created_by = 'ann'")
    with pytest.raises(psycopg.Error, match="is governed") as info:
        await db.value("select commandbus.join_batch(%s, %s, 1)", DOMAIN, batch_id)
    assert info.value.sqlstate == "CB003"
    assert (await db.batch_row(batch_id))["total_count"] == 0
