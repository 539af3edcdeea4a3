"""Repeating: a send whose answer was lost may be sent again, because its id is known.

The first try may have been committed all the same. Then the second finds its own ids there, and the
call is done: nothing exists twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar
from uuid import UUID

from commandbus.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidInputError,
    RepeatedIdError,
)
from commandbus.loops import Backoff
from commandbus.models import BatchCommand, NewCommand, SendReport
from commandbus.privacy.redaction import redact_text
from commandbus.settings import check_number
from commandbus.typed.commands import TypedCommand, as_batch_command

if TYPE_CHECKING:
    from commandbus.database.model import NewBatch
    from commandbus.database.store import Store

Result = TypeVar("Result")
#: What a call gives that an earlier try has done; None if it was somebody else.
Done = Callable[[DuplicateCommandError], Awaitable["Result | None"]]

#: First and longest pause between two tries, in seconds.
PAUSE_SECONDS = (0.1, 2.0)

_SENT: LiteralString = "select cardinality({schema}.known_ids(%s, cast(%s as uuid[])))"

_log = logging.getLogger("commandbus.sending")


def check_retry(retry_for: float | None, conn: Any) -> None:
    """Refuse a time that is none, and tries in a transaction that is the caller's."""
    if retry_for is None:
        return
    check_number(retry_for, "retry_for", 0, 86_400)
    if conn is not None:
        raise InvalidInputError(
            "retry_for and conn do not go together: your transaction is lost with its connection; "
            "repeat all of it"
        )


def repeatable(
    error: DatabaseUnavailableError, ids: Sequence[UUID] = ()
) -> DatabaseUnavailableError:
    """The same error for one caller, who may send the same ids again."""
    which = f"the same id ({ids[0]})" if len(ids) == 1 else "the same ids"
    # A new one: callers who shared a commit share its error.
    found = type(error)(f"{error}. It is safe to send it again with {which}")
    found.is_temporary, found.may_repeat = error.is_temporary, True
    return found


async def repeated(
    send: Callable[[], Awaitable[Result]], retry_for: float | None, done: Done[Result]
) -> Result:
    """Try until it is done, at most for this many seconds; None: once."""
    end = time.monotonic() + (retry_for or 0.0)
    pauses = Backoff(*PAUSE_SECONDS)
    is_unknown = False
    while True:
        try:
            return await send()
        except RepeatedIdError:
            raise
        except DuplicateCommandError as error:
            found = await done(error) if is_unknown else None
            if found is None:
                raise
            return found
        except DatabaseUnavailableError as error:
            is_unknown = True
            pause = pauses.next()
            if not error.is_temporary or time.monotonic() + pause >= end:
                raise
            _log.warning("sending again in %.2f s: %s", pause, redact_text(str(error)))
            await asyncio.sleep(pause)


async def send_again(
    send: Callable[[], Awaitable[UUID]], command_id: UUID, retry_for: float
) -> UUID:
    """Send one command until it is there."""

    async def done(error: DuplicateCommandError) -> UUID | None:
        return command_id if command_id in error.command_ids else None

    return await repeated(send, retry_for, done)


def with_ids(domain: str, commands: Iterable[BatchCommand | TypedCommand]) -> list[BatchCommand]:
    """The commands of a call that may be repeated: the ids are made once."""
    return [
        each if isinstance(each, BatchCommand) else as_batch_command(domain, each)
        for each in commands
    ]


async def send_many_again(
    send: Callable[[], Awaitable[SendReport]],
    store: Store,
    domain: str,
    commands: Sequence[BatchCommand],
    retry_for: float,
) -> SendReport:
    """Send many commands until they are there: all of them, or none."""
    ids = [each.command_id for each in commands]

    async def done(_: DuplicateCommandError) -> SendReport | None:
        return SendReport(ids) if await _are_all_there(store, domain, ids) else None

    return await repeated(send, retry_for, done)


async def _are_all_there(store: Store, domain: str, ids: Sequence[UUID]) -> bool:
    return bool(await store.gateway.value(_SENT, (domain, list(ids)), domain=domain) == len(ids))


async def create_again(
    store: Store,
    batch: NewBatch,
    commands: Sequence[NewCommand],
    *,
    conn: Any,
    retry_for: float | None,
) -> str | None:
    """Create a batch, by its id once, whatever becomes of the answers."""
    tries = 0

    async def create() -> tuple[str | None]:
        nonlocal tries
        tries += 1
        try:
            return (await store.create_batch(batch, commands, conn=conn),)
        except DatabaseUnavailableError:
            raise
        except DatabaseError:  # its id, or one of its commands, is there
            if tries == 1 or await store.get_batch(batch.domain, batch.batch_id) is None:
                raise
            return (None,)

    async def done(_: DuplicateCommandError) -> tuple[None] | None:
        found = await store.get_batch(batch.domain, batch.batch_id)
        return None if found is None else (None,)

    try:
        return (await repeated(create, retry_for, done))[0]
    except DatabaseUnavailableError as error:
        raise error if conn is not None else repeatable(error) from error
