"""Leases on PostgreSQL: how commands are received, and how their leases end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, LiteralString, Unpack
from uuid import UUID

from psycopg.pq.abc import PGresult

from commandbus.database import encoding
from commandbus.database.connections import Row
from commandbus.database.gateway import Gateway
from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.database.own_transactions import SETTLE_OWN
from commandbus.database.rows import raw_leases
from commandbus.database.sessions import UnreadableAnswerError
from commandbus.database.store import ReceiveOptions
from commandbus.errors import DatabaseError

_LEASE: LiteralString = (
    "select command_id, command_type, msg_id, lease_epoch, attempt, max_attempts, is_suspect,"
    " correlation_id, reply_queue, batch_id, created_at, data, snoozes, has_rules, meta"
)
#: For how many seconds a command has been due that is started for the first time. By the clock of
#: the server, which is not that of the worker.
#: `extract` would make a number of decimal digits first.
_WAITED: LiteralString = ", date_part('epoch', clock_timestamp() - r.due_at)"
_FROM_RECEIVE: LiteralString = (
    " from {schema}.receive_commands(%s, %s, %s, %s, cast(%s as jsonb), %s, %s,"
    " cast(%s as text[]), cast(%s as text[]), cast(%s as int)) r"
)
_RECEIVE: LiteralString = _LEASE + _FROM_RECEIVE
_RECEIVE_WITH_DUE: LiteralString = _LEASE + _WAITED + _FROM_RECEIVE
_COMPLETE: LiteralString = "select * from {schema}.complete_commands(%s, cast(%s as jsonb))"
_FROM_BOTH: LiteralString = (
    ", is_lost from {schema}.complete_and_receive(%s, cast(%s as jsonb), %s, %s, %s,"
    " cast(%s as jsonb), %s, cast(%s as text[]), cast(%s as text[]), cast(%s as int)) r"
)
_COMPLETE_AND_RECEIVE: LiteralString = _LEASE + _FROM_BOTH
_COMPLETE_AND_RECEIVE_WITH_DUE: LiteralString = _LEASE + _WAITED + _FROM_BOTH
_SETTLE: LiteralString = "select * from {schema}.settle_commands(%s, cast(%s as jsonb))"

#: The message in a row of receive_commands.
_MESSAGE = itemgetter(2)

_log = logging.getLogger("commandbus.receiver")


class PostgresLeasing:
    """The part of commandbus.database.store.Store that is about leases."""

    gateway: Gateway

    async def receive(self, domain: str, **options: Unpack[ReceiveOptions]) -> list[Lease]:
        text = _RECEIVE
        params: Row = (
            domain, *_first(options), options.get("from_head", False), *_last(options)
        )  # fmt: skip
        if options.get("with_due"):
            text = _RECEIVE_WITH_DUE
        return _leases(domain, await self._leased(domain, text, params), options)

    async def _leased(self, domain: str, text: LiteralString, params: Row) -> list[Row]:
        try:
            return await self.gateway.rows(text, params, domain=domain)
        except DatabaseError as error:
            if isinstance(error.__cause__, UnreadableAnswerError):
                await self._give_back(domain, error.__cause__.answer)
            raise

    async def _give_back(self, domain: str, answer: PGresult | None) -> None:
        # Leased, and nobody knows what: a lease that lapses would be held against the command.
        leases = raw_leases(domain, answer)
        lost = await self.settle(domain, [Outcome(each, OutcomeKind.RELEASE) for each in leases])
        _log.error(
            "%d commands of %s were leased but could not be read; %d were given back",
            len(leases), domain, len(leases) - len(lost),
        )  # fmt: skip

    async def settle_and_receive(
        self, domain: str, outcomes: Sequence[Outcome], options: ReceiveOptions
    ) -> tuple[set[UUID], list[Lease]]:
        if not _are_plain(outcomes):
            return await self.settle(domain, outcomes), []
        text = _COMPLETE_AND_RECEIVE
        params: Row = (
            domain, encoding.completions(outcomes), *_first(options), *_last(options)
        )  # fmt: skip
        if options.get("with_due"):
            text = _COMPLETE_AND_RECEIVE_WITH_DUE
        rows = await self._leased(domain, text, params)
        lost = {row[0] for row in rows if row[-1]}
        return lost, _leases(domain, [row[:-1] for row in rows if not row[-1]], options)

    async def settle(
        self, domain: str, outcomes: Sequence[Outcome], *, conn: Any = None
    ) -> set[UUID]:
        if conn is not None:
            text, document = SETTLE_OWN, encoding.outcomes(outcomes)
        elif _are_plain(outcomes):
            text, document = _COMPLETE, encoding.completions(outcomes)
        else:
            text, document = _SETTLE, encoding.outcomes(outcomes)
        params = (domain, document)
        return {row[0] for row in await self.gateway.rows(text, params, domain=domain, conn=conn)}


def _are_plain(outcomes: Sequence[Outcome]) -> bool:
    return all(o.kind is OutcomeKind.COMPLETE and not o.sends for o in outcomes)


def _first(options: ReceiveOptions) -> Row:
    """The arguments of a receive before `p_from_head`."""
    return (
        options["vt_seconds"], options["quantity"], options["worker"],
        encoding.dump(dict(options["limits"])), options.get("mark_in_progress", True),
    )  # fmt: skip


def _last(options: ReceiveOptions) -> Row:
    """Those after it."""
    every = options.get("count_every", ())
    return (
        list(options.get("except_types", ())),
        None if every is None else list(every), options.get("places"),
    )  # fmt: skip


def _leases(domain: str, rows: list[Row], options: ReceiveOptions) -> list[Lease]:
    now = time.monotonic()
    rows.sort(key=_MESSAGE)
    leases = [Lease(domain, *row) for row in rows]
    if options.get("with_due"):
        for lease in leases:  # the last column is for how long; nobody else has them yet
            if lease.due_at is not None:
                lease.due_at = now - lease.due_at
    return leases
