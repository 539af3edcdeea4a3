"""RabbitMQ: quorum queues, publisher confirms, and leases that we keep ourselves.

RabbitMQ knows no lease: what is not acknowledged stays with its channel. So each delivery has its
time here, and goes back when that is over. A delivery belongs to the channel that made it: after a
new connection all that was not acknowledged comes again by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from commandbus.extras import extra
from commandbus.privacy.redaction import redact_text
from commandbus.transport import BrokerError, MessageRefusedError, TransportMessage

with extra("rabbitmq", "a queue on RabbitMQ"):
    import aio_pika
    from aio_pika import exceptions
    from aio_pika.abc import (
        AbstractChannel,
        AbstractConnection,
        AbstractIncomingMessage,
        AbstractQueue,
    )

_Use = Literal["publish", "receive"]
_ERRORS = (exceptions.AMQPError, OSError, TimeoutError, RuntimeError, asyncio.InvalidStateError)


class RabbitTransport:
    """Implements commandbus.brokers.Transport; opens its connection when it is needed."""

    def __init__(self, url: str, *, name: str = "rabbitmq", timeout_seconds: float = 5.0) -> None:
        self.name = name
        self._url = url
        self._seconds = timeout_seconds
        self._connection: AbstractConnection | None = None
        #: One to publish, one to receive: what is leased belongs to its channel, and must not come
        #: again because something else was not confirmed.
        self._channels: dict[_Use, AbstractChannel] = {}
        self._queues: dict[tuple[_Use, str], AbstractQueue] = {}
        #: What is with us, by its token: the message and when its lease is over.
        self._leased: dict[str, tuple[AbstractIncomingMessage, float]] = {}
        self._opened = 0
        self._opening = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, *, name: str = "rabbitmq", timeout_seconds: float = 5.0
    ) -> AsyncIterator[RabbitTransport]:
        """Open a connection; a later one is opened by itself when this one is lost."""
        transport = cls(url, name=name, timeout_seconds=timeout_seconds)
        try:
            try:
                _ = await transport._open("publish")
            except _ERRORS as error:
                raise _broken("RabbitMQ cannot be reached", error) from None
            yield transport
        finally:
            await transport.close()

    async def close(self) -> None:
        """End the connection; what is leased comes again, to somebody else."""
        connection, self._connection = self._connection, None
        self._channels.clear()
        self._queues.clear()
        self._leased.clear()
        if connection is not None:
            try:
                await asyncio.wait_for(connection.close(), self._seconds)
            except _ERRORS:
                return  # it was lost already

    def queue_name(self, queue: str) -> str:
        """Its name at the broker; its routing key too, in the default exchange."""
        return f"commandbus.{queue}"

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        """Publish, and wait for the confirm of each: a majority of the queue's servers has it."""
        if messages:
            await self._publish(self.queue_name(queue), messages)

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        """Lease some, oldest first."""
        found: list[TransportMessage] = []
        try:
            place = await self._queue("receive", self.queue_name(queue))
            await self._give_back()
            while len(found) < quantity:
                message = await place.get(no_ack=False, fail=False, timeout=self._seconds)
                if message is None:
                    break
                token = f"{self._opened}:{message.delivery_tag}"
                self._leased[token] = (message, time.monotonic() + lease_seconds)
                found.append(TransportMessage(token, message.body.decode(errors="replace")))
        except _ERRORS as error:
            await self._drop("receive")
            raise _broken("RabbitMQ did not answer", error) from None
        return found

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """What belongs to an earlier connection is not known any more, and comes again."""
        try:
            for message in messages:
                leased = self._leased.pop(message.token, None)
                if leased is not None:
                    await leased[0].ack()
        except _ERRORS as error:
            await self._drop("receive")
            raise _broken("RabbitMQ did not take an acknowledgement", error) from None

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Into the queue beside, which nobody reads by itself."""
        texts = [message.text for message in messages]
        await self._publish(f"{self.queue_name(queue)}.aside", texts)
        await self.acknowledge(queue, messages)

    # -- inside

    async def _open(self, use: _Use) -> AbstractChannel:
        async with self._opening:
            channel = self._channels.get(use)
            if channel is not None and not channel.is_closed:
                return channel
            connection = self._connection
            if connection is None or not self._is_connected():
                await self.close()
                connection = await aio_pika.connect(self._url, timeout=self._seconds)
                self._connection = connection
            self._forget(use)
            channel = self._channels[use] = await connection.channel(
                publisher_confirms=True, on_return_raises=True
            )
            self._opened += 1
            return channel

    def _is_connected(self) -> bool:
        # `is_closed` is only true of a connection that we ended, not after a broker was killed.
        connection = self._connection
        return connection is not None and connection.connected.is_set()

    def _forget(self, use: _Use) -> AbstractChannel | None:
        """A channel has ended, and what belonged to it."""
        for each in [each for each in self._queues if each[0] == use]:
            del self._queues[each]
        if use == "receive":
            self._leased.clear()
        return self._channels.pop(use, None)

    async def _drop(self, use: _Use) -> None:
        """Give up one channel; the next call opens another."""
        channel = self._forget(use)
        if channel is None or not self._is_connected():
            await self.close()  # the next call opens a connection too
        else:
            try:
                await asyncio.wait_for(channel.close(), self._seconds)
            except _ERRORS:
                await self.close()  # it does not even take that

    async def _queue(self, use: _Use, name: str) -> AbstractQueue:
        channel = await self._open(use)
        if (use, name) not in self._queues:
            self._queues[use, name] = await channel.declare_queue(
                name, durable=True, arguments={"x-queue-type": "quorum"}, timeout=self._seconds
            )
        return self._queues[use, name]

    async def _give_back(self) -> None:
        now = time.monotonic()
        for token in [token for token, (_, ends) in self._leased.items() if ends <= now]:
            # Another queue of this transport may have done it meanwhile.
            if (leased := self._leased.pop(token, None)) is not None:
                await leased[0].nack(requeue=True)

    async def _publish(self, name: str, texts: Sequence[str]) -> None:
        for is_again in (False, True):
            try:
                await self._queue("publish", name)
                exchange = (await self._open("publish")).default_exchange
                confirms = await asyncio.gather(
                    *(
                        exchange.publish(
                            aio_pika.Message(
                                text.encode(),
                                content_type="application/json",
                                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                            ),
                            routing_key=name,
                            mandatory=True,
                            timeout=self._seconds,
                        )
                        for text in texts
                    ),
                    return_exceptions=True,
                )
                for confirm in confirms:
                    if isinstance(confirm, BaseException):
                        raise confirm
                return
            except exceptions.PublishError as error:
                # It came back: somebody removed the queue.
                self._queues.pop(("publish", name), None)
                if is_again:
                    raise _broken("RabbitMQ has no queue for it", error) from None
            except exceptions.ChannelPreconditionFailed as error:
                # What it says of a message that is larger than max_message_size.
                await self._drop("publish")
                raise MessageRefusedError(_text("RabbitMQ refuses it", error)) from None
            except (*_ERRORS, exceptions.DeliveryError) as error:
                await self._drop("publish")
                raise _broken("RabbitMQ did not confirm", error) from None


def _broken(what: str, error: BaseException) -> BrokerError:
    return BrokerError(_text(what, error))


def _text(what: str, error: BaseException) -> str:
    return f"{what}: {redact_text(str(error) or type(error).__name__)}"
