"""Results from another system that have the right key and say what cannot be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import CommandBus
from commandbus.database.pgmq import RemoteQueue
from commandbus.handover.messages import _signature
from tests.integration.test_handover import DOMAIN, KEY, RESULTS, handing, sent, taken
from tests.waiting import until_status

pytestmark = pytest.mark.postgres


@pytest.fixture
async def queue(empty_dsn: str) -> AsyncIterator[RemoteQueue]:
    async with RemoteQueue.connect(empty_dsn, pool_size=6) as found:
        yield found


def signed(command_id: UUID, lease: Any, **said: Any) -> str:
    """As any program can write it; Python's JSON knows NaN and lone surrogates."""
    head = {"kind": "result", "domain": DOMAIN, "command_id": str(command_id), "lease": lease}
    body = json.dumps({**head, **said})
    return json.dumps({"body": body, "signature": _signature(body, KEY)})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


OVER = ("IN_TROUBLESHOOTING_QUEUE", "FAILED", "CANCELED", "COMPLETED")

#: Each names its command and the lease that it has.
UNUSABLE: dict[str, dict[str, Any]] = {
    "no text": {"outcome": "park", "error": {"code": "A", "message": "\ud800"}},
    "a zero byte": {"outcome": "park", "error": {"code": "\x00", "message": "\x00"}},
    "no number": {"outcome": "snooze", "delay_seconds": float("nan")},
    "no end": {"outcome": "retry", "delay_seconds": float("inf")},
    "very late": {"outcome": "snooze", "delay_seconds": 10**400},
    "very early": {"outcome": "retry", "delay_seconds": -(10**400)},
    "no JSON": {"outcome": "completed", "result": float("nan")},
    "a text that is none": {"outcome": "completed", "result": "\udfff"},
    "a zero byte as the result": {"outcome": "completed", "result": "\x00"},
    "very deep": {"outcome": "completed", "result": nested(600)},
    "a reason that is no text": {"outcome": "discard", "message": "\ud800"},
    "a strange outcome": {"outcome": ["completed"]},
    "details that are no text": {"outcome": "fail", "error": {"details": {"\ud800": "\x00"}}},
}


#: A lease is a whole number that a bigint holds.
NO_LEASES = (10**30, -(10**30), 2**63, -1, 0, 2, True, 1.0, "1", None)


async def test_results_that_no_database_takes_end_their_commands_and_keep_no_others(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    good, *bad = await sent(bus, len(UNUSABLE) + 1)
    async with handing(bus, queue):
        commands = {each.command_id: each for each in await taken(queue, len(bad) + 1)}
        said = zip(bad, UNUSABLE.values(), strict=True)
        texts = [signed(each, commands[each].lease, **unusable) for each, unusable in said]
        texts.append(signed(good, commands[good].lease, outcome="completed", result=1))
        await queue.publish(RESULTS, texts)
        await until_status(bus, DOMAIN, good, "COMPLETED")
        for command_id in bad:
            await until_status(bus, DOMAIN, command_id, *OVER)
        assert await queue.receive(RESULTS, quantity=5, lease_seconds=1) == []


async def test_leases_that_are_none_change_nothing_and_keep_no_others(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    good, *bad = await sent(bus, len(NO_LEASES) + 1)
    async with handing(bus, queue):
        commands = {each.command_id: each for each in await taken(queue, len(bad) + 1)}
        said = zip(bad, NO_LEASES, strict=True)
        texts = [signed(each, lease, outcome="completed") for each, lease in said]
        texts.append(signed(uuid4(), 1, outcome="completed"))
        texts.append(signed(good, commands[good].lease, outcome="completed", result=1))
        await queue.publish(RESULTS, texts)
        await until_status(bus, DOMAIN, good, "COMPLETED")
        for command_id in bad:
            found = await bus.get_command(DOMAIN, command_id)
            assert found is not None
            assert found.status == "IN_PROGRESS"
