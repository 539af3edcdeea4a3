"""Governed command types and who sent what: the SQL functions by themselves."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, Session

OTHER = "billing"


def who(user: str = "ada", *, may_bypass: bool | None = False, **more: Any) -> Jsonb:
    return Jsonb({"user": user, "may_bypass": may_bypass, **more})


def a_type(
    command_type: str, batch_type: str, path: str | None = None, domain: str = DOMAIN
) -> Any:
    return {
        "domain": domain, "command_type": command_type, "batch_type": batch_type, "path": path,
        "requires_approval": False,
    }  # fmt: skip


async def register(db: Session, *types: Any) -> None:
    await db.rows("select commandbus.register_batch_types(%s)", Jsonb(list(types)))


async def send(
    db: Session, command_id: UUID, on_behalf: Jsonb, *, kind: str = "Debit", digest: bytes = b"x",
    domain: str = DOMAIN,
) -> tuple[str, str | None]:  # fmt: skip
    command = Jsonb({"command_id": str(command_id), "type": kind})
    (row,) = await db.rows(
        "select * from commandbus.send_for(%s, %s, %s, %s)", domain, command, [digest], on_behalf
    )
    return row["verdict"], row["status"]


async def governed(db: Session, *kinds: str, domain: str = DOMAIN, **more: Any) -> list[str]:
    found: list[str] = await db.value(
        "select commandbus.require_ungoverned(%s, %s, %s)",
        domain, list(kinds), who(may_bypass=True, **more),
    )  # fmt: skip
    return found


async def test_a_registration_adds_and_keeps_what_is_there(db: Session) -> None:
    await register(db, a_type("Debit", "DEBITS"), a_type("Debit", "LARGE", "/api/v1/large"))
    before = await db.rows("select * from commandbus.command_bus_governed_type order by 1, 2, 3")
    await register(db, a_type("Debit", "DEBITS"))
    await register(db)
    assert before == await db.rows(
        "select * from commandbus.command_bus_governed_type order by 1, 2, 3"
    )
    await register(db, a_type("Debit", "DEBITS", "/api/v1/debits"), a_type("Credit", "CREDITS"))
    after = await db.rows(
        "select batch_type, path from commandbus.command_bus_governed_type where domain = %s"
        " order by 1", DOMAIN,
    )  # fmt: skip
    assert [tuple(row.values()) for row in after] == [
        ("CREDITS", None), ("DEBITS", "/api/v1/debits"), ("LARGE", "/api/v1/large"),
    ]  # fmt: skip


async def test_what_is_governed_is_told_by_domain_and_by_what_the_process_declares(
    db: Session,
) -> None:
    await register(db, a_type("Debit", "DEBITS"), a_type("Credit", "CREDITS", domain=OTHER))
    assert await governed(db, "Debit", "Credit", "Look") == ["Debit"]
    assert await governed(db, "Debit", "Credit", domain=OTHER) == ["Credit"]
    assert await governed(db, "Look") == []
    declared = [{"command_type": "Look", "batch_type": "LOOKS", "path": None}]
    assert await governed(db, "Debit", "Look", declared=declared) == ["Debit", "Look"]


@pytest.mark.parametrize("may_bypass", [False, None])
async def test_a_refusal_names_every_type_and_where_to_submit_it(
    db: Session, may_bypass: bool | None
) -> None:
    await register(db, a_type("Debit", "DEBITS"), a_type("Credit", "CREDITS", "/api/v1/credits"))
    with pytest.raises(psycopg.Error) as info:
        await db.value(
            "select commandbus.require_ungoverned(%s, %s, %s)",
            DOMAIN, ["Debit", "Credit", "Look"], who(may_bypass=may_bypass),
        )  # fmt: skip
    assert info.value.sqlstate == "CB011"
    assert info.value.diag.message_primary == (
        "Credit and Debit must be submitted as CREDITS (POST /api/v1/credits) or DEBITS (POST"
        " /api/v1/batches)"
    )
    assert info.value.diag.message_detail == '["CREDITS", "DEBITS"]'


async def test_a_type_is_removed_alone_and_once(db: Session) -> None:
    await register(
        db, a_type("Debit", "DEBITS"), a_type("Debit", "LARGE"), a_type("Credit", "DEBITS"),
        a_type("Debit", "DEBITS", domain=OTHER),
    )  # fmt: skip
    remove = "select commandbus.remove_governed_type(%s, 'Debit', 'DEBITS', 'root')"
    assert await db.value(remove, DOMAIN) is True
    assert await db.value(remove, DOMAIN) is False
    left = await db.rows(
        "select domain, command_type, batch_type from commandbus.command_bus_governed_type"
        " where domain <> 'approvals' order by 1, 2, 3"
    )
    assert [tuple(row.values()) for row in left] == [
        (OTHER, "Debit", "DEBITS"), (DOMAIN, "Credit", "DEBITS"), (DOMAIN, "Debit", "LARGE"),
    ]  # fmt: skip
    count = "select count(*) from commandbus.command_bus_audit"
    assert await db.value(count) == 1


async def test_a_known_id_is_a_repeat_of_its_sender_with_its_digest_in_its_domain(
    db: Session,
) -> None:
    command_id = uuid4()
    assert await send(db, command_id, who("ada")) == ("sent", "PENDING")
    assert await send(db, command_id, who("ada")) == ("repeat", "PENDING")
    assert await send(db, command_id, who("ada"), digest=b"y") == ("refused", None)
    assert await send(db, command_id, who("bob")) == ("refused", None)
    # The same id in another domain is another command, of another sender.
    assert await send(db, command_id, who("bob"), domain=OTHER) == ("sent", "PENDING")
    assert await send(db, command_id, who("ada"), domain=OTHER) == ("refused", None)
    assert await send(db, command_id, who("bob")) == ("refused", None)


async def test_a_repeat_writes_nothing(db: Session) -> None:
    await register(db, a_type("Debit", "DEBITS"))
    command_id = uuid4()
    for verdict in ("sent", "repeat", "repeat"):
        assert (await send(db, command_id, who(may_bypass=True)))[0] == verdict
    assert (await send(db, command_id, who("bob", may_bypass=True)))[0] == "refused"
    events = await db.rows("select event_type, actor from commandbus.command_bus_audit order by 1")
    assert [tuple(row.values()) for row in events] == [
        ("GOVERNANCE_BYPASSED", "ada"), ("SENT", "ada"),
    ]  # fmt: skip
    assert await db.value("select count(*) from pgmq.q_payments__commands") == 1


async def test_a_batch_with_a_known_id_leaves_nothing_behind(db: Session) -> None:
    known, new = uuid4(), uuid4()
    await send(db, known, who("ada"))
    commands = Jsonb([{"command_id": str(each), "type": "Debit"} for each in (known, new)])
    found = await db.value(
        "select commandbus.create_batch_for(%s, gen_random_uuid(), %s, %s, null, null, %s)",
        DOMAIN, commands, [b"1", b"2"], who("bob", may_bypass=True),
    )  # fmt: skip
    assert found == [known]
    rows = await db.rows("select command_id, sent_by from commandbus.command_bus_sender")
    assert [tuple(row.values()) for row in rows] == [(known, "ada")]
    assert await db.value("select count(*) from commandbus.command_bus_batch") == 0


async def test_retention_forgets_senders_of_its_own_domain_only(db: Session) -> None:
    command_id = uuid4()
    for domain in (DOMAIN, OTHER):
        await send(db, command_id, who("ada"), domain=domain)
        await db.rows("select commandbus.cancel_commands(%s, %s, 'no')", domain, [command_id])
    await db.rows("select commandbus.prune_commands(%s, now() + interval '1 day', 100)", DOMAIN)
    rows = await db.rows("select domain from commandbus.command_bus_sender")
    assert [row["domain"] for row in rows] == [OTHER]
