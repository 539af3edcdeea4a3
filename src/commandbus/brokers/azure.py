"""Azure Service Bus, by its SDK. Not tried against the service: there is none to try it with here.

The queue `commandbus.<domain>.dispatch` of each domain must be there, and for a handover
`….handover` and `….results`: making one takes rights that a sender should not have. The lock
duration of a queue is the lease; what is set aside is dead-lettered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from commandbus.extras import extra
from commandbus.privacy.redaction import redact_text
from commandbus.transport import BrokerError, TransportMessage

with extra("azure", "a queue on Azure Service Bus"):
    import aiohttp  # noqa: F401  (its asynchronous part needs it)
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
    from azure.servicebus.exceptions import (
        MessageLockLostError,
        MessageNotFoundError,
        ServiceBusError,
    )

#: How long an empty queue is listened to, in seconds.
WAIT_SECONDS = 0.5


class AzureTransport:
    """Implements commandbus.brokers.Transport on a client that the caller owns."""

    def __init__(self, client: ServiceBusClient, *, name: str = "azure") -> None:
        self.name = name
        self._client = client
        self._stack = AsyncExitStack()
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[str, ServiceBusReceiver] = {}
        self._leased: dict[str, ServiceBusReceivedMessage] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, connection_string: str, *, name: str = "azure"
    ) -> AsyncIterator[AzureTransport]:
        """Open a client by the connection string of a namespace."""
        async with ServiceBusClient.from_connection_string(connection_string) as client:
            transport = cls(client, name=name)
            async with transport._stack:
                yield transport

    def queue_name(self, queue: str) -> str:
        """Its name at the service."""
        return f"commandbus.{queue}"

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        """Send in as many batches as the service takes."""
        try:
            sender = await self._sender(queue)
            batch = await sender.create_message_batch()
            for text in messages:
                message = ServiceBusMessage(text, content_type="application/json")
                try:
                    batch.add_message(message)
                except ValueError:  # it is full
                    await sender.send_messages(batch)
                    batch = await sender.create_message_batch()
                    batch.add_message(message)
            if len(batch):
                await sender.send_messages(batch)
        except (ServiceBusError, ValueError) as error:
            raise _broken(error) from None

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        """Lease some; for how long, the queue says."""
        try:
            receiver = await self._receiver(queue)
            found = await receiver.receive_messages(
                max_message_count=quantity, max_wait_time=WAIT_SECONDS
            )
        except ServiceBusError as error:
            raise _broken(error) from None
        messages = []
        for message in found:
            token = str(message.lock_token)
            self._leased[token] = message
            messages.append(TransportMessage(token, str(message)))
        return messages

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Complete them."""
        receiver = await self._receiver(queue)
        for message in messages:
            leased = self._leased.pop(message.token, None)
            if leased is not None:
                try:
                    await receiver.complete_message(leased)
                except (MessageLockLostError, MessageNotFoundError):
                    continue  # it comes again
                except ServiceBusError as error:
                    raise _broken(error) from None

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Dead-letter them."""
        receiver = await self._receiver(queue)
        for message in messages:
            leased = self._leased.pop(message.token, None)
            if leased is not None:
                try:
                    await receiver.dead_letter_message(leased, reason="it belongs to no command")
                except ServiceBusError as error:
                    raise _broken(error) from None

    async def _sender(self, queue: str) -> ServiceBusSender:
        if queue not in self._senders:
            sender = self._client.get_queue_sender(self.queue_name(queue))
            self._senders[queue] = await self._stack.enter_async_context(sender)
        return self._senders[queue]

    async def _receiver(self, queue: str) -> ServiceBusReceiver:
        if queue not in self._receivers:
            receiver = self._client.get_queue_receiver(self.queue_name(queue))
            self._receivers[queue] = await self._stack.enter_async_context(receiver)
        return self._receivers[queue]


def _broken(error: BaseException) -> BrokerError:
    return BrokerError(f"Azure Service Bus refused: {redact_text(str(error))}")
