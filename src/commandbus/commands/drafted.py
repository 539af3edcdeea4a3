"""Sends of a bus that has middleware around them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer
from commandbus.commands.sending import Sending
from commandbus.flow import SendOptions
from commandbus.models import BatchCommand, NewCommand, SendReport
from commandbus.typed.commands import TypedCommand

if TYPE_CHECKING:
    from commandbus.database.store import SendPlace
    from commandbus.handler import SendPreparer


def sending_through(sending: Sending) -> Sending | DraftedSending:
    """The sends of a bus: as they are, if nothing is around them."""
    return DraftedSending(sending) if sending.preparer.drafting.middleware else sending


def plain_sending(sending: Sending | DraftedSending) -> Sending:
    """The same without what is around it."""
    return sending._sending if isinstance(sending, DraftedSending) else sending


def outgoing(preparer: Preparer) -> SendPreparer:
    """What prepares the commands that handlers send with their outcome."""
    if not preparer.drafting.middleware:
        return preparer.command

    def prepare(
        domain: str,
        command_type: str,
        command_id: UUID,
        data: Mapping[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
        /,
        *,
        options: SendOptions,
    ) -> NewCommand:
        command = preparer.command(
            domain, command_type, command_id, data, reply_to, correlation_id, options=options
        )
        with preparer.drafting.around(domain) as drafts:
            return drafted(domain, command, drafts)

    return prepare


class DraftedSending:
    """The verbs of Sending, inside the middleware of the bus."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._drafting = sending.preparer.drafting

    async def send(self, domain: str, command: NewCommand, **place: Unpack[SendPlace]) -> UUID:
        """Send one command."""
        with self._drafting.around(domain) as drafts:
            return await self._sending.send(domain, drafted(domain, command, drafts), **place)

    async def send_many(
        self,
        domain: str,
        commands: Iterable[BatchCommand | TypedCommand],
        *,
        max_attempts: int | None,
        on_duplicate: str,
        **place: Unpack[SendPlace],
    ) -> SendReport:
        """Send all in one transaction, or none."""
        count = len(commands) if isinstance(commands, Collection) else None
        with self._drafting.around(domain, count, is_many=True) as drafts:
            return await self._sending.send_many(
                domain, commands, drafts, max_attempts=max_attempts, on_duplicate=on_duplicate,
                **place,
            )  # fmt: skip
