"""`show`, `list` and `audit`: the life of a command, the commands there are, and who did what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import typer

from commandbus.cli.options import (
    AsJson,
    CommandId,
    DataDir,
    DomainFilter,
    DomainOfId,
    Dsn,
    Place,
    Session,
    TypeFilter,
    open_session,
    parse_moment,
)
from commandbus.cli.output import (
    Column,
    jsonable,
    moment,
    print_json,
    print_table,
    say,
    styled_status,
    text_of,
)
from commandbus.cli.timeline import event_row, print_command, read_timeline
from commandbus.commands.search import AuditPage
from commandbus.models import AuditEvent
from commandbus.names import check_uuid
from commandbus.store.searching import AuditSearch

#: Seconds between two looks of `audit --follow`.
FOLLOW_SECONDS = 1.0
#: Numbers that each look of `audit --follow` goes back: what was written by then and not committed.
OVERLAP = 1_000

ShowPayload = Annotated[
    bool, typer.Option("--payload", help="Show the payload too, secrets masked.")
]
ShowSecrets = Annotated[
    bool, typer.Option("--show-secrets", help="Show the payload, and do not mask it.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From then on: 2026-05-01T10:00, or 90s, 2h, 3d."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Before then, written like --since.")
]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="TEXT", help="Go on where the same search ended."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    panel = "Send and look"
    app.command("show", rich_help_panel=panel)(show)
    app.command("list", rich_help_panel=panel)(list_commands)
    app.command("audit", rich_help_panel=panel)(audit)


# -- show


def show(
    command_id: CommandId,
    *,
    domain: DomainOfId = None,
    payload: ShowPayload = False,
    show_secrets: ShowSecrets = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Show the life of a command: every step, who took it, and how long it took."""
    place = Place(dsn, data_dir)

    async def work() -> dict[str, Any]:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            return await read_timeline(
                session, where, wanted, payload=payload or show_secrets, masked=not show_secrets
            )

    document = asyncio.run(work())
    if as_json:
        print_json(document)
    else:
        print_command(document)


# -- list


def list_commands(  # noqa: PLR0913  (each is an option)
    *,
    domain: DomainFilter = None,
    command_type: TypeFilter = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only this status, for example PENDING.")
    ] = None,
    error_code: Annotated[
        str | None, typer.Option("--error-code", "-e", help="Only with this last error.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="UUID", help="Only what belongs together by this id.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="UUID", help="Only this batch.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Only this id, in every domain.")
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 20,
    cursor: Cursor = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count by domain and status too; reads every row.")
    ] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List commands, newest first; those in troubleshooting by when they were parked."""
    place = Place(dsn, data_dir)
    criteria: dict[str, Any] = {
        "domain": domain,
        "command_type": command_type,
        "status": None if status is None else status.upper(),
        "error_code": error_code,
        "correlation_id": _uuid(correlation_id, "--correlation-id"),
        "batch_id": _uuid(batch, "--batch"),
        "command_id": _uuid(command_id, "--id"),
        "created_after": None if since is None else parse_moment(since, "--since"),
        "created_before": None if until is None else parse_moment(until, "--until"),
    }

    async def work() -> dict[str, Any]:
        async with open_session(place) as session:
            page = await session.bus.search.commands(**criteria, limit=limit, cursor=cursor)
            document: dict[str, Any] = {
                "commands": page.commands,
                "next_cursor": page.next_cursor,
                "searched_back_to": page.searched_back_to,
            }
            if summary:
                counts = await session.store.count_by_status(domain)
                document["summary"] = [
                    {"domain": where, "status": state, "count": count}
                    for (where, state), count in sorted(counts.items())
                ]
            return document

    document = asyncio.run(work())
    if as_json:
        print_json(document)
        return
    _print_listing(document)
    if summary:
        say()
        _print_summary(jsonable(document["summary"]))


def _uuid(text: str | None, option: str) -> Any:
    return None if text is None else check_uuid(text, option)


def _print_listing(document: dict[str, Any]) -> None:
    if document["commands"]:
        print_table(
            [
                Column("ID"),
                Column("DOMAIN"),
                Column("TYPE"),
                Column("STATUS"),
                Column("ATTEMPTS", is_number=True),
                Column("SENT"),
                Column("LAST ERROR", may_fold=True),
            ],
            [
                [
                    str(command.command_id),
                    command.domain,
                    command.command_type,
                    styled_status(command.status),
                    f"{command.attempts}/{command.max_attempts}",
                    moment(command.created_at),
                    text_of(command.last_error_code),
                ]
                for command in document["commands"]
            ],
        )
    elif document["next_cursor"] is None:
        say("No commands.")
    _print_more(document["next_cursor"], document["searched_back_to"])


def _print_more(cursor: str | None, searched_to: datetime | None) -> None:
    if cursor is None:
        return
    if searched_to is not None:
        say(f"Searched as far as {moment(searched_to)}; there may be more beyond that.")
    say(f"[dim]To go on, repeat this with --cursor {cursor}[/]")


def _print_summary(counts: list[dict[str, Any]]) -> None:
    print_table(
        [Column("DOMAIN"), Column("STATUS"), Column("COMMANDS", is_number=True)],
        [[row["domain"], styled_status(row["status"]), f"{row['count']:,}"] for row in counts],
    )


# -- audit


def audit(  # noqa: PLR0913  (each is an option)
    command_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this command, or this batch.")
    ] = None,
    *,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="UUID", help="Only this batch, with all its commands."),
    ] = None,
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
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    cursor: Cursor = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Follow for so long only.")
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List what happened and who did it, newest first; --follow prints it as it comes.

    With --follow and --json each event is one line.
    """
    place = Place(dsn, data_dir)
    criteria: dict[str, Any] = {
        "command_id": _uuid(command_id, "the id"),
        "batch_id": _uuid(batch, "--batch"),
        "domain": domain,
        "actor": actor,
        "event_types": [name.upper() for name in event] if event else None,
        "since": None if since is None else parse_moment(since, "--since"),
        "until": None if until is None else parse_moment(until, "--until"),
    }
    if follow or seconds is not None:
        asyncio.run(_follow(place, criteria, limit, as_json, seconds))
        return

    async def work() -> AuditPage:
        async with open_session(place) as session:
            return await session.bus.search.audit(**criteria, limit=limit, cursor=cursor)

    page = asyncio.run(work())
    if as_json:
        print_json(page)
        return
    if page.events:
        _print_events(page.events)
    elif page.next_cursor is None:
        say("No events.")
    _print_more(page.next_cursor, page.searched_to)


def _print_events(events: list[AuditEvent]) -> None:
    print_table(
        [
            Column("TIME"),
            Column("COMMAND"),
            Column("EVENT"),
            Column("ATTEMPT", is_number=True),
            Column("WHO"),
            Column("WHAT", may_fold=True),
        ],
        [event_row(event) for event in events],
    )


async def _follow(
    place: Place, criteria: dict[str, Any], limit: int, as_json: bool, seconds: float | None
) -> None:
    async with (
        open_session(place) as session,
        aclosing(_events(session, criteria, limit, seconds)) as events,
    ):
        async for event in events:
            if as_json:
                print(json.dumps(jsonable(event), ensure_ascii=False), flush=True)
            else:
                say("  ".join(cell for cell in event_row(event) if cell))


async def _events(
    session: Session, criteria: dict[str, Any], limit: int, seconds: float | None
) -> AsyncGenerator[AuditEvent]:
    """The latest events, oldest of them first, and then what comes.

    An event may be committed after one with a larger number. So each look begins some numbers
    before the end of the look before it, and passes over what was seen.
    """
    kinds = criteria["event_types"]
    wanted = AuditSearch(**{**criteria, "event_types": kinds and tuple(kinds)})
    floor = max(await _newest(session) - OVERLAP, 0)
    seen = {event.audit_id for event in await _after(session, wanted, floor)}
    latest = await session.bus.search.audit(**criteria, limit=limit)
    for event in reversed(latest.events):
        seen.add(event.audit_id)
        yield event
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        await asyncio.sleep(FOLLOW_SECONDS if seconds is None else min(FOLLOW_SECONDS, seconds))
        newest = await _newest(session)
        for event in await _after(session, wanted, floor):
            if event.audit_id not in seen:
                seen.add(event.audit_id)
                yield event
        floor = max(newest - OVERLAP, 0)
        seen = {number for number in seen if number > floor}


async def _newest(session: Session) -> int:
    page = await session.bus.search.audit(limit=1)
    return page.events[0].audit_id if page.events else 0


async def _after(session: Session, wanted: AuditSearch, number: int) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    start: int | None = number
    while start is not None:
        page = await session.store.list_audit(wanted, start=start, newest_first=False, limit=1_000)
        events += page.events
        start = page.next_id
    return events
