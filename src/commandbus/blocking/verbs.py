"""The verbs of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, overload


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from typing import Any, Literal, Unpack
    from uuid import UUID
    from commandbus.blocking.batches import BlockingBatches
    from commandbus.blocking.bridge import Bridge
    from commandbus.blocking.bulk import BlockingBulkOperations
    from commandbus.blocking.governance import BlockingGovernance
    from commandbus.blocking.keys import BlockingOrderingKeys
    from commandbus.blocking.limits import BlockingExecutionLimits
    from commandbus.blocking.loads import BlockingLoads
    from commandbus.blocking.schedules import BlockingSchedules
    from commandbus.blocking.search import BlockingSearch
    from commandbus.blocking.tokens import BlockingTokens
    from commandbus.blocking.troubleshooting import BlockingTroubleshooting
    from commandbus.blocking.upkeep import BlockingUpkeep
    from commandbus.bus import CommandBus
    from commandbus.commands.replies import LeasedReply
    from commandbus.flow import Pause, SendOptions
    from commandbus.handler import Handler, HandlerOptions
    from commandbus.handler_verbs import AnyHandler
    from commandbus.handlers.router import Handlers
    from commandbus.middleware.base import Middleware
    from commandbus.models import (
        AuditEvent, BatchCommand, BatchCompletionCallback, BatchMetadata, CancelAnswer,
        CommandMetadata, Reply, Running, SendReport, TroubleshootingItem,
    )
    from commandbus.monitoring.monitor import Monitor
    from commandbus.retry import RetryPolicy
    from commandbus.transactions.provider import TransactionProvider
    from commandbus.typed.commands import Result_co, Returns, TypedCommand


class BlockingVerbs:
    """The verbs of CommandBus, each of which waits."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    @property
    def _bus(self) -> CommandBus:
        return self._bridge.open()

    def stop(self) -> None:
        """Stop all workers gracefully: nothing new is leased, running handlers may finish."""
        return self._bridge.run(self._bus.stop())

    def monitor(self, *, counts: bool = False) -> Monitor:
        """Begin to measure: what is sent, and the workers that are started from now on."""
        return self._bus.monitor(counts=counts)

    @property
    def started_domains(self) -> list[str]:
        """Domains whose worker in this process takes commands."""
        return self._bus.started_domains

    @property
    def stuck_domains(self) -> list[str]:
        """Domains whose worker in this process has lost its threads to handlers that hang."""
        return self._bus.stuck_domains

    def replies(
        self, domain: str | None = None, *, queue: str | None = None, vt_seconds: int = 30,
        batch_size: int = 100, wait: bool = True,
    ) -> Iterator[Reply]:
        """Consume replies: `async for reply in bus.replies("payments")`."""
        return self._bridge.iterate(self._bus.replies(
            domain, queue=queue, vt_seconds=vt_seconds, batch_size=batch_size, wait=wait,
        ))

    def wait_reply(self, domain: str, command_id: UUID, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a command that was sent with `reply_to=INBOX`."""
        return self._bridge.run(self._bus.wait_reply(domain, command_id, timeout=timeout))

    def lease_replies(
        self, domain: str, *, limit: int = 100, vt_seconds: int = 30,
    ) -> list[LeasedReply]:
        """Replies, the caller's alone for `vt_seconds`; those not acknowledged come again."""
        return self._bridge.run(self._bus.lease_replies(
            domain, limit=limit, vt_seconds=vt_seconds,
        ))

    def acknowledge_replies(self, domain: str, receipts: Mapping[int, int]) -> set[int]:
        """Done with these, by msg_id and receipt; returns those that were the caller's still."""
        return self._bridge.run(self._bus.acknowledge_replies(domain, receipts))

    def get_audit_trail(
        self, *given: str | UUID | None, domain: str | None = None, command_id: UUID | None = None,
        limit: int = 1000,
    ) -> list[AuditEvent]:
        """The life of a command, oldest event first: `get_audit_trail(domain, command_id)`."""
        return self._bridge.run(self._bus.get_audit_trail(
            *given, domain=domain, command_id=command_id, limit=limit,
        ))

    def reschedule(
        self, domain: str, command_ids: UUID | Sequence[UUID], *,
        deliver_at: datetime | None = None, delay: float | timedelta | None = None,
        operator: str | None = None,
    ) -> None:
        """Give commands that nobody has begun another time, all of them or none."""
        return self._bridge.run(self._bus.reschedule(
            domain, command_ids, deliver_at=deliver_at, delay=delay, operator=operator,
        ))

    def send_now(
        self, domain: str, command_ids: UUID | Sequence[UUID], *, operator: str | None = None,
    ) -> None:
        """Make commands due that are delayed or back off, all of them or none; attempts stay."""
        return self._bridge.run(self._bus.send_now(domain, command_ids, operator=operator))

    def pause(
        self, domain: str, *, type: str | None = None, reason: str,
        until: datetime | timedelta | None = None, operator: str | None = None,
    ) -> None:
        """Start no more commands of a domain, or of one of its types, until `resume`."""
        return self._bridge.run(self._bus.pause(
            domain, type=type, reason=reason, until=until, operator=operator,
        ))

    def resume(
        self, domain: str, *, type: str | None = None, reason: str | None = None,
        operator: str | None = None,
    ) -> bool:
        """End the pause of a domain, or of one of its types; False if there was none."""
        return self._bridge.run(self._bus.resume(
            domain, type=type, reason=reason, operator=operator,
        ))

    def set_priority(
        self, domain: str, command_ids: UUID | Sequence[UUID], priority: int, *,
        operator: str | None = None,
    ) -> None:
        """Give commands that nobody has begun another level, -2 to 2, all of them or none."""
        return self._bridge.run(self._bus.set_priority(
            domain, command_ids, priority, operator=operator,
        ))

    def set_level_seconds(
        self, domain: str, seconds: float | timedelta, *, operator: str | None = None,
    ) -> None:
        """Say how much waiting one level of priority is worth in a domain: 60 seconds at first."""
        return self._bridge.run(self._bus.set_level_seconds(domain, seconds, operator=operator))

    def pauses(self, domain: str | None = None) -> list[Pause]:
        """The domains that are paused now: since when, until when, by whom and why."""
        return self._bridge.run(self._bus.pauses(domain))

    def register_handler(
        self, domain: str, command_type: str, handler: Handler, *,
        retry_policy: RetryPolicy | None = None, transactional: bool | TransactionProvider = False,
        payload_type: type | None = None, timeout_seconds: float | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Register a handler for a command type."""
        return self._bus.register_handler(
            domain, command_type, handler, retry_policy=retry_policy, transactional=transactional,
            payload_type=payload_type, timeout_seconds=timeout_seconds, middleware=middleware,
        )

    def handler(
        self, domain: str, command_type: str, **options: Unpack[HandlerOptions],
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Register the decorated function; `options` are those of `register_handler`."""
        return self._bus.handler(domain, command_type, **options)

    def include(self, *handlers: Handlers) -> None:
        """Take the handlers of modules, all or none; what is added to them later has no effect."""
        return self._bus.include(*handlers)

    @property
    def domains(self) -> list[str]:
        """The domains that have handlers."""
        return self._bus.domains

    def run_worker(
        self, domain: str, *, concurrency: int = 10, vt_seconds: int = 30, use_notify: bool = True,
        until_empty: bool = False, include_delayed: bool = False,
    ) -> None:
        """Process the commands of a domain until `stop` is called."""
        return self._bridge.run(self._bus.run_worker(
            domain, concurrency=concurrency, vt_seconds=vt_seconds, use_notify=use_notify,
            until_empty=until_empty, include_delayed=include_delayed,
        ))

    @overload
    def send(
        self, domain: str, command_type: str, command_id: UUID, data: dict[str, Any],
        reply_to: str | None = None, correlation_id: UUID | None = None, *,
        batch_id: UUID | None = None, max_attempts: int | None = None, actor: str | None = None,
        conn: Any = None, retry_for: float | None = None, **options: Unpack[SendOptions],
    ) -> UUID: ...
    @overload
    def send(
        self, command: TypedCommand, /, *, command_id: UUID | None = None,
        reply_to: str | None = None, correlation_id: UUID | None = None,
        batch_id: UUID | None = None, max_attempts: int | None = None, actor: str | None = None,
        conn: Any = None, retry_for: float | None = None, **options: Unpack[SendOptions],
    ) -> UUID: ...
    def send(
        self, domain: Any, command_type: Any = None, command_id: Any = None, data: Any = None,
        reply_to: str | None = None, correlation_id: UUID | None = None, *,
        batch_id: UUID | None = None, max_attempts: int | None = None, actor: str | None = None,
        conn: Any = None, retry_for: float | None = None, **options: Unpack[SendOptions],
    ) -> UUID:
        """Send a command; returns its id. A second send of the id raises DuplicateCommandError."""
        return self._bridge.run_on(conn, lambda bus: bus.send(
            domain, command_type, command_id, data, reply_to, correlation_id, batch_id=batch_id,
            max_attempts=max_attempts, actor=actor, conn=conn, retry_for=retry_for, **options,
        ))

    def send_many(
        self, domain: str, commands: Iterable[BatchCommand | TypedCommand], *,
        batch_id: UUID | None = None, max_attempts: int | None = None,
        on_duplicate: Literal["refuse", "skip"] = "refuse", actor: str | None = None,
        conn: Any = None, retry_for: float | None = None,
    ) -> SendReport:
        """Send many commands in one transaction: all of them, or, on any error, none."""
        return self._bridge.run_on(conn, lambda bus: bus.send_many(
            domain, commands, batch_id=batch_id, max_attempts=max_attempts,
            on_duplicate=on_duplicate, actor=actor, conn=conn, retry_for=retry_for,
        ))

    @overload
    def call(
        self, domain: str, command_type: str, data: dict[str, Any], *,
        command_id: UUID | None = None, correlation_id: UUID | None = None, timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> Reply: ...
    @overload
    def call(
        self, command: Returns[Result_co], /, *, command_id: UUID | None = None,
        correlation_id: UUID | None = None, timeout: float = 30.0, **options: Unpack[SendOptions],
    ) -> Result_co: ...
    @overload
    def call(
        self, command: TypedCommand, /, *, command_id: UUID | None = None,
        correlation_id: UUID | None = None, timeout: float = 30.0, **options: Unpack[SendOptions],
    ) -> object: ...
    def call(
        self, domain: Any, command_type: Any = None, data: Any = None, *,
        command_id: UUID | None = None, correlation_id: UUID | None = None, timeout: float = 30.0,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a command and wait for its reply; ReplyTimeoutError if none comes in time."""
        return self._bridge.run(self._bus.call(
            domain, command_type, data, command_id=command_id, correlation_id=correlation_id,
            timeout=timeout, **options,
        ))

    def check(self) -> None:
        """Raise if the database cannot be reached, or is not one that this version works with."""
        return self._bridge.run(self._bus.check())

    def cancel(
        self, domain: str, command_id: UUID, reason: str, *, running: Running = "refuse",
        operator: str | None = None, conn: Any = None,
    ) -> CancelAnswer:
        """Cancel a command that is PENDING: "canceled". One that a worker has is refused, or, with
        `running="request"`, its worker is asked to end it: "requested". It may still complete."""
        return self._bridge.run_on(conn, lambda bus: bus.cancel(
            domain, command_id, reason, running=running, operator=operator, conn=conn,
        ))

    def create_batch(
        self, domain: str, commands: Sequence[BatchCommand | TypedCommand], *,
        name: str | None = None, custom_data: dict[str, Any] | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | TypedCommand | None = None,
        created_by: str | None = None, max_attempts: int | None = None, actor: str | None = None,
        conn: Any = None, retry_for: float | None = None,
    ) -> UUID:
        """Create a batch with all commands atomically; returns the batch_id."""
        return self._bridge.run(self._bus.create_batch(
            domain, commands, name=name, custom_data=custom_data, on_complete=on_complete,
            on_complete_command=on_complete_command, created_by=created_by,
            max_attempts=max_attempts, actor=actor, conn=conn, retry_for=retry_for,
        ))

    def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        """Get batch metadata by ID."""
        return self._bridge.run(self._bus.get_batch(domain, batch_id))

    def list_batches(
        self, domain: str, *, status: str | None = None, limit: int = 100, offset: int = 0,
    ) -> list[BatchMetadata]:
        """List batches for a domain, newest first."""
        return self._bridge.run(self._bus.list_batches(
            domain, status=status, limit=limit, offset=offset,
        ))

    def list_batch_commands(
        self, domain: str, batch_id: UUID, *, status: str | None = None, limit: int = 100,
        offset: int = 0,
    ) -> list[CommandMetadata]:
        """List commands in a batch, in the order in which they were given."""
        return self._bridge.run(self._bus.list_batch_commands(
            domain, batch_id, status=status, limit=limit, offset=offset,
        ))

    def list_troubleshooting(
        self, domain: str, *, type: str | None = None, limit: int = 100, offset: int = 0,
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first, with its payload."""
        return self._bridge.run(self._bus.list_troubleshooting(
            domain, type=type, limit=limit, offset=offset,
        ))

    def operator_retry(
        self, domain: str, command_id: UUID, *, operator: str | None = None,
        reset_attempts: bool = True, payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a parked command again, with the same payload or with an edited one."""
        return self._bridge.run(self._bus.operator_retry(
            domain, command_id, operator=operator, reset_attempts=reset_attempts, payload=payload,
        ))

    def operator_cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None = None,
    ) -> None:
        """End a parked command as CANCELED; its reply goes out."""
        return self._bridge.run(self._bus.operator_cancel(
            domain, command_id, reason, operator=operator,
        ))

    def operator_complete(
        self, domain: str, command_id: UUID, result_data: Any = None, *,
        operator: str | None = None,
    ) -> None:
        """End a parked command as COMPLETED with this result; its reply goes out."""
        return self._bridge.run(self._bus.operator_complete(
            domain, command_id, result_data, operator=operator,
        ))

    def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""
        return self._bridge.run(self._bus.get_command(domain, command_id))

    @cached_property
    def batches(self) -> BlockingBatches:
        """Batches: create, look, wait, cancel, retry, dispatch."""
        from commandbus.blocking.batches import BlockingBatches

        return BlockingBatches(self._bridge, lambda: self._bridge.find("batches"))

    @cached_property
    def loads(self) -> BlockingLoads:
        """Batches of any size, in checkpoints that resume."""
        from commandbus.blocking.loads import BlockingLoads

        return BlockingLoads(self._bridge, lambda: self._bridge.find("loads"))

    @cached_property
    def troubleshooting(self) -> BlockingTroubleshooting:
        """What failed for good, by command and by cause."""
        from commandbus.blocking.troubleshooting import BlockingTroubleshooting

        return BlockingTroubleshooting(self._bridge, lambda: self._bridge.find("troubleshooting"))

    @cached_property
    def bulk(self) -> BlockingBulkOperations:
        """One decision for many parked commands."""
        from commandbus.blocking.bulk import BlockingBulkOperations

        return BlockingBulkOperations(self._bridge, lambda: self._bridge.find("bulk"))

    @cached_property
    def search(self) -> BlockingSearch:
        """Commands and the audit, found by what is known of them."""
        from commandbus.blocking.search import BlockingSearch

        return BlockingSearch(self._bridge, lambda: self._bridge.find("search"))

    @cached_property
    def keys(self) -> BlockingOrderingKeys:
        """Ordering keys: which are blocked, by what, and how to go on."""
        from commandbus.blocking.keys import BlockingOrderingKeys

        return BlockingOrderingKeys(self._bridge, lambda: self._bridge.find("keys"))

    @cached_property
    def governance(self) -> BlockingGovernance:
        """Batches that users submit: batch types, tickets, approvals, limits."""
        from commandbus.blocking.governance import BlockingGovernance

        return BlockingGovernance(self._bridge, lambda: self._bridge.find("governance"))

    @cached_property
    def limits(self) -> BlockingExecutionLimits:
        """How many commands run at once, and how often they start, over all workers."""
        from commandbus.blocking.limits import BlockingExecutionLimits

        return BlockingExecutionLimits(self._bridge, lambda: self._bridge.find("limits"))

    @cached_property
    def schedules(self) -> BlockingSchedules:
        """Commands that are sent by the clock."""
        from commandbus.blocking.schedules import BlockingSchedules

        return BlockingSchedules(self._bridge, lambda: self._bridge.find("schedules"))

    @cached_property
    def tokens(self) -> BlockingTokens:
        """The API tokens of the HTTP service."""
        from commandbus.blocking.tokens import BlockingTokens

        return BlockingTokens(self._bridge, lambda: self._bridge.find("tokens"))

    @cached_property
    def upkeep(self) -> BlockingUpkeep:
        """The doctor, retention, figures."""
        from commandbus.blocking.upkeep import BlockingUpkeep

        return BlockingUpkeep(self._bridge, lambda: self._bridge.find("upkeep"))
