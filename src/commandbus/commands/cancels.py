"""Cancels: one command, whether it waits or runs."""

from __future__ import annotations

from typing import Any, get_args
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import InvalidInputError
from commandbus.models import CancelAnswer, Running
from commandbus.names import check_domain, check_operator, check_text, check_uuid
from commandbus.privacy.redaction import redact_text


async def cancel_command(
    store: Store,
    domain: str,
    command_id: UUID,
    reason: str,
    *,
    running: Running,
    operator: str | None,
    conn: Any,
) -> CancelAnswer:
    """End a command that waits; of one that runs, ask its worker, or refuse."""
    text = redact_text(check_text(reason, "reason"))
    ids, actor = [check_uuid(command_id)], check_operator(operator)
    check_domain(domain)
    if check_running(running) == "refuse":
        await store.cancel(domain, ids, reason=text, actor=actor, conn=conn)
        return "canceled"
    asked = await store.request_cancel(domain, ids, reason=text, actor=actor, conn=conn)
    return "requested" if asked else "canceled"


def check_running(running: Running) -> Running:
    """Return what to do with commands that run, or raise InvalidInputError."""
    if running not in get_args(Running):
        raise InvalidInputError(f"running is {running!r}; use 'refuse' or 'request'")
    return running
