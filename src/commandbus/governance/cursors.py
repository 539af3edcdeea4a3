"""Cursors: opaque texts that lead from one page of tickets to the next."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from uuid import UUID

from commandbus.errors import InvalidSettingError
from commandbus.governance.model import BatchTicket


def cursor_of(last: BatchTicket) -> str:
    """The cursor that leads on from the last ticket of a page."""
    text = json.dumps([last.created_at.isoformat(), str(last.ticket_id)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[datetime, UUID]:
    """Where to go on, or InvalidSettingError."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        at, ticket_id = json.loads(base64.urlsafe_b64decode(padded.encode()))
        place = datetime.fromisoformat(at), UUID(ticket_id)
    except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
        place = None
    if place is None or place[0].tzinfo is None:
        raise InvalidSettingError(
            "cursor is not one that a listing gave; give next_cursor as it is, or None to start"
        )
    return place
