"""What becomes of a command whose handler fails, or which cannot be handled at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    Fail,
    HandlerContext,
    LeaseLostError,
    PermanentCommandError,
    ReplyOutcome,
    RetryPolicy,
    TransientCommandError,
)
from tests.integration.looking import (
    Conn,
    another_bus,
    complete_as_other,
    events,
    lapse,
    look,
    replies,
    rows,
    seize,
    send,
    send_some,
    until_count,
    until_queue_is_empty,
    value,
)
from tests.waiting import until, until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
SOON = RetryPolicy(max_attempts=2, backoff_schedule=(0,))


async def delays(bus: CommandBus, command_id: Any) -> list[float | None]:
    """The pause after each failed attempt, as the audit has it."""
    return [
        (event.details or {}).get("retry_in_seconds")
        for event in await bus.get_audit_trail(command_id)
        if event.event_type == "FAILED"
    ]


# -- what handlers return and raise


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_result_that_is_no_json_is_parked_and_not_tried_again(
    bus: CommandBus, transactional: bool
) -> None:
    calls: list[int] = []

    @bus.handler("shop", "Work", transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> object:
        calls.append(ctx.attempt)
        return {"when": object()}

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)

    assert calls == [1]
    assert row.last_error_code == "INVALID_RESULT"
    assert "the handler's result.when" in (row.last_error_msg or "")
    assert await replies(bus) == []


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), LeaseLostError("mine")])
@pytest.mark.parametrize("transactional", [False, True])
async def test_whatever_a_handler_raises_is_a_failure_and_the_worker_lives(
    bus: CommandBus, error: BaseException, transactional: bool
) -> None:
    """Not even what usually ends a program, a task or a lease."""
    attempts: list[int] = []

    @bus.handler("shop", "Work", retry_policy=SOON, transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> None:
        attempts.append(ctx.attempt)
        raise error

    @bus.handler("shop", "Fine")
    async def fine(command: Command, ctx: HandlerContext) -> str:
        return "fine"

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
        assert (await bus.call("shop", "Fine", {})).data == "fine"

    assert attempts == [1, 2]
    assert row.last_error_code == type(error).__name__


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyError("x")])
async def test_whatever_a_sync_handler_raises_is_a_failure(
    bus: CommandBus, error: BaseException
) -> None:
    @bus.handler("shop", "Work", retry_policy=SOON)
    def work(command: Command, ctx: HandlerContext) -> None:
        raise error

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.attempts == 2
    assert row.last_error_type == "TRANSIENT"


async def test_the_pause_after_the_nth_failure_is_the_nth_of_the_schedule(bus: CommandBus) -> None:
    """C6: the last value repeats; the last failure waits for nobody."""
    policy = RetryPolicy(max_attempts=5, backoff_schedule=(0.01, 0.02, 0.03))

    @bus.handler("shop", "Work", retry_policy=policy)
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise TransientCommandError("DOWN", "try again", {"attempt": ctx.attempt})

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)

    assert await delays(bus, sent) == [0.01, 0.02, 0.03, 0.03, None]
    assert (row.attempts, row.last_error_code, row.last_error_msg) == (5, "DOWN", "try again")
    (item,) = await bus.list_troubleshooting("shop")
    assert item.reason == "EXHAUSTED"


async def test_a_retried_command_is_invisible_until_its_pause_is_over(
    bus: CommandBus, conn: Conn
) -> None:
    """The default schedule: ten seconds after the first failure, on the same message."""

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise TransientCommandError("DOWN", "try again")

    sent = await send(bus)
    before = await look(bus, sent)

    async def has_failed() -> bool:
        return "FAILED" in await events(bus, sent)

    async with working(bus, "shop"):
        await until(has_failed)
    row = await look(bus, sent)
    hidden = await value(
        conn,
        "select extract(epoch from q.vt - a.ts) from pgmq.q_shop__commands q"
        " join commandbus.command_bus_audit a on a.event_type = 'FAILED'",
    )
    assert await delays(bus, sent) == [10]
    assert abs(float(hidden) - 10) < 0.001
    assert (row.status, row.msg_id, row.leased_by) == (CommandStatus.PENDING, before.msg_id, None)


async def test_a_permanent_error_is_parked_at_once(bus: CommandBus) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("BROKEN", "will not pass", {"password": "hunter2", "n": 1})

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)

    assert (row.attempts, row.last_error_type, row.last_error_code) == (1, "PERMANENT", "BROKEN")
    (failed,) = [e for e in await bus.get_audit_trail(sent) if e.event_type == "FAILED"]
    assert failed.details is not None
    assert failed.details["details"] == {"password": "[REDACTED]", "n": 1}


@pytest.mark.parametrize("transactional", [False, True])
async def test_errors_that_the_policy_calls_permanent_are_parked_at_once(
    bus: CommandBus, transactional: bool
) -> None:
    policy = RetryPolicy(permanent_errors=(LookupError,))

    @bus.handler("shop", "Work", retry_policy=policy, transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise KeyError("missing")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert (row.attempts, row.last_error_type, row.last_error_code) == (1, "PERMANENT", "KeyError")


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(TransientCommandError("DOWN", "no luck"), 2), (PermanentCommandError("DOWN", "no luck"), 1)],
)
async def test_a_handler_may_end_a_command_as_failed_with_a_reply(
    bus: CommandBus, error: Exception, attempts: int
) -> None:
    """C16: opted in by when_exhausted="fail"; nothing waits for an operator."""
    policy = RetryPolicy(max_attempts=2, backoff_schedule=(0,), when_exhausted="fail")

    @bus.handler("shop", "Work", retry_policy=policy)
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise error

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.FAILED)

    (reply,) = await replies(bus)
    assert reply.outcome is ReplyOutcome.FAILED
    assert reply.error is not None
    assert (reply.error.code, reply.error.message) == ("DOWN", "no luck")
    assert row.attempts == attempts
    assert await bus.list_troubleshooting("shop") == []
    assert (await events(bus, sent))[-1] == "GIVEN_UP"


@pytest.mark.parametrize("kind", ["async", "thread", "transactional"])
async def test_one_command_ends_as_failed_while_others_of_its_handler_are_parked(
    bus: CommandBus, kind: str
) -> None:
    def judge(command: Command, ctx: HandlerContext) -> None:
        if command.data["fails"]:
            raise Fail("EXPIRED", "the card has expired", {"month": 3})
        raise PermanentCommandError("NO_ACCOUNT", "ask somebody")

    async def judge_here(command: Command, ctx: HandlerContext) -> None:
        judge(command, ctx)

    bus.register_handler(
        "shop", "Work", judge if kind == "thread" else judge_here,
        transactional=kind == "transactional",
    )  # fmt: skip
    given_up = await bus.send("shop", "Work", uuid4(), {"fails": True})
    parked = await bus.send("shop", "Work", uuid4(), {"fails": False})
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", given_up, CommandStatus.FAILED)
        await until_status(bus, "shop", parked, PARKED)

    (reply,) = await replies(bus)
    assert (reply.command_id, reply.outcome) == (given_up, ReplyOutcome.FAILED)
    assert reply.error is not None
    assert (reply.error.code, reply.error.error_class) == ("EXPIRED", "PERMANENT")
    assert (row.attempts, row.last_error_code) == (1, "EXPIRED")
    assert (await events(bus, given_up))[-2:] == ["FAILED", "GIVEN_UP"]


async def test_the_number_of_attempts_may_be_given_when_sending(bus: CommandBus) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise TransientCommandError("DOWN", "try again")

    sent = await bus.send("shop", "Work", uuid4(), {}, max_attempts=1)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert (row.attempts, row.max_attempts) == (1, 1)


async def test_the_policy_of_the_worker_wins_over_what_was_stored_at_send(
    bus: CommandBus, dsn: str
) -> None:
    """C14: the sender may be older than the worker."""
    sent = await bus.send("shop", "Work", uuid4(), {}, max_attempts=9)
    async with another_bus(dsn) as workers:

        @workers.handler("shop", "Work", retry_policy=SOON)
        async def work(command: Command, ctx: HandlerContext) -> None:
            assert ctx.max_attempts == 2
            raise TransientCommandError("DOWN", "try again")

        async with working(workers, "shop"):
            row = await until_status(bus, "shop", sent, PARKED)
    assert (row.attempts, row.max_attempts, row.last_error_code) == (2, 2, "DOWN")


# -- what cannot be handled


async def test_a_command_without_a_handler_waits_until_there_is_one(
    bus: CommandBus, dsn: str
) -> None:
    """C9: parked, not lost; a retry works after the deployment that was missing."""
    sent = await send(bus, "Later", n=1)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, PARKED)
    assert row.last_error_code == "HANDLER_NOT_FOUND"

    async with another_bus(dsn) as deployed:

        @deployed.handler("shop", "Later")
        async def later(command: Command, ctx: HandlerContext) -> Any:
            return command.data

        await deployed.operator_retry("shop", sent, operator="ada")
        async with working(deployed, "shop"):
            await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    (reply,) = await replies(bus)
    assert reply.data == {"n": 1}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("""jsonb_set(message, '{data}', '{"n": 1e5000}')""", id="a huge number"),
        pytest.param(
            "jsonb_set(message, '{data}',"
            " (repeat('[', 6000) || repeat(']', 6000))::jsonb)",
            id="a deep array",
        ),
        pytest.param("message - 'data'", id="no data"),
        pytest.param("jsonb_set(message, '{data}', '[1]')", id="not an object"),
        pytest.param("jsonb_set(message, '{data}', 'null')", id="null"),
    ],
)  # fmt: skip
async def test_a_payload_that_cannot_be_decoded_is_parked_alone(
    bus: CommandBus, conn: Conn, change: str
) -> None:
    """Finding 4: one bad payload takes no other of its group with it."""

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        assert command.data["n"] != 3

    ids = await send_some(bus, 7)
    bad = ids[3]
    await conn.execute(
        f"update pgmq.q_shop__commands set message = {change}"
        " where message ->> 'command_id' = %s".encode(),
        (str(bad),),
    )
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", bad, PARKED)
        await until_count(conn, "COMPLETED", 6)

    assert row.last_error_code == "PAYLOAD_UNDECODABLE"
    assert row.attempts == 1
    assert {reply.command_id for reply in await replies(bus)} == {*ids} - {bad}


@pytest.mark.parametrize(
    "message",
    [
        '{"hello": "world"}',
        '"text"',
        "[1, 2]",
        "null",
        '{"command_id": "not a uuid"}',
        '{"command_id": 5}',
        '{"command_id": "6b4e0a53-1d8a-4b6f-93e3-5e4b1b3a0001", "data": {}}',
    ],
)
async def test_a_message_that_is_not_ours_is_archived_and_harms_nobody(
    bus: CommandBus, conn: Conn, message: str
) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    first = await send(bus)
    alien = await value(conn, "select pgmq.send('shop__commands', %s::jsonb)", message)
    last = await send(bus)
    async with working(bus, "shop"):
        await until_status(bus, "shop", first, CommandStatus.COMPLETED)
        await until_status(bus, "shop", last, CommandStatus.COMPLETED)
        await until_queue_is_empty(conn)
    assert await rows(conn, "select msg_id from pgmq.a_shop__commands") == [(alien,)]


@pytest.mark.parametrize("status", ["COMPLETED", "CANCELED", "FAILED", "IN_TROUBLESHOOTING_QUEUE"])
async def test_a_message_of_a_command_that_has_ended_is_archived_unhandled(
    bus: CommandBus, conn: Conn, status: str
) -> None:
    """Lesson 3."""
    calls: list[Any] = []
    policy = RetryPolicy(when_exhausted="fail" if status == "FAILED" else "troubleshoot")

    @bus.handler("shop", "Work", retry_policy=policy)
    async def work(command: Command, ctx: HandlerContext) -> None:
        calls.append(command.command_id)
        if status != "COMPLETED":
            raise PermanentCommandError("BROKEN", "for good")

    sent = await send(bus)
    if status == "CANCELED":
        await bus.cancel("shop", sent, "not needed")
    async with working(bus, "shop"):
        before = await until_status(bus, "shop", sent, status)
        trail = await events(bus, sent)
        published = await replies(bus)
        ghost = await value(
            conn,
            "select pgmq.send('shop__commands',"
            " jsonb_build_object('command_id', %s::text, 'type', 'Work', 'data', '{}'::jsonb))",
            str(sent),
        )
        await until_queue_is_empty(conn)
        after = await look(bus, sent)

    assert after == before
    assert await events(bus, sent) == trail
    assert await replies(bus) == []
    assert len(published) == (0 if status == "IN_TROUBLESHOOTING_QUEUE" else 1)
    assert len(calls) == (0 if status == "CANCELED" else 1)
    assert (ghost,) in await rows(conn, "select msg_id from pgmq.a_shop__commands")


# -- what cannot be recorded

REFUSE = """
create function refuse() returns trigger language plpgsql as
    $$ begin raise exception 'no replies today'; end $$;
create trigger refuse before insert on pgmq.q_shop__replies execute function refuse();
"""


@pytest.mark.parametrize("command_type", ["Complete", "Fail"])
async def test_a_reply_that_cannot_be_sent_leaves_everything_as_it_was(
    bus: CommandBus,
    conn: Conn,
    caplog: pytest.LogCaptureFixture,
    command_type: str,
) -> None:
    """Lesson 8: nothing half-written, and once replies work again the command is completed."""
    gate, started = asyncio.Event(), asyncio.Barrier(3)

    async def handle(command: Command, ctx: HandlerContext) -> None:
        if ctx.lease_epoch == 1:
            await started.wait()
            await gate.wait()
        if command_type == "Fail" and command.reply_to:
            raise PermanentCommandError("BROKEN", "for good")

    policy = RetryPolicy(when_exhausted="fail")
    bus.register_handler("shop", command_type, handle, retry_policy=policy)
    sent = await send(bus, command_type)
    # Settled in one group with it: its own outcome counts all the same.
    quiet = await bus.send("shop", command_type, uuid4(), {}, reply_to="")

    async with working(bus, "shop", concurrency=2):
        await asyncio.wait_for(started.wait(), 30)
        await conn.execute(REFUSE)
        gate.set()
        await until_status(bus, "shop", quiet, CommandStatus.COMPLETED)
        await until(lambda: "could not be recorded" in caplog.text, "the refusal in the log")
        row = await look(bus, sent)
        assert (row.status, row.attempts) == (CommandStatus.IN_PROGRESS, 1)
        assert await events(bus, sent) == ["SENT", "RECEIVED"]
        assert await value(conn, "select count(*) from pgmq.q_shop__commands") == 1

        await conn.execute("drop trigger refuse on pgmq.q_shop__replies")
        await lapse(conn)
        ended = CommandStatus.COMPLETED if command_type == "Complete" else CommandStatus.FAILED
        await until_status(bus, "shop", sent, ended)
    (reply,) = await replies(bus)
    assert reply.command_id == sent


async def test_a_reply_queue_that_was_dropped_is_made_again(bus: CommandBus, conn: Conn) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        await conn.execute("select pgmq.drop_queue('shop__replies')")

    sent = await send(bus)
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
    (reply,) = await replies(bus)
    assert (reply.command_id, row.attempts) == (sent, 1)


async def test_a_late_completion_does_not_undo_what_a_second_worker_decided(
    bus: CommandBus, conn: Conn, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lesson 2: the handler outlives its lease, somebody else parks the command, then it ends."""
    gate, started = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> str:
        started.set()
        await gate.wait()
        return "late"

    sent = await send(bus)
    async with another_bus(dsn) as second, working(bus, "shop", concurrency=1):
        await asyncio.wait_for(started.wait(), 30)

        @second.handler("shop", "Work")
        async def escalate(command: Command, ctx: HandlerContext) -> None:
            raise PermanentCommandError("BROKEN", "for good")

        await lapse(conn)
        async with working(second, "shop"):
            await until_status(bus, "shop", sent, PARKED)
        gate.set()

        async def is_refused() -> bool:
            return "STALE_RESULT_REJECTED" in await events(bus, sent)

        await until(is_refused)
    assert (await look(bus, sent)).status is PARKED
    assert await replies(bus) == []
    assert "came after its lease" in caplog.text

    await bus.operator_complete("shop", sent, {"by": "ada"})
    (reply,) = await replies(bus)
    assert reply.data == {"by": "ada"}
    trail = await events(bus, sent)
    assert trail.count("COMPLETED") + trail.count("OPERATOR_COMPLETE") == 1


async def test_a_late_completion_is_refused_when_a_second_worker_has_completed(
    bus: CommandBus, conn: Conn
) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> str:
        started.set()
        await gate.wait()
        return "late"

    sent = await send(bus)
    async with working(bus, "shop", concurrency=1):
        await asyncio.wait_for(started.wait(), 30)
        taken = await seize(conn)
        await complete_as_other(conn, taken)
        gate.set()

        async def is_refused() -> bool:
            return "STALE_RESULT_REJECTED" in await events(bus, sent)

        await until(is_refused)
    (reply,) = await replies(bus)
    assert reply.data == "rescued"


async def test_a_failure_is_logged_without_its_payload(
    bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    @bus.handler("shop", "Work", retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        raise TransientCommandError("DOWN", "password=hunter2 is wrong")

    with caplog.at_level(logging.INFO, logger="commandbus"):
        sent = await send(bus, secret="canary")
        async with working(bus, "shop"):
            row = await until_status(bus, "shop", sent, PARKED)
    assert "failed on attempt 1 of 2" in caplog.text
    assert "2 of 2: DOWN: password=[REDACTED] is wrong (TRANSIENT " in caplog.text
    assert "; parked (EXHAUSTED); see `commandbus show " in caplog.text
    assert "hunter2" not in caplog.text + (row.last_error_msg or "")
    assert "canary" not in caplog.text
