"""Every error that commandbus raises, in one tree.

    CommandBusError
    ├── HandlerError                    raised by handlers, to say what kind of failure it was
    │   ├── TransientCommandError       try again later
    │   ├── PermanentCommandError       never try again: straight to troubleshooting
    │   └── Fail                        never try again, nor ask a person: FAILED at once
    ├── InvalidInputError (ValueError)  nothing was changed; correct the argument
    │   ├── InvalidNameError            domain, command type, queue
    │   ├── InvalidCommandIdError       not a UUID
    │   ├── InvalidPayloadError         not JSON-safe, too deep, too large
    │   ├── InvalidSettingError         negative, absurd or contradictory settings
    │   │   └── MissingExtraError (ImportError)  a part needs an extra that is not installed
    │   ├── SourceError                 rows to load that cannot be read, and which line
    │   └── InvalidBatchRequestError    a governed batch that cannot be created as asked
    │       └── BatchSizeExceededError  too many items, and waiting cannot help
    ├── PermissionDeniedError           the caller lacks a scope
    │   ├── GovernedTypeError           the command type is submitted as a batch, or not at all
    │   └── NotOwnerError               it belongs to somebody else, and no scope makes up for it
    ├── RateLimitExceededError          too much at once; it says when to try again
    ├── TicketNotFoundError             no such governed batch, or one of another user
    ├── CommandNotFoundError            no such command
    ├── BatchNotFoundError              no such batch
    ├── BulkOperationNotFoundError      no such bulk operation
    ├── ScheduleNotFoundError           no such schedule
    ├── TokenNotFoundError              no such API token, or one of another user
    ├── DuplicateCommandError           the id was sent before
    │   ├── RepeatedIdError             the id is twice in one list, and nothing was sent
    │   └── UniqueKeyHeldError          another command holds the unique key
    ├── InvalidOperationError           the command is not in a state that allows it
    │   ├── DomainPausedError           a worker was to empty the queue of a paused domain
    │   └── DomainMovedError            the domain is on another shard
    ├── LeaseLostError                  another worker has leased the command
    ├── CommandCanceledError            somebody asked for the end of the command that runs
    ├── PayloadLostError                the archive no longer has the payload
    ├── HandlerAlreadyRegisteredError
    ├── HandlerNotFoundError
    ├── ReplyTimeoutError (TimeoutError)
    ├── CommandFailedError              a command that was called ended as FAILED or CANCELED
    ├── InvalidResultError              it completed, and its result is not of the declared type
    └── DatabaseError                   the call was right; the database could not do it
        ├── DatabaseUnavailableError    no server, one that only reads, connection cut
        │   └── DomainMovingError       the domain is on its way to another shard
        ├── SchemaVersionError
        │   ├── SchemaMissingError      never initialised
        │   ├── SchemaTooOldError       run `commandbus db migrate`
        │   └── SchemaTooNewError       upgrade the package
        ├── PgmqError                   PGMQ missing or too old
        └── EmbeddedServerError         the embedded server cannot start

A message says what happened and what to do next. None of them carries a payload or a
secret: `details` of handler errors are redacted before they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from commandbus.governance.model import ItemError
    from commandbus.models import Reply


class CommandBusError(Exception):
    """The root of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make every error picklable for other processes, whatever its __init__ takes."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[CommandBusError], args: tuple[Any, ...], state: dict[str, Any]
) -> CommandBusError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class HandlerError(CommandBusError):
    """A failure that a handler reports on purpose, with a code that operators can group by."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.details = dict(details) if details is not None else None


class TransientCommandError(HandlerError):
    """The handler failed for a reason that may pass: the command is retried with backoff."""


class PermanentCommandError(HandlerError):
    """The handler failed for a reason that will not pass: the command goes to troubleshooting."""


class Fail(HandlerError):  # noqa: N818  (what a handler says; nothing went wrong with the bus)
    """The handler gives the command up: it ends as FAILED at once, with a reply, and is not parked.

    So says the handler for this one command, whatever the retry policy says for the others.
    """


class InvalidInputError(CommandBusError, ValueError):
    """An argument is not acceptable; nothing was changed."""


class InvalidNameError(InvalidInputError):
    """A domain, command type or queue name that is not well formed."""


class InvalidCommandIdError(InvalidInputError):
    """A command id that is not a UUID."""


class InvalidPayloadError(InvalidInputError):
    """A payload that cannot be stored as JSON and read back as it was."""


class InvalidSettingError(InvalidInputError):
    """A setting that is negative, absurd, or contradicts another."""


class MissingExtraError(InvalidSettingError, ImportError):
    """A part of commandbus needs packages that were not installed with it."""

    def __init__(self, what: str, extra: str, package: str) -> None:
        super().__init__(
            f'{what} needs {package}, which is not installed: pip install "commandbus[{extra}]"'
        )
        self.extra = extra


class SourceError(InvalidInputError):
    """A source of rows cannot be read, or one of its rows cannot be a command."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class InvalidBatchRequestError(InvalidInputError):
    """A governed batch that cannot be created as asked; nothing was. `errors` names the items."""

    def __init__(self, message: str, errors: Sequence[ItemError] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


class BatchSizeExceededError(InvalidBatchRequestError):
    """More items than may be in one request: waiting cannot help."""

    def __init__(self, size: int, max_value: int, *, contact_admin: bool = False) -> None:
        more = "; an administrator can raise the limit" if contact_admin else ""
        super().__init__(
            f"the request has {size} items, at most {max_value} are allowed; split it{more}"
        )
        self.size, self.max_value = size, max_value
        self.contact_admin = contact_admin


class PermissionDeniedError(CommandBusError):
    """The caller lacks a scope."""

    def __init__(self, scope: str, what: str = "this") -> None:
        super().__init__(f"{what} needs the scope {scope!r}; ask for a token that has it")
        self.scope = scope


class NotOwnerError(PermissionDeniedError):
    """It is not the caller's, and no scope makes up for that."""

    def __init__(self, text: str) -> None:
        CommandBusError.__init__(self, text)
        self.scope = ""


class GovernedTypeError(PermissionDeniedError):
    """The command type belongs to batch types: it is submitted as one of them, or not at all."""

    def __init__(self, text: str, batch_types: Sequence[str]) -> None:
        CommandBusError.__init__(self, f"{text}; sending it otherwise needs 'bypass-governance'")
        self.scope = "bypass-governance"
        self.batch_types = tuple(batch_types)


class RateLimitExceededError(CommandBusError):
    """A limit of governed batches or of the HTTP service is reached; nothing was created."""

    def __init__(
        self,
        limit_type: str,
        scope: str,
        current_value: int,
        max_value: int,
        retry_after: int,
        *,
        contact_admin: bool,
    ) -> None:
        super().__init__(
            f"{limit_type} is at {current_value} of {max_value}; try again in {retry_after} s"
        )
        self.limit_type, self.scope = limit_type, scope
        self.current_value, self.max_value = current_value, max_value
        self.retry_after, self.contact_admin = retry_after, contact_admin


class TicketNotFoundError(CommandBusError):
    """No governed batch with this id that the caller may see."""

    def __init__(self, ticket_id: UUID) -> None:
        super().__init__(f"no batch {ticket_id}; check the id, and that it is yours")
        self.ticket_id = ticket_id


class CommandNotFoundError(CommandBusError):
    """No command with this id in this domain."""

    def __init__(self, domain: str, command_id: UUID) -> None:
        super().__init__(
            f"no command {command_id} in domain {domain!r}; check the id and the domain"
        )
        self.domain, self.command_id = domain, command_id


class BatchNotFoundError(CommandBusError):
    """No batch with this id in this domain."""

    def __init__(self, domain: str, batch_id: UUID) -> None:
        super().__init__(f"no batch {batch_id} in domain {domain!r}; create it before you send")
        self.domain, self.batch_id = domain, batch_id


class BulkOperationNotFoundError(CommandBusError):
    """No bulk operation with this id."""

    def __init__(self, operation_id: UUID) -> None:
        super().__init__(f"no bulk operation {operation_id}; `commandbus bulk list` lists them")
        self.operation_id = operation_id


class ScheduleNotFoundError(CommandBusError):
    """No schedule of this name in this domain."""

    def __init__(self, domain: str, name: str) -> None:
        super().__init__(
            f"no schedule {name!r} in domain {domain!r}; `commandbus schedule list` lists them"
        )
        self.domain, self.name = domain, name


class TokenNotFoundError(CommandBusError):
    """No API token with this id that the caller may see."""

    def __init__(self, token_id: str) -> None:
        super().__init__("no token with this id that you may see; list those that you may")
        self.token_id = token_id


class DuplicateCommandError(CommandBusError):
    """The command id was sent before. Nothing of the call was created."""

    def __init__(self, domain: str, command_ids: Sequence[UUID]) -> None:
        shown = ", ".join(str(command_id) for command_id in command_ids[:5])
        more = f" and {len(command_ids) - 5} more" if len(command_ids) > 5 else ""
        super().__init__(
            f"already sent in domain {domain!r}: {shown}{more}; nothing of this call was "
            "created. If it is a repeat of the same request, treat it as done"
        )
        self.domain = domain
        self.command_ids = tuple(command_ids)

    @property
    def command_id(self) -> UUID:
        """The first of the ids that were sent before."""
        return self.command_ids[0]

    def within(self, ids: Iterable[UUID]) -> DuplicateCommandError:
        """The error for who sent these ids: if one is twice among them, that is what is wrong."""
        places: dict[UUID, list[int]] = {each: [] for each in self.command_ids}
        for position, command_id in enumerate(ids, 1):
            if command_id in places:
                places[command_id].append(position)
        repeated = {each: found for each, found in places.items() if len(found) > 1}
        return RepeatedIdError(self.domain, repeated) if repeated else self


class RepeatedIdError(DuplicateCommandError):
    """An id is more than once in one list. Nothing was created: this is no repeat of a request."""

    def __init__(self, domain: str, positions: Mapping[UUID, Sequence[int]]) -> None:
        super().__init__(domain, list(positions))
        first = self.command_id
        *some, last = (f"{position:,}" for position in positions[first])
        more = f", as are {len(positions) - 1:,} more" if len(positions) > 1 else ""
        # Not the text of the parent: nothing is done that could be treated as done.
        self.args = (
            f"the id {first} is {'twice' if len(some) == 1 else 'repeated'} in this list "
            f"(positions {', '.join(some)} and {last}){more}; nothing was created. Give each "
            "command an id of its own",
        )
        #: Where in the list each repeated id is, counted from 1.
        self.positions = {each: tuple(found) for each, found in positions.items()}


class UniqueKeyHeldError(DuplicateCommandError):
    """Another command holds the unique key. Nothing of the call was created."""

    def __init__(self, domain: str, unique_key: str, command_id: UUID) -> None:
        super().__init__(domain, [command_id])
        self.args = (
            f"the key {unique_key!r} of domain {domain!r} is held by command {command_id}; nothing "
            "of this call was created. Send again later, or with on_duplicate='skip'",
        )
        self.unique_key = unique_key

    def within(self, ids: Iterable[UUID]) -> DuplicateCommandError:  # noqa: ARG002
        """It is about a key, not about an id."""
        return self


class InvalidOperationError(CommandBusError):
    """The command is not in a state that allows the operation; nothing was changed."""


class DomainPausedError(InvalidOperationError):
    """A worker was to run until its queue is empty, and the domain is paused."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        super().__init__(f"domain {domain!r} is paused; what waits there runs once it is resumed")


class DomainMovedError(InvalidOperationError):
    """The domain is on another shard than this database; nothing was written."""


class LeaseLostError(CommandBusError):
    """The lease lapsed and another worker has the command now; nothing was changed."""


class CommandCanceledError(CommandBusError):
    """Somebody asked to cancel the command that runs; let this error pass, and it is canceled."""


class PayloadLostError(CommandBusError):
    """The archived payload is gone, so the command cannot be sent again."""


class HandlerAlreadyRegisteredError(CommandBusError):
    """A second handler for the same domain and command type."""


class HandlerNotFoundError(CommandBusError):
    """No handler for this domain and command type."""


class ReplyTimeoutError(CommandBusError, TimeoutError):
    """No reply in time. The command goes on; `commandbus show` shows its state."""


class CommandFailedError(CommandBusError):
    """A command that was called ended as FAILED or CANCELED: `reply` says why."""

    def __init__(self, text: str, reply: Reply) -> None:
        super().__init__(text)
        self.reply = reply


class InvalidResultError(CommandBusError):
    """A command that was called has completed, with a result that is not of the declared type."""


class DatabaseError(CommandBusError):
    """The call was right; the database could not do it."""


class DatabaseUnavailableError(DatabaseError):
    """No server that accepts writes, wrong password, or the connection was cut."""

    #: Whether it may pass without anybody's help: not a wrong password, nor a bus that is closed.
    is_temporary: bool = True
    #: Whether the call may be repeated with the same ids, whatever has become of it: at worst the
    #: repeat raises DuplicateCommandError, and the call is done.
    may_repeat: bool = False
    #: Whether it took longer than it may, on a server that answers: less at once may do.
    took_long: bool = False
    #: The shard that it is about, where there are several databases and it is known.
    shard: str | None = None


class DomainMovingError(DatabaseUnavailableError):
    """The domain is on its way to another shard; nothing was written, repeat the call."""


class SchemaVersionError(DatabaseError):
    """The schema in the database does not fit this version of the package."""


class SchemaMissingError(SchemaVersionError):
    """The database was never initialised for commandbus."""


class SchemaTooOldError(SchemaVersionError):
    """The database needs migrations that this package brings."""


class SchemaTooNewError(SchemaVersionError):
    """The database was migrated by a newer package that older code cannot work with."""


class PgmqError(DatabaseError):
    """PGMQ is missing, too old, or not usable."""


class EmbeddedServerError(DatabaseError):
    """The embedded PostgreSQL server could not be started or stopped."""
