"""CommandBus: the object that an application works with.

The methods are what nearly everybody needs, most of them as the specification prints them. The
rest is in facets, each the service of one idea: `bus.batches`, `bus.loads`, `bus.troubleshooting`,
`bus.bulk`, `bus.search`, `bus.governance`, `bus.tokens`, `bus.upkeep` (facets.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.commands.cancels import cancel_command
from commandbus.errors import InvalidSettingError
from commandbus.handlers.router import Handlers
from commandbus.middleware.base import Middleware
from commandbus.models import (
    BatchCommand,
    BatchCompletionCallback,
    BatchMetadata,
    BatchStatus,
    CancelAnswer,
    CommandMetadata,
    CommandStatus,
    Running,
    TroubleshootingItem,
)
from commandbus.names import (
    check_choice_or_none,
    check_command_type,
    check_domain,
    check_uuid,
)
from commandbus.paging import check_page
from commandbus.privacy.sensitive import also_redact
from commandbus.retry import RetryPolicy
from commandbus.send_verbs import SendVerbs
from commandbus.settings import Settings
from commandbus.typed.commands import TypedCommand

if TYPE_CHECKING:
    from pathlib import Path

    from commandbus.database.store import Store

# Who configures no logging gets no lines of ours on stderr.
logging.getLogger("commandbus").addHandler(logging.NullHandler())


class CommandBus(SendVerbs):
    """Sends commands, runs workers, and gives operators their verbs.

    `CommandBus(pool)` works on a psycopg AsyncConnectionPool that the application owns;
    `CommandBus.connect()` builds everything itself.
    """

    def __init__(
        self,
        pool: Any = None,
        *,
        store: Store | None = None,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
        handlers: Handlers | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        if (pool is None) == (store is None):
            raise InvalidSettingError("give CommandBus a pool, or use `CommandBus.connect()`")
        settings = settings or Settings.from_env()
        if store is None:
            from commandbus.wiring import store_on  # the composition root

            store = store_on(pool, settings)
        also_redact(settings.redact_keys.split(","))
        super().__init__(store, settings, retry_policy or RetryPolicy(), middleware)
        if handlers is not None:
            self.include(handlers)

    @classmethod
    def connect(
        cls,
        dsn: str | None = None,
        *,
        settings: Settings | None = None,
        retry_policy: RetryPolicy | None = None,
        data_dir: Path | None = None,
        handlers: Handlers | None = None,
        middleware: Sequence[Middleware] = (),
        wait_seconds: float = 0.0,
    ) -> AbstractAsyncContextManager[CommandBus]:
        """Open a bus on `dsn`, COMMANDBUS_DSN, or an embedded PostgreSQL when there is neither.

        Sets up an empty database (PGMQ, the schema); an older one is migrated if it is embedded.
        `handlers` are included, with `middleware` around all of them. While no server accepts
        writes, it waits for one for `wait_seconds`, then raises DatabaseUnavailableError.
        """
        from commandbus.wiring import open_bus  # the composition root

        def build(store: Store, found: Settings) -> CommandBus:
            return cls(
                store=store, settings=found, retry_policy=retry_policy, handlers=handlers,
                middleware=middleware,
            )  # fmt: skip

        return open_bus(build, dsn, settings, data_dir, wait_seconds)

    async def check(self) -> None:
        """Raise if the database cannot be reached, or is not one that this version works with."""
        await self._store.check()

    # -- one that is not wanted any more

    async def cancel(
        self,
        domain: str,
        command_id: UUID,
        reason: str,
        *,
        running: Running = "refuse",
        operator: str | None = None,
        conn: Any = None,
    ) -> CancelAnswer:
        """Cancel a command that is PENDING: "canceled". One that a worker has is refused, or, with
        `running="request"`, its worker is asked to end it: "requested". It may still complete.
        """
        return await cancel_command(
            self._store, domain, command_id, reason, running=running, operator=operator, conn=conn
        )

    # -- batches, as the specification prints them; `bus.batches` has the rest

    async def create_batch(  # noqa: PLR0913  (options of a public verb)
        self,
        domain: str,
        commands: Sequence[BatchCommand | TypedCommand],
        *,
        name: str | None = None,
        custom_data: dict[str, Any] | None = None,
        on_complete: BatchCompletionCallback | None = None,
        on_complete_command: BatchCommand | TypedCommand | None = None,
        created_by: str | None = None,
        max_attempts: int | None = None,
        actor: str | None = None,
        conn: Any = None,
        retry_for: float | None = None,
    ) -> UUID:
        """Create a batch with all commands atomically; returns the batch_id.

        `on_complete` is called in this process when the batch ends, in whichever process that
        happens, as long as this process lives. `on_complete_command` survives everything: it is
        sent in the very commit that ends the batch, with an id of its own and the batch_id as
        correlation_id. With `conn` the batch joins the caller's transaction. `actor`: who sends its
        commands, for the audit; by default `created_by`. Instances of command classes get ids here.
        If the database cannot be reached, `retry_for` is for how many seconds it is tried again.
        """
        return await self.batches.create(
            domain, commands, name=name, custom_data=custom_data, on_complete=on_complete,
            on_complete_command=on_complete_command, created_by=created_by,
            max_attempts=max_attempts, actor=actor, conn=conn, retry_for=retry_for,
        )  # fmt: skip

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        """Get batch metadata by ID."""
        return await self.batches.get(domain, batch_id)

    async def list_batches(
        self, domain: str, *, status: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[BatchMetadata]:
        """List batches for a domain, newest first."""
        check_domain(domain)
        check_page(limit, offset)
        state = check_choice_or_none(BatchStatus, status, "batch status")
        return await self._store.list_batches(domain, status=state, limit=limit, offset=offset)

    async def list_batch_commands(
        self,
        domain: str,
        batch_id: UUID,
        *,
        status: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[CommandMetadata]:
        """List commands in a batch, in the order in which they were given."""
        check_page(limit, offset)
        state = check_choice_or_none(CommandStatus, status, "status")
        batch = check_uuid(batch_id, "batch_id")
        return await self._store.list_batch_commands(
            check_domain(domain), batch, status=state, limit=limit, offset=offset
        )

    # -- operators, as the specification prints them; `bus.troubleshooting` has the rest

    async def list_troubleshooting(
        self,
        domain: str,
        *,
        type: str | None = None,  # noqa: A002  (the name is part of the contract)
        limit: int = 100,
        offset: int = 0,
    ) -> list[TroubleshootingItem]:
        """What waits for an operator, longest first, with its payload."""
        check_page(limit, offset)
        wanted = None if type is None else check_command_type(type)
        return await self._store.list_troubleshooting(
            check_domain(domain), command_type=wanted, limit=limit, offset=offset
        )

    async def operator_retry(
        self,
        domain: str,
        command_id: UUID,
        *,
        operator: str | None = None,
        reset_attempts: bool = True,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a parked command again, with the same payload or with an edited one."""
        await self.troubleshooting.retry(
            domain, command_id, operator=operator, reset_attempts=reset_attempts, payload=payload
        )

    async def operator_cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None = None
    ) -> None:
        """End a parked command as CANCELED; its reply goes out."""
        await self.troubleshooting.cancel(domain, command_id, reason, operator=operator)

    async def operator_complete(
        self, domain: str, command_id: UUID, result_data: Any = None, *, operator: str | None = None
    ) -> None:
        """End a parked command as COMPLETED with this result; its reply goes out."""
        await self.troubleshooting.complete(domain, command_id, result_data, operator=operator)

    # -- one command; `bus.search` finds many

    async def get_command(self, domain: str, command_id: UUID) -> CommandMetadata | None:
        """One command, or None."""
        return await self._store.get_command(check_domain(domain), check_uuid(command_id))
