"""Retention of one domain, while the same ids are in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session
from tests.sql.test_twins_apart import OTHER, hold_all_rows, of_the_other

#: In the order of a run. Everything there is, is older than tomorrow.
STEPS = ("audit", "archives", "replies", "commands", "batches")
KINDS = STEPS[:-1]


async def sent(db: Session, ids: Sequence[UUID]) -> None:
    """Three commands: one by itself, one that answers to the inbox, one of a batch."""
    alone, asked, counted = ids
    await db.send(alone)
    await db.send(asked, reply_to="@inbox")
    await db.send(counted, batch_id=await db.batch())


async def ended(db: Session, ids: Sequence[UUID]) -> None:
    """The first was parked, so its message is in the archive, and its payload in the table."""
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await sent(db, ids)
    held = {h.command_id: h for h in await db.receive()}
    alone, asked, counted = (held[i] for i in ids)
    await db.settle("park", alone.item(reason="PERMANENT", **FAILURE))
    await db.rows("select commandbus.operator_cancel(%s, %s, 'why')", db.domain, [ids[0]])
    await db.settle("complete", asked.item(data=None), counted.item(data=None))


async def run(db: Session) -> dict[str, int]:
    """One run of retention in ours; how many of what went."""
    gone: dict[str, int] = {}
    for step in STEPS:
        is_done, after = False, None
        while not is_done:
            (row,) = await db.rows(
                f"select * from commandbus.prune_{step}(%s, now() + interval '1 day', 100, %s)",
                DOMAIN, after,
            )  # fmt: skip
            is_done, after = row["o_is_done"], row["o_after"]
            for what, number in row["o_pruned"].items():
                gone[what] = gone.get(what, 0) + number
    return gone


async def counted(db: Session) -> dict[str, int]:
    rows = [
        row
        for kind in KINDS
        for row in await db.rows(
            "select * from commandbus.count_prunable(%s, %s, now() + interval '1 day')",
            DOMAIN, kind,
        )
    ]  # fmt: skip
    return {row["what"]: row["prunable"] for row in rows}


async def replies_of_the_other(db: Session) -> list[dict[str, Any]]:
    return await db.rows(
        "select command_id::text from commandbus.command_bus_reply_inbox where domain = %s"
        f" union all select message ->> 'command_id' from pgmq.q_{OTHER}__replies order by 1",
        OTHER,
    )


ALL = {"audit events": 13, "archived messages": 1, "replies": 3, "commands": 3, "batches": 1}


@pytest.mark.parametrize("prepare", [sent, ended])
async def test_retention_of_a_domain_takes_what_is_its_own_and_waits_for_nobody_elsewhere(
    db: Session, session: Open, prepare: Any
) -> None:
    ids = [uuid4() for _ in range(3)]
    db.domain = OTHER
    await prepare(db, ids)
    db.domain = DOMAIN
    await ended(db, ids)
    before = await of_the_other(db), await replies_of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    assert await counted(db) == ALL
    assert await run(db) == ALL
    assert (await of_the_other(db), await replies_of_the_other(db)) == before
    for table in ("command", "batch", "payload_archive", "reply_inbox"):
        assert await db.rows(
            f"select 1 from commandbus.command_bus_{table} where domain = %s", DOMAIN
        ) == []  # fmt: skip
    assert await db.rows(f"select 1 from pgmq.a_{DOMAIN}__commands") == []
