"""A handler: how it wants to be run, and the context it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, overload
from uuid import UUID

from commandbus.errors import (
    CommandCanceledError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
    PermanentCommandError,
)
from commandbus.flow import SendOptions
from commandbus.meta import check_meta, decode_meta
from commandbus.middleware.base import Call, Middleware
from commandbus.middleware.chain import Layers
from commandbus.models import Command, NewCommand
from commandbus.names import check_operator
from commandbus.retry import RetryPolicy
from commandbus.transactions.provider import TransactionProvider
from commandbus.typed.commands import TypedCommand, spelled_out

if TYPE_CHECKING:
    from commandbus.database.model import Lease
    from commandbus.handlers.needs import Need
    from commandbus.typed.codec import Codec

#: What the specification prints. A handler may also take its payload in place of the command,
#: leave the context out, and take resources by their types.
AsyncHandler = Callable[[Command, "HandlerContext"], Awaitable[Any]]
SyncHandler = Callable[[Command, "HandlerContext"], Any]
Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class HandlerEntry:
    """A registered handler and how it wants to be run."""

    domain: str
    command_type: str
    handler: Handler
    retry_policy: RetryPolicy | None
    is_transactional: bool
    is_async: bool
    payload_type: type | None = None
    #: Keys of the payload that `payload_type` marks as secret.
    secret_keys: frozenset[str] = frozenset()
    #: None: as the settings say.
    timeout_seconds: float | None = None
    #: What is around the handler, outermost first: the bus's, those of Handlers, its own.
    middleware: tuple[Middleware, ...] = ()
    #: Where it was written, for error messages.
    place: str = ""
    #: How its payload is checked and decoded; None: it has no type.
    codec: Codec | None = None
    #: The resources that it takes.
    needs: tuple[Need, ...] = ()
    #: Where its transactions come from; None: connections of ours.
    provider: TransactionProvider | None = None
    #: Whether handler, completion and commit all happen in the handler's thread.
    commits_in_thread: bool = False
    #: Its middleware, put together; None: there is none, and the handler is called itself.
    layers: Layers | None = None

    @property
    def needs_pool(self) -> bool:
        """Whether it takes a connection of a pool of ours while it runs."""
        return self.is_transactional and self.provider is None and not self.commits_in_thread


class UnfitError(PermanentCommandError):
    """A payload or a result that does not fit its type. It parks the command, whatever the policy
    says: an operator can edit a payload, and what was done is not to be undone.
    """


class HandlerOptions(TypedDict, total=False):
    """How a handler runs; `CommandBus.register_handler` explains each."""

    retry_policy: RetryPolicy | None
    transactional: bool | TransactionProvider
    payload_type: type | None
    timeout_seconds: float | None
    middleware: Sequence[Middleware]


class Stoppable(Protocol):
    """The execution that a context belongs to."""

    must_stop: bool
    is_canceled: bool
    call: Call | None

    def say(self, fraction: float, message: str | None) -> None:
        """Keep how far the command has come."""

    def wait_for(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on the event loop and wait for its end, from a handler's thread."""


class SendPreparer(Protocol):
    """Checks and encodes what a handler sends, or raises what is wrong with it."""

    def __call__(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None,
        correlation_id: UUID | None,
        /,
        *,
        options: SendOptions,
    ) -> NewCommand:
        """Return what is to be stored."""
        ...


class OfLease:
    """What the lease of a command tells, for a handler and for a consumer."""

    __slots__ = ()
    lease: Lease

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.lease.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there are."""
        return self.lease.max_attempts

    @property
    def snoozes(self) -> int:
        """How often it was snoozed before; those are no attempts."""
        return self.lease.snoozes or 0

    @property
    def msg_id(self) -> int:
        """The PGMQ message; an operator's retry makes a new one."""
        return self.lease.msg_id

    @property
    def lease_epoch(self) -> int:
        """The number of the lease: grows with each, so that other systems can refuse an older."""
        return self.lease.lease_epoch

    @property
    def correlation_id(self) -> UUID:
        """The same for all commands that one cause led to."""
        return self.lease.correlation_id


@dataclass(slots=True, eq=False, repr=False)
class HandlerContext(OfLease):
    """What a handler knows beside its command, and what it may do."""

    command: Command
    lease: Lease
    _extend: Callable[[Lease, float], Awaitable[None]]
    _prepare: SendPreparer
    _conn: Any = None
    _run: Stoppable | None = None
    _sends: list[tuple[str, NewCommand, str | None]] = field(default_factory=list)
    _reply_meta: dict[str, str] | None = None
    #: What the worker opened for handlers; None: they need nothing.
    _resources: Any = None

    @property
    def call(self) -> Call | None:
        """This attempt as its middleware see it; None: there is none."""
        return None if self._run is None else self._run.call

    @property
    def meta(self) -> dict[str, str]:
        """What travels with the command beside its data: set by its sender, and by middleware."""
        return decode_meta(self.lease.meta) or {}

    @property
    def reply_meta(self) -> dict[str, str] | None:
        """What is to travel with the reply; None: nothing."""
        return self._reply_meta

    def add_reply_meta(self, meta: Mapping[str, str]) -> None:
        """Let these texts travel with the reply, beside those that do so already."""
        self._reply_meta = check_meta({**(self._reply_meta or {}), **meta})

    def carry_reply_meta(self, meta: dict[str, str]) -> None:
        """The same for a built-in middleware, which knows that they fit and that there are none."""
        self._reply_meta = meta

    @property
    def should_stop(self) -> bool:
        """Whether the handler should end now: an `async` one is cancelled at the same moment.

        True once its time-out has passed, its lease is lost, its cancel was requested, or a
        stopping worker waits for it no longer. A handler in a thread asks from time to time, since
        a thread cannot be cancelled.
        """
        return self._run is not None and self._run.must_stop

    def raise_if_canceled(self) -> None:
        """Raise CommandCanceledError if somebody asked to cancel this command while it runs.

        For handlers in threads; let it pass, and the command ends as CANCELED.
        """
        if self._run is not None and self._run.is_canceled:
            raise CommandCanceledError(
                f"somebody asked to cancel command {self.command.command_id}; let this error pass"
            )

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Say how far the command has come, from 0 to 1; `commandbus show` shows it.

        Costs nothing but memory: the last word is written once a second at most. From any thread.
        """
        check_progress(fraction, message)
        if self._run is not None:
            self._run.say(float(fraction), message)

    @property
    def conn(self) -> Any:
        """The connection, or session, whose commit is also the completion.

        In transactional handlers only. In a `def` handler it is not asynchronous.
        """
        if self._conn is None:
            raise InvalidOperationError(
                "ctx.conn is only there in a transactional handler; register it with "
                "transactional=True"
            )
        return self._conn

    async def extend_visibility(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now. Raises LeaseLostError if it is lost.

        The worker extends leases while handlers run; call this before something that stops the
        whole process for a while.
        """
        _check_extension(seconds)
        await self._extend(self.lease, seconds)

    def extend_visibility_sync(self, seconds: float) -> None:
        """The same for `def` handlers: from their thread, and returns when it is done."""
        _check_extension(seconds)
        if self._run is None:
            raise InvalidOperationError("no worker runs this handler, so there is no lease")
        self._run.wait_for(lambda: self.extend_visibility(seconds))

    @overload
    def send(
        self,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: dict[str, Any],
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID: ...
    @overload
    def send(
        self,
        command: TypedCommand,
        /,
        *,
        command_id: UUID | None = None,
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        actor: str | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID: ...
    def send(
        self,
        domain: Any,
        command_type: Any = None,
        command_id: Any = None,
        data: Any = None,
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[SendOptions],
    ) -> UUID:
        """Send a command in the transaction that completes this one: both happen, or neither.

        It gets the correlation id of this command, unless another is given. `actor`: who sends
        it, for the audit. `options` are those of `CommandBus.send`. An instance of a class with
        `@command` is a command by itself.
        """
        if not isinstance(domain, str):
            domain, command_type, command_id, data = spelled_out(
                domain, command_type, command_id, data
            )
        inherited = correlation_id or self.correlation_id
        command = self._prepare(
            domain, command_type, command_id, data, reply_to, inherited, options=options
        )
        self._sends.append((domain, command, None if actor is None else check_operator(actor)))
        return command.command_id

    @property
    def sends(self) -> tuple[tuple[str, NewCommand, str | None], ...]:
        """What this handler asked to be sent, each with its domain and who sends it."""
        return tuple(self._sends)


def _check_extension(seconds: float) -> None:
    if not 1 <= seconds <= 43_200:
        raise InvalidSettingError(f"seconds is {seconds!r}; use 1 to 43,200 (12 hours)")


def check_progress(fraction: float, message: str | None) -> None:
    """Refuse what is no progress."""
    if type(fraction) not in {int, float} or not 0 <= fraction <= 1:
        raise InvalidInputError(f"the fraction of a progress is {fraction!r}; use 0 to 1")
    if message is not None and not isinstance(message, str):
        raise InvalidInputError("the message of a progress must be a text")
