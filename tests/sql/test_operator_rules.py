"""Operators who ask for many: what can be moved is, and all else stays as it is."""

from __future__ import annotations

from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.sql.faults import healthy
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

RETRY = "select commandbus.operator_retry(%s, %s, 'ann', true, false, %s) as id"


async def test_of_many_only_the_parked_ones_are_sent_again(db: Session) -> None:
    made = await healthy(db)
    ids = [one.command_id for one in made.values() if isinstance(one, Held)]
    before = len(await db.queued())
    rows = await db.rows(RETRY, DOMAIN, ids, Jsonb({}))
    assert [row["id"] for row in rows] == [made["PARKED"].command_id]
    assert len(await db.queued()) == before + 1


async def test_a_retry_sends_the_payload_of_its_own_command(db: Session) -> None:
    ids = await db.send(uuid4(), uuid4())
    held = await db.receive()
    await db.settle("park", *(h.item(reason="PERMANENT", **FAILURE) for h in held))
    await db.rows(RETRY, DOMAIN, [ids[1]], Jsonb({}))
    (message,) = await db.queued()
    assert message["message"]["data"] == {"n": 1}


async def test_an_old_edit_of_what_is_not_parked_any_more_is_passed_over(db: Session) -> None:
    held = await db.put("PENDING")
    edit = {"data": {}, "previous_msg_id": held.msg_id + 7, "changes": {}}
    rows = await db.rows(RETRY, DOMAIN, [held.command_id], Jsonb({str(held.command_id): edit}))
    assert rows == []


async def test_a_domain_without_a_queue_has_nothing_to_retry_or_cancel(db: Session) -> None:
    assert await db.rows(RETRY, "nowhere", [uuid4()], Jsonb({})) == []
    cancel = "select commandbus.cancel_commands('nowhere', %s, 'why', 'ann', false)"
    assert await db.rows(cancel, [uuid4()]) == []


async def test_what_a_worker_has_is_not_canceled_though_it_shows_as_pending(db: Session) -> None:
    ids = await db.send(uuid4(), uuid4())
    leased = (await db.receive(1, mark=False))[0].command_id
    (free,) = set(ids) - {leased}
    assert await db.status(leased) == "PENDING"
    cancel = "select commandbus.cancel_commands(%s, %s, 'why', 'ann', false) as id"
    rows = await db.rows(cancel, DOMAIN, [leased, free])
    assert [row["id"] for row in rows] == [free]
    assert await db.status(leased) == "PENDING"


async def test_keys_that_are_declared_again_are_known_once(db: Session) -> None:
    for keys in (["pin"], ["pin", "iban"]):
        await db.rows("select commandbus.declare_secrets(%s, %s)", DOMAIN, Jsonb({"Debit": keys}))
    rows = await db.rows("select key from commandbus.command_bus_secret_key order by key")
    assert [row["key"] for row in rows] == ["iban", "pin"]
