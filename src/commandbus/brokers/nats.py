"""NATS JetStream: a stream for each queue, with one pull consumer that all relays share.

The token of a delivery is its reply subject, so any connection can acknowledge it. Messages have no
`Nats-Msg-Id`: for two minutes after a purge JetStream would confirm a copy of what is gone as a
duplicate, and drop it. What arrives twice is adopted once anyway.

JetStream confirms before it has called fsync. What a crash of its machine loses then is
unconfirmed, and dispatched again after `unconfirmed_after_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from commandbus.errors import InvalidInputError
from commandbus.extras import extra
from commandbus.names import physical_queue
from commandbus.privacy.redaction import redact_text
from commandbus.transport import BrokerError, MessageRefusedError, TransportMessage

with extra("nats", "a queue on NATS JetStream"):
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext, api
    from nats.js import errors as js_errors

#: How long an empty queue is listened to, in seconds.
FETCH_SECONDS = 0.3
#: How often it is looked whether stream and consumer are still there, if nothing comes.
ENSURE_SECONDS = 5.0
#: Deliveries that may be unacknowledged at once, for all relays of a queue.
MAX_ACK_PENDING = 10_000

_CONSUMER = "relay"
_log = logging.getLogger("commandbus.brokers")


class NatsTransport:
    """Implements commandbus.brokers.Transport on a connection that the caller owns."""

    def __init__(
        self, client: Client, *, name: str = "nats", replicas: int = 1, timeout_seconds: float = 5.0
    ) -> None:
        self.name = name
        self._client = client
        self._replicas = replicas
        self._seconds = timeout_seconds
        self._streams: JetStreamContext = client.jetstream(timeout=timeout_seconds)
        self._known: set[str] = set()
        #: By the queue: the subscription, the seconds of its lease, and when it was looked after.
        self._pulls: dict[str, tuple[JetStreamContext.PullSubscription, int, float]] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, *, name: str = "nats", replicas: int = 1, timeout_seconds: float = 5.0
    ) -> AsyncIterator[NatsTransport]:
        """Open a connection that comes back by itself. `replicas`: servers that keep a stream."""
        client = Client()

        async def note(error: Exception) -> None:
            _log.warning("%s: %s", name, redact_text(str(error) or type(error).__name__))

        try:
            async with asyncio.timeout(timeout_seconds):
                await client.connect(
                    url, name="commandbus", error_cb=note, max_reconnect_attempts=-1,
                    reconnect_time_wait=1, connect_timeout=max(1, round(timeout_seconds)),
                )  # fmt: skip
        except (nats_errors.Error, OSError, TimeoutError, ValueError) as error:
            await _close(client)
            raise _broken("NATS cannot be reached", error) from None
        try:
            yield cls(client, name=name, replicas=replicas, timeout_seconds=timeout_seconds)
        finally:
            await _close(client)

    def subject(self, queue: str) -> str:
        """The subject to which the messages of a queue are published."""
        return f"commandbus.{queue}"

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        """Publish, and wait for the confirm of each."""
        if messages:
            await self._publish(self.subject(queue), messages, is_aside=False)

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        """Lease some, oldest first."""
        try:
            pull = await self._pull(queue, lease_seconds)
            found = await self._fetch(pull, quantity)
        except (nats_errors.Error, TimeoutError, OSError) as error:
            await self._forget(queue)
            raise _broken("NATS did not answer", error) from None
        return [TransportMessage(m.reply, m.data.decode(errors="replace")) for m in found]

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Each is answered by the server, so that a lost acknowledgement is noticed."""
        await asyncio.gather(*(self._acknowledge(message) for message in messages))

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """Into the stream beside, which nobody reads by itself."""
        aside = f"{self.subject(queue)}.aside"
        await self._publish(aside, [message.text for message in messages], is_aside=True)
        await self.acknowledge(queue, messages)

    # -- inside

    async def _fetch(self, pull: JetStreamContext.PullSubscription, quantity: int) -> list[Msg]:
        try:
            return await pull.fetch(quantity, timeout=FETCH_SECONDS)
        except TimeoutError:  # that of the library is one too
            if self._client.is_connected:
                return []
            raise  # silence of a server that is gone does not mean that nothing is left

    async def _acknowledge(self, message: TransportMessage) -> None:
        if not message.token.startswith("$JS.ACK."):
            raise InvalidInputError("this token is not one of NATS")
        try:
            await self._client.request(message.token, b"+ACK", timeout=self._seconds)
        except nats_errors.NoRespondersError:
            return  # its consumer is gone, and the delivery with it
        except (nats_errors.Error, TimeoutError, OSError) as error:
            raise _broken("NATS did not answer to an acknowledgement", error) from None

    async def _publish(self, subject: str, messages: Sequence[str], *, is_aside: bool) -> None:
        for is_again in (False, True):
            try:
                await self._ensure_stream(subject, is_aside=is_aside)
                # Begun in this order, and sent so: each waits for its own confirm only.
                confirms = await asyncio.gather(
                    *(
                        self._streams.publish(subject, text.encode(), timeout=self._seconds)
                        for text in messages
                    ),
                    return_exceptions=True,
                )
                for confirm in confirms:
                    if isinstance(confirm, BaseException):
                        raise confirm
                return
            except js_errors.NoStreamResponseError as error:
                # Somebody removed the stream, or the server lost it.
                self._known.discard(subject)
                if is_again:
                    raise _broken("NATS has no stream for it", error) from None
            except nats_errors.MaxPayloadError as error:
                raise MessageRefusedError(_text("NATS refuses it", error)) from None
            except (nats_errors.Error, TimeoutError, OSError) as error:
                raise _broken("NATS did not confirm", error) from None

    async def _ensure_stream(self, subject: str, *, is_aside: bool) -> None:
        if subject in self._known:
            return
        policy = api.RetentionPolicy.LIMITS if is_aside else api.RetentionPolicy.WORK_QUEUE
        config = api.StreamConfig(
            name=_stream_name(subject), subjects=[subject], retention=policy,
            storage=api.StorageType.FILE, num_replicas=self._replicas,
        )  # fmt: skip
        try:
            await self._streams.stream_info(str(config.name))
        except js_errors.NotFoundError:
            await self._streams.add_stream(config)
        self._known.add(subject)

    async def _pull(self, queue: str, lease_seconds: int) -> JetStreamContext.PullSubscription:
        now = time.monotonic()
        pull, seconds, ensured_at = self._pulls.get(queue, (None, 0, 0.0))
        if pull is not None and seconds == lease_seconds and now - ensured_at < ENSURE_SECONDS:
            return pull
        subject = self.subject(queue)
        self._known.discard(subject)
        await self._ensure_stream(subject, is_aside=False)
        config = api.ConsumerConfig(
            durable_name=_CONSUMER, ack_policy=api.AckPolicy.EXPLICIT, ack_wait=lease_seconds,
            max_ack_pending=MAX_ACK_PENDING, filter_subject=subject,
        )  # fmt: skip
        stream = _stream_name(subject)
        await self._streams.add_consumer(stream, config)  # or changes the seconds of its lease
        if pull is None:
            pull = await self._streams.pull_subscribe_bind(_CONSUMER, stream)
        self._pulls[queue] = (pull, lease_seconds, now)
        return pull

    async def _forget(self, queue: str) -> None:
        self._known.discard(self.subject(queue))
        pull, _, _ = self._pulls.pop(queue, (None, 0, 0.0))
        if pull is not None and not self._client.is_closed:
            try:
                await pull.unsubscribe()
            except nats_errors.Error as error:
                _log.debug("%s: %s", self.name, error)


async def _close(client: Client) -> None:
    with suppress(nats_errors.Error, OSError):  # a connection that is lost already
        await client.close()


def _stream_name(subject: str) -> str:
    return physical_queue(subject)  # a stream's name has no dots


def _broken(what: str, error: BaseException) -> BrokerError:
    return BrokerError(_text(what, error))


def _text(what: str, error: BaseException) -> str:
    return f"{what}: {redact_text(str(error) or type(error).__name__)}"
