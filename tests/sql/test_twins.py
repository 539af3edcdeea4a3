"""The same id in two domains: two commands that have nothing to do with each other.

Their message numbers and their epochs are the same too, so only the domain tells them apart.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

PARKED = "IN_TROUBLESHOOTING_QUEUE"
OTHER = "orders"


async def twins(db: Session, **more: Any) -> UUID:
    command_id = uuid4()
    for domain in (OTHER, DOMAIN):
        db.domain = domain
        await db.send(command_id, **more)
    return command_id


async def row(db: Session, command_id: UUID, domain: str) -> dict[str, Any]:
    (found,) = await db.rows(
        "select * from commandbus.command_bus_command where domain = %s and command_id = %s",
        domain, command_id,
    )  # fmt: skip
    return found


async def leased_in_both(db: Session, **more: Any) -> Held:
    """Leased in both domains; returns the lease in ours."""
    await twins(db, **more)
    db.domain = OTHER
    await db.receive(worker="elsewhere")
    db.domain = DOMAIN
    (held,) = await db.receive()
    return held


async def test_a_receive_leases_the_command_of_its_own_domain(db: Session) -> None:
    command_id = await twins(db)
    before = await row(db, command_id, OTHER)
    (held,) = await db.receive()
    assert held.row["lease_epoch"] == 1
    assert await row(db, command_id, OTHER) == before


async def test_a_receive_parks_the_command_of_its_own_domain(db: Session) -> None:
    held = await leased_in_both(db, max_attempts=1)
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    before = await row(db, held.command_id, OTHER)
    assert await db.receive() == []
    assert (await row(db, held.command_id, DOMAIN))["status"] == PARKED
    assert await row(db, held.command_id, OTHER) == before


async def test_a_message_without_work_is_archived_though_another_domain_waits_for_its_number(
    db: Session,
) -> None:
    held = await leased_in_both(db)
    await db.settle("complete", held.item(data=None))
    message = Jsonb({"command_id": str(held.command_id), "data": {}})
    stray = await db.value(f"select pgmq.send('{DOMAIN}__commands', %s)", message)
    await db.rows(
        "update commandbus.command_bus_command set msg_id = %s where domain = %s", stray, OTHER
    )
    assert await db.receive() == []
    assert await db.queued() == []
    assert stray in await db.archived()


async def test_a_start_is_confirmed_in_its_own_domain(db: Session) -> None:
    held = await leased_in_both(db)
    await db.value("select commandbus.confirm_start(%s, %s, 1)", DOMAIN, held.command_id)
    assert (await row(db, held.command_id, DOMAIN))["started_alone"]
    assert not (await row(db, held.command_id, OTHER))["started_alone"]


async def test_a_lease_is_extended_in_its_own_domain(db: Session) -> None:
    held = await leased_in_both(db)
    before = await row(db, held.command_id, OTHER)
    await db.rows("select commandbus.extend_leases(%s, %s, 900)", DOMAIN, Jsonb([held.item()]))
    assert await row(db, held.command_id, OTHER) == before


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("operator_retry(%s, %s)", "PENDING"),
        ("operator_cancel(%s, %s, 'why')", "CANCELED"),
        ("operator_complete(%s, %s)", "COMPLETED"),
    ],
)
async def test_an_operator_acts_in_one_domain(db: Session, query: str, status: str) -> None:
    command_id = await twins(db)
    for domain in (OTHER, DOMAIN):
        db.domain = domain
        (held,) = await db.receive()
        await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    before = await row(db, command_id, OTHER)
    await db.rows(f"select commandbus.{query}", DOMAIN, [command_id])
    assert (await row(db, command_id, DOMAIN))["status"] == status
    assert await row(db, command_id, OTHER) == before
    assert len(await db.rows("select * from commandbus.command_bus_troubleshooting")) == 1


@pytest.mark.parametrize(
    "query",
    ["operator_retry(%s, %s)", "operator_cancel(%s, %s, 'why')", "operator_complete(%s, %s)"],
)
async def test_an_id_that_is_only_elsewhere_is_not_found_here(db: Session, query: str) -> None:
    db.domain = OTHER
    (command_id,) = await db.send()
    await db.value("select commandbus.ensure_domain(%s)", DOMAIN)
    with pytest.raises(psycopg.Error) as info:
        await db.rows(f"select commandbus.{query}", DOMAIN, [command_id])
    assert info.value.sqlstate == "CB002"


async def test_a_cancel_cancels_in_one_domain(db: Session) -> None:
    command_id = await twins(db)
    before = await row(db, command_id, OTHER)
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    assert (await row(db, command_id, DOMAIN))["status"] == "CANCELED"
    assert await row(db, command_id, OTHER) == before


async def test_a_note_stands_in_the_trail_of_one_domain(db: Session) -> None:
    command_id = await twins(db)
    await db.value("select commandbus.add_note(%s, %s, 'x')", DOMAIN, command_id)
    notes = await db.rows(
        "select domain from commandbus.command_bus_audit where event_type = 'NOTE'"
    )
    assert notes == [{"domain": DOMAIN}]


async def test_a_send_that_meets_a_duplicate_takes_nothing_back_elsewhere(db: Session) -> None:
    command_id, fresh = await twins(db), uuid4()
    db.domain = OTHER
    await db.send(fresh)
    db.domain = DOMAIN
    assert await db.offer(fresh, command_id) == [command_id]
    assert (await row(db, fresh, OTHER))["status"] == "PENDING"


async def test_what_a_handler_sends_needs_its_lease_in_the_same_domain(db: Session) -> None:
    command_id = await twins(db)
    db.domain = OTHER
    (held,) = await db.receive()  # leased there, not here
    db.domain = DOMAIN
    sent = {"command_id": str(uuid4()), "type": "Debit", "data": {}}
    document = {
        "complete": [held.item(data=None)],
        "send": [{"by": str(command_id), "lease_epoch": 1, "domain": DOMAIN, "commands": [sent]}],
    }
    await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(document))
    assert len(await db.queued()) == 1
