"""Time-outs of handlers, and threads that do not end; on a bus in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    Settings,
)
from commandbus.database.model import Outcome, OutcomeKind
from commandbus.errors import InvalidSettingError
from commandbus.testing import fake_bus, sent
from commandbus.worker.execution import Execution
from commandbus.worker.running import Run
from tests.unit.stubs import a_lease, soon, turns
from tests.unit.test_executor import Bench
from tests.waiting import until, until_status

DOMAIN = "shop"
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
DONE = CommandStatus.COMPLETED


@pytest.fixture
def fake() -> CommandBus:
    """A time-out of half a second, and a quarter of a second to end after it."""
    return fake_bus(
        settings=Settings(lease_deadline_seconds=1),
        retry_policy=RetryPolicy(max_attempts=1),
    )


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@asynccontextmanager
async def working(fake: CommandBus, concurrency: int = 2) -> AsyncIterator[None]:
    task = asyncio.create_task(fake.run_worker(DOMAIN, concurrency=concurrency))
    try:
        yield
    finally:
        await fake.stop()
        await task


async def send(fake: CommandBus, command_type: str = "Work") -> UUID:
    return await fake.send(DOMAIN, command_type, uuid4(), {})


async def status(fake: CommandBus, command_id: UUID) -> CommandStatus:
    found = await fake.get_command(DOMAIN, command_id)
    assert found is not None
    return found.status


async def test_an_async_handler_that_hangs_is_cancelled_and_has_failed(fake: CommandBus) -> None:
    stopped: list[bool] = []

    @fake.handler(DOMAIN, "Work", timeout_seconds=0.05)
    async def work(command: Command, ctx: HandlerContext) -> None:
        assert not ctx.should_stop
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.should_stop)

    async with working(fake):
        found = await until_status(fake, DOMAIN, await send(fake), PARKED)
    assert (found.last_error_code, found.last_error_type) == ("HANDLER_TIMEOUT", "TRANSIENT")
    assert found.last_error_msg == "the handler ran longer than 0.05 s"
    assert stopped == [True]
    trail = await fake.get_audit_trail(found.command_id)
    [failed] = [event for event in trail if event.event_type == "FAILED"]
    assert failed.details is not None
    assert failed.details["code"] == "HANDLER_TIMEOUT"


async def test_the_setting_holds_for_a_handler_without_a_time_out() -> None:
    fake = fake_bus(
        settings=Settings(handler_timeout_seconds=0.05), retry_policy=RetryPolicy(max_attempts=1)
    )

    @fake.handler(DOMAIN, "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        await asyncio.Event().wait()

    async with working(fake):
        found = await until_status(fake, DOMAIN, await send(fake), PARKED)
    assert found.last_error_msg == "the handler ran longer than 0.05 s"


@pytest.mark.parametrize("transactional", [False, True])
async def test_an_async_handler_that_catches_the_cancel_and_returns_has_succeeded(
    fake: CommandBus, transactional: bool
) -> None:
    @fake.handler(DOMAIN, "Work", timeout_seconds=0.05, transactional=transactional)
    async def work(command: Command, ctx: HandlerContext) -> str:
        if transactional:
            await fake.send("mail", "Send", uuid4(), {}, conn=ctx.conn)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "enough"

    async with working(fake):
        await until_status(fake, DOMAIN, await send(fake), DONE)
    assert len(sent(fake, "mail")) == transactional


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("broken"), "HANDLER_TIMEOUT"), (PermanentCommandError("NO", "never"), "NO")],
)
async def test_what_a_handler_raises_after_its_time_out_is_the_time_out_unless_it_is_permanent(
    fake: CommandBus, error: Exception, code: str
) -> None:
    @fake.handler(DOMAIN, "Work", timeout_seconds=0.05)
    async def work(command: Command, ctx: HandlerContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    async with working(fake):
        found = await until_status(fake, DOMAIN, await send(fake), PARKED)
    assert found.last_error_code == code
    if code == "HANDLER_TIMEOUT":
        assert str(found.last_error_msg).endswith("it ended with ValueError: broken")


async def test_an_async_handler_that_does_not_end_keeps_no_slot(
    fake: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    @fake.handler(DOMAIN, "Hang", timeout_seconds=0.05)
    async def hang(command: Command, ctx: HandlerContext) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    @fake.handler(DOMAIN, "Work")
    async def work(command: Command, ctx: HandlerContext) -> None: ...

    async with working(fake, concurrency=1):
        hung = await send(fake, "Hang")
        await until_status(fake, DOMAIN, await send(fake), DONE)
        found = await until_status(fake, DOMAIN, hung, PARKED)
        assert found.last_error_msg == (
            "the handler ran longer than 0.05 s, and has not ended since"
        )
        assert not ended.is_set()
        gate.set()
        await until(lambda: "has ended, long after its time-out" in caplog.text)
    assert await status(fake, hung) is PARKED
    assert f"handler of {hung} (Hang) has not ended" in caplog.text


async def test_a_transaction_that_does_not_end_is_rolled_back_and_keeps_its_connection(
    fake: CommandBus,
) -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    @fake.handler(DOMAIN, "Hang", timeout_seconds=0.05, transactional=True)
    async def hang(command: Command, ctx: HandlerContext) -> None:
        await fake.send("mail", "Send", uuid4(), {}, conn=ctx.conn)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    @fake.handler(DOMAIN, "Work")
    async def work(command: Command, ctx: HandlerContext) -> None: ...

    async with working(fake, concurrency=1):
        hung = await send(fake, "Hang")
        await until_status(fake, DOMAIN, hung, PARKED)
        waiting = await send(fake)
        await until(lambda: fake.stuck_domains == [DOMAIN])
        assert await status(fake, waiting) is CommandStatus.PENDING
        gate.set()
        await until_status(fake, DOMAIN, waiting, DONE)
        assert ended.is_set()
    assert (await status(fake, hung), sent(fake, "mail")) == (PARKED, [])


# -- threads


async def test_a_thread_is_asked_to_stop_and_what_it_returns_then_counts(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Work", timeout_seconds=0.05)
    def work(command: Command, ctx: HandlerContext) -> str:
        while not ctx.should_stop:
            threading.Event().wait(0.001)
        return "enough"

    async with working(fake):
        await until_status(fake, DOMAIN, await send(fake), DONE)


async def test_a_thread_that_stops_with_an_error_has_timed_out(fake: CommandBus) -> None:
    @fake.handler(DOMAIN, "Work", timeout_seconds=0.05)
    def work(command: Command, ctx: HandlerContext) -> None:
        while not ctx.should_stop:
            threading.Event().wait(0.001)
        raise RuntimeError("stopped")

    async with working(fake):
        found = await until_status(fake, DOMAIN, await send(fake), PARKED)
    assert found.last_error_code == "HANDLER_TIMEOUT"


async def test_a_worker_whose_threads_are_stuck_leaves_what_needs_one_and_does_the_rest(
    fake: CommandBus, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @fake.handler(DOMAIN, "Hang", timeout_seconds=0.05)
    def hang(command: Command, ctx: HandlerContext) -> str:
        gate.wait()
        return "too late"

    @fake.handler(DOMAIN, "Sync")
    def run_sync(command: Command, ctx: HandlerContext) -> None:
        ran.append("sync")

    @fake.handler(DOMAIN, "Async")
    async def run_async(command: Command, ctx: HandlerContext) -> None:
        ran.append("async")

    async with working(fake):
        hung = [await send(fake, "Hang") for _ in range(2)]
        for command_id in hung:
            found = await until_status(fake, DOMAIN, command_id, PARKED)
            assert found.last_error_code == "HANDLER_TIMEOUT"
        await until(lambda: fake.stuck_domains == [DOMAIN])
        waiting = await send(fake, "Sync")
        for _ in range(3):
            await until_status(fake, DOMAIN, await send(fake, "Async"), DONE)
        found = await until_status(fake, DOMAIN, waiting, CommandStatus.PENDING)
        assert (found.attempts, ran) == (0, ["async"] * 3)
        gate.set()
        await until_status(fake, DOMAIN, waiting, DONE)
        assert fake.stuck_domains == []
    assert [await status(fake, command_id) for command_id in hung] == [PARKED] * 2
    assert caplog.text.count("all 2 threads are kept by handlers that did not end") == 1
    assert caplog.text.count("threads are free again") == 1


async def test_the_threads_that_are_left_go_on(fake: CommandBus, gate: threading.Event) -> None:
    together: list[int] = []
    running = 0

    @fake.handler(DOMAIN, "Hang", timeout_seconds=0.05)
    def hang(command: Command, ctx: HandlerContext) -> None:
        gate.wait()

    @fake.handler(DOMAIN, "Sync", timeout_seconds=0.5)
    def run_sync(command: Command, ctx: HandlerContext) -> None:
        nonlocal running
        running += 1
        together.append(running)
        threading.Event().wait(0.002)
        running -= 1

    async with working(fake, concurrency=2):
        await until_status(fake, DOMAIN, await send(fake, "Hang"), PARKED)
        work = [await send(fake, "Sync") for _ in range(30)]
        for command_id in work:
            found = await until_status(fake, DOMAIN, command_id, DONE)
            assert found.attempts == 1
    assert set(together) == {1}


async def test_a_suspect_that_finds_no_thread_goes_back(
    fake: CommandBus, gate: threading.Event
) -> None:
    @fake.handler(DOMAIN, "Hang", timeout_seconds=0.05)
    def hang(command: Command, ctx: HandlerContext) -> None:
        gate.wait()

    async with working(fake, concurrency=1):
        await until_status(fake, DOMAIN, await send(fake, "Hang"), PARKED)
        [worker] = fake._workers.running
        parts = worker._parts
        assert parts is not None
        suspect = a_lease(command_type="Hang", is_suspect=True, lease_epoch=2)
        parts.executor.submit([suspect])
        assert parts.executor.in_flight == 0
        assert parts.executor.wanted() == 1


async def test_a_thread_is_asked_to_stop_when_the_worker_waits_no_longer(
    gate: threading.Event,
) -> None:
    fake = fake_bus(settings=Settings(shutdown_grace_seconds=0))
    contexts: list[HandlerContext] = []

    @fake.handler(DOMAIN, "Work")
    def work(command: Command, ctx: HandlerContext) -> None:
        contexts.append(ctx)
        gate.wait()

    async with working(fake):
        sent_id = await send(fake)
        await until(lambda: contexts)
        before = contexts[0].should_stop
    assert (before, contexts[0].should_stop) == (False, True)
    found = await fake.get_command(DOMAIN, sent_id)
    assert found is not None
    assert (found.status, found.attempts) == (CommandStatus.PENDING, 0)


# -- the executor alone


async def test_a_run_that_began_late_is_not_overdue_with_its_lease() -> None:
    bench, lease = Bench(), a_lease()
    bench.submit(lease)
    await soon(lambda: bench.started)
    bench.executor.overdue(lease)
    await turns()
    assert (bench.early, bench.outcomes) == ([lease], [])
    bench.gate.set()
    await soon(lambda: bench.outcomes)


async def test_a_run_that_is_overdue_with_its_lease_has_timed_out() -> None:
    bench, lease = Bench(), a_lease()
    bench.execution.timeout_seconds = 1e-9
    bench.submit(lease)
    await soon(lambda: bench.started)
    bench.executor.overdue(lease)
    await soon(lambda: bench.outcomes)
    failure = bench.outcomes[0].failure
    assert failure is not None
    assert (failure.code, bench.early) == ("HANDLER_TIMEOUT", [])


async def test_what_waits_goes_back_when_its_lease_is_overdue() -> None:
    bench = Bench(concurrency=1)
    running, waiting, unknown = a_lease(), a_lease(), a_lease()
    bench.submit(running, waiting)
    await soon(lambda: bench.started)
    bench.executor.overdue(waiting)
    bench.executor.overdue(unknown)
    assert bench.outcomes == [Outcome(waiting, OutcomeKind.RELEASE)]
    bench.gate.set()
    await bench.executor.drained()
    assert bench.started == [running]


async def test_a_run_whose_handler_has_ended_is_not_overdue() -> None:
    bench, lease = Bench(), a_lease()
    bench.handlers_store.settle_gate = gate = asyncio.Event()

    async def work(command: Command, ctx: HandlerContext) -> None: ...

    bench.registry.register("shop", "Once", work, transactional=True, timeout_seconds=1e-9)
    lease = a_lease(command_type="Once")
    bench.submit(lease)
    await soon(lambda: bench.handlers_store.settled)
    bench.executor.overdue(lease)
    await turns()
    assert (bench.early, bench.executor.in_flight) == ([], 1)
    gate.set()
    await soon(lambda: bench.ended == [lease])
    assert bench.handlers_store.transactions[0].is_committed


@pytest.mark.parametrize("is_begun", [True, False])
async def test_an_error_of_our_own_ends_the_lease_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_begun: bool
) -> None:
    bench, lease = Bench(), a_lease()
    bench.gate.set()

    async def run(run: Run) -> None:
        if is_begun:
            run.begin(bench.registry.get("shop", "Work"), 1.0)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Execution, "run", lambda self, started: run(started))
    bench.submit(lease)
    await bench.executor.drained()
    if is_begun:
        [outcome] = bench.outcomes
        assert outcome.kind is OutcomeKind.RETRY
    else:
        assert bench.ended == [lease]
    assert f"{lease.command_id} could not be executed: Traceback" in caplog.text


async def test_one_timer_serves_all_runs() -> None:
    bench = Bench(concurrency=50)
    planned = asyncio.get_running_loop().call_at
    timers: list[float] = []

    def call_at(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return planned(when, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_at", call_at)
        bench.submit(*(a_lease() for _ in range(50)))
        await turns()
    assert (len(bench.started), len(timers)) == (50, 1)
    bench.gate.set()
    await bench.executor.drained()
    bench.executor.end()


# -- registration


@pytest.mark.parametrize("seconds", [0, -1, 1, 3_600, True, "5", float("nan"), float("inf")])
def test_a_time_out_must_be_a_number_below_the_deadline_of_leases(
    fake: CommandBus, seconds: Any
) -> None:
    with pytest.raises(InvalidSettingError, match=r"timeout_seconds of shop/Work .*seconds, 1$"):
        fake.register_handler(DOMAIN, "Work", print, timeout_seconds=seconds)
