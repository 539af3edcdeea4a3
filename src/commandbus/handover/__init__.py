"""Handover: commands that a worker in another system does, reached through a broker.

`bus.handover` leases commands, gives them away as signed messages, and takes signed results, each
fenced by its lease. `OutsideWorker` is the other end for programs in Python; it needs no database.
The messages are plain JSON, so that any language can be that other end: docs/guides/brokers.md.
"""

from commandbus.handover.messages import OutsideCommand, UntrustedMessageError
from commandbus.handover.outside import OutsideWorker

__all__ = ["OutsideCommand", "OutsideWorker", "UntrustedMessageError"]
