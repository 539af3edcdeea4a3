"""A transport by its address: the scheme says which broker, and so which library is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from commandbus.errors import InvalidSettingError
from commandbus.transport import Transport

#: What an address may begin with, by the broker that it means.
SCHEMES = {
    "nats": ("nats://", "tls://"),
    "rabbitmq": ("amqp://", "amqps://"),
    "azure": ("Endpoint=sb://",),
    "postgresql": ("postgresql://", "postgres://"),
}


@asynccontextmanager
async def open_transport(
    address: str, *, name: str | None = None, timeout_seconds: float = 5.0
) -> AsyncIterator[Transport]:
    """Open the broker at an address; it is closed with the block.

    `nats://host:4222`, `amqp://user:password@host/vhost`, a connection string of Azure Service Bus,
    or `postgresql://…` for PGMQ in another database. `name`: as it is called in records.
    `timeout_seconds`: how long an answer is waited for; the SDK of Azure has its own time.
    """
    kind = next((kind for kind, begins in SCHEMES.items() if address.startswith(begins)), None)
    called = name or kind or ""
    async with AsyncExitStack() as stack:
        if kind == "nats":
            from commandbus.brokers.nats import NatsTransport  # noqa: PLC0415  (its library)

            opening = NatsTransport.connect(address, name=called, timeout_seconds=timeout_seconds)
            yield await stack.enter_async_context(opening)
        elif kind == "rabbitmq":
            from commandbus.brokers.rabbitmq import RabbitTransport  # noqa: PLC0415  (its library)

            opened = RabbitTransport.connect(address, name=called, timeout_seconds=timeout_seconds)
            yield await stack.enter_async_context(opened)
        elif kind == "azure":
            from commandbus.brokers.azure import AzureTransport  # noqa: PLC0415  (its library)

            yield await stack.enter_async_context(AzureTransport.connect(address, name=called))
        elif kind == "postgresql":
            from commandbus.database.pgmq import RemoteQueue  # noqa: PLC0415  (the driver)

            remote = RemoteQueue.connect(address, name=called, timeout_seconds=timeout_seconds)
            yield await stack.enter_async_context(remote)
        else:
            # Not the address itself: it may have a password.
            known = ", ".join(begin for begins in SCHEMES.values() for begin in begins)
            raise InvalidSettingError(
                f"this is no address of a broker that is known; one begins with {known}"
            )
