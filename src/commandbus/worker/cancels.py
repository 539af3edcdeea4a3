"""CancelWatch: learns by a hint that the cancel of a running command was requested.

The hint says only that something was: what is meant is asked from the database, so that a forged or
repeated hint does nothing. A lost one costs time only: the next extension of the lease tells too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from commandbus.database.model import Lease
from commandbus.database.store import Store
from commandbus.errors import CommandBusError
from commandbus.privacy.redaction import redact_text

_log = logging.getLogger("commandbus.worker")


class CancelWatch:
    """Asks after the leases of one worker when it is told to; hints that gather are one look."""

    def __init__(
        self,
        store: Store,
        domain: str,
        leases: Callable[[], Sequence[Lease]],
        on_canceled: Callable[[Lease], None],
    ) -> None:
        self._store = store
        self._domain = domain
        self._leases = leases
        self._on_canceled = on_canceled
        self._looking: asyncio.Task[None] | None = None
        self._is_asked = False

    def hint(self) -> None:
        """Look soon."""
        self._is_asked = True
        if self._leases() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        while self._is_asked:
            self._is_asked = False
            leases = self._leases()
            try:
                found = await self._store.cancel_requests(self._domain, leases)
            except CommandBusError as error:
                _log.warning("cannot look for cancels: %s", redact_text(str(error)))
                return
            for lease in leases:
                if lease.command_id in found:
                    self._on_canceled(lease)
