"""Transport: what a queue in another place than the database of the bus must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commandbus.errors import CommandBusError


class BrokerError(CommandBusError):
    """A broker cannot be reached, or did not confirm. Repeating is safe: commands run once."""


class MessageRefusedError(BrokerError):
    """A broker that answers will never take one of these messages: it is too large, for example."""


@dataclass(frozen=True, slots=True)
class TransportMessage:
    """A message that was received and is not acknowledged yet."""

    #: Names this delivery to the transport that made it, and to nobody else; it may mean nothing
    #: any more after the lease or the connection.
    token: str
    text: str = field(repr=False)


class Transport(Protocol):
    """Queues that share no transaction with the rows. Messages are JSON texts.

    `batches.dispatch(queue=...)` publishes to one and `batches.relay` brings its messages back;
    `handover` has one for what is given away and one for results. A queue is named by words with
    dots, `payments.dispatch`. It may deliver a message more than once, late, in another order, or
    lose it: a command runs once all the same. Nobody uses one object from two event loops.
    """

    @property
    def name(self) -> str:
        """What it is called in records and log lines; no secrets."""

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        """Return once the broker has confirmed all of them, else raise.

        After an error any part of them may have arrived. MessageRefusedError: the broker will never
        take one of them. What is missing there, a queue or a
        stream, is made, also if somebody removed it since the last call.
        """

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        """Up to `quantity` messages, oldest first; none: an empty list, in less than a second.

        Each is this caller's for `lease_seconds`, which is the same in all calls for a queue. What
        is not acknowledged then comes again; it may do so earlier if the connection ends.
        """

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """They have arrived and must not come again. One that is not known is no error."""

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        """They belong to no command: keep them apart, for an operator, and never deliver them."""
