"""Replies: one for each command that ends, on its queue or in the inbox of `call`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from commandbus.models import ReplyOutcome
from commandbus.names import INBOX, NO_REPLY, inbox_channel
from commandbus.testing.fakes import encode
from commandbus.testing.memory.tables import CommandRow, State


def publish_reply(
    state: State,
    row: CommandRow,
    outcome: ReplyOutcome,
    ended_at: datetime,
    *,
    data: Any = None,
    error: dict[str, str | None] | None = None,
) -> None:
    """Publish the body of document 004 §7.2. What cannot be published undoes the outcome."""
    if row.reply_queue == NO_REPLY:
        return
    body = {
        "command_id": str(row.command_id),
        "correlation_id": str(row.correlation_id),
        "domain": row.domain,
        "type": f"{row.command_type}Response",
        "outcome": outcome.value,
        "completed_at": iso8601(ended_at),
        "data": data,
        "error": error,
    }
    if row.reply_queue == INBOX:
        state.inbox[row.key] = encode(body)
        state.notices.append(inbox_channel(row.domain))
    else:
        state.queues.create(row.reply_queue)  # somebody may have dropped it
        state.queues.send_batch(row.reply_queue, [body])


def canceled_error(reason: str) -> dict[str, str | None]:
    """The error of a reply to a command that was canceled."""
    return {"code": "CANCELED", "message": reason, "class": "CANCELED"}


def iso8601(moment: datetime) -> str:
    """UTC with microseconds and a Z, as in every envelope."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
