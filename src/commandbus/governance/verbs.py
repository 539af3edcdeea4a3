"""Governance as CommandBus shows it."""

from __future__ import annotations

from commandbus.commands.replies import Replies
from commandbus.commands.sending import Preparer
from commandbus.database.store import Store
from commandbus.errors import InvalidSettingError
from commandbus.governance.service import Governance
from commandbus.governance.types import BatchType, BatchTypes
from commandbus.handler import HandlerRegistry
from commandbus.settings import Settings
from commandbus.store.governing import GovernanceStore


class GovernanceVerbs:
    """Part of CommandBus."""

    _store: Store
    _preparer: Preparer
    _settings: Settings
    _registry: HandlerRegistry
    _replies: Replies
    _batch_types: BatchTypes
    _governance: Governance | None = None

    def declare_batch_type(self, batch_type: BatchType) -> None:
        """Declare what may be submitted as a governed batch."""
        self._batch_types.declare(batch_type)

    @property
    def can_govern(self) -> bool:
        """Whether there are governed batches on this bus: a bus in memory has none."""
        return isinstance(self._store, GovernanceStore)

    @property
    def governance(self) -> Governance:
        """Governed batches: submission, tickets, approvals, limits. Needs PostgreSQL."""
        if self._governance is None:
            if not isinstance(self._store, GovernanceStore):
                raise InvalidSettingError(
                    "governed batches need PostgreSQL, and this bus keeps everything in memory; "
                    "use CommandBus.connect(), which brings a server of its own if there is none"
                )
            self._governance = Governance(
                self._store,
                self._batch_types,
                self._preparer,
                self._settings,
                self._registry,
                self._replies.listener,
            )
        return self._governance

    async def _close_governance(self) -> None:
        if self._governance is not None:
            await self._governance.close()
