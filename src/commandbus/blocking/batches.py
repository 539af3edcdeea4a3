"""`bus.batches` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.batches.model import DispatchMode
from commandbus.models import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any, Unpack
    from uuid import UUID
    from commandbus.batches.actions import BatchActions
    from commandbus.batches.batch import Batches
    from commandbus.batches.model import BatchCancel, BatchOptions, DispatchResult, RecoveryReport
    from commandbus.batches.standing import BatchEnding, BatchErrors, BatchFacts
    from commandbus.database.model import OnBehalf
    from commandbus.loads.model import LoadMetadata
    from commandbus.models import (
        BatchCommand, BatchMetadata, BatchStatus, CommandMetadata, CommandStatus, Running, Viewer,
    )
    from commandbus.paging import Page
    from commandbus.transport import Transport
    from commandbus.typed.commands import TypedCommand


class BlockingBatches(BlockingFacet["Batches"]):
    """The verbs of a batch. Pages, dispatch, relay and recovery need PostgreSQL."""

    def get(
        self, domain: str, batch_id: UUID, *, viewer: Viewer = EVERYTHING,
    ) -> BatchMetadata | None:
        """One batch, or None."""
        return self._bridge.run(self._facet.get(domain, batch_id, viewer=viewer))

    def require(
        self, domain: str, batch_id: UUID, *, viewer: Viewer = EVERYTHING,
    ) -> BatchMetadata:
        """One batch; raises BatchNotFoundError if there is none."""
        return self._bridge.run(self._facet.require(domain, batch_id, viewer=viewer))

    def facts(self, batch: BatchMetadata) -> BatchFacts:
        """What `batch_sentence` needs to say why a batch is open. One read, by key."""
        return self._bridge.run(self._facet.facts(batch))

    def ending(self, batch: BatchMetadata) -> BatchEnding:
        """What happens, or has happened, when a batch closes. One read, by key."""
        return self._bridge.run(self._facet.ending(batch))

    def outlook(self, batch: BatchMetadata) -> tuple[BatchFacts, BatchEnding]:
        """`facts` and `ending` of a batch that is open, in one read."""
        return self._bridge.run(self._facet.outlook(batch))

    def errors(self, batch: BatchMetadata) -> BatchErrors:
        """What failed or is parked of a batch, by error code."""
        return self._bridge.run(self._facet.errors(batch))

    def create(
        self, domain: str, commands: Sequence[BatchCommand | TypedCommand], *, conn: Any = None,
        on_behalf: OnBehalf | None = None, retry_for: float | None = None,
        **options: Unpack[BatchOptions],
    ) -> UUID:
        """Create a batch with all its commands, or nothing; without a database, try `retry_for`
        s."""
        return self._bridge.run(self._facet.create(
            domain, commands, conn=conn, on_behalf=on_behalf, retry_for=retry_for, **options,
        ))

    def dispatch(
        self, domain: str, commands: Sequence[BatchCommand | TypedCommand], *,
        mode: DispatchMode = DispatchMode.TWO_PHASE, dispatch_rate: float | None = None,
        queue: Transport | None = None, **options: Unpack[BatchOptions],
    ) -> DispatchResult:
        """Create a batch whose rows and messages are committed apart, and say how it went."""
        return self._bridge.run(self._facet.dispatch(
            domain, commands, mode=mode, dispatch_rate=dispatch_rate, queue=queue, **options,
        ))

    def relay(self, domain: str, queue: Transport, *, drain: bool = False) -> int:
        """Queue here, exactly once, what arrives in a queue in another database."""
        return self._bridge.run(self._facet.relay(domain, queue, drain=drain))

    def recover_dispatch(
        self, domain: str, *, grace_seconds: float | None = None,
        unconfirmed_after: float | None = None,
    ) -> RecoveryReport:
        """Queue what was stored and not queued, now; workers do it by themselves every few
        minutes."""
        return self._bridge.run(self._facet.recover_dispatch(
            domain, grace_seconds=grace_seconds, unconfirmed_after=unconfirmed_after,
        ))

    def actions(
        self, domain: str, batch_id: UUID, load: LoadMetadata | None = None,
    ) -> BatchActions:
        """What can be done with a batch now; raises BatchNotFoundError if there is none."""
        return self._bridge.run(self._facet.actions(domain, batch_id, load))

    def page(
        self, domain: str, *, status: BatchStatus | None = None, viewer: Viewer = EVERYTHING,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[BatchMetadata]:
        """Batches, newest first."""
        return self._bridge.run(self._facet.page(
            domain, status=status, viewer=viewer, limit=limit, cursor=cursor,
        ))

    def list_open(
        self, domain: str | None = None, *, domains: Collection[str] | None = None,
        limit: int = 100,
    ) -> list[BatchMetadata]:
        """Batches that have not ended, of one domain, of these or of all, newest first."""
        return self._bridge.run(self._facet.list_open(domain, domains=domains, limit=limit))

    def page_commands(
        self, domain: str, batch_id: UUID, *, status: CommandStatus | None = None,
        viewer: Viewer = EVERYTHING, limit: int = 100, cursor: str | None = None,
    ) -> Page[CommandMetadata]:
        """Commands of a batch, in the order in which they were given."""
        return self._bridge.run(self._facet.page_commands(
            domain, batch_id, status=status, viewer=viewer, limit=limit, cursor=cursor,
        ))

    def cancel(
        self, domain: str, batch_id: UUID, reason: str, *, running: Running = "refuse",
        operator: str | None = None,
    ) -> int:
        """Cancel the commands of a batch that no worker has; returns how many."""
        return self._bridge.run(self._facet.cancel(
            domain, batch_id, reason, running=running, operator=operator,
        ))

    def cancel_counted(
        self, domain: str, batch_id: UUID, reason: str, *, running: Running = "refuse",
        operator: str | None = None,
    ) -> BatchCancel:
        """The same; returns how many were canceled, and of how many that was requested."""
        return self._bridge.run(self._facet.cancel_counted(
            domain, batch_id, reason, running=running, operator=operator,
        ))

    def retry(
        self, domain: str, batch_id: UUID, *, reason: str | None = None,
        operator: str | None = None,
    ) -> int:
        """Send the failed and the parked commands of a batch again; returns how many."""
        return self._bridge.run(self._facet.retry(
            domain, batch_id, reason=reason, operator=operator,
        ))

    def wait(self, domain: str, batch_id: UUID, *, timeout: float | None = None) -> BatchMetadata:
        """Wait until a batch has ended, in whichever process it is worked on."""
        return self._bridge.run(self._facet.wait(domain, batch_id, timeout=timeout))
