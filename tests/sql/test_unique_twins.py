"""Sends with a unique key beside a domain that has the same ids and keys: what is known, who holds
a key, and what is replaced is of one domain."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, Session

#: Before ours in the order of names.
OTHER = "orders"
KEY = {"unique_key": "k", "unique_while": "waiting"}
REPLACING = KEY | {"on_duplicate": "replace"}


@pytest.fixture
def other(db: Session) -> Session:
    """The same session, for the other domain."""
    return Session(db.conn, OTHER)


async def offer(
    db: Session, command_id: UUID, sent_by: str | None = None, **more: Any
) -> list[tuple[str, UUID]]:
    document = {"command_id": str(command_id), "type": "Debit", "data": {"n": 1}} | more
    rows = await db.rows(
        "select verdict, command_id from commandbus.offer_unique(%s, %s, p_sent_by => %s)",
        db.domain, Jsonb([document]), sent_by,
    )  # fmt: skip
    return [(row["verdict"], row["command_id"]) for row in rows]


async def everything_of(db: Session) -> list[Any]:
    """What a replacement could change."""
    found: list[Any] = []
    for table in ("command", "unique", "expiry"):
        found += await db.rows(
            f"select * from commandbus.command_bus_{table} where domain = %s", db.domain
        )
    return found + await db.queued()


async def offer_new(db: Session, *ids: UUID) -> list[int]:
    documents = [{"command_id": str(i), "type": "Debit"} for i in ids]
    found: list[int] = await db.value(
        "select commandbus.offer_new(%s, %s)", db.domain, Jsonb(documents)
    )
    return found


# -- ids that are known


async def test_an_id_that_is_known_elsewhere_only_is_new_here(db: Session, other: Session) -> None:
    (command_id,) = await other.send()
    assert await offer_new(db, command_id) == []
    assert await offer_new(db, command_id) == [1]


async def test_where_ids_are_of_all_domains_one_that_nobody_sent_is_new(
    db: Session, other: Session
) -> None:
    await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    (command_id,) = await other.send()
    assert await offer_new(db, command_id, uuid4()) == [1]


async def test_what_a_user_sent_before_is_of_one_domain(db: Session, other: Session) -> None:
    (command_id,) = await db.send()
    await other.send(command_id)
    asked = (
        "select verdict, status from commandbus.sent_before(%s, %s, array['\\x01'::bytea], 'ann')"
    )
    await other.rows(
        "select commandbus.remember_sender(%s, array[%s], array['\\x01'::bytea],"
        " '{\"user\": \"ann\"}')",
        OTHER, command_id,
    )  # fmt: skip
    ours = await db.rows(asked, DOMAIN, command_id)
    theirs = await db.rows(asked, OTHER, command_id)
    assert [row["verdict"] for row in ours] == ["refused"]
    assert [row["verdict"] for row in theirs] == ["repeat"]


# -- who waits, and so holds a key


async def leased(db: Session, command_id: UUID) -> None:
    await db.receive(mark=False)


async def completed(db: Session, command_id: UUID) -> None:
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))


async def stored(db: Session, command_id: UUID) -> None:
    await db.rows(
        "update commandbus.command_bus_command set msg_id = null where domain = %s", db.domain
    )


@pytest.mark.parametrize("come_to", [leased, completed, stored])
async def test_one_that_does_not_wait_is_not_locked_though_its_twin_waits(
    db: Session, other: Session, come_to: Any
) -> None:
    (command_id,) = await db.send()
    await other.send(command_id)
    await come_to(db, command_id)
    lock = "select commandbus.lock_waiting(%s, %s)"
    assert await db.value(lock, DOMAIN, [command_id]) == []
    assert await db.value(lock, OTHER, [command_id]) == [command_id]


async def test_an_old_snapshot_minds_no_change_of_a_twin_that_holds_the_same_key(
    db: Session, other: Session, session: Open
) -> None:
    command_id = uuid4()
    for each in (db, other):
        await offer(each, command_id, unique_key="k")
    sender = await session()
    await sender.rows("set transaction isolation level repeatable read")
    await sender.rows("select count(*) from commandbus.command_bus_command")
    (held,) = await other.receive()
    await other.settle("complete", held.item(data=None))
    found = await offer(sender, uuid4(), unique_key="k", on_duplicate="skip")
    assert found == [("skipped", command_id)]
    await sender.conn.rollback()


# -- replacing


async def waits_for_a_minute(db: Session, command_id: UUID) -> None:
    await db.send(uuid4(), delay_seconds=30)
    sent = await offer(db, command_id, **KEY, expires_in_seconds=600)
    assert sent == [("sent", command_id)]


async def test_a_replacement_changes_the_command_of_its_domain_and_no_other(
    db: Session, other: Session
) -> None:
    """Theirs belongs to a batch, and its first payload is an hour old: that is nothing to ours."""
    command_id = uuid4()
    await waits_for_a_minute(other, command_id)
    await other.rows(
        "update commandbus.command_bus_command set batch_id = %s where domain = %s",
        await other.batch(), OTHER,
    )  # fmt: skip
    await other.rows(
        "update commandbus.command_bus_unique set first_at = first_at - interval '1 hour'"
        " where domain = %s", OTHER,
    )  # fmt: skip
    await waits_for_a_minute(db, command_id)
    before, ours = await everything_of(other), await db.queued()
    more: dict[str, Any] = {"data": {"n": 2}, "delay_seconds": 300, "max_wait_seconds": 600}
    assert await offer(db, uuid4(), **REPLACING, **more) == [("replaced", command_id)]
    assert await everything_of(other) == before
    after = await db.queued()
    assert [row["message"]["data"] for row in after] == [{"n": 0}, {"n": 2}]
    assert after[0] == ours[0]
    assert not after[1]["is_visible"]


async def test_a_sender_of_a_twin_replaces_nothing_here(db: Session, other: Session) -> None:
    command_id = uuid4()
    for each in (db, other):
        await offer(each, command_id, **KEY)
    await other.rows(
        "select commandbus.remember_sender(%s, array[%s], array['\\x01'::bytea],"
        " '{\"user\": \"ann\"}')",
        OTHER, command_id,
    )  # fmt: skip
    with pytest.raises(psycopg.Error) as info:
        await offer(db, uuid4(), sent_by="ann", **REPLACING)
    assert info.value.sqlstate == "CB003"


async def test_who_holds_a_key_is_told_once_though_it_has_a_twin(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    for each in (other, db):
        await offer(each, command_id, unique_key="k")
    document = {"command_id": str(uuid4()), "type": "Debit", "data": {}, "unique_key": "k"}
    rows = await db.rows(
        "select * from commandbus.send_unique_for(%s, %s, array['\\x01'::bytea], %s)",
        DOMAIN, Jsonb(document), Jsonb({"user": "ann", "may_bypass": False, "declared": []}),
    )  # fmt: skip
    assert [(row["verdict"], row["command_id"]) for row in rows] == [("held", command_id)]


# -- keys that are over


async def looked_at(db: Session) -> list[str]:
    """Look at our key, and then tell of which domains a key is to be looked at."""
    await db.rows(
        "update commandbus.command_bus_unique set look_at = clock_timestamp()"
        " - case domain when %s then interval '2 hours' else interval '1 hour' end",
        DOMAIN,
    )
    assert await db.value("select commandbus.prune_unique(1)") == 1
    rows = await db.rows("select domain from commandbus.command_bus_unique where look_at < now()")
    return [row["domain"] for row in rows]


async def test_a_key_is_over_when_the_command_of_its_own_domain_has_ended(
    db: Session, other: Session
) -> None:
    command_id = uuid4()
    for each in (other, db):
        await offer(each, command_id, unique_key="k")
    await completed(db, command_id)
    assert await looked_at(db) == [OTHER]
    assert await db.value("select count(*) from commandbus.command_bus_unique") == 1
    await offer(db, uuid4(), unique_key="k")
    assert await looked_at(db) == [OTHER]
    assert await db.value("select count(*) from commandbus.command_bus_unique") == 2
