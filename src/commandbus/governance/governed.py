"""Governed command types: those that a batch type names, here or in any process on this database.

What a caller asks for over HTTP is done on behalf of that caller: `on_behalf_of` makes the value
that the verbs take, and the SQL function require_ungoverned decides. The library in an
application's own process acts for the application, and is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString
from uuid import UUID

from commandbus.access.callers import demand_removal, demand_sending
from commandbus.access.model import Caller, Scope
from commandbus.commands.drafting import drafted
from commandbus.commands.preparing import Preparer
from commandbus.database import encoding
from commandbus.database.model import Governing, OnBehalf
from commandbus.database.store import Store
from commandbus.errors import DuplicateCommandError, InvalidOperationError, UniqueKeyHeldError
from commandbus.flow import SendOptions
from commandbus.governance.limits import Limits, check_user
from commandbus.governance.model import GovernedType, LimitState, SentCommand
from commandbus.governance.types import BatchType, BatchTypes
from commandbus.models import CommandStatus, NewCommand
from commandbus.names import check_command_type, check_domain, check_names, check_text
from commandbus.settings import Settings

_REGISTER: LiteralString = "select {schema}.register_batch_types(cast(%s as jsonb))"
_REMOVE: LiteralString = "select {schema}.remove_governed_type(%s, %s, %s, %s)"
_LIST: LiteralString = (
    "select g.domain, g.command_type, g.batch_type, g.path, g.requires_approval, g.registered_at"
    " from {schema}.command_bus_governed_type g where cast(%s as text) is null or g.domain = %s"
    " order by g.domain, g.command_type, g.batch_type"
)
_SEND: LiteralString = (
    "select verdict, status from {schema}.send_for(%s, cast(%s as jsonb), cast(%s as bytea[]),"
    " cast(%s as jsonb))"
)
_SEND_UNIQUE: LiteralString = (
    "select verdict, status, command_id from {schema}.send_unique_for(%s, cast(%s as jsonb),"
    " cast(%s as bytea[]), cast(%s as jsonb))"
)


class Governed(Limits):
    """Knows the governed command types, and sends for callers."""

    def __init__(self, store: Store, preparer: Preparer, settings: Settings) -> None:
        super().__init__(store, settings)
        #: What may be submitted.
        self.types = BatchTypes()
        self._preparer = preparer
        self._registered: frozenset[str] = frozenset()

    @property
    def is_available(self) -> bool:
        """Whether this bus can have governed batches: a bus in memory cannot."""
        return self._store.has_gateway

    def declare(self, batch_type: BatchType) -> None:
        """Declare what may be submitted as a governed batch.

        The database learns of it with the first submission or request, and when a worker starts;
        from then on every service on this database refuses its command type elsewhere.
        """
        self.types.declare(batch_type)

    async def register(self) -> None:
        """Tell the database which types are declared here, unless it has been told.

        Happens by itself; a process that only declares may call it.
        """
        declared = self.types.all()
        if len(declared) == len(self._registered):
            return
        names = frozenset(each.name for each in declared)
        document = [
            {
                "domain": each.domain,
                "command_type": each.command_type,
                "batch_type": each.name,
                "path": each.path,
                "requires_approval": each.requires_approval,
            }
            for each in declared
        ]
        await self._store.gateway.rows(_REGISTER, (encoding.dump(document),))
        for each in declared:
            # Its marks hold wherever its commands are shown, also if no handler has the type.
            if each.secret_keys:
                keys = {each.command_type: each.secret_keys}
                await self._store.declare_secrets(each.domain, keys)
        self._registered = names

    async def count_request(self, user_id: str) -> LimitState:
        """Count one API request, whatever becomes of it; RateLimitExceededError if it is too many.

        In a transaction of its own, so that a request that is refused later counts too. The
        limit is global: no exemption of the user lifts it.
        """
        await self.register()
        return await super().count_request(user_id)

    def on_behalf_of(self, caller: Caller, domain: str) -> OnBehalf:
        """For verbs that act in this domain for a caller: what governance refuses is refused."""
        declared = (each for each in self.types.all() if each.domain == domain)
        return OnBehalf(
            check_user(caller.user_id),
            caller.may(Scope.BYPASS_GOVERNANCE) and caller.reaches(domain),
            tuple(Governing(each.command_type, each.name, each.path) for each in declared),
        )

    async def send(
        self,
        caller: Caller,
        domain: str,
        command_type: str,
        command_id: UUID,
        data: Mapping[str, Any],
        reply_to: str | None = None,
        correlation_id: UUID | None = None,
        *,
        max_attempts: int | None = None,
        options: SendOptions | None = None,
    ) -> SentCommand:
        """Send a command for a caller; `options` are those of `CommandBus.send`.

        A governed command type raises GovernedTypeError. `options` are those of `CommandBus.send`.
        A repeat by the same user with the same type, payload and options gets the command in its
        current state, for as long as the id is known; every other use of a known id raises
        DuplicateCommandError, whatever its payload is.
        """
        demand_sending(caller, domain)
        command = self._preparer.command(
            domain, command_type, command_id, data, reply_to, correlation_id, max_attempts,
            options=options,
        )  # fmt: skip
        if self._preparer.marks.untold:
            await self._preparer.marks.tell(self._store)
        who = self.on_behalf_of(caller, domain)
        with self._preparer.drafting.around(domain) as drafts:
            return await self._send(domain, drafted(domain, command, drafts), who)

    async def _send(self, domain: str, command: NewCommand, who: OnBehalf) -> SentCommand:
        if command.flow is not None and command.flow.unique_key is not None:
            return await self._send_unique(domain, command, command.flow.unique_key, who)
        if not self.is_available:
            who.refuse_governed([command.command_type])
            await self._store.send(domain, [command], actor=who.user_id)
            return SentCommand(command.command_id, CommandStatus.PENDING, False)
        digests = self._preparer.digests(domain, command)
        await self.register()
        gateway = self._store.gateway
        await gateway.ensure_domain(domain)
        ((verdict, status),) = await gateway.rows(
            _SEND,
            (domain, encoding.send(command), digests, encoding.on_behalf(who)),
            domain=domain,
        )
        if verdict == "refused":
            raise DuplicateCommandError(domain, [command.command_id])
        return SentCommand(command.command_id, CommandStatus(status), verdict == "repeat", verdict)

    async def _send_unique(
        self, domain: str, command: NewCommand, key: str, who: OnBehalf
    ) -> SentCommand:
        if not self.is_available:
            who.refuse_governed([command.command_type])
            (sent,) = await self._store.send_unique(domain, [command], actor=who.user_id)
            return SentCommand(sent.command_id, CommandStatus.PENDING, False, sent.verdict)
        digests = self._preparer.digests(domain, command)
        await self.register()
        gateway = self._store.gateway
        await gateway.ensure_domain(domain)
        ((verdict, status, whose),) = await gateway.rows(
            _SEND_UNIQUE,
            (domain, encoding.send(command), digests, encoding.on_behalf(who)),
            domain=domain,
        )
        if verdict == "refused":
            raise DuplicateCommandError(domain, [command.command_id])
        if verdict == "held":
            raise UniqueKeyHeldError(domain, key, whose)
        return SentCommand(whose, CommandStatus(status), verdict == "repeat", verdict)

    async def governed_types(self, domain: str | None = None) -> list[GovernedType]:
        """The command types that are governed, and by which batch types, as the database knows."""
        check_names(domain)
        return await self._store.gateway.rows(_LIST, (domain, domain), into=GovernedType)

    async def remove_governed_type(
        self, caller: Caller, domain: str, command_type: str, batch_type: str
    ) -> None:
        """Let a batch type that is declared no more cease to govern a command type.

        A type that this process declares is refused; another process that declares it goes on
        refusing its command type, and registers it again when it starts.
        """
        demand_removal(caller, check_domain(domain))
        name = check_text(batch_type, "batch_type", max_length=64)
        declared = self.types.get(name)
        if declared is not None and (declared.domain, declared.command_type) == (
            domain,
            check_command_type(command_type),
        ):
            raise InvalidOperationError(
                f"batch type {name} is declared in this program; take it out of the program first"
            )
        params = (domain, check_command_type(command_type), name, caller.user_id)
        if not await self._store.gateway.value(_REMOVE, params, domain=domain):
            raise InvalidOperationError(
                f"{name} does not govern {command_type} of {domain}; "
                "`commandbus governed list` shows what governs what"
            )
