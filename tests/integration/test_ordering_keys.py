"""bus.keys, its command line, and workers on ordering keys."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, PermanentCommandError
from commandbus.commands.ordering import OnPark
from commandbus.errors import InvalidInputError, InvalidOperationError, InvalidSettingError
from commandbus.models import CommandStatus
from tests.waiting import until

DOMAIN = "accounts"


def keyed(key: str, number: int, command_type: str = "Book") -> BatchCommand:
    return BatchCommand(command_type, uuid4(), {"key": key, "n": number}, ordering_key=key)


class Ran:
    """What handlers ran, in their order, and how many of one key at once at most."""

    def __init__(self, bus: CommandBus) -> None:
        self.order: dict[str, list[int]] = {}
        self.running: set[str] = set()
        self.overlaps = 0
        bus.register_handler(DOMAIN, "Book", self.book)
        bus.register_handler(DOMAIN, "Break", self.fail)

    async def book(self, command: Command, ctx: HandlerContext) -> None:
        key = command.data["key"]
        self.overlaps += key in self.running
        self.running.add(key)
        await asyncio.sleep(0)
        self.order.setdefault(key, []).append(command.data["n"])
        self.running.discard(key)

    async def fail(self, command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("BROKEN", "no")

    @property
    def count(self) -> int:
        return sum(map(len, self.order.values()))


async def test_two_workers_keep_the_order_of_each_key(bus: CommandBus) -> None:
    ran = Ran(bus)
    keys = [f"k{n}" for n in range(10)]
    await bus.send_many(DOMAIN, [keyed(key, n) for n in range(10) for key in keys])
    async with bus.worker(DOMAIN, concurrency=5), bus.worker(DOMAIN, concurrency=5):
        await until(lambda: ran.count == 100, "all of them")
    assert ran.order == {key: list(range(10)) for key in keys}
    assert ran.overlaps == 0
    assert (await bus.keys.list(DOMAIN)).items == []


async def test_a_blocked_key_is_shown_and_stepped_over(bus: CommandBus) -> None:
    ran = Ran(bus)
    broken, *rest = [keyed("a", 0, "Break"), keyed("a", 1), keyed("a", 2), keyed("b", 1)]
    await bus.send_many(DOMAIN, [broken, *rest])
    async with bus.worker(DOMAIN):

        async def is_blocked() -> bool:
            return bool((await bus.keys.list(DOMAIN, blocked=True)).items)

        await until(is_blocked, "the key is blocked")
        await until(lambda: ran.order == {"b": [1]}, "the other key goes on")
        (key,) = (await bus.keys.list(DOMAIN)).items
        assert (key.ordering_key, key.head, key.waiting) == ("a", broken.command_id, 2)
        assert key.head_status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        places = await bus.keys.show(DOMAIN, "a")
        assert [each.command_id for each in places] == [
            broken.command_id, *(each.command_id for each in rest[:2])
        ]  # fmt: skip
        assert [each.is_blocking for each in places] == [True, False, False]
        with pytest.raises(InvalidOperationError):
            await bus.keys.skip(DOMAIN, "a", expected=uuid4())
        passed = await bus.keys.skip(DOMAIN, "a", reason="by hand", operator="ann")
        assert passed == broken.command_id
        await until(lambda: ran.order["a"] == [1, 2] if "a" in ran.order else False, "it goes on")
    trail = await bus.get_audit_trail(DOMAIN, broken.command_id)
    assert trail[-1].event_type == "KEY_SKIPPED"
    assert trail[-1].actor == "ann"


async def test_the_policy_of_a_domain(bus: CommandBus) -> None:
    ran = Ran(bus)
    assert await bus.keys.get_policy(DOMAIN) is OnPark.BLOCK
    await bus.keys.set_policy(DOMAIN, "skip", reason="each alone", operator="ann")
    await bus.send_many(DOMAIN, [keyed("a", 0, "Break"), keyed("a", 1)])
    async with bus.worker(DOMAIN):
        await until(lambda: ran.order == {"a": [1]}, "the next one goes")
    with pytest.raises(InvalidInputError):
        await bus.keys.set_policy(DOMAIN, "jump")


async def test_keys_are_paged(bus: CommandBus) -> None:
    await bus.send_many(DOMAIN, [keyed(f"k{n}", 0) for n in range(5)])
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await bus.keys.list(DOMAIN, limit=2, cursor=cursor)
        seen += [each.ordering_key for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"k{n}" for n in range(5)]
    for bad in ({"limit": 0}, {"cursor": "nonsense"}):
        with pytest.raises(InvalidSettingError):
            await bus.keys.list(DOMAIN, **bad)


async def test_a_handler_sends_to_a_key(bus: CommandBus) -> None:
    ran = Ran(bus)
    ids: list[UUID] = []

    async def begin(command: Command, ctx: HandlerContext) -> None:
        for n in range(3):
            ids.append(uuid4())
            ctx.send(DOMAIN, "Book", ids[-1], {"key": "a", "n": n}, ordering_key="a")

    bus.register_handler(DOMAIN, "Begin", begin)
    await bus.send(DOMAIN, "Begin", uuid4(), {})
    async with bus.worker(DOMAIN):
        await until(lambda: ran.count == 3, "what it sent")
    assert ran.order == {"a": [0, 1, 2]}


async def test_the_end_of_a_batch_cannot_have_a_key(bus: CommandBus) -> None:
    ending: Any = BatchCommand("Done", uuid4(), {}, ordering_key="a")
    with pytest.raises(InvalidInputError, match="ordering_key"):
        await bus.batches.create(
            DOMAIN, [BatchCommand("Book", uuid4(), {})], on_complete_command=ending
        )


async def test_one_key_runs_at_once_after_the_one_before(bus: CommandBus) -> None:
    # Each end wakes the worker: without that a hundred would wait for a hundred polls.
    ran = Ran(bus)
    await bus.send_many(DOMAIN, [keyed("a", n) for n in range(100)])
    async with bus.worker(DOMAIN):
        await until(lambda: ran.count == 100, "all of them")
    assert ran.order == {"a": list(range(100))}
