"""Sending: what is sent at once by many tasks goes in groups, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from commandbus import RetryPolicy, Settings
from commandbus.commands.preparing import Preparer
from commandbus.commands.sending import LANES, MAX_GROUP, Sending
from commandbus.database.store import Store
from commandbus.errors import DatabaseUnavailableError, DuplicateCommandError
from commandbus.models import NewCommand
from tests.unit.stubs import soon


def a_command(command_id: UUID | None = None, size: int = 2) -> NewCommand:
    return NewCommand("Work", command_id or uuid4(), b"x" * size, "shop.replies", uuid4(), 3)


class SlowStore:
    """Takes a group when it is let; refuses ids that it has, as a database does."""

    def __init__(self) -> None:
        self.groups: list[list[UUID]] = []
        self.known: set[UUID] = set()
        self.gate = asyncio.Event()
        self.failure: Exception | None = None

    async def send(self, domain: str, commands: Sequence[NewCommand]) -> None:
        ids = [command.command_id for command in commands]
        self.groups.append(ids)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        twice = [i for i in ids if ids.count(i) > 1 or i in self.known]
        if twice:
            raise DuplicateCommandError(domain, twice)
        self.known.update(ids)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def sending(store: SlowStore) -> Sending:
    preparer = Preparer(Settings(), RetryPolicy())
    return Sending(cast("Store", store), preparer, max_send_many=1_000)


async def all_waiting(
    sending: Sending, store: SlowStore, commands: Sequence[NewCommand]
) -> list[asyncio.Task[UUID]]:
    tasks = [asyncio.create_task(sending.send("shop", command)) for command in commands]
    await soon(lambda: len(store.groups) == LANES)
    await soon(lambda: len(sending._waiting["shop"]) == len(commands) - LANES)
    return tasks


async def outcomes(tasks: Sequence[asyncio.Task[UUID]]) -> list[Any]:
    """The error of each, or None if it was sent."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [None if isinstance(each, UUID) else each for each in found]


async def test_a_lone_send_goes_at_once_and_by_itself(sending: Sending, store: SlowStore) -> None:
    store.gate.set()
    command = a_command()
    await sending.send("shop", command)
    assert store.groups == [[command.command_id]]
    assert sending._on_their_way == {"shop": 0}


async def test_what_gathers_while_others_are_on_their_way_goes_as_one_group(
    sending: Sending, store: SlowStore
) -> None:
    commands = [a_command() for _ in range(20)]
    tasks = await all_waiting(sending, store, commands)
    store.gate.set()
    assert await outcomes(tasks) == [None] * 20
    assert [len(group) for group in store.groups] == [1] * LANES + [20 - LANES]
    assert [i for group in store.groups for i in group] == [c.command_id for c in commands]
    assert sending._on_their_way == {"shop": 0}


async def test_a_duplicate_is_told_to_the_one_who_sent_it(
    sending: Sending, store: SlowStore
) -> None:
    known, twice = uuid4(), uuid4()
    store.known.add(known)
    commands = [a_command() for _ in range(LANES + 3)]
    commands += [a_command(known), a_command(twice), a_command(twice), a_command()]
    tasks = await all_waiting(sending, store, commands)
    store.gate.set()
    found = await outcomes(tasks)
    refused = [isinstance(answer, DuplicateCommandError) for answer in found]
    assert refused == [False] * (LANES + 3) + [True, False, True, False]
    assert found[LANES + 3].command_ids == (known,)
    assert store.known >= {c.command_id for c in commands}


@pytest.mark.parametrize("failure", [DatabaseUnavailableError("away"), RuntimeError("odd")])
async def test_without_a_known_outcome_everybody_is_told_and_nothing_is_sent_again(
    sending: Sending, store: SlowStore, failure: Exception
) -> None:
    tasks = await all_waiting(sending, store, [a_command() for _ in range(LANES + 4)])
    store.failure = failure
    store.gate.set()
    assert await outcomes(tasks) == [failure] * (LANES + 4)
    assert len(store.groups) == LANES + 1
    store.failure = None
    await sending.send("shop", a_command())


async def test_who_gives_up_before_its_turn_has_sent_nothing(
    sending: Sending, store: SlowStore
) -> None:
    commands = [a_command() for _ in range(LANES + 2)]
    tasks = await all_waiting(sending, store, commands)
    tasks[-1].cancel()
    await soon(tasks[-1].done)
    tasks[0].cancel()  # this one is on its way; its lane is free again all the same
    store.gate.set()
    await outcomes(tasks)
    assert store.groups[LANES:] == [[commands[-2].command_id]]
    assert sending._on_their_way == {"shop": 0}


async def test_a_group_has_bounds_in_number_and_in_bytes(
    sending: Sending, store: SlowStore
) -> None:
    large = [a_command(size=3 * 1024 * 1024) for _ in range(3)]
    small = [a_command() for _ in range(MAX_GROUP + 1)]
    tasks = await all_waiting(
        sending, store, [*(a_command() for _ in range(LANES)), *large, *small]
    )
    store.gate.set()
    assert await outcomes(tasks) == [None] * len(tasks)
    assert [len(group) for group in store.groups] == [1] * LANES + [2, MAX_GROUP, 2]


async def test_domains_do_not_wait_for_one_another(sending: Sending, store: SlowStore) -> None:
    tasks = await all_waiting(sending, store, [a_command() for _ in range(LANES + 1)])
    other = asyncio.create_task(sending.send("bank", a_command()))
    await soon(lambda: len(store.groups) == LANES + 1)
    store.gate.set()
    assert await outcomes([*tasks, other]) == [None] * (LANES + 2)
