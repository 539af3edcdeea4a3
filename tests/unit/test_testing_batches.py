"""commandbus.testing and batches: all of one transaction, nothing of loading and dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from commandbus import (
    BatchCommand,
    BatchMetadata,
    Command,
    CommandBus,
    DatabaseError,
    DuplicateCommandError,
    HandlerContext,
    InvalidInputError,
    InvalidOperationError,
    PermanentCommandError,
    RetryPolicy,
)
from commandbus.batches import DispatchMode
from commandbus.errors import RepeatedIdError
from commandbus.testing import fake_bus, run_until_idle, sent, store_of
from tests.conformance.worlds import DOMAIN, new_batch


@pytest.fixture
async def fake() -> AsyncIterator[CommandBus]:
    bus = fake_bus()
    yield bus
    await bus.close()


def commands(count: int) -> list[BatchCommand]:
    return [BatchCommand("Debit", uuid4(), {"n": n}) for n in range(count)]


async def test_an_id_that_is_twice_in_a_list_is_named_with_its_positions(fake: CommandBus) -> None:
    one, two = commands(2)
    many = [one, *commands(2), two, one, one]
    for send in (fake.create_batch, fake.send_many):
        with pytest.raises(RepeatedIdError) as caught:
            await send(DOMAIN, many)
        assert str(caught.value) == (
            f"the id {one.command_id} is repeated in this list (positions 1, 5 and 6); nothing was "
            "created. Give each command an id of its own"
        )
        assert caught.value.positions == {one.command_id: (1, 5, 6)}
    await fake.send_many(DOMAIN, [one, two])
    with pytest.raises(DuplicateCommandError, match="already sent") as known:
        await fake.send_many(DOMAIN, [one, two])
    assert not isinstance(known.value, RepeatedIdError)


async def never(batch: BatchMetadata) -> None:
    raise AssertionError(batch)


@pytest.mark.parametrize("wrong", ["notify", lambda: None])
async def test_a_batch_whose_callback_cannot_be_called_is_not_created(
    fake: CommandBus, wrong: Any
) -> None:
    with pytest.raises(InvalidInputError, match="on_complete"):
        await fake.create_batch(DOMAIN, commands(1), on_complete=wrong)
    assert await fake.list_batches(DOMAIN) == []


async def test_a_batch_runs_to_its_end_and_calls_back_at_each_closing(fake: CommandBus) -> None:
    is_down = True

    @fake.handler(DOMAIN, "Debit", retry_policy=RetryPolicy(when_exhausted="fail"))
    async def debit(command: Command, ctx: HandlerContext) -> None:
        if is_down and command.data["n"] == 1:
            raise PermanentCommandError("DOWN", "not today")

    fake.register_handler(DOMAIN, "Report", lambda command, ctx: None)
    called: list[str] = []

    async def remember(batch: BatchMetadata) -> None:
        called.append(batch.status)

    batch_id = await fake.create_batch(
        DOMAIN, commands(3), on_complete=remember,
        on_complete_command=BatchCommand("Report", uuid4(), {"to": "ann"}),
    )  # fmt: skip
    await run_until_idle(fake)
    assert called == ["COMPLETED_WITH_FAILURES"]
    is_down = False
    assert await fake.batches.retry(DOMAIN, batch_id, operator="ann") == 1
    assert await fake.batches.retry(DOMAIN, batch_id, operator="ann") == 0
    await run_until_idle(fake)

    assert called == ["COMPLETED_WITH_FAILURES", "COMPLETED"]
    reports = sent(fake, DOMAIN, "Report")
    assert [report.correlation_id for report in reports] == [batch_id, batch_id]
    assert (await fake.batches.wait(DOMAIN, batch_id, timeout=1)).completed_count == 3


async def test_a_running_worker_ends_a_batch_and_its_callback_is_woken(fake: CommandBus) -> None:
    fake.register_handler(DOMAIN, "Debit", lambda command, ctx: None)
    ended: asyncio.Queue[BatchMetadata] = asyncio.Queue()
    worker = asyncio.create_task(fake.run_worker(DOMAIN))
    batch_id = await fake.create_batch(DOMAIN, commands(5), on_complete=ended.put)

    assert (await asyncio.wait_for(ended.get(), 10)).batch_id == batch_id
    await fake.stop()
    await worker


async def test_a_batch_that_is_not_created_calls_nobody(fake: CommandBus) -> None:
    known = commands(1)
    await fake.create_batch(DOMAIN, known)

    with pytest.raises(DuplicateCommandError):
        await fake.create_batch(DOMAIN, [*commands(2), *known], on_complete=never)

    assert len(await fake.list_batches(DOMAIN)) == 1
    assert fake._completions._batch_callbacks == {}


async def test_a_batch_has_an_id_of_its_own(fake: CommandBus) -> None:
    batch = new_batch()
    await store_of(fake).create_batch(batch, [])

    with pytest.raises(DatabaseError, match=str(batch.batch_id)):
        await store_of(fake).create_batch(batch, [])


async def test_what_can_be_read_of_a_batch_is_a_copy(fake: CommandBus) -> None:
    batch_id = await fake.create_batch(DOMAIN, commands(1), custom_data={"lines": [1]})
    for batch in (await fake.get_batch(DOMAIN, batch_id), *await fake.list_batches(DOMAIN)):
        assert batch is not None
        assert batch.custom_data is not None
        batch.custom_data["lines"].append(2)

    [again] = await fake.list_batches(DOMAIN)
    assert again.custom_data == {"lines": [1]}


async def test_an_inline_dispatch_is_a_batch(fake: CommandBus) -> None:
    result = await fake.batches.dispatch(DOMAIN, commands(2), mode=DispatchMode.INLINE)

    assert (result.status, result.queued_tasks) == ("success", 2)
    assert len(sent(fake, DOMAIN)) == 2


Verb = Callable[[CommandBus], Awaitable[Any]]
LOADING: dict[str, Verb] = {
    "load_batch": lambda bus: bus.loads.load(DOMAIN, commands(1)),
    "resume_load": lambda bus: bus.loads.resume(DOMAIN, uuid4(), commands(1)),
    "get_load": lambda bus: bus.loads.get(DOMAIN, uuid4()),
}
DISPATCH: dict[str, Verb] = {
    "two_phase": lambda bus: bus.batches.dispatch(DOMAIN, commands(1), on_complete=never),
    "optimistic": lambda bus: bus.batches.dispatch(
        DOMAIN, commands(1), mode=DispatchMode.OPTIMISTIC
    ),
    "relay": lambda bus: bus.batches.relay(DOMAIN, queue=object()),  # type: ignore[arg-type]
    "recover": lambda bus: bus.batches.recover_dispatch(DOMAIN),
}


@pytest.mark.parametrize("verb", LOADING)
async def test_there_is_no_loading(fake: CommandBus, verb: str) -> None:
    with pytest.raises(InvalidOperationError, match=r"needs PostgreSQL, .* the embedded server"):
        await LOADING[verb](fake)

    assert await fake.list_batches(DOMAIN) == []


@pytest.mark.parametrize("verb", DISPATCH)
async def test_there_is_no_dispatch_in_two_commits(fake: CommandBus, verb: str) -> None:
    with pytest.raises(InvalidOperationError, match=r"needs PostgreSQL, .* the embedded server"):
        await DISPATCH[verb](fake)

    assert await fake.list_batches(DOMAIN) == []
    assert fake._completions._batch_callbacks == {}
