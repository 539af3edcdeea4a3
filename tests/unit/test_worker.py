"""Worker: the parts are started and stopped in the right order, whatever fails on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from commandbus.commands.preparing import Preparer
from commandbus.database.model import Lease, OutcomeKind
from commandbus.errors import DatabaseUnavailableError
from commandbus.flow import Pause
from commandbus.handler import HandlerContext
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import Command
from commandbus.retry import RetryPolicy
from commandbus.settings import Settings
from commandbus.worker import shared as shared_module
from commandbus.worker import worker as worker_module
from commandbus.worker.options import WorkerOptions, new_worker_id
from commandbus.worker.worker import Worker
from tests.unit.stubs import StubStore, a_lease, soon


class StubExtender:
    def extend(
        self, domain: str, leases: Sequence[Lease], seconds: int
    ) -> tuple[set[UUID], set[UUID]]:
        return set(), set()

    def close(self) -> None:
        pass


class StubListener:
    def __init__(self) -> None:
        self.subscribed: list[str] = []
        self.unsubscribed: list[str] = []
        self.error: Exception | None = None

    def subscribe(self, channel: str, wake: Any) -> None:
        self.subscribed.append(channel)

    def unsubscribe(self, channel: str, wake: Any) -> None:
        self.unsubscribed.append(channel)

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


class WholeStore(StubStore):
    """All that a worker asks of a store."""

    has_gateway = False

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[tuple[str, int]] = []
        self.beats: list[bool] = []
        self.heartbeat_error: Exception | None = None
        self.gone: list[str] = []
        self.goodbye_error: Exception | None = None
        self.ensure_error: Exception | None = None
        self.a_listener = StubListener()
        self.receive_gate: asyncio.Event | None = None
        self.paused: list[Pause] = []

    @asynccontextmanager
    async def dedicated(self, purpose: str, size: int) -> AsyncIterator[WholeStore]:
        self.opened.append((purpose, size))
        yield self

    async def ensure_domain(self, domain: str) -> None:
        if self.ensure_error is not None:
            raise self.ensure_error

    async def receive(self, domain: str, **options: Any) -> list[Lease]:
        if self.receive_gate is not None:
            await self.receive_gate.wait()
        return await super().receive(domain, **options)

    async def pauses(self, domains: Sequence[str]) -> list[Pause]:
        return [pause for pause in self.paused if pause.domain in domains]

    async def due_in(self, domains: Sequence[str]) -> dict[str, float]:
        return dict.fromkeys(domains, 0.0)

    async def open_extender(self) -> StubExtender:
        return StubExtender()

    def listener(self) -> StubListener:
        return self.a_listener

    async def heartbeat(self, worker: str, domain: str, *, is_idle: bool, **_: Any) -> None:
        if self.heartbeat_error is not None:
            raise self.heartbeat_error
        self.beats.append(is_idle)

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> None:
        for beat in beats:
            await self.heartbeat(**beat)

    async def worker_gone(self, worker: str) -> None:
        self.gone.append(worker)
        if self.goodbye_error is not None:
            raise self.goodbye_error


@pytest.fixture
def store() -> WholeStore:
    return WholeStore()


def a_worker(
    store: WholeStore,
    handler: Any = None,
    *,
    transactional: bool = False,
    use_notify: bool = True,
    grace: float = 30.0,
) -> Worker:
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    registry = HandlerRegistry()
    registry.register("shop", "Work", handler or work, transactional=transactional)
    settings = Settings(shutdown_grace_seconds=grace, poll_max_seconds=0.01)
    policy = RetryPolicy()
    return Worker(
        store.as_store,
        registry,
        WorkerOptions("shop", 4, 30, use_notify),
        settings=settings,
        default_policy=policy,
        prepare=Preparer(settings, policy).command,
    )


def kinds(store: WholeStore) -> list[OutcomeKind]:
    return [outcome.kind for group in store.settled for outcome in group]


async def started(worker: Worker) -> asyncio.Task[None]:
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.started.wait(), 10)
    return running


def test_the_id_of_a_worker_names_its_process_and_is_never_the_same() -> None:
    first, second = new_worker_id(), new_worker_id()
    assert first != second
    assert f":{os.getpid()}:" in first


async def test_a_worker_works_until_it_is_stopped(store: WholeStore) -> None:
    store.receives = [[a_lease(), a_lease()]]
    worker = a_worker(store)
    running = await started(worker)
    await soon(lambda: kinds(store) == [OutcomeKind.COMPLETE] * 2)
    assert not worker.finished.is_set()
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert worker.finished.is_set()
    assert store.gone == [worker.worker_id]
    assert store.a_listener.subscribed == ["commandbus.shop.cancels", "commandbus.shop"]


@pytest.mark.parametrize(
    ("transactional", "opened"),
    [(False, ["control"]), (True, ["control", "handlers"])],
)
async def test_transactional_handlers_have_connections_of_their_own(
    store: WholeStore, transactional: bool, opened: list[str]
) -> None:
    worker = a_worker(store, transactional=transactional)
    running = await started(worker)
    worker.stop()
    await running
    assert [purpose for purpose, _ in store.opened] == opened
    assert [size for purpose, size in store.opened if purpose == "handlers"] == (
        [100] if transactional else []
    )


async def test_a_worker_that_does_not_listen_never_calls_itself_idle(
    store: WholeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr("commandbus.worker.receiver.IDLE_AFTER_SECONDS", -1.0)
    worker = a_worker(store, use_notify=False)
    running = await started(worker)
    seen = len(store.asked_for)
    await soon(lambda: len(store.asked_for) > seen + 2 and len(store.beats) > 5)
    worker.stop()
    await running
    assert set(store.beats) == {False}
    assert store.a_listener.subscribed == []


async def test_a_worker_that_listens_says_when_it_is_idle(
    store: WholeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commandbus.worker.receiver.IDLE_AFTER_SECONDS", -1.0)
    worker = a_worker(store)
    running = await started(worker)
    await soon(lambda: True in store.beats)
    worker.stop()
    await running


async def test_a_heartbeat_that_fails_ends_nothing(
    store: WholeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.heartbeat_error = DatabaseUnavailableError("away")
    worker = a_worker(store)
    running = await started(worker)
    await soon(lambda: "heartbeat failed" in caplog.text)
    store.receives = [[a_lease()]]
    await soon(lambda: kinds(store) == [OutcomeKind.COMPLETE])
    worker.stop()
    await running


async def test_a_worker_ends_without_a_database_to_say_goodbye_to(store: WholeStore) -> None:
    store.goodbye_error = DatabaseUnavailableError("away")
    worker = a_worker(store)
    running = await started(worker)
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert len(store.gone) == 1


async def test_a_worker_that_cannot_start_says_why_and_has_ended(store: WholeStore) -> None:
    store.ensure_error = DatabaseUnavailableError("away")
    worker = a_worker(store)
    with pytest.raises(DatabaseUnavailableError):
        await worker.run()
    assert worker.finished.is_set()
    assert not worker.started.is_set()


async def test_a_part_that_breaks_ends_the_worker_with_its_error(
    store: WholeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better no worker than half of one; the leases lapse."""
    monkeypatch.setattr(worker_module, "ABORT_GRACE_SECONDS", 0.01)
    store.a_listener.error = RuntimeError("a bug")
    worker = a_worker(store)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(worker.run(), 10)
    assert caught.group_contains(RuntimeError, match="a bug")
    assert store.gone == [worker.worker_id]
    assert worker.finished.is_set()


async def test_leases_that_arrive_after_the_stop_go_back(store: WholeStore) -> None:
    store.receive_gate = asyncio.Event()
    store.receives = [[a_lease(), a_lease()]]
    worker = a_worker(store)
    running = await started(worker)
    await asyncio.sleep(0)
    worker.stop()
    await asyncio.sleep(0)
    store.receive_gate.set()
    await asyncio.wait_for(running, 10)
    assert set(kinds(store)) == {OutcomeKind.RELEASE}
    assert len(kinds(store)) == 2


async def test_a_receive_that_hangs_does_not_hold_up_a_cancelled_worker(
    store: WholeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "ABORT_GRACE_SECONDS", 0.01)
    store.receive_gate = asyncio.Event()
    running = await started(a_worker(store))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)


async def test_a_handler_that_will_not_be_cancelled_does_not_hold_up_the_stop(
    store: WholeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "ABORT_GRACE_SECONDS", 0.01)
    release, entered = asyncio.Event(), asyncio.Event()

    async def stubborn(command: Command, ctx: HandlerContext) -> None:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    store.receives = [[a_lease()]]
    worker = a_worker(store, stubborn, grace=0.01)
    running = await started(worker)
    await asyncio.wait_for(entered.wait(), 10)
    worker.stop()
    await asyncio.wait_for(running, 10)
    release.set()
    await asyncio.sleep(0)
