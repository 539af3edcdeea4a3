"""Progress of a governed batch as server-sent events, until it has ended."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Response

from commandbus.access.model import Caller
from commandbus.errors import CommandBusError
from commandbus.governance.model import BatchTicket
from commandbus.http.auth.scopes import Reader
from commandbus.http.platform import Here, Platform
from commandbus.http.routes.tickets import ALL, BATCHES
from commandbus.http.schemas.governed import TicketView
from commandbus.http.waiting import Stream

router = APIRouter(tags=["governed batches"])

#: Seconds without an event after which a comment keeps the connection alive.
HEARTBEAT_SECONDS = 15.0
#: Milliseconds after which a client that was disconnected should connect again.
RETRY_MS = 2_000

LastEvent = Annotated[
    str | None,
    Header(max_length=100, description="The id of the last event you have: go on from there."),
]
#: One event, as the OpenAPI initiative describes streams: `data` is the JSON of a TicketView.
_EVENT = {
    "type": "object",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["progress", "end"]},
        "id": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/TicketView"},
        },
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": _EVENT}}},
    204: {"description": "It has ended, and you have its last event."},
}


class EventStream(Stream):
    """Server-sent events."""

    media_type = "text/event-stream"


@router.get(
    f"{BATCHES}/{{batch_id}}/events",
    status_code=200,
    response_class=EventStream,
    responses=_RESPONSES,
)
async def batch_events(
    batch_id: UUID, here: Here, caller: Reader, last_event_id: LastEvent = None
) -> Response:
    """Follow a batch: an event `progress` for each change, `end` when it has ended.

    The stream ends by itself after some minutes; clients connect again with Last-Event-ID. Each
    event contains the whole state.
    """
    ticket = await here.bus.governance.require(caller, batch_id)
    is_known = last_event_id == here.bus.governance.version(ticket)
    if is_known and not ticket.is_open:
        return Response(status_code=204)  # tells an EventSource not to connect again
    events = _events(here, caller, ticket, last_event_id)
    return EventStream(events, here.polls, headers={"X-Accel-Buffering": "no"})


async def _events(
    here: Platform, caller: Caller, ticket: BatchTicket, seen: str | None
) -> AsyncIterator[bytes]:
    governance = here.bus.governance
    # A token may be revoked while the stream is open, so the stream has a longest duration.
    deadline = time.monotonic() + here.settings.max_stream_seconds
    yield f"retry: {RETRY_MS}\n\n".encode()
    while True:
        version = governance.version(ticket)
        yield b": \n\n" if version == seen else _event(here, ticket, version)
        seen = version
        left = deadline - time.monotonic()
        if not ticket.is_open or left <= 0 or here.polls.is_closing:
            return
        try:
            waiting = governance.wait(
                caller, ticket.ticket_id, seen=version, timeout=min(HEARTBEAT_SECONDS, left)
            )
            ticket = await here.polls.unless_closing(waiting, ticket)
        except CommandBusError:
            return  # the client connects again, and gets the error as a response


def _event(here: Platform, ticket: BatchTicket, version: str) -> bytes:
    # JSON has no line breaks outside its texts, and writes those inside as two characters.
    data = ALL.view(here, ticket, TicketView).model_dump_json()
    kind = "progress" if ticket.is_open else "end"
    return f"event: {kind}\ndata: {data}\nid: {version}\n\n".encode()
