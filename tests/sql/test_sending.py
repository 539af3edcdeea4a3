"""Sends of many commands: duplicates among them, and domains that are new."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_cancel_of_stored import stored_batch

ONE = "select commandbus.offer_one(%s, %s, 'Debit', %s, %s, 3, %s)"
PACKED = "select commandbus.send_packed(%s, %s, 'Debit', %s, %s, '3', %s)"


async def test_an_offer_of_known_ids_only_names_them_all(db: Session) -> None:
    ids = await db.send(uuid4(), uuid4())
    assert sorted(await db.offer(*ids)) == sorted(ids)
    with pytest.raises(psycopg.Error) as info:
        await db.send(*ids)
    assert info.value.sqlstate == "CB001"


@pytest.mark.parametrize("is_stored", [False, True])
async def test_stored_commands_that_are_all_known_are_refused_by_name(
    db: Session, is_stored: bool
) -> None:
    ids = (await stored_batch(db))[1] if is_stored else sorted(await db.send(uuid4(), uuid4()))
    commands = [{"command_id": str(i), "type": "Debit"} for i in ids]
    with pytest.raises(psycopg.Error) as info:
        await db.rows(
            "select commandbus.store_commands(%s, %s, null, 'pending_queue')",
            DOMAIN, Jsonb(commands),
        )  # fmt: skip
    assert info.value.sqlstate == "CB001"
    assert all(str(i) in str(info.value.diag.message_detail) for i in ids)


async def test_the_first_packed_send_of_a_domain_makes_its_queues(db: Session) -> None:
    command_id, answers = uuid4(), f"{DOMAIN}.answers"
    line = f'"command_id":"{command_id}","type":"Debit","data":{{}}}}'
    await db.rows(PACKED, DOMAIN, str(command_id), answers, str(uuid4()), line)
    assert await db.queued("answers") == []  # it is there before anybody answers
    (held,) = await db.receive()
    assert held.command_id == command_id
    await db.settle("complete", held.item(data=None))
    assert len(await db.queued("answers")) == 1


async def test_the_first_single_send_of_a_domain_makes_its_queues(db: Session) -> None:
    command_id, answers = uuid4(), f"{DOMAIN}.answers"
    line = f'"command_id":"{command_id}","type":"Debit","data":{{}}}}'
    assert await db.value(ONE, DOMAIN, command_id, answers, uuid4(), line) == []
    assert await db.queued("answers") == []  # it is there before anybody answers
    (held,) = await db.receive()
    assert held.command_id == command_id
    await db.settle("complete", held.item(data=None))
    assert len(await db.queued("answers")) == 1


async def test_a_known_id_that_is_offered_by_itself_is_named_and_leaves_no_message(
    db: Session,
) -> None:
    (command_id,) = await db.send()
    before = await db.everything()
    line = f'"command_id":"{command_id}","type":"Debit","data":{{}}}}'
    offered = await db.value(ONE, DOMAIN, command_id, f"{DOMAIN}.replies", uuid4(), line)
    assert offered == [command_id]
    assert await db.everything() == before


async def test_an_id_that_was_sent_when_ids_were_of_a_domain_counts_for_stored_commands_too(
    db: Session,
) -> None:
    (command_id,) = await Session(db.conn, "orders").send()
    await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    with pytest.raises(psycopg.Error) as info:
        await db.rows(
            "select commandbus.store_commands(%s, %s, null, 'pending_queue')",
            DOMAIN, Jsonb([{"command_id": str(command_id), "type": "Debit"}]),
        )  # fmt: skip
    assert info.value.sqlstate == "CB001"
