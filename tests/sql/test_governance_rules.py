"""Governed batches beside others: other users, other types, other domains, other states."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.clones import clone
from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session
from tests.sql.test_twins_apart import OTHER
from tests.sql.tickets import DEFAULTS, begun, submitted

RETRY = "select * from commandbus.retry_ticket(%s, %s, %s, 'ann')"


async def test_a_request_is_repeated_by_its_own_user_and_for_its_own_type(db: Session) -> None:
    request_id = uuid4()
    ticket_id = await submitted(db, "ada", request_id=request_id)
    find = "select batch_id from commandbus.find_request(%s, %s, %s)"
    assert await db.value(find, "ada", "ORDERS", request_id) == ticket_id
    assert await db.value(find, "bob", "ORDERS", request_id) is None
    assert await db.value(find, "ada", "REFUNDS", request_id) is None
    assert (await begun(db, "bob", request_id=request_id))["verdict"] == "go"


async def test_a_ticket_with_a_known_id_is_refused(db: Session) -> None:
    (known,) = await db.send()
    with pytest.raises(psycopg.Error) as info:
        await db.rows(
            "select * from commandbus.create_ticket("
            "%s, %s, %s, 'ORDERS', 'ada', 'why', null, 'x', false, '{}', %s)",
            DOMAIN, uuid4(), Jsonb([{"command_id": str(known), "type": "Debit"}]), Jsonb(DEFAULTS),
        )  # fmt: skip
    assert info.value.sqlstate == "CB001"


async def one_failed_one_done(db: Session) -> tuple[UUID, Held, Held]:
    ticket_id = await submitted(db, size=2)
    first, second = await db.receive()
    await db.settle("complete", first.item(data=None))
    await db.settle("fail", second.item(**FAILURE))
    return ticket_id, first, second


async def test_only_failed_children_are_said_to_have_reached_the_cap(db: Session) -> None:
    ticket_id, _, _ = await one_failed_one_done(db)
    (row,) = await db.rows(RETRY, DOMAIN, ticket_id, 1)
    assert row == {"retried": None, "exhausted": [2]}


async def test_a_retry_does_not_wait_for_children_that_did_not_fail(
    db: Session, session: Open
) -> None:
    ticket_id, done, _ = await one_failed_one_done(db)
    blocker = await session()
    await blocker.rows(
        "select 1 from commandbus.command_bus_command where command_id = %s for update",
        done.command_id,
    )
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    (row,) = await db.rows(RETRY, DOMAIN, ticket_id, 9)
    assert row == {"retried": [2], "exhausted": None}


async def test_a_retry_waits_for_who_resolves_a_child_and_looks_at_it_then(
    db: Session, session: Open
) -> None:
    ticket_id = await submitted(db)
    (held,) = await db.receive()
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    operator, retrier = await session(), await session()
    await operator.rows(
        "select commandbus.operator_cancel(%s, %s, 'why')", DOMAIN, [held.command_id]
    )
    retry = asyncio.create_task(retrier.rows(RETRY, DOMAIN, ticket_id, 1))
    await db.until_blocked(retrier)
    await operator.conn.commit()
    assert await retry == [{"retried": None, "exhausted": None}]


async def test_a_retry_names_the_children_of_its_own_domain(db: Session) -> None:
    ticket_id, _, _ = await one_failed_one_done(db)
    await clone(db, OTHER)
    await db.rows(
        "update commandbus.command_bus_command set sequence_no = 7 where domain = %s", OTHER
    )
    (row,) = await db.rows(RETRY, DOMAIN, ticket_id, 9)
    assert row["retried"] == [2]


async def test_who_asked_is_looked_up_in_the_domain_of_the_command(db: Session) -> None:
    await submitted(db, "ada")
    (held,) = await db.receive()
    await clone(db, OTHER)
    maker = "select commandbus.decision_maker(%s, %s, %s)"
    await db.rows(
        "update commandbus.command_bus_batch set created_by = 'eve' where domain = %s", OTHER
    )
    assert await db.value(maker, DOMAIN, held.command_id, "ORDERS") == "ada"
    assert await db.value(maker, OTHER, held.command_id, "ORDERS") == "eve"
    assert await db.value(maker, "nowhere", held.command_id, "ORDERS") is None
    assert await db.value(maker, DOMAIN, held.command_id, "REFUNDS") is None
    edited = (
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, details_json)"
        " values (%s, %s, 'OPERATOR_RETRY', '{\"edited\": {}}')"
    )
    await db.rows(edited, OTHER, held.command_id)
    assert await db.value(maker, DOMAIN, held.command_id, "ORDERS") == "ada"
    await db.rows(edited, DOMAIN, held.command_id)
    assert await db.value(maker, DOMAIN, held.command_id, "ORDERS") is None


async def test_limits_count_what_the_user_has_pending(db: Session) -> None:
    await submitted(db, "ada", size=3)
    states = await db.rows("select * from commandbus.limit_states('bob', %s)", Jsonb(DEFAULTS))
    assert {s["current_value"] for s in states if s["scope"] == "user"} == {0}


async def test_a_second_exemption_of_a_user_takes_the_place_of_the_first(db: Session) -> None:
    for actor, reason in (("root", "migration week"), ("eve", "one week more")):
        await db.rows("select commandbus.set_exemption('ada', %s, %s)", actor, reason)
    (row,) = await db.rows("select * from commandbus.rate_limit_exemption")
    assert (row["user_id"], row["exempted_by"], row["reason"]) == ("ada", "eve", "one week more")
