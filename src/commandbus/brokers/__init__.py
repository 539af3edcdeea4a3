"""Brokers: queues that share no transaction with the commands, and what all of them must do.

`Transport` is the protocol, `commandbus.testing.TransportConformance` tries an implementation.
Each adapter is imported only when it is opened, so that naming this package loads no library.
"""

from commandbus.brokers.opening import open_transport
from commandbus.transport import BrokerError, MessageRefusedError, Transport, TransportMessage

__all__ = [
    "BrokerError",
    "MessageRefusedError",
    "Transport",
    "TransportMessage",
    "open_transport",
]
