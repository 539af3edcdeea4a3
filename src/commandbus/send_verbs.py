"""The verbs of a bus that send: as text, type, id and data, or as instances of command classes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Unpack, overload
from uuid import UUID

from commandbus.commands.repeating import (
    check_retry,
    repeatable,
    send_again,
    send_many_again,
    with_ids,
)
from commandbus.errors import DatabaseUnavailableError, InvalidInputError
from commandbus.flow import SendOptions
from commandbus.handler_verbs import HandlerVerbs
from commandbus.models import BatchCommand, Reply, SendReport
from commandbus.names import INBOX, check_domain, check_operator, check_uuid, new_id
from commandbus.settings import check_timeout
from commandbus.typed.commands import (
    Result_co,
    Returns,
    TypedCommand,
    result_of,
    spelled_out,
)


class SendVerbs(HandlerVerbs):
    """Send, call."""

    # In each verb a first argument that is a text is the domain. What is not a text is an instance
    # of a class with @command, which brings domain, type and data.

    @overload
    async def send(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        actor: str | None = None,
        conn: Any = None,
        retry_for: float | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID: ...
    @overload
    async def send(
        self,
        command: TypedCommand,
        /,
        *,
        command_id: UUID | None = None,
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        actor: str | None = None,
        conn: Any = None,
        retry_for: float | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID: ...
    async def send(  # noqa: PLR0913  (options of a public verb)
        self,
        domain: Any,
        command_type: Any = None,
        command_id: Any = None,
        data: Any = None,
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        actor: str | None = None,
        conn: Any = None,
        retry_for: float | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID:
        """Send a command; returns its id. A second send of the id raises DuplicateCommandError.

        With `conn` (psycopg, SQLAlchemy or asyncpg) it joins the caller's transaction: the command
        exists if and only if that commits. `actor`: who sends it, for the audit. `options` say
        when it may start (`delay`, `deliver_at`, `expires_in`, `expires_at`), in which order
        (`priority`, `ordering_key`), what limits count it by (`limit_key`), and that it is sent
        once (`unique_key`): then the id is that of the command which holds the key. If the database
        cannot be reached, it is sent again, for `retry_for` seconds.

        An instance of a class with `@command` is a command by itself; `command_id` is made here,
        unless it is given.
        """
        if not isinstance(domain, str):
            domain, command_type, command_id, data = spelled_out(
                domain, command_type, command_id, data
            )
        command = self._preparer.command(
            domain, command_type, command_id, data, reply_to, correlation_id, max_attempts,
            options=options,
        )  # fmt: skip
        batch = None if batch_id is None else check_uuid(batch_id, "batch_id")
        who = None if actor is None else check_operator(actor)
        check_retry(retry_for, conn)
        sending = self._sending
        try:
            if retry_for is None:
                return await sending.send(domain, command, batch_id=batch, actor=who, conn=conn)
            send = partial(sending.send, domain, command, batch_id=batch, actor=who)
            return await send_again(send, command.command_id, retry_for)
        except DatabaseUnavailableError as error:
            raise error if conn is not None else repeatable(error, [command.command_id]) from error

    async def send_many(
        self,
        domain: str,
        commands: Iterable[BatchCommand | TypedCommand],
        *,
        batch_id: UUID | None = None,
        max_attempts: int | None = None,
        on_duplicate: Literal["refuse", "skip"] = "refuse",
        actor: str | None = None,
        conn: Any = None,
        retry_for: float | None = None,
    ) -> SendReport:
        """Send many commands in one transaction: all of them, or, on any error, none.

        Returns the ids of those that were sent. With `on_duplicate="skip"` known ids, and held
        unique keys, are left out: `skipped` of the report. A generator is read while its commands
        are sent, so that they are never all in memory. Into a batch it is read first: the time it
        takes would hold up the workers of the batch. `actor`: who sends them, for the audit.
        Instances of command classes of this domain get ids here. If the database cannot be reached,
        they are sent again, for `retry_for` seconds; then a generator is read first.
        """
        check_domain(domain)
        if on_duplicate not in {"refuse", "skip"}:
            raise InvalidInputError(f"on_duplicate is {on_duplicate!r}; use refuse or skip")
        batch = None if batch_id is None else check_uuid(batch_id, "batch_id")
        check_retry(retry_for, conn)
        send = partial(
            self._sending.send_many, domain, batch_id=batch, max_attempts=max_attempts,
            on_duplicate=on_duplicate, actor=check_operator(actor),
        )  # fmt: skip
        try:
            if retry_for is None:
                return await send(commands, conn=conn)
            held = with_ids(domain, commands)
            return await send_many_again(partial(send, held), self._store, domain, held, retry_for)
        except DatabaseUnavailableError as error:
            raise error if conn is not None else repeatable(error) from error

    @overload
    async def call(
        self,
        domain: str,
        command_type: str,
        data: dict[str, Any],
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> Reply: ...
    @overload
    async def call(
        self,
        command: Returns[Result_co],
        /,
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> Result_co: ...
    @overload
    async def call(
        self,
        command: TypedCommand,
        /,
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> object: ...
    async def call(
        self,
        domain: Any,
        command_type: Any = None,
        data: Any = None,
        *,
        command_id: UUID | None = None,
        correlation_id: UUID | None = None,
        timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a command and wait for its reply; ReplyTimeoutError if none comes in time.

        The reply comes to this call and to no queue. A command that ends in troubleshooting has no
        reply until an operator decides.

        The call of an instance of a class with `@command` returns the result itself, as its
        `Returns[…]` says; a command that ends as FAILED or CANCELED raises CommandFailedError.
        """
        check_timeout(timeout)
        kind = None
        if not isinstance(domain, str):
            kind = type(domain)
            domain, command_type, command_id, data = spelled_out(
                domain, command_type, command_id, data
            )
        sent = await self.send(
            domain, command_type, command_id or new_id(), data, INBOX, correlation_id, **options
        )
        reply = await self.wait_reply(domain, sent, timeout=timeout)
        return reply if kind is None else result_of(kind, reply)
