"""Recovery: queues what was stored and not queued, because its process ended or queueing failed."""

from __future__ import annotations

from typing import LiteralString

from commandbus.batches.model import RecoveryReport
from commandbus.database.store import Store

#: Commands that one transaction of recovery looks at.
RECOVERY_LIMIT = 1_000

_RECOVER_DISPATCH: LiteralString = (
    "select queued, failed, given_up, overdue from {schema}.recover_dispatch("
    "%s, make_interval(secs => cast(%s as float8)), %s, %s, %s)"
)


async def recover_dispatch(store: Store, domain: str, grace_seconds: float) -> RecoveryReport:
    """Queue everything of a domain that was stored and not queued, or give it up.

    It stops at the first page with a failure: what failed is tried again in the next round, not at
    once, or all its attempts would be gone in a moment.
    """
    gateway = store.gateway
    settings = gateway.settings
    params = (
        domain, grace_seconds, RECOVERY_LIMIT, settings.max_queue_attempts,
        settings.queue_batch_size,
    )  # fmt: skip
    total = RecoveryReport()
    while True:
        rows = await gateway.rows(_RECOVER_DISPATCH, params, into=RecoveryReport, domain=domain)
        total += rows[0]
        if rows[0].failed or rows[0].queued < RECOVERY_LIMIT:
            return total
