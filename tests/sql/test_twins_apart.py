"""The same id in two domains: what is done in one neither changes nor waits for the other.

While something is done in ours, somebody holds every row of the other domain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session

OTHER = "orders"
PARKED = "IN_TROUBLESHOOTING_QUEUE"
ROWS = ("batch", "command", "dispatch", "payload_archive", "troubleshooting", "failure_group")

#: Brings a command there in the session's domain; returns its lease, if there is one.
Prepare = Callable[[Session, UUID], Awaitable[Held | None]]
Act = Callable[[Session, UUID, Held | None], Awaitable[Any]]


async def sent(db: Session, command_id: UUID) -> None:
    await db.send(command_id)


async def leased_in_a_batch(db: Session, command_id: UUID) -> Held:
    await db.send(command_id, batch_id=await db.batch())
    (held,) = await db.receive()
    return held


async def parked(db: Session, command_id: UUID) -> Held:
    held = await leased_in_a_batch(db, command_id)
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    return held


async def parked_with_payload(db: Session, command_id: UUID) -> Held:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    return await parked(db, command_id)


async def failed(db: Session, command_id: UUID) -> Held:
    held = await leased_in_a_batch(db, command_id)
    await db.settle("fail", held.item(**FAILURE))
    return held


def stored(pattern: str) -> Prepare:
    async def prepare(db: Session, command_id: UUID) -> None:
        item = {"command_id": str(command_id), "type": "Debit", "data": {"in": db.domain}}
        await db.value(
            "select commandbus.create_stored_batch(%s, %s, %s, 'b', null, 'ann', null, false, %s)",
            db.domain, uuid4(), Jsonb([item]), pattern,
        )  # fmt: skip

    return prepare


def calls(query: str) -> Act:
    """A function that takes a domain and ids."""
    return lambda db, command_id, _: db.rows(f"select commandbus.{query}", DOMAIN, [command_id])


async def adopt(db: Session, command_id: UUID, _: Held | None) -> None:
    rows = await db.rows(
        "select verdict from commandbus.adopt_messages(%s, %s)",
        DOMAIN, Jsonb([{"command_id": str(command_id)}]),
    )  # fmt: skip
    assert [row["verdict"] for row in rows] == ["adopted"]


async def recover(db: Session, *_: Any) -> None:
    (row,) = await db.rows("select * from commandbus.recover_dispatch(%s, interval '0')", DOMAIN)
    assert row["queued"] == 1


async def read_messages(db: Session, command_id: UUID, _: Held | None) -> None:
    rows = await db.rows("select * from commandbus.stored_messages(%s, %s)", DOMAIN, [command_id])
    assert len(rows) == 1
    assert DOMAIN in rows[0]["message"]


async def edit(db: Session, command_id: UUID, lease: Held | None) -> None:
    assert lease is not None
    change = {"data": {"n": 9}, "previous_msg_id": lease.msg_id, "changes": {}}
    await db.rows(
        "update commandbus.command_bus_command set msg_id = msg_id + 1 where domain = %s", OTHER
    )
    await db.rows(
        "select commandbus.operator_retry(%s, %s, 'ann', true, true, %s)",
        DOMAIN, [command_id], Jsonb({str(command_id): change}),
    )  # fmt: skip


def settle(kind: str, **more: Any) -> Act:
    """One outcome, in a mixed group."""

    async def act(db: Session, _: UUID, lease: Held | None) -> None:
        assert lease is not None
        document = {kind: [lease.item(**more)], "send": []}
        stale = await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(document))
        assert stale == []

    return act


CASES: dict[str, tuple[Prepare, Act, str, int]] = {
    # what is there, what is done, the state it ends in, how many messages are queued then
    "cancel": (sent, calls("cancel_commands(%s, %s, 'why')"), "CANCELED", 0),
    "cancel stored": (stored("two_phase"), calls("cancel_commands(%s, %s, 'why')"), "CANCELED", 0),
    "request": (leased_in_a_batch, calls("request_cancel(%s, %s, 'why')"), "IN_PROGRESS", 1),
    "request stored": (
        stored("two_phase"), calls("request_cancel(%s, %s, 'why')"), "CANCELED", 0,
    ),
    "operator cancel": (parked, calls("operator_cancel(%s, %s, 'why')"), "CANCELED", 0),
    "operator complete": (parked, calls("operator_complete(%s, %s)"), "COMPLETED", 0),
    "operator retry": (parked, calls("operator_retry(%s, %s)"), "PENDING", 1),
    "retry archived": (parked_with_payload, calls("operator_retry(%s, %s)"), "PENDING", 1),
    "complete": (leased_in_a_batch, settle("complete", data=None), "COMPLETED", 0),
    "fail": (leased_in_a_batch, settle("fail", **FAILURE), "FAILED", 0),
    "release": (leased_in_a_batch, settle("release"), "PENDING", 1),
    "snooze": (leased_in_a_batch, settle("snooze", delay_seconds=0), "PENDING", 1),
    "discard": (leased_in_a_batch, settle("discard", reason="void"), "CANCELED", 0),
    "retry": (leased_in_a_batch, settle("retry", delay_seconds=0, **FAILURE), "PENDING", 1),
    "park": (leased_in_a_batch, settle("park", reason="PERMANENT", **FAILURE), PARKED, 0),
    "queue": (
        stored("two_phase"), calls("queue_stored(%s, %s, array['pending_queue'])"), "PENDING", 1,
    ),
    "mark": (stored("two_phase"), calls("mark_dispatched(%s, %s)"), "PENDING", 0),
    "mark failed": (stored("two_phase"), calls("mark_dispatch_failed(%s, %s, 'x')"), "PENDING", 0),
    "give up": (stored("two_phase"), calls("mark_dispatch_failed(%s, %s, 'x', 1)"), "FAILED", 0),
    "adopt": (stored("two_phase"), adopt, "PENDING", 1),
    "recover": (stored("two_phase"), recover, "PENDING", 1),
    "recover optimistic": (stored("optimistic"), recover, "PENDING", 1),
    "read messages": (stored("two_phase"), read_messages, "PENDING", 0),
}  # fmt: skip


async def in_both(db: Session, prepare: Prepare) -> tuple[UUID, Held | None]:
    """The same id in both domains; returns it, and its lease in ours."""
    command_id = uuid4()
    db.domain = OTHER
    await prepare(db, command_id)
    db.domain = DOMAIN
    return command_id, await prepare(db, command_id)


async def of_the_other(db: Session) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table in (*ROWS, "audit"):
        found[table] = await db.rows(
            f"select * from commandbus.command_bus_{table} t where domain = %s order by t::text",
            OTHER,
        )
    for kind in "qa":
        found[kind] = await db.rows(
            f"select msg_id, vt::text, message from pgmq.{kind}_{OTHER}__commands order by msg_id"
        )
    return found


async def hold_all_rows(blocker: Session) -> None:
    for table in ROWS:
        await blocker.rows(
            f"select 1 from commandbus.command_bus_{table} where domain = %s for update", OTHER
        )


@pytest.mark.parametrize("case", CASES)
async def test_what_is_done_in_one_domain_leaves_the_twin_in_the_other_alone(
    db: Session, session: Open, case: str
) -> None:
    prepare, act, status, queued = CASES[case]
    command_id, lease = await in_both(db, prepare)
    before = await of_the_other(db)
    await hold_all_rows(await session())
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    await act(db, command_id, lease)
    assert await db.status(command_id) == status
    assert len(await db.queued()) == queued
    assert await of_the_other(db) == before


async def test_an_edit_is_compared_with_the_payload_of_its_own_domain(db: Session) -> None:
    command_id, lease = await in_both(db, parked)
    await edit(db, command_id, lease)
    (message,) = await db.queued()
    assert message["message"]["data"] == {"n": 9}


async def test_the_batch_of_another_domain_is_not_dispatched(db: Session) -> None:
    await in_both(db, stored("two_phase"))
    batch = await db.value(
        "select batch_id from commandbus.command_bus_batch where domain = %s", OTHER
    )
    number = await db.value(
        "select commandbus.dispatch_commands(%s, %s, array['pending_queue'], 10)", DOMAIN, batch
    )
    assert (number, await db.queued()) == (0, [])


async def test_a_cancel_waits_for_no_message_that_has_the_number_of_the_twin(
    db: Session, session: Open
) -> None:
    command_id, _ = await in_both(db, sent)
    await db.send()
    (_, next_to_it) = await db.queued()
    await db.rows(
        "update commandbus.command_bus_command set msg_id = %s where domain = %s",
        next_to_it["msg_id"], OTHER,
    )  # fmt: skip
    await (await session()).rows(
        f"select 1 from pgmq.q_{DOMAIN}__commands where msg_id = %s for update",
        next_to_it["msg_id"],
    )
    await db.rows("set lock_timeout = '2s'")  # it waits only if it is wrong
    await db.rows("select commandbus.cancel_commands(%s, %s, 'why')", DOMAIN, [command_id])
    assert await db.status(command_id) == "CANCELED"
