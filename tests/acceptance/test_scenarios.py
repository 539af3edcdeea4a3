"""The seven scenarios of document 004 §12.3, with producer, worker and reply consumer apart."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    CommandBus,
    CommandStatus,
    DuplicateCommandError,
    Reply,
    ReplyOutcome,
)
from tests.acceptance.conftest import Effects
from tests.acceptance.processes import worker_process
from tests.waiting import until_status

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


async def replies_to(bus: CommandBus, *command_ids: UUID) -> list[Reply]:
    """All that lies on the reply queue, which must be for these commands."""
    found = [reply async for reply in bus.replies("shop", wait=False)]
    assert {reply.command_id for reply in found} <= set(command_ids)
    return found


async def events_of(bus: CommandBus, command_id: UUID) -> list[str]:
    return [event.event_type for event in await bus.get_audit_trail(command_id)]


async def send(bus: CommandBus, command_type: str, data: dict[str, Any] | None = None) -> UUID:
    return await bus.send("shop", command_type, uuid4(), data or {})


async def test_happy_path_completes_and_replies_once(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    correlation = uuid4()
    sent = await bus.send("shop", "Work", uuid4(), {"order": 7}, correlation_id=correlation)
    async with worker_process(dsn):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    (reply,) = await replies_to(bus, sent)
    assert (reply.outcome, reply.data) == (ReplyOutcome.SUCCESS, {"echo": {"order": 7}})
    assert (reply.type, reply.correlation_id) == ("WorkResponse", correlation)
    assert row.attempts == 1
    assert await effects(sent) == [(1, "work")]
    assert await events_of(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]


async def test_two_transient_failures_are_retried_until_success(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    sent = await send(bus, "FailTwice")
    async with worker_process(dsn):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    (reply,) = await replies_to(bus, sent)
    assert reply.data == {"attempt": 3}
    assert (row.attempts, row.last_error_code) == (3, "NOT_YET")
    assert len(await effects(sent)) == 3
    assert await events_of(bus, sent) == [
        "SENT", "RECEIVED", "FAILED", "RECEIVED", "FAILED", "RECEIVED", "COMPLETED",
    ]  # fmt: skip


async def test_a_permanent_failure_waits_without_a_reply(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    sent = await send(bus, "FailForGood", {"kept": True})
    async with worker_process(dsn):
        row = await until_status(bus, "shop", sent, PARKED)

    assert await replies_to(bus) == []
    (item,) = await bus.list_troubleshooting("shop", type="FailForGood")
    assert (item.command_id, item.reason, item.data) == (sent, "PERMANENT", {"kept": True})
    assert (row.attempts, row.last_error_type, row.last_error_code) == (1, "PERMANENT", "BROKEN")
    assert len(await effects(sent)) == 1


async def test_exhausted_retries_end_in_troubleshooting(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    sent = await send(bus, "FailAlways")
    async with worker_process(dsn):
        row = await until_status(bus, "shop", sent, PARKED)

    (item,) = await bus.list_troubleshooting("shop")
    assert item.reason == "EXHAUSTED"
    assert (row.attempts, row.last_error_type) == (3, "TRANSIENT")
    assert len(await effects(sent)) == 3
    assert await replies_to(bus) == []


async def test_an_operators_retry_succeeds_once_the_cause_is_mended(
    bus: CommandBus, dsn: str, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await send(bus, "FailForGood")
    async with worker_process(dsn):
        parked = await until_status(bus, "shop", sent, PARKED)
    monkeypatch.setenv("MENDED", "yes")
    await bus.operator_retry("shop", sent, operator="ada")
    async with worker_process(dsn):
        row = await until_status(bus, "shop", sent, CommandStatus.COMPLETED)

    (reply,) = await replies_to(bus, sent)
    assert reply.outcome is ReplyOutcome.SUCCESS
    assert row.msg_id != parked.msg_id
    assert row.attempts == 1
    assert await bus.list_troubleshooting("shop") == []
    retried = [e for e in await bus.get_audit_trail(sent) if e.event_type == "OPERATOR_RETRY"]
    assert [event.actor for event in retried] == ["ada"]
    assert len(await effects(sent)) == 2


async def test_an_operators_cancel_publishes_a_canceled_reply(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    sent = await send(bus, "FailForGood")
    async with worker_process(dsn):
        await until_status(bus, "shop", sent, PARKED)
        assert await replies_to(bus) == []
        await bus.operator_cancel("shop", sent, "not needed any more", operator="ada")

    (reply,) = await replies_to(bus, sent)
    assert reply.outcome is ReplyOutcome.CANCELED
    assert reply.error is not None
    assert reply.error.message == "not needed any more"
    assert len(await effects(sent)) == 1


async def test_a_duplicate_send_is_processed_once(
    bus: CommandBus, dsn: str, effects: Effects
) -> None:
    sent = await send(bus, "Work")
    with pytest.raises(DuplicateCommandError) as duplicate:
        await bus.send("shop", "Work", sent, {"other": "body"})
    async with worker_process(dsn):
        await until_status(bus, "shop", sent, CommandStatus.COMPLETED)
        with pytest.raises(DuplicateCommandError):
            await bus.send("shop", "Work", sent, {})
        marker = await send(bus, "Work")
        await until_status(bus, "shop", marker, CommandStatus.COMPLETED)

    assert duplicate.value.command_id == sent
    assert len(await effects(sent)) == 1
    assert len([r for r in await replies_to(bus, sent, marker) if r.command_id == sent]) == 1
