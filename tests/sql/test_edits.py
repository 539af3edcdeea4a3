"""What was approved cannot change: digests, edits that wait for a decision, and expiry."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.edits import decided, digest_of, edited, outdated, parked
from tests.sql.helpers import DOMAIN, Session
from tests.sql.tickets import submitted, ticket
from tests.waiting import until

PARKED = "IN_TROUBLESHOOTING_QUEUE"


async def refused(db: Session, match: str, call: Any) -> None:
    """The call is refused, and leaves the transaction of the test as it was."""
    with pytest.raises(psycopg.errors.DatabaseError, match=match):
        async with db.conn.transaction():
            await call
    await db.value("select 1")


async def blocks(db: Session, first: Session, second: Session) -> bool:
    """Whether the second session waits for the first."""
    found = await db.value("select pg_blocking_pids(%s)", second.conn.info.backend_pid)
    return first.conn.info.backend_pid in found


async def events(db: Session, of: UUID) -> list[str]:
    rows = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        of,
    )
    return [row["event_type"] for row in rows]


async def approve(db: Session, ticket_id: UUID, digest: str | None = None) -> None:
    await db.rows(
        "select commandbus.decide_ticket(%s, %s, 'approve', 'petra', null, false, %s)",
        db.domain, ticket_id, digest,
    )  # fmt: skip


# -- the digest of a batch


async def test_a_ticket_shows_the_digest_that_the_audit_of_its_decision_has(db: Session) -> None:
    ticket_id = await submitted(db, size=3, requires_approval=True)
    shown = (await ticket(db, ticket_id))["content_digest"]
    assert len(shown) == 64
    await approve(db, ticket_id, shown.upper())
    found = await db.value(
        "select details_json ->> 'digest' from commandbus.command_bus_audit"
        " where event_type = 'BATCH_APPROVED'"
    )
    assert found == shown


async def test_equal_batches_have_different_digests_so_that_no_guess_can_be_proved(
    db: Session,
) -> None:
    first, second = await submitted(db), await submitted(db)
    shown = {(await ticket(db, each))["content_digest"] for each in (first, second)}
    assert len(shown) == 2


async def test_a_decision_about_another_digest_changes_nothing(db: Session) -> None:
    ticket_id = await submitted(db, requires_approval=True)
    await refused(db, "digest given is not that of batch", approve(db, ticket_id, "0" * 64))
    assert (await ticket(db, ticket_id))["status"] == "PENDING_APPROVAL"
    await approve(db, ticket_id)
    await refused(db, "digest given", approve(db, ticket_id, "0" * 64))


@pytest.mark.parametrize(
    "change",
    [
        "update commandbus.command_bus_payload_archive"
        " set payload_json = jsonb_set(payload_json, '{data,n}', '99')",
        "update commandbus.command_bus_payload_archive"
        " set payload_json = jsonb_set(payload_json, '{type}', '\"Other\"')",
        "update commandbus.command_bus_payload_archive"
        " set payload_json = jsonb_set(payload_json, '{domain}', '\"other\"')",
        "update commandbus.command_bus_command set sequence_no = 3 - sequence_no",
        "update commandbus.command_bus_content"
        " set child_digests = array[child_digests[2], child_digests[1]]",
        "update commandbus.command_bus_content set digest = sha256('x')",
        "update commandbus.command_bus_batch set batch_type = 'OTHER'",
        "delete from commandbus.command_bus_content",
    ],
)
async def test_what_was_changed_in_the_rows_is_not_queued(db: Session, change: str) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    await db.rows(change)
    await refused(db, "not what was submitted|do not belong together", approve(db, ticket_id))
    assert await db.receive() == []
    assert (await ticket(db, ticket_id))["decided_at"] is None


async def test_a_child_that_was_canceled_alone_does_not_stop_the_approval_of_the_others(
    db: Session,
) -> None:
    ticket_id = await submitted(db, size=3, requires_approval=True)
    first = await db.value(
        "select command_id from commandbus.command_bus_command where sequence_no = 1"
    )
    await db.rows("select commandbus.cancel_commands(%s, %s, 'x')", db.domain, [first])
    await approve(db, ticket_id)
    assert len(await db.receive(5)) == 2


# -- edits


async def test_an_edited_child_stays_parked_and_its_ticket_waits(db: Session) -> None:
    ticket_id, (held, other) = await parked(db, size=2)
    assert await edited(db, held) == [held.command_id]
    assert await db.status(held.command_id) == PARKED
    assert await db.receive() == []
    shown = await ticket(db, ticket_id)
    assert (shown["status"], shown["edit_count"], shown["failed_count"]) == (
        "PENDING_APPROVAL", 1, 2,
    )  # fmt: skip
    assert (await events(db, held.command_id))[-1] == "EDIT_PROPOSED"
    assert "EDIT_PROPOSED" not in await events(db, other.command_id)


async def test_an_approved_edit_is_sent_with_exactly_that_payload(db: Session) -> None:
    ticket_id, (held,) = await parked(db)
    await edited(db, held, data={"n": 42})
    digest = await digest_of(db, held)
    await decided(db, held, digest=digest)
    assert (await ticket(db, ticket_id))["status"] == "IN_PROGRESS"
    data = await db.value("select commandbus.command_payload(%s, %s)", db.domain, held.command_id)
    assert data == '{"n": 42}'
    assert (await events(db, held.command_id))[-2:] == ["EDIT_APPROVED", "OPERATOR_RETRY"]
    approved = await db.value(
        "select details_json ->> 'digest' from commandbus.command_bus_audit"
        " where event_type = 'EDIT_APPROVED'"
    )
    assert approved == digest
    await refused(db, "no edit of command", decided(db, held, digest=digest))


async def test_a_rejected_edit_leaves_the_old_payload_and_a_reason(db: Session) -> None:
    ticket_id, (held,) = await parked(db)
    await edited(db, held, data={"n": 42})
    await decided(db, held, "reject")
    assert await db.status(held.command_id) == PARKED
    assert (await ticket(db, ticket_id))["status"] == "FAILED"
    await db.rows("select commandbus.operator_retry(%s, %s)", db.domain, [held.command_id])
    data = await db.value("select commandbus.command_payload(%s, %s)", db.domain, held.command_id)
    assert data == '{"n": 0}'
    assert "EDIT_REJECTED" in await events(db, held.command_id)


async def test_nobody_approves_an_edit_unseen(db: Session) -> None:
    _, (held,) = await parked(db)
    await edited(db, held, data={"n": 1})
    first = await digest_of(db, held)
    await refused(db, "needs its digest", decided(db, held))
    await edited(db, held, data={"n": 2}, editor="oskar")
    await refused(db, "digest given is not", decided(db, held, digest=first))
    await refused(db, "digest given is not", decided(db, held, "reject", digest=first))
    replaced = await db.value(
        "select details_json ->> 'replaced' from commandbus.command_bus_audit"
        " where event_type = 'EDIT_PROPOSED' order by audit_id desc limit 1"
    )
    assert replaced == first
    assert await db.value("select edit_count from commandbus.command_bus_batch") == 1


async def test_neither_the_editor_nor_the_owner_decides_about_an_edit(db: Session) -> None:
    _, (held,) = await parked(db, "ada")
    await edited(db, held, editor="olga")
    digest = await digest_of(db, held)
    for self_approval in (False, True):
        call = decided(db, held, user="olga", digest=digest, self_approval=self_approval)
        await refused(db, "made by the same user", call)
    await refused(db, "submitted by the same user", decided(db, held, user="ada", digest=digest))
    await decided(db, held, user="ada", digest=digest, self_approval=True)
    assert await db.status(held.command_id) == "PENDING"


async def test_an_edit_needs_somebody_who_made_it(db: Session) -> None:
    _, (held,) = await parked(db)
    for editor in (None, ""):
        await refused(db, "nobody is named as the operator", edited(db, held, editor=editor))
    bypass = edited(db, held, editor=None, bypass=True)
    await refused(db, "nobody is named as the operator", bypass)


async def test_an_edit_whose_row_was_changed_is_not_sent(db: Session) -> None:
    _, (held,) = await parked(db)
    await edited(db, held)
    digest = await digest_of(db, held)
    await db.rows("update commandbus.command_bus_edit set data = '{\"n\": 66}'")
    await refused(db, "not what was proposed", decided(db, held, digest=digest))


@pytest.mark.parametrize(
    "verb", ["operator_retry(%s, %s)", "operator_cancel(%s, %s, 'x')", "operator_complete(%s, %s)"]
)
async def test_whatever_takes_the_child_out_of_troubleshooting_drops_its_edit(
    db: Session, verb: str
) -> None:
    _, (held, _) = await parked(db, size=2)
    await edited(db, held)
    await db.rows(f"select commandbus.{verb}", db.domain, [held.command_id])
    assert await db.value("select count(*) from commandbus.command_bus_edit") == 0
    assert await db.value("select edit_count from commandbus.command_bus_batch") == 0
    assert "EDIT_DROPPED" in await events(db, held.command_id)
    await refused(db, "no edit of command", decided(db, held, "reject"))


async def test_a_retry_of_the_ticket_drops_edits_too(db: Session) -> None:
    ticket_id, (held,) = await parked(db)
    await edited(db, held)
    await db.rows("select * from commandbus.retry_ticket(%s, %s, 9, 'ada')", db.domain, ticket_id)
    assert (await ticket(db, ticket_id))["status"] == "IN_PROGRESS"
    assert await db.value("select count(*) from commandbus.command_bus_edit") == 0


async def test_a_bypass_is_sent_at_once_and_the_audit_says_so(db: Session) -> None:
    _, (held,) = await parked(db)
    await edited(db, held, bypass=True)
    assert await db.status(held.command_id) == "PENDING"
    assert (await events(db, held.command_id))[-2:] == ["GOVERNANCE_BYPASSED", "OPERATOR_RETRY"]


async def test_an_edit_outside_of_governed_batches_needs_no_approval(db: Session) -> None:
    held = await db.put(PARKED)
    await edited(db, held, editor=None)
    assert await db.status(held.command_id) == "PENDING"


async def test_an_edit_made_from_an_older_message_is_refused(db: Session) -> None:
    _, (held,) = await parked(db)
    await db.rows("update commandbus.command_bus_command set msg_id = msg_id + 1")
    await refused(db, "sent again since its payload was read", edited(db, held))


async def test_a_group_with_both_kinds_sends_one_and_keeps_the_other(db: Session) -> None:
    _, (child,) = await parked(db)
    plain = await db.put(PARKED)
    assert set(await edited(db, child, plain)) == {child.command_id, plain.command_id}
    assert await db.status(child.command_id) == PARKED
    assert await db.status(plain.command_id) == "PENDING"


async def test_a_bulk_edit_proposes_too(db: Session) -> None:
    _, (held,) = await parked(db)
    bulk = await db.value(
        "select commandbus.start_bulk(gen_random_uuid(), %s, 'retry', '{}',"
        ' \'{"edit": {"merge": {"n": 9}, "paths": ["data.n"]}}\', null, \'olga\', true)',
        db.domain,
    )
    edits = {
        "first": 1, "same": [], "refused": {},
        "edits": {
            str(held.command_id): {
                "data": {"n": 9}, "previous_msg_id": held.msg_id, "changes": {"paths": ["data.n"]},
            }
        },
    }  # fmt: skip
    (row,) = await db.rows(
        "select * from commandbus.run_bulk_chunk(%s, 10, 'here', %s)", bulk, Jsonb(edits)
    )
    assert row["acted"] == 1
    assert await db.status(held.command_id) == PARKED
    assert await db.value("select editor from commandbus.command_bus_edit") == "olga"


# -- expiry


async def test_a_batch_that_nobody_decided_about_ends_with_an_event(db: Session) -> None:
    ticket_id = await submitted(db, size=2, requires_approval=True)
    await outdated(db)
    await refused(db, "has expired", approve(db, ticket_id))
    (row,) = await db.rows("select * from commandbus.expired_decisions(10)")
    assert (row["domain"], row["batch_id"], row["command_id"]) == (db.domain, ticket_id, None)
    expire = "select commandbus.expire_ticket(%s, %s)"
    assert [await db.value(expire, db.domain, ticket_id) for _ in range(2)] == [True, False]
    shown = await ticket(db, ticket_id)
    assert (shown["status"], shown["decided_by"]) == ("CANCELED", None)
    assert "in time" in shown["decision_reason"]
    (event,) = await db.rows(
        "select actor, details_json from commandbus.command_bus_audit"
        " where event_type = 'BATCH_EXPIRED'"
    )
    assert event["actor"] is None
    await refused(db, "it has expired", approve(db, ticket_id))


async def test_an_edit_that_nobody_decided_about_is_dropped_with_an_event(db: Session) -> None:
    ticket_id, (held,) = await parked(db)
    await edited(db, held)
    digest = await digest_of(db, held)
    await outdated(db)
    await refused(db, "has expired", decided(db, held, digest=digest))
    (row,) = await db.rows("select * from commandbus.expired_decisions(10)")
    assert row["command_id"] == held.command_id
    expire = "select commandbus.expire_edit(%s, %s)"
    assert [await db.value(expire, db.domain, held.command_id) for _ in range(2)] == [True, False]
    assert await db.status(held.command_id) == PARKED
    assert (await ticket(db, ticket_id))["status"] == "FAILED"
    assert (await events(db, held.command_id))[-1] == "EDIT_EXPIRED"


async def test_what_is_not_due_or_is_decided_does_not_expire(db: Session) -> None:
    young = await submitted(db, requires_approval=True)
    old = await submitted(db, requires_approval=True)
    await approve(db, old)
    await db.rows(
        "update commandbus.command_bus_content set expires_at = case when batch_id = %s"
        " then now() + interval '1 hour' else now() - interval '1 hour' end",
        young,
    )
    assert await db.rows("select * from commandbus.expired_decisions(10)") == []
    for each in (young, old):
        assert await db.value("select commandbus.expire_ticket(%s, %s)", db.domain, each) is False


async def test_what_expires_is_no_longer_listed_as_undecided(db: Session) -> None:
    await submitted(db, requires_approval=True)
    _, (held,) = await parked(db)
    await edited(db, held)
    page = "select * from commandbus.page_undecided(%s, %s, null, null, 10)"
    assert [row["editor"] for row in await db.rows(page, None, False)] == [None, "olga"]
    assert [row["editor"] for row in await db.rows(page, [DOMAIN], True)] == ["olga", None]
    assert await db.rows(page, ["other"], False) == []
    await outdated(db)
    assert await db.rows(page, None, False) == []


# -- locks


async def test_a_cancel_that_waited_for_an_approval_does_not_meet_the_receiver_in_a_circle(
    db: Session, session: Open
) -> None:
    ticket_id = await submitted(db, requires_approval=True)
    child = await db.value("select command_id from commandbus.command_bus_command")
    # A second command that is locked after the child, and holds the cancel between two locks.
    (later,) = await db.send(UUID(int=2**128 - 1))
    blocker, approver = await session(), await session()
    canceler, receiver = await session(), await session()
    await blocker.rows(
        "select 1 from commandbus.command_bus_command where command_id = %s for update", later
    )
    await approve(approver, ticket_id)
    cancel = asyncio.create_task(
        canceler.rows(
            "select commandbus.cancel_commands(%s, %s, 'x', 'ada', false) as id",
            db.domain,
            [child, later],
        )
    )
    await db.until_blocked(canceler)
    await approver.conn.commit()
    await until(lambda: blocks(db, blocker, canceler), "the cancel waiting for the second command")
    receive = asyncio.create_task(receiver.receive())
    await db.until_blocked(receiver)
    await blocker.conn.rollback()
    (held,) = await receive
    await receiver.conn.commit()
    canceled = await cancel
    await canceler.conn.commit()
    assert held.command_id == child
    assert [row["id"] for row in canceled] == [later]
