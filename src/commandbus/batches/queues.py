"""MessageQueue: what a queue in another place than the database of the bus must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class MessageQueue(Protocol):
    """A queue that shares no transaction with the rows of the commands. Messages are JSON texts.

    `batches.dispatch(queue=...)` sends to it and `batches.relay` brings its messages back. It may
    deliver a message more than once, and late: a command is queued at most once all the same.
    `RemoteQueue` is one, on PGMQ in another database; an application may bring its own.
    """

    @property
    def name(self) -> str:
        """What it is called in records and log lines; no secrets."""

    async def send(self, domain: str, messages: Sequence[str]) -> None:
        """Queue all of them, in this order, or raise."""

    async def read(self, domain: str, *, vt_seconds: int, quantity: int) -> list[tuple[int, str]]:
        """Lease up to `quantity` messages for `vt_seconds`, oldest first, each with its id."""

    async def delete(self, domain: str, msg_ids: Sequence[int]) -> None:
        """They have arrived."""

    async def archive(self, domain: str, msg_ids: Sequence[int]) -> None:
        """They belong to no command that may be queued; keep them for an operator to look at."""
