"""`audit`: what happened, and who did it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from commandbus.cli.export import Export
from commandbus.cli.frame import Frame, View, page_view
from commandbus.cli.options import (
    DomainFilter,
    InBatch,
    LongListing,
    Since,
    Until,
    parse_range,
    parse_uuid,
)
from commandbus.cli.output import Column, Table, jsonable, say
from commandbus.cli.show import event_columns, when
from commandbus.errors import InvalidInputError
from commandbus.models import AuditEvent

#: Seconds between two looks of `audit --follow`.
FOLLOW_SECONDS = 1.0


async def audit(  # noqa: PLR0913  (each is an option)
    frame: Frame,
    command_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this command, or this batch.")
    ] = None,
    *,
    batch: InBatch = None,
    domain: DomainFilter = None,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="Only what this one did.")
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="TYPE", help="Only this event; may be repeated."),
    ] = None,
    since: Since = None,
    until: Until = None,
    listing: LongListing,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they happen, until Ctrl-C.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Follow for this long only.")
    ] = None,
    export: Export,
) -> View:
    """List what happened and who did it, newest first; --follow prints it as it happens.

    With --follow and --json each event is one line.
    """
    begin, end = parse_range(since, until)
    criteria: dict[str, Any] = {
        "command_id": parse_uuid(command_id, "the id"),
        "batch_id": parse_uuid(batch, "--batch"),
        "domain": domain,
        "actor": actor,
        "event_types": [name.upper() for name in event] if event else None,
        "since": begin,
        "until": end,
    }
    if follow or seconds is not None:
        if export.export is not None:
            raise InvalidInputError("--export writes what there is; leave out --follow and --for")
        await _follow(frame, criteria, listing.limit, seconds)
        raise typer.Exit
    async with frame.open() as session:
        if export.check(listing):
            return await export.write(AuditEvent, session.bus.search.every_event(**criteria))
        page = await session.bus.search.audit(**criteria, **listing.of_page)
    return page_view(page, "events", _print_events, is_search=True)


_EVENTS = Table[dict[str, Any]](
    Column("TIME", when),
    Column("COMMAND", lambda event: event["command_id"]),
    *event_columns(),
    empty="No events.",
)


def _print_events(events: Sequence[AuditEvent]) -> None:
    _EVENTS.print([dataclasses.asdict(event) for event in events])


async def _follow(
    frame: Frame, criteria: dict[str, Any], limit: int, seconds: float | None
) -> None:
    """Print the latest events, oldest of them first, and then new ones as they happen."""
    deadline = None if seconds is None else time.monotonic() + seconds
    async with frame.open() as session:
        tail = session.bus.search.tail(limit=limit, **criteria)
        while True:
            for event in await tail.look():
                if frame.as_json:
                    print(json.dumps(jsonable(event), ensure_ascii=False), flush=True)
                else:
                    say("  ".join(filter(None, _EVENTS.cells(dataclasses.asdict(event)))))
            if deadline is not None and time.monotonic() >= deadline:
                return
            await asyncio.sleep(FOLLOW_SECONDS if seconds is None else min(FOLLOW_SECONDS, seconds))
