"""What every Transport must do, as tests: for those who write an adapter.

    class TestMyTransport(TransportConformance):
        @pytest.fixture
        async def transport(self):
            async with MyTransport.connect(...) as transport:
                yield transport

        async def purge(self, transport, queue):
            ...  # remove every message of the queue, behind the back of the transport

It needs pytest with pytest-asyncio in its mode `auto`.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

import pytest

from commandbus.transport import Transport, TransportMessage

#: How long what must come again is waited for, in seconds.
PATIENCE_SECONDS = 20.0
#: How soon an empty queue must say so.
EMPTY_SECONDS = 1.0


def _texts(count: int) -> list[str]:
    return [f'{{"command_id": "{uuid4()}", "data": {{"n": {n}}}}}' for n in range(count)]


def _values(messages: list[TransportMessage]) -> list[Any]:
    return [json.loads(message.text) for message in messages]


async def _receive(
    transport: Transport, queue: str, count: int, *, lease_seconds: int = 30
) -> list[TransportMessage]:
    """As many as are expected: a transport may give them in parts."""
    found: list[TransportMessage] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += await transport.receive(
            queue, quantity=count - len(found), lease_seconds=lease_seconds
        )
        await asyncio.sleep(0.01)
    return found


class TransportConformance:
    """Inherit from it, and give the fixture `transport`. Each test has a queue of its own."""

    @pytest.fixture
    def queue(self) -> str:
        """A name that nobody else uses."""
        return f"kit_{uuid4().hex[:12]}.dispatch"

    async def purge(self, transport: Transport, queue: str) -> None:  # noqa: ARG002
        """Remove every message of a queue, as an operator of the broker does."""
        pytest.skip("this adapter does not say how it is purged")

    async def test_messages_come_back_as_they_were_and_in_order(
        self, transport: Transport, queue: str
    ) -> None:
        """As JSON: where a broker stores it as such, blanks may go. Also long and foreign ones."""
        texts = [*_texts(20), '{"text": "grüße 漢字 🚌"}', '{"long": "' + "x" * 100_000 + '"}']
        await transport.publish(queue, texts)
        found = await _receive(transport, queue, len(texts))
        assert _values(found) == [json.loads(text) for text in texts]
        await transport.acknowledge(queue, found)

    async def test_tokens_are_texts_and_each_delivery_has_its_own(
        self, transport: Transport, queue: str
    ) -> None:
        """Nobody else looks into them."""
        await transport.publish(queue, _texts(5))
        tokens = [message.token for message in await _receive(transport, queue, 5)]
        assert all(type(token) is str and token for token in tokens)
        assert len(set(tokens)) == 5

    async def test_no_more_come_than_were_asked_for(self, transport: Transport, queue: str) -> None:
        """And the others are still there."""
        await transport.publish(queue, _texts(7))
        first = await transport.receive(queue, quantity=3, lease_seconds=30)
        assert 1 <= len(first) <= 3
        rest = await _receive(transport, queue, 7 - len(first))
        assert len({message.token for message in [*first, *rest]}) == 7

    async def test_an_empty_queue_says_so_soon(self, transport: Transport, queue: str) -> None:
        """In less than a second, of which a busy machine may take more: one of three must do."""
        await transport.publish(queue, [])
        took = []
        for _ in range(3):
            began = time.monotonic()
            assert await transport.receive(queue, quantity=10, lease_seconds=30) == []
            took.append(time.monotonic() - began)
        assert min(took) < EMPTY_SECONDS

    async def test_a_queue_that_nobody_has_published_to_is_empty(
        self, transport: Transport, queue: str
    ) -> None:
        """A relay may be there before the first dispatch; what comes then, comes."""
        assert await transport.receive(queue, quantity=1, lease_seconds=30) == []
        await transport.publish(queue, _texts(1))
        assert len(await _receive(transport, queue, 1)) == 1

    async def test_what_is_leased_is_not_given_twice(
        self, transport: Transport, queue: str
    ) -> None:
        """Until its time is over."""
        await transport.publish(queue, _texts(3))
        await _receive(transport, queue, 3)
        assert await transport.receive(queue, quantity=3, lease_seconds=30) == []

    async def test_what_is_acknowledged_does_not_come_again(
        self, transport: Transport, queue: str
    ) -> None:
        """Only the others do."""
        texts = _texts(4)
        await transport.publish(queue, texts)
        found = await _receive(transport, queue, 4, lease_seconds=1)
        await transport.acknowledge(queue, found[:3])
        again = await _receive(transport, queue, 1, lease_seconds=1)
        assert _values(again) == [json.loads(texts[3])]
        await transport.acknowledge(queue, again)
        assert await transport.receive(queue, quantity=4, lease_seconds=1) == []

    async def test_a_second_acknowledgement_is_no_error(
        self, transport: Transport, queue: str
    ) -> None:
        """A relay that is not sure repeats it."""
        await transport.publish(queue, _texts(1))
        found = await _receive(transport, queue, 1)
        await transport.acknowledge(queue, found)
        await transport.acknowledge(queue, found)
        await transport.acknowledge(queue, [])

    async def test_what_is_set_aside_does_not_come_again(
        self, transport: Transport, queue: str
    ) -> None:
        """Its neighbours do."""
        texts = _texts(3)
        await transport.publish(queue, texts)
        found = await _receive(transport, queue, 3, lease_seconds=1)
        await transport.set_aside(queue, found[:2])
        again = await _receive(transport, queue, 1, lease_seconds=1)
        assert _values(again) == [json.loads(texts[2])]

    async def test_queues_are_apart(self, transport: Transport, queue: str) -> None:
        """Also if one name begins with the other."""
        mine, others = _texts(2), _texts(2)
        await transport.publish(queue, mine)
        await transport.publish(f"{queue}.b", others)
        assert _values(await _receive(transport, queue, 2)) == [json.loads(text) for text in mine]
        found = await _receive(transport, f"{queue}.b", 2)
        assert _values(found) == [json.loads(text) for text in others]

    async def test_those_who_receive_at_once_get_each_message_once(
        self, transport: Transport, queue: str
    ) -> None:
        """A relay of several domains uses one transport for all of them."""
        queues = [queue, f"{queue}.b", f"{queue}.c"]
        texts = {each: _texts(10) for each in queues}
        await asyncio.gather(*(transport.publish(each, texts[each]) for each in queues))

        async def drain(place: str) -> list[str]:
            ids: list[str] = []
            for _ in range(5):
                found = await _receive(transport, place, 1)
                ids += [value["command_id"] for value in _values(found)]
                await transport.acknowledge(place, found)
            return ids

        came = await asyncio.gather(*map(drain, queues), *map(drain, queues))
        for place, one, other in zip(queues, came[:3], came[3:], strict=True):
            assert sorted([*one, *other]) == sorted(
                json.loads(t)["command_id"] for t in texts[place]
            )
            assert await transport.receive(place, quantity=10, lease_seconds=30) == []

    async def test_a_purged_queue_takes_the_same_messages_again(
        self, transport: Transport, queue: str
    ) -> None:
        """What was lost is dispatched again, and must not be taken for a copy."""
        texts = _texts(5)
        await transport.publish(queue, texts)
        await self.purge(transport, queue)
        assert await transport.receive(queue, quantity=5, lease_seconds=30) == []
        await transport.publish(queue, texts)
        assert _values(await _receive(transport, queue, 5)) == [json.loads(text) for text in texts]
