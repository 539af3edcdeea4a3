"""Small stand-ins for the neighbours of one part of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

from commandbus.database.model import Lease, Outcome
from commandbus.database.store import Store


def a_lease(**changes: Any) -> Lease:
    """A lease of a command of the shop."""
    values: dict[str, Any] = {
        "domain": "shop", "command_id": uuid4(), "command_type": "Work", "msg_id": 7,
        "lease_epoch": 1, "attempt": 1, "max_attempts": 3, "is_suspect": False,
        "correlation_id": uuid4(), "reply_queue": "shop.replies", "batch_id": None,
        "created_at": datetime.now(UTC), "payload": "{}",
    }  # fmt: skip
    return Lease(**(values | changes))


class StubStore:
    """Answers what it was told to, one answer for each call; an exception is raised."""

    def __init__(self) -> None:
        self.settles: list[Any] = []
        self.settled: list[list[Outcome]] = []
        self.receives: list[Any] = []
        self.asked_for: list[dict[str, Any]] = []
        self.confirms: list[Any] = []
        self.confirmed: list[Lease] = []
        self.extends: list[Any] = []
        self.settle_gate: asyncio.Event | None = None
        self.transactions: list[StubTransaction] = []
        self.transaction_error: Exception | None = None

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        self.settled.append(list(outcomes))
        if self.settle_gate is not None:
            await self.settle_gate.wait()
        return cast("set[UUID]", _answer(self.settles, set()))

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: Any
    ) -> tuple[set[UUID], list[Lease]]:
        return await self.settle(domain, outcomes), await self.receive(domain, **options)

    async def receive(self, domain: str, **options: Any) -> list[Lease]:
        self.asked_for.append(options)
        return cast("list[Lease]", _answer(self.receives, []))

    async def confirm_start(self, lease: Lease) -> bool:
        self.confirmed.append(lease)
        return cast("bool", _answer(self.confirms, True))

    async def extend(self, domain: str, leases: Sequence[Lease], seconds: float) -> set[UUID]:
        return cast("set[UUID]", _answer(self.extends, set()))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[StubTransaction]:
        if self.transaction_error is not None:
            raise self.transaction_error
        transaction = StubTransaction(self)
        self.transactions.append(transaction)
        yield transaction
        transaction.is_committed = True

    def own_transactions(self) -> StubStore:
        return self

    def leave_reader(self, driver: object, error: BaseException) -> None: ...

    def is_lost(self, driver: object, error: BaseException) -> bool:
        return False


class StubTransaction:
    """A transaction that knows whether it was committed."""

    def __init__(self, store: StubStore) -> None:
        self._store = store
        self.conn = self.driver = object()
        self.is_committed = False

    async def settle(self, domain: str, outcomes: Sequence[Outcome]) -> set[UUID]:
        return await self._store.settle(domain, outcomes)


def _answer(answers: list[Any], otherwise: Any) -> Any:
    found = answers.pop(0) if answers else otherwise
    if isinstance(found, BaseException):
        raise found
    return found


async def soon(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Wait until a condition comes about within some turns of the event loop."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def turns(number: int = 20) -> None:
    """Give everything that is ready its turn."""
    for _ in range(number):
        await asyncio.sleep(0)
