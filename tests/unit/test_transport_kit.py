"""The kit for authors of adapters: a right one passes, and each wrong one is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from commandbus.testing import TransportConformance, transport_kit
from commandbus.transport import TransportMessage

KIT = sorted(name for name in dir(TransportConformance) if name.startswith("test_"))


class Right:
    """A broker in memory: texts with the time until which they are leased."""

    name = "right"
    wait_seconds = 0.0

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, tuple[str, float]]] = {}
        self._numbers = count(1)

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        for text in messages:
            self._queues.setdefault(queue, {})[self._token()] = (text, 0.0)

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        there, now = self._queues.setdefault(queue, {}), time.monotonic()
        tokens = [token for token, (_, leased_until) in there.items() if leased_until <= now]
        found = [TransportMessage(token, there[token][0]) for token in tokens[:quantity]]
        for message in found:
            there[message.token] = (message.text, now + lease_seconds)
        if not found:
            await asyncio.sleep(self.wait_seconds)
        return found

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        for message in messages:
            self._queues[queue].pop(message.token, None)

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        await self.publish(f"{queue}!aside", [message.text for message in messages])
        await self.acknowledge(queue, messages)

    def purge(self, queue: str) -> None:
        self._queues.get(queue, {}).clear()

    def _token(self) -> str:
        return str(next(self._numbers))


class Forgets(Right):
    """What is not acknowledged never comes again."""

    async def receive(self, queue: str, **options: Any) -> list[TransportMessage]:
        return await super().receive(queue, **{**options, "lease_seconds": 1_000_000})


class GivesTwice(Right):
    async def receive(self, queue: str, **options: Any) -> list[TransportMessage]:
        return await super().receive(queue, **{**options, "lease_seconds": 0})


class KeepsAll(Right):
    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Nothing."""


class NewestFirst(Right):
    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        await super().publish(queue, list(messages)[::-1])


class Greedy(Right):
    async def receive(self, queue: str, **options: Any) -> list[TransportMessage]:
        return await super().receive(queue, **{**options, "quantity": 100})


class Strict(Right):
    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        for message in messages:
            del self._queues[queue][message.token]


class BringsBackWhatIsAside(Right):
    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        await self.acknowledge(queue, messages)
        await self.publish(queue, [message.text for message in messages])


class OneQueue(Right):
    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        await super().publish(queue.partition(".")[0], messages)

    async def receive(self, queue: str, **options: Any) -> list[TransportMessage]:
        return await super().receive(queue.partition(".")[0], **options)

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        await super().acknowledge(queue.partition(".")[0], messages)


class TakesNoCopies(Right):
    """As a broker with a window of duplicates does."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        await super().publish(queue, [text for text in messages if text not in self._seen])
        self._seen.update(messages)


class Slow(Right):
    wait_seconds = transport_kit.EMPTY_SECONDS


class NeedsToBeMade(Right):
    async def receive(self, queue: str, **options: Any) -> list[TransportMessage]:
        if queue not in self._queues:
            raise KeyError(queue)
        return await super().receive(queue, **options)


class Numbers(Right):
    def _token(self) -> Any:
        return next(self._numbers)


class LeasesLate(Right):
    """Who receives meanwhile gets the same."""

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        found = await super().receive(queue, quantity=quantity, lease_seconds=0)
        await asyncio.sleep(0)
        for message in found:
            if message.token in self._queues[queue]:
                leased_until = time.monotonic() + lease_seconds
                self._queues[queue][message.token] = (message.text, leased_until)
        return found


class Kit(TransportConformance):
    async def purge(self, transport: Any, queue: str) -> None:
        transport.purge(queue)


async def _failed(made: type[Right]) -> list[str]:
    async def fails(name: str) -> bool:
        try:
            await getattr(Kit(), name)(made(), f"kit_{uuid4().hex}.dispatch")
        except (AssertionError, KeyError):
            return True
        return False

    found = await asyncio.gather(*map(fails, KIT))
    return [name for name, is_wrong in zip(KIT, found, strict=True) if is_wrong]


async def test_a_right_transport_passes_and_each_wrong_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_kit, "PATIENCE_SECONDS", 2.0)
    assert await _failed(Right) == []
    wrong = Right.__subclasses__()
    found = await asyncio.gather(*map(_failed, wrong))
    assert [made.__name__ for made, failed in zip(wrong, found, strict=True) if not failed] == []
    # And each test of the kit refuses one of them.
    assert {name for failed in found for name in failed} == set(KIT)
