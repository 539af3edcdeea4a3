"""What a command holds: its payload, those before it was edited, its meta, and its reply.

Everything is masked here, so that no face can show a secret by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.commands.replies import parse_reply
from commandbus.database.store import Store
from commandbus.errors import CommandNotFoundError, InvalidPayloadError
from commandbus.meta import decode_meta, shown_meta
from commandbus.models import ReplyError, ReplyOutcome
from commandbus.names import check_domain, check_uuid
from commandbus.privacy.redaction import redact_payload, redact_text

#: The keys of a payload that are secret, by domain and command type.
SecretKeys = Callable[[str, str], frozenset[str]]

_FORMER_PAYLOADS: LiteralString = "select * from {schema}.former_payloads(%s, %s)"
_COMMAND_REPLY: LiteralString = "select * from {schema}.command_reply(%s, %s)"


class ReplyState(StrEnum):
    """Where the reply of a command is."""

    #: The command has not ended.
    OPEN = "open"
    #: Nobody wanted one.
    UNWANTED = "unwanted"
    WAITING = "waiting"
    #: Somebody reads it, and has not said yet that it is done.
    LEASED = "leased"
    TAKEN = "taken"
    #: It was taken, or retention has removed it.
    GONE = "gone"
    #: Its queue is not ours, or too many replies were published in that moment.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FormerPayload:
    """A payload that a command had before somebody edited it; secrets are masked."""

    replaced_at: datetime
    replaced_by: str | None
    #: None: its message is not kept any more.
    payload: Any


@dataclass(frozen=True, slots=True)
class ShownReply:
    """Where the reply of a command is and, as long as it is there, what it says, masked."""

    state: ReplyState
    outcome: ReplyOutcome | None = None
    completed_at: datetime | None = None
    data: Any = None
    error: ReplyError | None = None
    meta: dict[str, str] | None = None


class Contents:
    """Reads what commands hold."""

    _store: Store
    _secret_keys: SecretKeys

    async def payload(self, domain: str, command_id: UUID) -> Any:
        """The payload of a command with its secrets masked; None if it is gone."""
        wanted = check_uuid(command_id)
        found = await self._store.marked_payload(check_domain(domain), wanted)
        if found is None:
            raise CommandNotFoundError(domain, wanted)
        return self._masked(domain, found.data, found.command_type, found.secret_keys)

    async def former_payloads(self, domain: str, command_id: UUID) -> list[FormerPayload]:
        """What a command had before each edit, masked: the last 20, the newest first."""
        params = (check_domain(domain), check_uuid(command_id))
        rows = await self._store.gateway.rows(_FORMER_PAYLOADS, params)
        return [
            FormerPayload(at, by, self._masked(domain, text, kind, keys))
            for at, by, text, kind, keys in rows
        ]

    async def reply(self, domain: str, command_id: UUID) -> ShownReply:
        """Where the reply of a command is, and what it says while it is there. It is left there."""
        wanted = check_uuid(command_id)
        rows = await self._store.gateway.rows(_COMMAND_REPLY, (check_domain(domain), wanted))
        if not rows:
            raise CommandNotFoundError(domain, wanted)
        kind, state, body, keys = rows[0]
        if body is None:
            return ShownReply(ReplyState(state))
        try:
            found = parse_reply(body)
        except InvalidPayloadError:  # another program has written it
            return ShownReply(ReplyState.UNKNOWN)
        marked = self._secret_keys(domain, kind).union(keys)
        error = found.error
        if error is not None and error.message is not None:
            error = ReplyError(error.code, redact_text(error.message), error.error_class)
        return ShownReply(
            ReplyState(state), found.outcome, found.completed_at,
            redact_payload(found.data, marked), error, shown_meta(found.meta),
        )  # fmt: skip

    async def meta(self, domain: str, command_id: UUID) -> dict[str, str] | None:
        """What travels with a command beside its payload; None if that is nothing, or gone."""
        text = await self._store.get_meta(check_domain(domain), check_uuid(command_id))
        return shown_meta(decode_meta(text))

    def _masked(self, domain: str, text: str | None, kind: str, keys: Iterable[str]) -> Any:
        if text is None:
            return None
        return redact_payload(orjson.loads(text), self._secret_keys(domain, kind).union(keys))
