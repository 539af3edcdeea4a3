"""Progress of a governed batch as server-sent events, until it has ended."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response
from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from commandbus.access.model import Caller
from commandbus.errors import CommandBusError
from commandbus.governance.model import BatchTicket
from commandbus.http.auth.scopes import Reader
from commandbus.http.platform import Here, Platform
from commandbus.http.routes.tickets import BATCHES, Group, ticket_view
from commandbus.http.waiting import LongPolls

#: Seconds without an event after which a comment keeps the connection alive.
HEARTBEAT_SECONDS = 15.0
#: Milliseconds after which a client that was disconnected should come again.
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


class EventStream(StreamingResponse):
    """A stream that counts as a waiting request, from its first byte to its last."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], polls: LongPolls) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no"})
        self._polls = polls

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer; 503 if there is no place, before anything is sent."""
        with self._polls.place():
            await super().__call__(scope, receive, send)


def add_events(router: APIRouter, group: Group) -> None:
    """Add the stream of a batch."""

    @router.get(
        f"{BATCHES}/{{batch_id}}/events",
        name="batch_events",
        status_code=200,
        response_class=EventStream,
        responses=_RESPONSES,
    )
    async def batch_events(
        batch_id: UUID,
        request: Request,
        here: Here,
        caller: Reader,
        last_event_id: LastEvent = None,
    ) -> Response:
        """Follow a batch: an event `progress` for each change, `end` when it has ended.

        The stream ends by itself after some minutes; clients come again with Last-Event-ID. Each
        event contains the whole state.
        """
        ticket = await here.bus.governance.require(caller, batch_id)
        is_known = last_event_id == here.bus.governance.version(ticket)
        if is_known and not ticket.is_open:
            return Response(status_code=204)  # tells an EventSource to stay away
        stream = _Stream(request, here, caller, group)
        return EventStream(stream.events(ticket, last_event_id), here.polls)


class _Stream:
    """The events of one client."""

    def __init__(self, request: Request, here: Platform, caller: Caller, group: Group) -> None:
        self._request = request
        self._here = here
        self._caller = caller
        self._group = group

    async def events(self, ticket: BatchTicket, seen: str | None) -> AsyncIterator[bytes]:
        governance = self._here.bus.governance
        # A token may be revoked while the stream is open, so the stream has a longest duration.
        deadline = time.monotonic() + self._here.settings.max_stream_seconds
        yield format_sse_event(retry=RETRY_MS)
        while True:
            version = governance.version(ticket)
            yield self._event(ticket, version) if version != seen else format_sse_event(comment="")
            seen = version
            left = deadline - time.monotonic()
            if not ticket.is_open or left <= 0 or self._here.polls.is_closing:
                return
            try:
                ticket = await self._here.polls.unless_closing(
                    governance.wait(
                        self._caller,
                        ticket.ticket_id,
                        seen=version,
                        timeout=min(HEARTBEAT_SECONDS, left),
                    ),
                    ticket,
                )
            except CommandBusError:
                return  # gone, or the database is: the client comes again, and is told

    def _event(self, ticket: BatchTicket, version: str) -> bytes:
        view: Any = ticket_view(self._request, ticket, self._group)
        return format_sse_event(
            data_str=view.model_dump_json(),
            event="progress" if ticket.is_open else "end",
            id=version,
        )
