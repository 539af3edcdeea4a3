"""Replies: consumed from a queue, or waited for by the caller."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    InvalidPayloadError,
    InvalidSettingError,
    PermanentCommandError,
    Reply,
    ReplyOutcome,
    ReplyTimeoutError,
)
from commandbus.commands.replies import Replies
from commandbus.names import INBOX
from tests.integration.looking import Conn, another_bus, rows, send, until_count, value
from tests.waiting import until, until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
COMPLETED = "select count(*) from commandbus.command_bus_command where status = 'COMPLETED'"
LEFT = "select count(*) from pgmq.q_shop__replies"
ARCHIVED = "select count(*) from pgmq.a_shop__replies"


@pytest.fixture(autouse=True)
def handlers(bus: CommandBus) -> None:
    @bus.handler("shop", "Echo")
    async def echo(command: Command, ctx: HandlerContext) -> Any:
        return command.data

    @bus.handler("shop", "Break")
    async def broken(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("BROKEN", "for good")


async def echoed(bus: CommandBus, conn: Conn, number: int, reply_to: str | None = None) -> None:
    """So many replies lie in the queue, in order."""
    commands = [BatchCommand("Echo", uuid4(), {"n": n}, reply_to) for n in range(number)]
    before = await value(conn, COMPLETED)
    await bus.send_many("shop", commands)
    async with working(bus, "shop", concurrency=1):
        await until_count(conn, "COMPLETED", before + number)


async def show_again(conn: Conn) -> None:
    await conn.execute("update pgmq.q_shop__replies set vt = clock_timestamp()")


# -- consuming a queue


async def test_a_stream_yields_every_reply_once_and_acknowledges_it(
    bus: CommandBus, conn: Conn
) -> None:
    await echoed(bus, conn, 25)
    seen = [reply async for reply in bus.replies("shop", batch_size=10, wait=False)]
    assert sorted(reply.data["n"] for reply in seen) == list(range(25))
    assert {reply.outcome for reply in seen} == {ReplyOutcome.SUCCESS}
    assert await value(conn, LEFT) == 0


async def test_a_stream_waits_for_replies_to_come(bus: CommandBus) -> None:
    seen: list[Reply] = []

    async def consume() -> None:
        async for reply in bus.replies("shop"):
            seen.append(reply)  # noqa: PERF401  (looked at while it grows)

    async def until_seen(number: int) -> None:
        await until(lambda: len(seen) == number, f"{number} replies")

    consumer = asyncio.create_task(consume())
    async with working(bus, "shop"):
        for number in range(3):
            await send(bus, "Echo", n=number)
            await until_seen(number + 1)
    consumer.cancel()
    await asyncio.wait({consumer})
    assert [reply.data["n"] for reply in seen] == [0, 1, 2]


async def test_a_stream_of_a_queue_that_nobody_has_written_to_is_empty(bus: CommandBus) -> None:
    assert [reply async for reply in bus.replies("nowhere", wait=False)] == []
    assert [reply async for reply in bus.replies(queue="no.queue", wait=False)] == []


async def test_a_named_queue_is_consumed_like_that_of_a_domain(bus: CommandBus, conn: Conn) -> None:
    await echoed(bus, conn, 3, reply_to="audit.replies")
    assert [reply async for reply in bus.replies("shop", wait=False)] == []
    seen = [reply.data["n"] async for reply in bus.replies(queue="audit.replies", wait=False)]
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("choice", [{}, {"domain": "shop", "queue": "shop.replies"}])
async def test_a_stream_is_of_a_domain_or_of_a_queue(
    bus: CommandBus, choice: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettingError, match="either a domain or the name"):
        bus.replies(**choice)


async def test_what_a_failed_consumer_was_given_last_comes_again(
    bus: CommandBus, conn: Conn
) -> None:
    """What it had asked to go on from is acknowledged; what it failed on is not."""
    await echoed(bus, conn, 5)
    given: list[UUID] = []
    stream = bus.replies("shop", wait=False)

    async def consume() -> None:
        async for reply in stream:
            given.append(reply.command_id)
            if len(given) == 3:
                raise RuntimeError("the consumer breaks")

    with pytest.raises(RuntimeError):
        await consume()
    await stream.aclose()
    assert await value(conn, LEFT) == 3
    await show_again(conn)
    again = [reply.command_id async for reply in bus.replies("shop", wait=False)]
    assert given[2] in again
    assert not {*given[:2]} & {*again}
    assert len(again) == 3


async def test_unacknowledged_replies_come_again_after_a_crash_of_the_consumer(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await echoed(bus, conn, 5)
    async with another_bus(dsn) as crashed:
        # A crash: leased, and never heard of again.
        store = crashed._store
        leased = await store.read_replies("shop.replies", vt_seconds=30, quantity=100)
        assert len(leased) == 5
    assert [reply async for reply in bus.replies("shop", wait=False)] == []
    await show_again(conn)
    assert len([reply async for reply in bus.replies("shop", wait=False)]) == 5


GARBAGE = (
    '{"canary": 1}', "[]", '"text"', "5", "null", '{"command_id": "x"}',
    '{"command_id": "01a1eb91-7ce9-7a58-b540-d521c9140000", "outcome": "SUCCESS", "domain": 5,'
    ' "correlation_id": "01a1eb91-7ce9-7a58-b540-d521c9140000", "type": "EchoResponse",'
    ' "completed_at": "2026-01-01T00:00:00Z"}',
)  # fmt: skip


async def throw_in(conn: Conn, queue: str = "shop__replies") -> None:
    """Another program writes to the queue; and one of its messages has no content at all."""
    for garbage in GARBAGE:
        await conn.execute("select pgmq.send(%s, %s::jsonb)", (queue, garbage))
    await conn.execute("select pgmq.send(%s, null::jsonb)", (queue,))


async def test_a_message_that_is_no_reply_is_archived_and_logged_once(
    bus: CommandBus, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    await echoed(bus, conn, 1)
    await throw_in(conn)
    await echoed(bus, conn, 2)
    seen = [reply async for reply in bus.replies("shop", wait=False)]
    assert len(seen) == 3
    assert caplog.text.count("no replies") == 1
    assert f"{len(GARBAGE) + 1} messages of shop.replies" in caplog.text
    assert "canary" not in caplog.text
    assert await value(conn, LEFT) == 0
    assert await value(conn, ARCHIVED) == len(GARBAGE) + 1


async def test_a_lease_of_replies_archives_what_is_none(
    bus: CommandBus, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    await echoed(bus, conn, 1)
    await throw_in(conn)
    (leased,) = await Replies(bus._store).lease("shop", limit=100, vt_seconds=30)
    assert caplog.text.count("no replies") == 1
    assert await rows(conn, "select msg_id from pgmq.q_shop__replies") == [(leased.msg_id,)]
    assert await value(conn, ARCHIVED) == len(GARBAGE) + 1


async def test_a_worker_archives_what_is_no_command(bus: CommandBus, conn: Conn) -> None:
    await send(bus, "Echo", n=1)
    await throw_in(conn, "shop__commands")
    async with working(bus, "shop"):
        await until_count(conn, "COMPLETED", 1)

        async def empty() -> bool:
            return bool(await value(conn, "select count(*) = 0 from pgmq.q_shop__commands"))

        await until(empty, "an empty queue")
    assert await value(conn, "select count(*) from pgmq.a_shop__commands") == len(GARBAGE) + 1


async def test_a_reply_in_the_inbox_that_cannot_be_read_is_an_error_and_does_not_stay(
    bus: CommandBus, conn: Conn
) -> None:
    command_id = await bus.send("shop", "Echo", uuid4(), {}, reply_to=INBOX)
    await conn.execute(
        "insert into commandbus.command_bus_reply_inbox (domain, command_id, reply)"
        " values ('shop', %s, '[]')",
        (command_id,),
    )
    with pytest.raises(InvalidPayloadError, match="is no reply"):
        await bus.wait_reply("shop", command_id, timeout=30)
    assert await value(conn, "select count(*) from commandbus.command_bus_reply_inbox") == 0


# -- waiting for one


async def test_a_call_gets_its_reply_and_leaves_nothing_behind(bus: CommandBus, conn: Conn) -> None:
    async with working(bus, "shop"):
        correlation, command_id = uuid4(), uuid4()
        reply = await bus.call(
            "shop", "Echo", {"n": 1}, command_id=command_id, correlation_id=correlation
        )
    assert (reply.command_id, reply.correlation_id) == (command_id, correlation)
    assert (reply.outcome, reply.data, reply.type) == (
        ReplyOutcome.SUCCESS, {"n": 1}, "EchoResponse",
    )  # fmt: skip
    assert await value(conn, LEFT) == 0
    assert await value(conn, "select count(*) from commandbus.command_bus_reply_inbox") == 0


async def test_fifty_calls_at_once_each_get_their_own_reply(bus: CommandBus) -> None:
    async with working(bus, "shop"):
        found = await asyncio.gather(
            *(bus.call("shop", "Echo", {"n": number}) for number in range(50))
        )
    assert [reply.data["n"] for reply in found] == list(range(50))


async def test_a_call_is_woken_by_a_hint(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """With polls a minute apart, nothing else explains an answer."""
    monkeypatch.setattr("commandbus.commands.replies.POLL_SECONDS", (60.0, 60.0))
    async with working(bus, "shop"):
        for number in range(3):
            assert (await bus.call("shop", "Echo", {"n": number})).data == {"n": number}


async def test_a_call_nobody_answers_times_out_and_says_what_to_do(bus: CommandBus) -> None:
    command_id = uuid4()
    with pytest.raises(ReplyTimeoutError, match=f"commandbus show {command_id}"):
        await bus.call("shop", "Echo", {}, command_id=command_id, timeout=0.05)
    found = await bus.get_command("shop", command_id)
    assert found is not None
    assert found.status is CommandStatus.PENDING


@pytest.mark.parametrize("timeout", [0, -1, 86_401, float("nan")])
async def test_an_absurd_timeout_is_refused_before_anything_is_sent(
    bus: CommandBus, timeout: float
) -> None:
    with pytest.raises(InvalidSettingError, match="use a number"):
        await bus.call("shop", "Echo", {}, timeout=timeout)
    assert (await bus.search.commands(domain="shop")).items == []


async def test_a_call_to_a_parked_command_times_out_and_the_reply_can_be_taken_later(
    bus: CommandBus, conn: Conn
) -> None:
    command_id = uuid4()
    async with working(bus, "shop"):
        calling = asyncio.create_task(
            bus.call("shop", "Break", {}, command_id=command_id, timeout=1.0)
        )
        await until_status(bus, "shop", command_id, PARKED)
        with pytest.raises(ReplyTimeoutError):
            await calling
    await bus.operator_complete("shop", command_id, {"by": "ada"})
    waiting = Replies(bus._store)
    reply = await waiting.wait("shop", command_id, 10)
    assert reply.data == {"by": "ada"}
    await waiting.close()
    await waiting.close()
    assert await rows(conn, "select 1 from commandbus.command_bus_reply_inbox") == []


async def test_an_operator_answers_a_call_that_still_waits(bus: CommandBus) -> None:
    command_id = uuid4()
    async with working(bus, "shop"):
        calling = asyncio.create_task(bus.call("shop", "Break", {}, command_id=command_id))
        await until_status(bus, "shop", command_id, PARKED)
        await bus.operator_cancel("shop", command_id, "not needed")
        reply = await calling
    assert reply.outcome is ReplyOutcome.CANCELED
    assert reply.error is not None
    assert reply.error.message == "not needed"


async def test_a_call_that_is_cancelled_leaves_its_reply_to_be_taken(
    bus: CommandBus, conn: Conn
) -> None:
    command_id = uuid4()
    calling = asyncio.create_task(bus.call("shop", "Echo", {"n": 1}, command_id=command_id))

    async def is_sent() -> bool:
        return await bus.get_command("shop", command_id) is not None

    await until(is_sent)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    async with working(bus, "shop"):
        row = await until_status(bus, "shop", command_id, CommandStatus.COMPLETED)
    assert row.reply_queue == INBOX
    assert (await bus._replies.wait("shop", command_id, 10)).data == {"n": 1}
