"""PGMQ: installing it, calling it, and waking up for it."""

from commandbus.database.pgmq.client import PgmqClient
from commandbus.database.pgmq.remote import RemoteQueue

__all__ = ["PgmqClient", "RemoteQueue"]
