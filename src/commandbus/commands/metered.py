"""MeteredSending: the same as Sending, for a bus that is measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack
from uuid import UUID

from commandbus.commands.preparing import Preparer
from commandbus.commands.sending import Sending
from commandbus.middleware.base import Drafts
from commandbus.models import BatchCommand, NewCommand, SendReport
from commandbus.monitoring.metrics import Metrics
from commandbus.typed.commands import TypedCommand, as_batch_command

if TYPE_CHECKING:
    from commandbus.database.store import SendPlace, Store


class MeteredSending(Sending):
    """Counts what was sent and how long it took; in a caller's transaction before it commits."""

    def __init__(
        self, store: Store, preparer: Preparer, *, max_send_many: int, metrics: Metrics
    ) -> None:
        super().__init__(store, preparer, max_send_many=max_send_many)
        self._metrics = metrics

    async def send(self, domain: str, command: NewCommand, **place: Unpack[SendPlace]) -> UUID:
        """Send one command; returns the id of what is there now."""
        began = time.monotonic()
        sent = await super().send(domain, command, **place)
        # Another id: a command that holds the unique key is there already, and nothing was sent.
        if sent == command.command_id:
            self._metrics.sent(domain, [command.command_type], time.monotonic() - began)
        return sent

    async def send_many(
        self,
        domain: str,
        commands: Iterable[BatchCommand | TypedCommand],
        drafts: Drafts | None = None,
        *,
        max_attempts: int | None,
        on_duplicate: str,
        **place: Unpack[SendPlace],
    ) -> SendReport:
        """Send all in one transaction, or none."""
        types: dict[UUID, str] = {}

        def noted() -> Iterator[BatchCommand]:
            for each in commands:
                # What is counted has the id under which it is sent.
                found = each if isinstance(each, BatchCommand) else as_batch_command(domain, each)
                types[found.command_id] = found.command_type
                yield found

        began = time.monotonic()
        given = list(noted()) if isinstance(commands, (list, tuple)) else noted()
        report = await super().send_many(
            domain, given, drafts, max_attempts=max_attempts, on_duplicate=on_duplicate, **place
        )
        sent = [types[each] for each in report if each in types]
        self._metrics.sent(domain, sent, time.monotonic() - began)
        return report
