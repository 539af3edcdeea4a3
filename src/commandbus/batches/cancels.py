"""The cancel of a whole batch, in as many transactions as it takes."""

from __future__ import annotations

from uuid import UUID

from commandbus.batches.model import BatchCancel
from commandbus.commands.cancels import check_running
from commandbus.database.store import Store
from commandbus.models import Running
from commandbus.names import check_domain, check_operator, check_text, check_uuid
from commandbus.privacy.redaction import redact_text


async def cancel_all(
    store: Store,
    domain: str,
    batch_id: UUID,
    reason: str,
    operator: str | None,
    *,
    running: Running = "refuse",
) -> BatchCancel:
    """Cancel what no worker has, in as many transactions as it takes; returns how many.

    With `running="request"` also those that workers have, which are asked to end them.
    """
    check_domain(domain)
    batch = check_uuid(batch_id, "batch_id")
    text = redact_text(check_text(reason, "reason"))
    actor, done = check_operator(operator), BatchCancel()
    check_running(running)
    while True:
        # One that is given back between the two is found by the next round.
        canceled = await store.cancel_batch(domain, batch, reason=text, actor=actor)
        asked = 0
        if running == "request":
            asked = await store.request_batch_cancel(domain, batch, reason=text, actor=actor)
        if not canceled + asked:
            return done
        done = BatchCancel(done.canceled + canceled, done.requested + asked)
