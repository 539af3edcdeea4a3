"""Preparing: commands are checked and encoded before a transaction begins."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from commandbus.commands.drafting import Drafting
from commandbus.commands.marks import Marks
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.flow import Flow, SendOptions, check_flow
from commandbus.meta import check_meta
from commandbus.middleware.base import Middleware
from commandbus.models import BatchCommand, NewCommand
from commandbus.names import (
    NO_REPLY,
    check_command_type,
    check_domain,
    check_reply_to,
    check_uuid,
    new_id,
    replies_queue,
)
from commandbus.payload import encode_payload
from commandbus.retry import RetryPolicy, check_max_attempts
from commandbus.settings import Settings
from commandbus.typed.commands import TypedCommand, as_batch_command
from commandbus.typed.models import written

if TYPE_CHECKING:
    from commandbus.typed.codec import Codec


class Preparer:
    """Turns what a caller says into a command that can be stored, or says what is wrong with it."""

    def __init__(
        self,
        settings: Settings,
        policy: RetryPolicy,
        codecs: Mapping[tuple[str, str], Codec] | None = None,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.drafting = Drafting(middleware)
        self.marks = Marks()
        self._settings = settings
        self._policy = policy
        #: The types of payloads that this process knows, while handlers are registered.
        self._codecs = {} if codecs is None else codecs
        self._pepper = b""
        self._looked_at = float("-inf")
        #: What was checked last: commands sent together mostly have one domain and one type.
        self._checked_domain: Any = object()
        self._checked_type: Any = object()

    def command(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: Mapping[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
        max_attempts: int | None = None,
        *,
        options: SendOptions | None = None,
        fits: bool = False,
    ) -> NewCommand:
        """Check and encode one command. `fits`: the caller checks the type of data itself."""
        if domain is not self._checked_domain:
            self._checked_domain = check_domain(domain)
        if command_type is not self._checked_type:
            self._checked_type = check_command_type(command_type)
        kind: Any = type(data)
        if kind is not dict:
            data = written(data, is_checked=self._settings.validate_on_send)
            if data.__class__ is not kind:  # it was a model
                self.marks.meet(domain, command_type, kind)
        if self._codecs:
            codec = self._codecs.get((domain, command_type))
            if codec is not None and codec.kind is not kind:  # else it was checked just now
                self.marks.meet(domain, command_type, codec.kind)
                if self._settings.validate_on_send and not fits:
                    codec.check(data)
        return NewCommand(
            command_type=command_type,
            command_id=check_uuid(command_id),
            data=encode_payload(data, max_bytes=self._settings.max_payload_bytes),
            reply_to=self.reply_queue(domain) if reply_to is None else check_reply_to(reply_to),
            correlation_id=new_id()
            if correlation_id is None
            else check_uuid(correlation_id, "correlation_id"),
            max_attempts=self._policy.max_attempts
            if max_attempts is None
            else check_max_attempts(max_attempts),
            flow=check_flow(options) if options else None,
            meta=check_meta(options.get("meta")) if options else None,
        )

    def batch_command(
        self,
        domain: str,
        command: BatchCommand | TypedCommand,
        max_attempts: int | None = None,
        *,
        may_be_unique: bool = False,
    ) -> NewCommand:
        """Check and encode one of several commands."""
        if not isinstance(command, BatchCommand):
            command = as_batch_command(domain, command)
        prepared = self.command(
            domain, command.command_type, command.command_id, command.data, command.reply_to,
            command.correlation_id, max_attempts, options=command.options,
        )  # fmt: skip
        if not may_be_unique:
            refuse_unique_key(prepared.flow)
        return prepared

    def closing_command(self, domain: str, command: BatchCommand | TypedCommand) -> bytes:
        """Check and encode the command that a batch sends when it ends.

        Its id is made at each closing (a batch that is retried ends again), and its correlation
        id is the id of the batch.
        """
        if not isinstance(command, BatchCommand):
            command = as_batch_command(domain, command)
        prepared = self.command(
            domain, command.command_type, command.command_id, command.data, command.reply_to, None,
            options=command.options,
        )  # fmt: skip
        refuse_unique_key(prepared.flow)
        flow = prepared.flow or Flow()
        if flow.deliver_at is not None or flow.expires_at is not None:
            raise InvalidInputError(
                "the command for the end of a batch takes delay and expires_in, counted from that "
                "end; deliver_at and expires_at may be over by then"
            )
        if flow.ordering_key is not None:
            raise InvalidInputError(
                "the command for the end of a batch cannot have an ordering_key: the worker that "
                "ends the batch sends it, and must not wait for a key"
            )
        return orjson.dumps(
            {
                **flow.document(),
                "domain": domain,
                "type": prepared.command_type,
                "data": orjson.Fragment(prepared.data),
                "reply_to": prepared.reply_to,
                "max_attempts": prepared.max_attempts,
                **({} if prepared.meta is None else {"meta": prepared.meta}),
            }
        )

    def digest(self, domain: str, command: NewCommand) -> bytes:
        """Of what a repeat of the command must have in common with it, to be stored."""
        return self.digests(domain, command)[0]

    def digests(self, domain: str, command: NewCommand) -> list[bytes]:
        """The same under each pepper that it may have been stored with, the current one first.

        Keyed, so that a reader of the table of digests cannot try payloads. Services on one
        database share the pepper, as for their tokens; with another pepper a repeat is refused.
        """
        content: list[Any] = [domain, command.command_type, orjson.loads(command.data)]
        if command.flow is not None:  # another time is another request
            content.append(command.flow.digestible())
        text = b"commandbus sent command " + orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        from hmac import digest  # noqa: PLC0415  (not at the start)

        return [digest(key, text, "sha256") for key in self._digest_keys()]

    def _digest_keys(self) -> list[bytes]:
        """The peppers; none where there is none, because a send must not fail for it.

        It is not made here: that of the machine that makes the tokens would be another one.
        """
        # Another process may have made it meanwhile; not looked for with each of 10,000 commands.
        if not self._pepper and time.monotonic() - self._looked_at >= 1:
            self._looked_at = time.monotonic()
            self._pepper = self._settings.token_pepper.encode() or self._kept_pepper()
        old = (part.strip().encode() for part in self._settings.token_pepper_old.split(","))
        return list(dict.fromkeys((self._pepper, *filter(None, old), b"")))

    def _kept_pepper(self) -> bytes:
        from commandbus.keys import Keys  # noqa: PLC0415  (not at the start)

        folder = self._settings.keys_folder or None
        try:
            return Keys.load("token_pepper", folder=folder, allow_create=False) or b""
        except InvalidSettingError:  # the service says it, where it checks tokens
            return b""

    def reply_queue(self, domain: str) -> str:
        """Where the reply of a command goes that names no queue."""
        if self._settings.replies == "domain":
            return replies_queue(domain)
        return NO_REPLY if self._settings.replies == "none" else self._settings.replies


def refuse_unique_key(flow: Flow | None) -> None:
    """Refuse a unique key where a command must be sent whatever others do."""
    if flow is not None and flow.unique_key is not None:
        raise InvalidInputError(
            "a batch is created with all its commands, so none of them has a unique_key; use send, "
            "or send_many with batch_id"
        )
