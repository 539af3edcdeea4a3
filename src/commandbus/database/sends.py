# ruff: noqa: D102  (the verbs are documented once, in database/store.py)
"""Sends on PostgreSQL that may leave commands out; the others are in postgres.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Unpack
from uuid import UUID

from commandbus.database import encoding
from commandbus.database.chunks import OFFER_NEW, OFFER_UNIQUE, ChunkSender
from commandbus.database.connections import AsyncPool, Row, borrowed
from commandbus.database.model import Sent
from commandbus.database.reads import PostgresReads
from commandbus.database.sqlstate import translated
from commandbus.database.store import SendPlace
from commandbus.errors import DuplicateCommandError, UniqueKeyHeldError
from commandbus.models import NewCommand


class PostgresSends(PostgresReads):
    """A part of commandbus.database.postgres.PostgresStore."""

    _pool: AsyncPool

    async def _ensure(self, domain: str, commands: Iterable[NewCommand]) -> None:
        await self.gateway.ensure_domain(domain)
        if isinstance(commands, Collection):
            await self._ensure_flow(domain, commands)

    async def _ensure_flow(self, domain: str, commands: Collection[NewCommand]) -> None:
        if any(has_level(each) for each in commands):
            await self.gateway.ensure_levels(domain)
        if any(each.flow is not None and each.flow.ordering_key for each in commands):
            await self.gateway.ensure_keys(domain)

    async def send_new(
        self, domain: str, commands: Iterable[NewCommand], **options: Unpack[SendPlace]
    ) -> list[int]:
        batch_id, actor, conn = _place(options)
        await self._ensure(domain, commands)
        if conn is not None:
            params: Row = (domain, encoding.sends(commands), batch_id, actor)
            left_out = await self.gateway.value(OFFER_NEW, params, domain=domain, conn=conn)
            return list(left_out)
        sender = ChunkSender(self.gateway, domain, batch_id, actor, skips_known=True)
        with translated(domain):
            async with borrowed(self._pool) as own:
                await sender.send(own, commands)
        return sender.left_out

    async def send_unique(
        self,
        domain: str,
        commands: Sequence[NewCommand],
        *,
        skips_known: bool = False,
        **options: Unpack[SendPlace],
    ) -> list[Sent]:
        batch_id, actor, conn = _place(options)
        await self._ensure(domain, commands)
        # One call whatever the size: all keys are locked, in their order, before anything is sent.
        params: Row = (domain, encoding.sends(commands), batch_id, actor, skips_known)
        rows = await self.gateway.rows(OFFER_UNIQUE, params, domain=domain, conn=conn)
        found = [Sent(number, verdict, UUID(str(whose))) for number, verdict, whose in rows]
        for each in found:
            flow = commands[each.number - 1].flow
            if each.verdict == "refused" and flow is not None:
                raise UniqueKeyHeldError(domain, flow.unique_key or "", each.command_id)
        known = [each.command_id for each in found if each.verdict == "known"]
        if known:
            raise DuplicateCommandError(domain, known)
        return found


def has_level(command: NewCommand) -> bool:
    """Whether it is sent with a priority."""
    return command.flow is not None and command.flow.priority is not None


def _place(options: SendPlace) -> tuple[UUID | None, str | None, object]:
    return options.get("batch_id"), options.get("actor"), options.get("conn")
