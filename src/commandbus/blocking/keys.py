"""`bus.keys` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID
    from commandbus.commands.ordering import KeyPlace, OnPark, OrderingKey, OrderingKeys
    from commandbus.models import Viewer
    from commandbus.paging import Page


class BlockingOrderingKeys(BlockingFacet["OrderingKeys"]):
    """`bus.keys`: commands that run one after the other. Needs PostgreSQL."""

    def list(
        self, domain: str, *, blocked: bool | None = None, limit: int = 100,
        cursor: str | None = None, viewer: Viewer | None = None,
    ) -> Page[OrderingKey]:
        """The open keys of a domain, those that are blocked first; `blocked=True`: only those."""
        return self._bridge.run(self._facet.list(
            domain, blocked=blocked, limit=limit, cursor=cursor, viewer=viewer,
        ))

    def show(
        self, domain: str, ordering_key: str, *, limit: int = 100, viewer: Viewer | None = None,
    ) -> Sequence[KeyPlace]:
        """The commands of a key in their order, the head first; none if nothing of it is open."""
        return self._bridge.run(self._facet.show(domain, ordering_key, limit=limit, viewer=viewer))

    def skip(
        self, domain: str, ordering_key: str, *, expected: UUID | None = None,
        reason: str | None = None, operator: str | None = None,
    ) -> UUID:
        """Step over the parked command that blocks a key, and return its id. It stays parked."""
        return self._bridge.run(self._facet.skip(
            domain, ordering_key, expected=expected, reason=reason, operator=operator,
        ))

    def get_policy(self, domain: str) -> OnPark:
        """Whether a parked command blocks its key, in this domain."""
        return self._bridge.run(self._facet.get_policy(domain))

    def set_policy(
        self, domain: str, on_park: OnPark | str, *, reason: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Say whether a parked command blocks its key; with `skip` the blocked ones go on."""
        return self._bridge.run(self._facet.set_policy(
            domain, on_park, reason=reason, operator=operator,
        ))
