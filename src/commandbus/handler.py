"""Handlers: the registry that finds them, and the context they are given."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack
from uuid import UUID

from commandbus.errors import (
    CommandCanceledError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.flow import SendOptions
from commandbus.meta import check_meta, decode_meta
from commandbus.middleware.base import Middleware
from commandbus.middleware.chain import Layers, check_middleware, layers_of
from commandbus.models import Command, NewCommand
from commandbus.names import check_command_type, check_domain, check_operator
from commandbus.privacy.secrets import check_payload_type, secret_keys
from commandbus.retry import RetryPolicy

if TYPE_CHECKING:
    from commandbus.database.model import Lease

AsyncHandler = Callable[[Command, "HandlerContext"], Awaitable[Any]]
SyncHandler = Callable[[Command, "HandlerContext"], Any]
Handler = AsyncHandler | SyncHandler


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
    #: Its middleware, put together; None: there is none.
    layers: Layers | None = None


class HandlerOptions(TypedDict, total=False):
    """How a handler runs; `CommandBus.register_handler` explains each."""

    retry_policy: RetryPolicy | None
    transactional: bool
    payload_type: type | None
    timeout_seconds: float | None
    middleware: Sequence[Middleware]


class HandlerRegistry:
    """Handlers by (domain, command type). All time-outs must be below `deadline_seconds`."""

    def __init__(
        self, deadline_seconds: float = math.inf, middleware: Sequence[Middleware] = ()
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._middleware = tuple(middleware)
        self._entries: dict[tuple[str, str], HandlerEntry] = {}

    def register(
        self, domain: str, command_type: str, handler: Handler, **options: Unpack[HandlerOptions]
    ) -> None:
        """Add a handler; a second one for the same type is an error."""
        retry_policy, payload_type = options.get("retry_policy"), options.get("payload_type")
        is_transactional = options.get("transactional", False)
        check_domain(domain)
        check_command_type(command_type)
        _check_call(handler, f"{domain}/{command_type}")
        timeout_seconds = options.get("timeout_seconds")
        if timeout_seconds is not None:
            self._check_timeout(timeout_seconds, f"{domain}/{command_type}")
        if retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
            raise InvalidSettingError(
                f"retry_policy of {domain}/{command_type} is {retry_policy!r}; use RetryPolicy(…)"
            )
        own = check_middleware(options.get("middleware", ()), f"{domain}/{command_type}")
        around = (*self._middleware, *own)
        key = (domain, command_type)
        if key in self._entries:
            raise HandlerAlreadyRegisteredError(
                f"{domain}/{command_type} already has a handler, "
                f"{_name_of(self._entries[key].handler)}; a command type has exactly one"
            )
        is_async = _is_async(handler)
        if is_transactional and not (is_async or _is_async(inspect.unwrap(handler))):
            raise InvalidSettingError(
                f"{domain}/{command_type}: a transactional handler must be `async def`, because "
                "ctx.conn is an asynchronous connection; a decorator of one must use "
                "functools.wraps"
            )
        if payload_type is not None:
            check_payload_type(payload_type, f"{domain}/{command_type}")
        keys = frozenset[str]() if payload_type is None else secret_keys(payload_type)
        self._entries[key] = HandlerEntry(
            domain, command_type, handler, retry_policy, is_transactional, is_async, payload_type,
            keys, timeout_seconds, layers_of(around, handler, is_async=is_async),
        )  # fmt: skip

    def _check_timeout(self, seconds: float, name: str) -> None:
        if type(seconds) not in {int, float} or not 0 < seconds < self._deadline_seconds:
            limit = f" and below lease_deadline_seconds, {self._deadline_seconds:g}"
            raise InvalidSettingError(
                f"timeout_seconds of {name} is {seconds!r}; use a number of seconds above 0"
                + limit * math.isfinite(self._deadline_seconds)
            )

    def find(self, domain: str, command_type: str) -> HandlerEntry | None:
        """A handler, or None."""
        return self._entries.get((domain, command_type))

    def secret_keys(self, domain: str) -> dict[str, frozenset[str]]:
        """The secret keys of payloads, by command type; only types that have some."""
        return {
            entry.command_type: entry.secret_keys
            for entry in self.of_domain(domain)
            if entry.secret_keys
        }

    def get(self, domain: str, command_type: str) -> HandlerEntry:
        """Find a handler, or raise HandlerNotFoundError."""
        try:
            return self._entries[domain, command_type]
        except KeyError:
            raise HandlerNotFoundError(
                f"no handler for {domain}/{command_type}; register one and retry the command"
            ) from None

    def of_domain(self, domain: str) -> list[HandlerEntry]:
        """All handlers of a domain."""
        return [entry for entry in self._entries.values() if entry.domain == domain]

    def domains(self) -> list[str]:
        """The domains that have handlers, sorted."""
        return sorted({entry.domain for entry in self._entries.values()})

    def limits(self, domain: str) -> dict[str, int]:
        """max_attempts by command type, where the handler has its own retry policy."""
        return {
            entry.command_type: entry.retry_policy.max_attempts
            for entry in self.of_domain(domain)
            if entry.retry_policy is not None
        }

    def count_every(self, domain: str, default_policy: RetryPolicy) -> list[str]:
        """The command types whose retry policy counts every lapsed lease as an attempt."""
        return [
            entry.command_type
            for entry in self.of_domain(domain)
            if (entry.retry_policy or default_policy).count_lapses == "every"
        ]


class Stoppable(Protocol):
    """The execution that a context belongs to."""

    must_stop: bool
    is_canceled: bool

    def say(self, fraction: float, message: str | None) -> None:
        """Keep how far the command has come."""


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
        """The connection whose commit is also the completion (transactional handlers only)."""
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
        if not 1 <= seconds <= 43_200:
            raise InvalidSettingError(f"seconds is {seconds!r}; use 1 to 43,200 (12 hours)")
        await self._extend(self.lease, seconds)

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
    ) -> UUID:
        """Send a command in the transaction that completes this one: both happen, or neither.

        It gets the correlation id of this command, unless another is given. `actor`: who sends
        it, for the audit. `options` are those of `CommandBus.send`.
        """
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


def check_progress(fraction: float, message: str | None) -> None:
    """Refuse what is no progress."""
    if type(fraction) not in {int, float} or not 0 <= fraction <= 1:
        raise InvalidInputError(f"the fraction of a progress is {fraction!r}; use 0 to 1")
    if message is not None and not isinstance(message, str):
        raise InvalidInputError("the message of a progress must be a text")


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  (an object with an async __call__)
    )


def _check_call(handler: Handler, name: str) -> None:
    """Refuse what is not a function of a command and a context."""
    if not callable(handler):
        raise InvalidSettingError(f"the handler of {name} is not callable")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidSettingError(
            f"the handler of {name}, {_name_of(handler)}, is a generator; it must return, not yield"
        )
    try:
        # Not that of a function which a decorator wraps: the decorator is what is called.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a built-in function that does not say what it takes
    try:
        signature.bind("command", "context")
    except TypeError as error:
        raise InvalidSettingError(
            f"the handler of {name}, {_name_of(handler)}{signature}, must accept two arguments by "
            f"position, (command, context): {error}"
        ) from None


def _name_of(handler: Handler) -> str:
    return getattr(handler, "__qualname__", repr(handler))
