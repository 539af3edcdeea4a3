"""`bus.troubleshooting` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.models import EVERYTHING
from commandbus.troubleshooting.groups import MAX_GROUPS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from typing import Any
    from uuid import UUID
    from commandbus.database.model import OnBehalf
    from commandbus.models import TroubleshootingItem, Viewer
    from commandbus.paging import Page
    from commandbus.troubleshooting.life import CommandLife
    from commandbus.troubleshooting.model import FailureGroup, GroupList
    from commandbus.troubleshooting.queue import Troubleshooting


class BlockingTroubleshooting(BlockingFacet["Troubleshooting"]):
    """The operator's verbs."""

    def groups(
        self, domain: str | None = None, *, command_type: str | None = None,
        include_empty: bool = False, viewer: Viewer = EVERYTHING, limit: int = 100,
    ) -> list[FailureGroup]:
        """Parked commands by cause, largest group first; it reads no command."""
        return self._bridge.run(self._facet.groups(
            domain, command_type=command_type, include_empty=include_empty, viewer=viewer,
            limit=limit,
        ))

    def find_groups(
        self, domain: str | None = None, *, domains: Collection[str] | None = None,
        search: str | None = None, command_type: str | None = None, include_empty: bool = False,
        viewer: Viewer = EVERYTHING, limit: int = MAX_GROUPS,
    ) -> GroupList:
        """The same, at most MAX_GROUPS, and whether there are more; `domains`: of one of these."""
        return self._bridge.run(self._facet.find_groups(
            domain, domains=domains, search=search, command_type=command_type,
            include_empty=include_empty, viewer=viewer, limit=limit,
        ))

    def note_group(
        self, domain: str, fingerprint: str, text: str | None, *, operator: str | None = None,
    ) -> FailureGroup:
        """Put a remark on a group; None takes it off. The audit keeps all of them."""
        return self._bridge.run(self._facet.note_group(
            domain, fingerprint, text, operator=operator,
        ))

    def assign_group(
        self, domain: str, fingerprint: str, assignee: str | None, *, operator: str | None = None,
    ) -> FailureGroup:
        """Say who looks after a group; None: nobody. It is in the audit."""
        return self._bridge.run(self._facet.assign_group(
            domain, fingerprint, assignee, operator=operator,
        ))

    def require_group(
        self, fingerprint: str, domain: str | None = None, *, viewer: Viewer = EVERYTHING,
    ) -> FailureGroup:
        """The one group whose fingerprint begins so; raises if there is none, or several."""
        return self._bridge.run(self._facet.require_group(fingerprint, domain, viewer=viewer))

    def life(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING,
        domains: Iterable[str] | None = None,
    ) -> CommandLife:
        """What happened to a command and why it stands where it stands; no payload."""
        return self._bridge.run(self._facet.life(
            domain, command_id, viewer=viewer, domains=domains,
        ))

    def page(
        self, domain: str | None, *, command_type: str | None = None, group: str | None = None,
        viewer: Viewer = EVERYTHING, limit: int = 100, cursor: str | None = None,
    ) -> Page[TroubleshootingItem]:
        """What waits, longest first, with its payload, page by page; None: in all domains."""
        return self._bridge.run(self._facet.page(
            domain, command_type=command_type, group=group, viewer=viewer, limit=limit,
            cursor=cursor,
        ))

    def every_masked(
        self, domain: str, *, command_type: str | None = None, group: str | None = None,
        viewer: Viewer = EVERYTHING,
    ) -> Iterator[TroubleshootingItem]:
        """All that `page` finds, page after page, the payloads with their secrets masked."""
        return self._bridge.iterate(self._facet.every_masked(
            domain, command_type=command_type, group=group, viewer=viewer,
        ))

    def counts(self, domain: str | None = None) -> dict[str, int]:
        """How many commands are parked, by domain; only domains that have some."""
        return self._bridge.run(self._facet.counts(domain))

    def get(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING,
    ) -> TroubleshootingItem | None:
        """One parked command, or None if it is not parked."""
        return self._bridge.run(self._facet.get(domain, command_id, viewer=viewer))

    def require(
        self, domain: str, command_id: UUID, *, viewer: Viewer = EVERYTHING,
    ) -> TroubleshootingItem:
        """One parked command; CommandNotFoundError if it is not parked."""
        return self._bridge.run(self._facet.require(domain, command_id, viewer=viewer))

    def masked(self, item: TroubleshootingItem) -> Any:
        """The payload of a parked command with its secrets masked."""
        return self._bridge.run(self._facet.masked(item))

    def retry(
        self, domain: str, command_id: UUID, *, operator: str | None = None,
        reset_attempts: bool = True, payload: Mapping[str, Any] | None = None,
        on_behalf: OnBehalf | None = None,
    ) -> bool:
        """Send the same payload again, or an edited one; returns whether it was sent."""
        return self._bridge.run(self._facet.retry(
            domain, command_id, operator=operator, reset_attempts=reset_attempts, payload=payload,
            on_behalf=on_behalf,
        ))

    def secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        """The keys of a payload that are marked as secret, here or by any worker before."""
        return self._bridge.run(self._facet.secret_keys(domain, command_type))

    def note(
        self, domain: str, command_id: UUID, text: str, *, operator: str | None = None,
    ) -> None:
        """Put a remark into the audit; the command stays as it is."""
        return self._bridge.run(self._facet.note(domain, command_id, text, operator=operator))

    def cancel(
        self, domain: str, command_id: UUID, reason: str, *, operator: str | None = None,
    ) -> None:
        """End it as CANCELED, with a reply."""
        return self._bridge.run(self._facet.cancel(domain, command_id, reason, operator=operator))

    def complete(
        self, domain: str, command_id: UUID, result_data: Any = None, *,
        operator: str | None = None,
    ) -> None:
        """End it as COMPLETED with this result, with a reply."""
        return self._bridge.run(self._facet.complete(
            domain, command_id, result_data, operator=operator,
        ))
