"""Ordering keys: `bus.keys`. Which are open, which are blocked and by what, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import LiteralString
from uuid import UUID

from commandbus.database.store import Store
from commandbus.flow import check_key
from commandbus.models import CommandStatus, Viewer
from commandbus.names import check_choice, check_domain, check_operator, check_uuid
from commandbus.paging import Page, check_page, page_of, position_of, read_moment
from commandbus.privacy.reasons import check_reason

#: Of a reason, as elsewhere.
MAX_REASON_LENGTH = 1_000

_LIST: LiteralString = (
    "select k.ordering_key, k.head, k.head_type, k.head_status, k.is_blocked, k.waiting, k.since"
    " from {schema}.list_keys(%s, cast(%s as boolean), cast(%s as text), cast(%s as boolean),"
    " cast(%s as timestamptz), cast(%s as text), %s) k"
)
_SHOW: LiteralString = (
    "select k.place, k.command_id, k.command_type, k.status, k.number, k.since, k.is_blocking"
    " from {schema}.show_key(%s, %s, cast(%s as text), %s) k"
)
_SKIP: LiteralString = (
    "select {schema}.skip_key(%s, %s, cast(%s as text), cast(%s as text), cast(%s as uuid))"
)


class OnPark(StrEnum):
    """What a parked command does to its key."""

    #: The key stands still until the command is retried, canceled, completed or stepped over.
    BLOCK = "block"
    #: The next one goes; a later retry puts the parked one at the end of its key.
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class OrderingKey:
    """A key that has open commands."""

    ordering_key: str
    #: The command whose turn it is.
    head: UUID
    #: None: it is gone, and the key goes on with the next receive.
    head_type: str | None
    head_status: CommandStatus | None
    #: The head is parked, and nothing behind it starts.
    is_blocked: bool
    #: How many are behind the head.
    waiting: int
    #: When it was blocked, or since when the first of those behind the head waits.
    since: datetime | None


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A command of a key: the head has place 0, those behind it count from 1."""

    place: int
    command_id: UUID
    command_type: str
    status: CommandStatus
    #: Its number among those of its key, in the order of sending.
    number: int | None
    #: When it was blocked, or since when it waits; None: it is the head.
    since: datetime | None
    is_blocking: bool


class OrderingKeys:
    """`bus.keys`: commands that run one after the other. Needs PostgreSQL."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(
        self,
        domain: str,
        *,
        blocked: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
        viewer: Viewer | None = None,
    ) -> Page[OrderingKey]:
        """The open keys of a domain, those that are blocked first; `blocked=True`: only those."""
        check_domain(domain)
        check_page(limit)
        owner = None if viewer is None else viewer.owner
        bound = [domain, blocked, owner]
        after = position_of(cursor, bound, _read_position) or (None, None, None)
        params = (domain, blocked, owner, *after, limit + 1)
        found = [_key_of(*row) for row in await self._store.gateway.rows(_LIST, params)]
        return page_of(found, limit, bound, _position)

    async def show(
        self, domain: str, ordering_key: str, *, limit: int = 100, viewer: Viewer | None = None
    ) -> Sequence[KeyPlace]:
        """The commands of a key in their order, the head first; none if nothing of it is open."""
        check_domain(domain)
        check_page(limit)
        owner = None if viewer is None else viewer.owner
        params = (domain, check_key(ordering_key, "ordering_key"), owner, limit)
        return [_place_of(*row) for row in await self._store.gateway.rows(_SHOW, params)]

    async def skip(
        self,
        domain: str,
        ordering_key: str,
        *,
        expected: UUID | None = None,
        reason: str | None = None,
        operator: str | None = None,
    ) -> UUID:
        """Step over the parked command that blocks a key, and return its id. It stays parked.

        `expected`: only if it is this one. A later retry puts it at the end of its key.
        """
        check_domain(domain)
        params = (
            domain,
            check_key(ordering_key, "ordering_key"),
            check_operator(operator),
            check_reason(reason, max_length=MAX_REASON_LENGTH),
            None if expected is None else check_uuid(expected, "expected"),
        )
        stepped_over: UUID = await self._store.gateway.value(_SKIP, params, domain=domain)
        return stepped_over

    async def get_policy(self, domain: str) -> OnPark:
        """Whether a parked command blocks its key, in this domain."""
        return OnPark(await self._store.key_policy(check_domain(domain)))

    async def set_policy(
        self,
        domain: str,
        on_park: OnPark | str,
        *,
        reason: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Say whether a parked command blocks its key; with `skip` the blocked ones go on."""
        policy = check_choice(OnPark, on_park, "on_park")
        await self._store.set_key_policy(
            check_domain(domain),
            policy.value,
            reason=check_reason(reason, max_length=MAX_REASON_LENGTH),
            actor=check_operator(operator),
        )


def _key_of(
    ordering_key: str,
    head: UUID,
    head_type: str | None,
    head_status: str | None,
    is_blocked: bool,
    waiting: int,
    since: datetime | None,
) -> OrderingKey:
    status = None if head_status is None else CommandStatus(head_status)
    return OrderingKey(ordering_key, head, head_type, status, is_blocked, waiting, since)


def _place_of(
    place: int,
    command_id: UUID,
    command_type: str,
    status: str,
    number: int | None,
    since: datetime | None,
    is_blocking: bool,
) -> KeyPlace:
    return KeyPlace(
        place, command_id, command_type, CommandStatus(status), number, since, is_blocking
    )


def _position(key: OrderingKey) -> list[object]:
    return [key.is_blocked, key.since if key.is_blocked else None, key.ordering_key]


def _read_position(
    is_blocked: object, since: str | None, ordering_key: object
) -> tuple[bool, datetime | None, str]:
    if not isinstance(is_blocked, bool) or (since is None) == is_blocked:
        raise ValueError("not a place in a list of keys")
    moment = None if since is None else read_moment(since)
    return is_blocked, moment, check_key(ordering_key, "ordering_key")
