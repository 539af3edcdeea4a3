"""Preparing: what is checked and encoded of a command before a transaction is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from commandbus.commands.payload import encode_payload
from commandbus.errors import InvalidInputError
from commandbus.models import BatchCommand, NewCommand, OutgoingCommands
from commandbus.names import (
    NO_REPLY,
    check_command_type,
    check_domain,
    check_reply_to,
    check_uuid,
    new_id,
    replies_queue,
)
from commandbus.retry import RetryPolicy, check_max_attempts
from commandbus.settings import Settings


def check_batch_command(command: Any) -> BatchCommand:
    """Return the command, or raise InvalidInputError."""
    if not isinstance(command, BatchCommand):
        raise InvalidInputError(
            "commands are BatchCommand(command_type, command_id, data), "
            f"not {type(command).__name__}"
        )
    return command


class Preparer:
    """Turns what a caller says into a command that can be stored, or says what is wrong with it."""

    def __init__(self, settings: Settings, policy: RetryPolicy) -> None:
        self._settings = settings
        self._policy = policy
        if settings.replies not in {"domain", "none"}:
            check_reply_to(settings.replies)

    def command(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: Mapping[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
        max_attempts: int | None = None,
    ) -> NewCommand:
        """Check and encode one command."""
        check_domain(domain)
        return NewCommand(
            command_type=check_command_type(command_type),
            command_id=check_uuid(command_id),
            data=encode_payload(data, max_bytes=self._settings.max_payload_bytes),
            reply_to=self._reply_queue(domain) if reply_to is None else check_reply_to(reply_to),
            correlation_id=new_id()
            if correlation_id is None
            else check_uuid(correlation_id, "correlation_id"),
            max_attempts=self._policy.max_attempts
            if max_attempts is None
            else check_max_attempts(max_attempts),
        )

    def outgoing(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
    ) -> OutgoingCommands:
        """Check and encode what a handler sends."""
        command = self.command(domain, command_type, command_id, data, reply_to, correlation_id)
        return OutgoingCommands(domain, (command,))

    def closing_command(self, domain: str, command: BatchCommand) -> bytes:
        """Check and encode the command that a batch sends when it ends.

        Its id is made at each closing (a batch that is retried ends again), and its correlation
        id is the id of the batch.
        """
        prepared = self.command(
            domain, command.command_type, command.command_id, command.data, command.reply_to, None
        )
        return orjson.dumps(
            {
                "domain": domain,
                "type": prepared.command_type,
                "data": orjson.Fragment(prepared.data),
                "reply_to": prepared.reply_to,
                "max_attempts": prepared.max_attempts,
            }
        )

    def _reply_queue(self, domain: str) -> str:
        if self._settings.replies == "domain":
            return replies_queue(domain)
        return NO_REPLY if self._settings.replies == "none" else self._settings.replies
