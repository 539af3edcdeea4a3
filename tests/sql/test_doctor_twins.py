"""The doctor, when another domain has the same ids: each fault is where it is, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.upkeep.findings import FINDINGS
from tests.sql.clones import clone
from tests.sql.conftest import Open
from tests.sql.faults import INJECTED, SURROUNDINGS, healthy
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_twins_apart import OTHER, hold_all_rows, of_the_other

#: Of the whole server, or of a domain of its own.
ELSEWHERE = {"AUDIT_UNPROTECTED", "QUEUE_UNLOGGED", "QUEUE_MISSING"}
FAULTS_OF_A_DOMAIN = [inject for inject, code in INJECTED.items() if code not in ELSEWHERE]
REPAIRED = [inject for inject in FAULTS_OF_A_DOMAIN if FINDINGS[INJECTED[inject]].repair]


async def found(db: Session, domain: str | None) -> list[tuple[str, str, int]]:
    rows = await db.rows("select * from commandbus.doctor(%s)", domain)
    return [
        (row["code"], row["domain"], row["found"])
        for row in rows
        if row["code"] not in SURROUNDINGS
    ]


async def test_each_fault_is_found_in_its_own_domain_and_in_no_other(db: Session) -> None:
    made = await healthy(db)
    await clone(db, OTHER)
    assert await found(db, None) == []
    for inject in FAULTS_OF_A_DOMAIN:
        async with db.conn.transaction(force_rollback=True):
            await inject(db, made)
            expected = [(INJECTED[inject], DOMAIN, 1)]
            assert await found(db, None) == expected, inject.__name__
            assert await found(db, DOMAIN) == expected, inject.__name__
            assert await found(db, OTHER) == [], inject.__name__


@pytest.mark.parametrize("inject", REPAIRED, ids=lambda inject: inject.__name__)
async def test_a_repair_leaves_the_other_domain_alone_and_does_not_wait_for_it(
    db: Session, session: Open, inject: Any
) -> None:
    made = await healthy(db)
    await clone(db, OTHER)
    await inject(db, made)
    before = await of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    repair = FINDINGS[INJECTED[inject]].repair
    assert await db.rows(f"select commandbus.{repair}(%s)", OTHER) == []
    assert len(await db.rows(f"select commandbus.{repair}(%s)", DOMAIN)) == 1
    assert await found(db, None) == []
    assert await of_the_other(db) == before


#: Workers are no copy of each other: they have ids of their own.
COPIED = [inject for inject in REPAIRED if INJECTED[inject] != "WORKER_SILENT"]


@pytest.mark.parametrize("inject", COPIED, ids=lambda inject: inject.__name__)
async def test_of_two_domains_with_the_same_fault_one_is_repaired(
    db: Session, session: Open, inject: Any
) -> None:
    await inject(db, await healthy(db))
    await clone(db, OTHER)
    before = await of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    code = INJECTED[inject]
    assert len(await db.rows(f"select commandbus.{FINDINGS[code].repair}(%s)", DOMAIN)) == 1
    assert await found(db, None) == [(code, OTHER, 1)]
    assert await of_the_other(db) == before


@pytest.mark.parametrize(
    ("status", "table", "code"),
    [
        ("PENDING", "q", "PAYLOAD_LOST"),
        ("IN_TROUBLESHOOTING_QUEUE", "a", "PARKED_WITHOUT_PAYLOAD"),
    ],
)
async def test_the_payload_of_the_twin_is_not_that_of_a_command_that_has_lost_its_own(
    db: Session, status: str, table: str, code: str
) -> None:
    command_id = (await db.put(status)).command_id
    await clone(db, OTHER)
    await db.rows(
        "insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)"
        " values (%s, %s, '{}')",
        OTHER, command_id,
    )  # fmt: skip
    await db.rows(f"delete from pgmq.{table}_{DOMAIN}__commands")
    assert await found(db, None) == [(code, DOMAIN, 1)]


async def test_a_reply_that_is_missed_is_a_fault_of_the_domain_of_its_command(db: Session) -> None:
    await db.put("COMPLETED")
    await db.rows(f"update pgmq.q_{DOMAIN}__replies set enqueued_at = now() - interval '1 hour'")
    db.domain = OTHER
    (command_id,) = await db.send(reply_to=f"{DOMAIN}.replies")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    await db.rows(
        f"delete from pgmq.q_{DOMAIN}__replies where message ->> 'command_id' = %s", str(command_id)
    )
    assert await found(db, None) == [("REPLY_MISSING", OTHER, 1)]
    assert await found(db, DOMAIN) == []


async def test_the_reply_of_a_twin_in_the_same_queue_is_not_the_one_that_is_missed(
    db: Session,
) -> None:
    command_id = (await db.put("COMPLETED")).command_id
    await db.rows(f"delete from pgmq.q_{DOMAIN}__replies")
    db.domain = OTHER
    await db.send(command_id, reply_to=f"{DOMAIN}.replies")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=None))
    await db.rows(f"update pgmq.q_{DOMAIN}__replies set enqueued_at = now() - interval '1 hour'")
    assert await found(db, None) == [("REPLY_MISSING", DOMAIN, 1)]
