"""What each outcome does to the queue, the reply, the batch and the audit, together."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Session


def counters(row: dict[str, Any]) -> dict[str, int]:
    names = ("completed", "failed", "canceled", "in_troubleshooting")
    return {name: row[f"{name}_count"] for name in names if row[f"{name}_count"]}


async def test_a_completion_deletes_the_message_and_replies_with_the_result(db: Session) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("complete", held.item(data={"ok": [1]}))
    assert await db.queued() == []
    assert await db.archived() == []
    (reply,) = await db.replies(held.command_id)
    row = await db.command(held.command_id)
    assert reply.pop("completed_at").endswith("Z")
    assert reply == {
        "command_id": str(held.command_id), "correlation_id": str(row["correlation_id"]),
        "domain": DOMAIN, "type": "DebitResponse", "outcome": "SUCCESS", "data": {"ok": [1]},
        "error": None,
    }  # fmt: skip
    assert await db.events(held.command_id) == ["SENT", "RECEIVED", "COMPLETED"]
    found = await db.batch_row(batch)
    assert (found["status"], counters(found)) == ("COMPLETED", {"completed": 1})


async def test_a_retry_keeps_the_message_and_hides_it_for_the_delay(db: Session) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("retry", held.item(delay_seconds=600, **FAILURE))
    (message,) = await db.queued()
    assert message["msg_id"] == held.msg_id
    delay = await db.value(
        f"select extract(epoch from vt - clock_timestamp())::float from pgmq.q_{DOMAIN}__commands"
    )
    assert 500 < delay <= 600
    row = await db.command(held.command_id)
    assert (row["last_error_type"], row["last_error_code"], row["last_error_msg"]) == (
        "TRANSIENT", "BUSY", "later",
    )  # fmt: skip
    assert await db.replies(held.command_id) == []
    assert (await db.events(held.command_id))[2:] == ["FAILED"]
    assert await db.details(held.command_id, "FAILED") == {
        "attempt": 1, "class": "TRANSIENT", "code": "BUSY", "message": "later",
        "details": {"hint": "x"}, "retry_in_seconds": 600,
    }  # fmt: skip
    assert counters(await db.batch_row(batch)) == {}


async def test_retries_of_a_group_wait_each_for_its_own_delay(db: Session) -> None:
    await db.send(uuid4(), uuid4())
    now, later = await db.receive()
    await db.settle(
        "retry",
        later.item(delay_seconds=600, **FAILURE),
        now.item(delay_seconds=0, **FAILURE),
    )
    assert [h.command_id for h in await db.receive()] == [now.command_id]


async def test_a_parked_command_waits_in_the_archive_without_a_reply(db: Session) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("park", held.item(reason="PERMANENT", **FAILURE))
    assert await db.queued() == []
    assert await db.archived() == [held.msg_id]
    assert await db.replies(held.command_id) == []
    (waiting,) = await db.rows("select * from commandbus.command_bus_troubleshooting")
    assert (waiting["command_id"], waiting["reason"]) == (held.command_id, "PERMANENT")
    assert (await db.events(held.command_id))[2:] == ["FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE"]
    found = await db.batch_row(batch)
    assert (found["status"], counters(found)) == ("IN_PROGRESS", {"in_troubleshooting": 1})


async def test_a_failure_for_good_archives_the_message_and_replies_with_the_error(
    db: Session,
) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("fail", held.item(**FAILURE))
    assert await db.queued() == []
    assert await db.archived() == [held.msg_id]
    (reply,) = await db.replies(held.command_id)
    assert (reply["outcome"], reply["data"]) == ("FAILED", None)
    assert reply["error"] == {"code": "BUSY", "message": "later", "class": "TRANSIENT"}
    assert (await db.events(held.command_id))[2:] == ["FAILED", "GIVEN_UP"]
    found = await db.batch_row(batch)
    assert (found["status"], counters(found)) == ("COMPLETED_WITH_FAILURES", {"failed": 1})


async def test_a_release_gives_the_attempt_back_and_shows_the_message_at_once(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.settle("release", held.item())
    assert (await db.command(held.command_id))["attempts"] == 0
    assert await db.replies(held.command_id) == []
    assert (await db.events(held.command_id))[2:] == ["RELEASED"]
    (again,) = await db.receive()
    assert (again.row["attempt"], again.lease_epoch) == (1, 2)
    assert not again.row["is_suspect"]


async def test_a_snooze_gives_the_attempt_back_and_hides_the_message_for_the_delay(
    db: Session,
) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("snooze", held.item(delay_seconds=600, reason="too early"))
    (message,) = await db.queued()
    assert message["msg_id"] == held.msg_id
    delay = await db.value(
        f"select extract(epoch from vt - clock_timestamp())::float from pgmq.q_{DOMAIN}__commands"
    )
    assert 500 < delay <= 600
    row = await db.command(held.command_id)
    assert (row["attempts"], row["snoozes"], row["lapses"]) == (0, 1, 0)
    assert await db.replies(held.command_id) == []
    assert (await db.events(held.command_id))[2:] == ["SNOOZED"]
    assert counters(await db.batch_row(batch)) == {}


async def test_a_discard_archives_the_message_and_replies_with_the_reason(db: Session) -> None:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)
    await db.settle("discard", held.item(reason="void"))
    assert (await db.queued(), await db.archived()) == ([], [held.msg_id])
    (reply,) = await db.replies(held.command_id)
    assert (reply["outcome"], reply["data"]) == ("CANCELED", None)
    assert reply["error"] == {"code": "DISCARDED", "message": "void", "class": "CANCELED"}
    assert (await db.events(held.command_id))[2:] == ["DISCARDED"]
    assert await db.details(held.command_id, "DISCARDED") == {"reason": "void"}
    found = await db.batch_row(batch)
    assert (found["status"], counters(found)) == ("COMPLETED_WITH_FAILURES", {"canceled": 1})


async def test_no_reply_is_published_when_nobody_wants_one(db: Session) -> None:
    await db.send(reply_to="")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=1))
    assert await db.status(held.command_id) == "COMPLETED"
    assert await db.queued("replies") == []


async def test_a_reply_for_a_caller_that_waits_goes_to_the_inbox_and_is_taken_once(
    db: Session,
) -> None:
    await db.send(reply_to="@inbox")
    (held,) = await db.receive()
    await db.settle("complete", held.item(data=1))
    assert await db.queued("replies") == []
    take = "select commandbus.take_inbox_reply(%s, %s)"
    assert '"SUCCESS"' in await db.value(take, DOMAIN, held.command_id)
    assert await db.value(take, DOMAIN, held.command_id) is None


async def test_replies_of_a_group_go_each_to_its_own_queue(db: Session) -> None:
    first, second = uuid4(), uuid4()
    await db.send(first)
    await db.send(second, reply_to="shared.replies")
    await db.settle("complete", *(h.item(data=None) for h in await db.receive()))
    assert len(await db.replies(first)) == 1
    shared = await db.rows("select message from pgmq.q_shared__replies")
    assert [row["message"]["command_id"] for row in shared] == [str(second)]


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_an_outcome_is_undone_when_its_reply_cannot_be_published(
    db: Session, verb: str
) -> None:
    held = await db.put("IN_PROGRESS")
    await db.rows(f"alter table pgmq.q_{DOMAIN}__replies add check (false) not valid")
    before = await db.everything()
    with pytest.raises(psycopg.errors.CheckViolation):
        await db.settle(verb, held.item(data=None, **FAILURE))
    assert await db.everything() == before
    assert await db.status(held.command_id) == "IN_PROGRESS"


async def test_mixed_outcomes_are_settled_in_one_call(db: Session) -> None:
    kinds = ["complete", "retry", "park", "fail", "release", "snooze", "discard"]
    ids = await db.send(*(uuid4() for _ in kinds))
    held = {h.command_id: h for h in await db.receive()}
    items: dict[str, dict[str, Any]] = {
        "complete": {"data": 1}, "retry": {"delay_seconds": 60, **FAILURE},
        "park": {"reason": "PERMANENT", **FAILURE}, "fail": FAILURE, "release": {},
        "snooze": {"delay_seconds": 60}, "discard": {"reason": "void"},
    }  # fmt: skip
    document = {kind: [held[i].item(**items[kind])] for kind, i in zip(kinds, ids, strict=True)}
    assert await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, Jsonb(document)) == []
    assert [await db.status(i) for i in ids] == [
        "COMPLETED", "PENDING", "IN_TROUBLESHOOTING_QUEUE", "FAILED", "PENDING", "PENDING",
        "CANCELED",
    ]  # fmt: skip


async def test_mixed_outcomes_name_every_lost_lease(db: Session) -> None:
    await db.send(uuid4(), uuid4())
    one, two = await db.receive()
    await db.lapse(one, two)
    await db.receive(worker="w2")
    document = {
        "complete": [one.item(data=1)],
        "park": [two.item(reason="PERMANENT", **FAILURE)],
    }
    stale = await db.rows(
        "select commandbus.settle_commands(%s, %s) as id", DOMAIN, Jsonb(document)
    )
    assert {row["id"] for row in stale} == {one.command_id, two.command_id}


def _sending(held: Any, *commands: dict[str, Any], epoch: int | None = None) -> Jsonb:
    return Jsonb(
        {
            "complete": [held.item(data=None)],
            "send": [
                {
                    "by": str(held.command_id),
                    "lease_epoch": held.lease_epoch if epoch is None else epoch,
                    "domain": "orders",
                    "commands": list(commands),
                }
            ],
        }
    )


async def test_what_a_handler_sends_goes_out_with_its_outcome(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    child = uuid4()
    document = _sending(held, {"command_id": str(child), "type": "Ship"})
    await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, document)
    assert await db.status(held.command_id) == "COMPLETED"
    assert await db.value("select array_agg(d) from commandbus.find_domains(%s) d", child) == [
        "orders"
    ]


async def test_what_a_handler_sends_stays_when_its_lease_is_lost(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    await db.lapse(held)
    await db.receive(worker="w2")
    child = uuid4()
    document = _sending(held, {"command_id": str(child), "type": "Ship"})
    stale = await db.rows("select commandbus.settle_commands(%s, %s) as id", DOMAIN, document)
    assert [row["id"] for row in stale] == [held.command_id]
    assert await db.rows("select commandbus.find_domains(%s)", child) == []


async def test_a_group_is_undone_when_a_handler_sends_a_duplicate(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    child = uuid4()
    db.domain = "orders"
    await db.send(child)
    db.domain = DOMAIN
    before = await db.everything()
    document = _sending(held, {"command_id": str(child), "type": "Ship"})
    with pytest.raises(psycopg.Error) as info:
        await db.rows("select commandbus.settle_commands(%s, %s)", DOMAIN, document)
    assert info.value.sqlstate == "CB001"
    assert await db.everything() == before


async def test_a_parked_payload_is_kept_apart_when_the_setting_says_so(db: Session) -> None:
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows(f"delete from pgmq.a_{DOMAIN}__commands")
    assert await db.value("select commandbus.command_payload(%s, %s)", DOMAIN, held.command_id)
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [held.command_id])
    (again,) = await db.receive()
    assert again.row["data"] == '{"n": 0}'


async def test_a_parked_payload_is_not_kept_apart_by_default(db: Session) -> None:
    await db.put("IN_TROUBLESHOOTING_QUEUE")
    assert await db.rows("select * from commandbus.command_bus_payload_archive") == []


async def test_a_late_result_in_a_group_keeps_the_message_of_its_successor(db: Session) -> None:
    late, held = await db.put("IN_PROGRESS"), await db.put("IN_PROGRESS")
    await db.lapse(late)
    (successor,) = await db.receive(worker="w2")
    stale = await db.settle("complete", held.item(data=1), late.item(data=1))
    assert stale == [late.command_id]
    assert await db.status(held.command_id) == "COMPLETED"
    assert len(await db.replies(held.command_id)) == 1
    assert (await db.events(held.command_id)).count("COMPLETED") == 1
    assert [m["msg_id"] for m in await db.queued()] == [successor.msg_id]
    assert await db.settle("complete", successor.item(data=2)) == []
    assert await db.queued() == []


async def test_a_message_that_is_gone_does_not_keep_a_command_from_completing(
    db: Session,
) -> None:
    held = await db.put("IN_PROGRESS")
    await db.rows(f"select pgmq.purge_queue('{DOMAIN}__commands')")
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.status(held.command_id) == "COMPLETED"


async def test_a_command_that_was_given_another_message_takes_that_one_with_it(
    db: Session,
) -> None:
    held = await db.put("IN_PROGRESS")
    await db.rows(f"select pgmq.archive('{DOMAIN}__commands', %s::bigint)", held.msg_id)
    await db.rows("select commandbus.repair_lost_messages(%s)", DOMAIN)
    assert len(await db.queued()) == 1
    # the worker knows only the message that was lost
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.queued() == []


async def test_a_transaction_that_is_left_open_after_its_outcome_is_ended_by_the_server(
    db: Session, session: Open
) -> None:
    """A paused process would hold the row of the batch, and with it all others of the batch."""
    batch = await db.batch()
    own, other = await db.put("IN_PROGRESS", batch), await db.put("IN_PROGRESS", batch)
    paused = await session()
    document = Jsonb({"complete": [own.item(data=1)]})
    await paused.rows("select commandbus.settle_own(%s, %s)", DOMAIN, document)
    assert await db.settle("complete", other.item(data=2)) == []  # waits, and not for long
    assert await db.status(own.command_id) == "IN_PROGRESS"
    assert counters(await db.batch_row(batch)) == {"completed": 1}
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        await paused.rows("commit")


async def test_the_limit_of_an_open_transaction_ends_with_it(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    shown = "select current_setting('idle_in_transaction_session_timeout')"
    async with db.conn.transaction():
        document = Jsonb({"complete": [held.item(data=1)]})
        await db.rows("select commandbus.settle_own(%s, %s)", DOMAIN, document)
        assert await db.value(shown) == "2s"
    assert await db.value(shown) == "0"
