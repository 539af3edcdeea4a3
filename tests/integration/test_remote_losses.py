"""What a queue in another database loses, repeats or mixes with rubbish: nothing is lost for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.batches import DispatchMode, RecoveryReport
from commandbus.batches import dispatch as dispatch_module
from commandbus.batches.relay import Relay
from commandbus.brokers import TransportMessage
from commandbus.database.migrations import migrations
from commandbus.database.pgmq import RemoteQueue
from commandbus.worker.maintenance import Maintenance
from tests.integration.test_dispatch import (
    commands,
    dispatch_states,
    queued_ids,
    register,
    remote,
    rows,
)
from tests.waiting import until, working

__all__ = ["remote"]

Connection = psycopg.AsyncConnection[Any]


class MemoryQueue:
    """A queue of an application; it loses what `loses` says, by the number of the message."""

    name = "memory"

    def __init__(self, loses: Sequence[int] = ()) -> None:
        self.loses = frozenset(loses)
        self.sent: list[str] = []
        self.messages: dict[int, Any] = {}
        self.archived: list[Any] = []

    async def publish(self, domain: str, messages: Sequence[str]) -> None:
        for message in messages:
            if len(self.sent) not in self.loses:
                self.messages[len(self.sent)] = message
            self.sent.append(message)

    async def receive(
        self, domain: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        found = list(self.messages.items())[:quantity]
        return [TransportMessage(str(number), text) for number, text in found]

    async def acknowledge(self, domain: str, messages: Sequence[TransportMessage]) -> None:
        for message in messages:
            del self.messages[int(message.token)]

    async def set_aside(self, domain: str, messages: Sequence[TransportMessage]) -> None:
        self.archived += [self.messages.pop(int(message.token)) for message in messages]


async def unconfirmed(conn: Connection) -> int:
    return (await rows(conn, "select count(*) from commandbus.command_bus_unconfirmed"))[0][0]


@pytest.mark.parametrize("mode", [DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC])
async def test_what_a_purged_queue_lost_is_queued_here_and_runs_once(
    bus: CommandBus,
    conn: Connection,
    remote: RemoteQueue,
    empty_dsn: str,
    mode: DispatchMode,
) -> None:
    work = commands(50)
    result = await bus.batches.dispatch("shop", work, mode=mode, queue=remote)
    async with await psycopg.AsyncConnection.connect(empty_dsn) as there:
        copies = [
            text
            for (text,) in await rows(
                there, "select message::text from pgmq.q_shop__dispatch order by msg_id"
            )
        ]
        await rows(there, "select pgmq.purge_queue('shop__dispatch')")
    assert await unconfirmed(conn) == 50
    assert await bus.batches.recover_dispatch("shop", grace_seconds=0) == RecoveryReport()
    assert await bus.batches.recover_dispatch("shop", unconfirmed_after=0) == RecoveryReport(
        queued=50, unconfirmed=50
    )
    assert await bus.batches.recover_dispatch("shop", unconfirmed_after=0) == RecoveryReport()
    assert await queued_ids(conn) == [str(c.command_id) for c in work]
    assert await unconfirmed(conn) == 0
    assert len(copies) == 50
    await remote.publish("shop.dispatch", copies)  # as if they had only been late
    assert await bus.batches.relay("shop", remote, drain=True) == 0
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    await remote.publish("shop.dispatch", copies)
    assert await bus.batches.relay("shop", remote, drain=True) == 0
    assert await queued_ids(conn) == []
    assert sorted(seen) == sorted(c.command_id for c in work)
    trail = await bus.get_audit_trail(work[0].command_id)
    assert [event.event_type for event in trail][:2] == ["SENT", "UNCONFIRMED"]
    assert trail[1].details is not None
    assert trail[1].details["queue"] == "remote"


async def test_of_what_came_back_only_the_lost_ones_are_queued_here(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    queue, work = MemoryQueue(loses=range(20, 30)), commands(40)
    result = await bus.batches.dispatch("shop", work, queue=queue)
    assert result.status == "success", "the queue says that it has them all"
    await bus.cancel("shop", work[25].command_id, "no longer wanted")
    assert await bus.batches.relay("shop", queue, drain=True) == 30
    assert await unconfirmed(conn) == 10
    settings = bus._settings.__class__(unconfirmed_after_seconds=0)
    with caplog.at_level(logging.WARNING, logger="commandbus.maintenance"):
        await Maintenance(bus._store, lambda: ["shop"], settings).step()
    assert "9 commands of shop were accepted by a queue in another database" in caplog.text
    assert len(await queued_ids(conn)) == 39
    assert await unconfirmed(conn) == 0
    seen = register(bus)
    async with working(bus, "shop"):
        await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert sorted(seen) == sorted(c.command_id for n, c in enumerate(work) if n != 25)


async def test_what_is_adopted_just_now_is_not_taken_for_lost(
    bus: CommandBus, dsn: str, conn: Connection
) -> None:
    queue, work = MemoryQueue(), commands(3)
    await bus.batches.dispatch("shop", work, queue=queue)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        document = f'[{{"command_id": "{work[0].command_id}"}}]'
        await rows(other, "select * from commandbus.adopt_messages('shop', %s)", document)
        report = await bus.batches.recover_dispatch("shop", unconfirmed_after=0)
        assert (report.queued, report.unconfirmed) == (2, 2)
    assert await bus.batches.recover_dispatch("shop", unconfirmed_after=0) == RecoveryReport()
    assert len(await queued_ids(conn)) == 3


async def test_what_a_queue_refused_is_not_called_unconfirmed(
    bus: CommandBus, conn: Connection
) -> None:
    class Down(MemoryQueue):
        async def publish(self, domain: str, messages: Sequence[str]) -> None:
            raise ConnectionError("down")

    result = await bus.batches.dispatch(
        "shop", commands(3), mode=DispatchMode.OPTIMISTIC, queue=Down()
    )
    assert result.status == "failed_needs_recovery"
    assert await unconfirmed(conn) == 0


async def test_the_doctor_says_how_many_are_unconfirmed_and_since_when(
    bus: CommandBus, conn: Connection
) -> None:
    queue, work = MemoryQueue(loses=[0, 1]), commands(3)
    await bus.batches.dispatch("shop", work, queue=queue)
    codes = [f.code for f in (await bus.upkeep.doctor()).findings]
    assert "DISPATCH_UNCONFIRMED" not in codes
    await rows(
        conn,
        "update commandbus.command_bus_unconfirmed"
        " set handed_at = timestamptz '2026-01-01 12:00:00+00' returning 1",
    )
    await bus.cancel("shop", work[0].command_id, "no longer wanted")
    found = {f.code: f for f in (await bus.upkeep.doctor()).findings}["DISPATCH_UNCONFIRMED"]
    assert (found.severity, found.domain, found.found) == ("warning", "shop", 2)
    assert {example.split()[0] for example in found.examples} == {"2026-01-01T12:00:00.000000Z"}


async def test_what_was_handed_over_before_the_upgrade_is_unconfirmed_too(
    bus: CommandBus, conn: Connection
) -> None:
    await bus.batches.dispatch("shop", commands(3), queue=MemoryQueue())
    await bus.batches.dispatch("shop", commands(2))
    await conn.execute("delete from commandbus.command_bus_unconfirmed")
    (sql,) = (m.text for m in migrations() if m.name.endswith("unconfirmed"))
    await conn.execute(sql[sql.index("insert into") :].encode())
    assert await unconfirmed(conn) == 3


# -- rubbish

RUBBISH = [
    "no JSON at all", "", "{", "[1]", "null", '"text"', "1e999", '{"command_id": 7}',
    '{"command_id": "x"}', '{"command_id": null}', '{"text": "\\u0000"}', '{"text": "\\ud800"}',
    "[" * 5_000 + "]" * 5_000, None, b"\xff", 7,
]  # fmt: skip


async def test_rubbish_in_a_queue_is_set_aside_and_the_rest_arrives(
    bus: CommandBus, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    queue, work = MemoryQueue(), commands(5)
    queue.messages = {-n: message for n, message in enumerate(RUBBISH, start=1)}
    await bus.batches.dispatch("shop", work, queue=queue)
    odd = f'{{"text": "\\u0000", "command_id": "{work[4].command_id}", "n": {2**70}}}'
    queue.messages[4] = odd
    relay = Relay(bus._store, queue, "shop")
    assert await relay.drain() == 5
    assert relay.set_aside == len(RUBBISH) == len(queue.archived)
    assert queue.messages == {}
    assert f"{len(RUBBISH)} messages of queue memory" in caplog.text
    assert "no JSON at all" not in caplog.text
    assert len(await queued_ids(conn)) == 5


async def test_a_number_that_no_computer_has_does_not_stop_the_relay(
    bus: CommandBus, remote: RemoteQueue, empty_dsn: str
) -> None:
    work = commands(1)
    await bus.batches.dispatch("shop", work, queue=remote)
    async with await psycopg.AsyncConnection.connect(empty_dsn) as there:
        await rows(
            there,
            "update pgmq.q_shop__dispatch set message = message"
            " || cast('{\"n\": ' || repeat('9', 400) || '}' as jsonb) returning 1",
        )
    assert await bus.batches.relay("shop", remote, drain=True) == 1


# -- a dispatch that is cut


async def test_a_dispatch_whose_rest_was_canceled_says_so(
    bus: CommandBus, conn: Connection
) -> None:
    queue, work = MemoryQueue(), commands(5)

    async def publish(domain: str, messages: Sequence[str]) -> None:
        queue.sent += messages
        if len(queue.sent) == 2:
            for command in work[2:]:
                await bus.cancel("shop", command.command_id, "no longer wanted")

    queue.publish = publish  # type: ignore[method-assign]
    result = await bus.batches.dispatch("shop", work, queue=queue)
    assert (result.status, result.database_tasks, result.queued_tasks, result.retry_needed) == (
        "partial_success", 5, 2, False,
    )  # fmt: skip
    assert result.warning == "3 of 5 commands ended before they were queued"
    assert len(queue.sent) == 2


async def test_a_dispatch_that_could_not_take_all_says_that_it_is_not_finished(
    bus: CommandBus, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = commands(5)
    held: list[Any] = []
    async with await psycopg.AsyncConnection.connect(dsn) as other:

        async def hold(*_: Any) -> None:
            if not held:
                held.append(
                    await rows(
                        other,
                        "select 1 from commandbus.command_bus_command where sequence_no > 3"
                        " for update",
                    )
                )

        dispatch = bus.batches._dispatch
        monkeypatch.setattr(type(dispatch), "_wait_until", hold)
        result = await bus.batches.dispatch("shop", work)
    assert (result.status, result.queued_tasks, result.retry_needed) == ("partial_success", 3, True)
    assert result.error == "2 of 5 commands are not queued yet; recovery queues them"
    assert await dispatch_states(conn, result.batch_id) == {"queued": 3, "pending_queue": 2}
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 2


async def test_what_recovery_queued_meanwhile_counts_as_queued(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def recovered(*_: Any) -> None:
        await bus.batches.recover_dispatch("shop", grace_seconds=0)

    monkeypatch.setattr(type(bus.batches._dispatch), "_wait_until", recovered)
    result = await bus.batches.dispatch("shop", commands(3))
    assert (result.status, result.queued_tasks, result.retry_needed) == ("success", 3, False)


async def test_a_dispatch_that_cannot_be_counted_says_only_what_it_did_itself(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def recovered(*_: Any) -> None:
        await bus.batches.recover_dispatch("shop", grace_seconds=0)

    monkeypatch.setattr(type(bus.batches._dispatch), "_wait_until", recovered)
    monkeypatch.setattr(dispatch_module, "_UNQUEUED", "select no_such_thing, %s, %s")
    result = await bus.batches.dispatch("shop", commands(3))
    assert (result.status, result.queued_tasks, result.retry_needed) == ("partial_success", 0, True)


async def test_a_queue_that_cancels_itself_fails_and_does_not_end_the_dispatch(
    bus: CommandBus,
) -> None:
    class Cancelled(MemoryQueue):
        async def publish(self, domain: str, messages: Sequence[str]) -> None:
            raise asyncio.CancelledError

    result = await bus.batches.dispatch("shop", commands(2), queue=Cancelled())
    assert (result.status, result.queued_tasks, result.retry_needed) == ("partial_success", 0, True)


async def test_a_dispatch_that_is_cancelled_ends_and_leaves_the_rest_to_recovery(
    bus: CommandBus, conn: Connection
) -> None:
    class Slow(MemoryQueue):
        async def publish(self, domain: str, messages: Sequence[str]) -> None:
            await super().publish(domain, messages)
            if len(self.sent) == 2:
                await asyncio.Event().wait()

    queue = Slow()
    task = asyncio.create_task(bus.batches.dispatch("shop", commands(4), queue=queue))
    await until(lambda: len(queue.sent) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await bus.batches.recover_dispatch("shop", grace_seconds=0)).queued == 3
