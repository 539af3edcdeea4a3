"""Recovery: queues what was stored and not queued, because its process ended or queueing failed.

A round is a walk over what waits, in pages of one transaction each: what a round that is cut short
has queued stays queued, and each command is tried once in a round.
"""

from __future__ import annotations

from typing import LiteralString

from commandbus.batches.model import RecoveryReport
from commandbus.database.store import Store

#: Commands that one transaction of recovery looks at.
RECOVERY_LIMIT = 1_000

_EXPOSE_UNQUEUED: LiteralString = (
    "select o_unconfirmed, o_is_all from {schema}.expose_unqueued("
    "%s, make_interval(secs => cast(%s as float8)), make_interval(secs => cast(%s as float8)), %s)"
)
_RECOVER_DISPATCH: LiteralString = (
    "select queued, failed, given_up, overdue, unconfirmed, cast(next_after as text)"
    " from {schema}.recover_dispatch("
    "%s, make_interval(secs => cast(%s as float8)), %s, %s, %s,"
    " p_unconfirmed_after => make_interval(secs => cast(%s as float8)),"
    " p_after => cast(%s as jsonb))"
)


async def recover_dispatch(
    store: Store, domain: str, grace_seconds: float, unconfirmed_after: float
) -> RecoveryReport:
    """Queue everything of a domain that was stored and not queued, or give it up.

    It stops at the first page of which nothing could be queued: then the queue is to blame, and
    all commands would lose an attempt for it.
    """
    gateway = store.gateway.patient
    settings = gateway.settings
    total = RecoveryReport()
    # All of them before the walk, which begins with the oldest and never goes back.
    is_all = False
    while not is_all:
        params = (domain, grace_seconds, unconfirmed_after, RECOVERY_LIMIT)
        ((unconfirmed, is_all),) = await gateway.rows(_EXPOSE_UNQUEUED, params, domain=domain)
        total += RecoveryReport(unconfirmed=unconfirmed)
    after = None
    while True:
        ((*figures, after),) = await gateway.rows(
            _RECOVER_DISPATCH,
            (
                domain, grace_seconds, RECOVERY_LIMIT, settings.max_queue_attempts,
                settings.queue_batch_size, unconfirmed_after, after,
            ),
            domain=domain,
        )  # fmt: skip
        page = RecoveryReport(*figures)
        total += page
        if after is None or (page.failed and not page.queued):
            return total
