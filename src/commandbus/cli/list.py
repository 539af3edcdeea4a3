"""`list`: commands, found by what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from commandbus.cli.export import Export
from commandbus.cli.frame import Frame, Session, View, page_view
from commandbus.cli.options import (
    DomainFilter,
    InBatch,
    Listing,
    Since,
    TypeFilter,
    Until,
    parse_range,
    parse_uuid,
)
from commandbus.cli.output import (
    Column,
    Table,
    jsonable,
    progress_text,
    say,
    styled_status,
    text_of,
)
from commandbus.errors import InvalidInputError
from commandbus.models import CommandMetadata, CommandStatus, Progress
from commandbus.names import check_choice_or_none


async def list_commands(  # noqa: PLR0913  (each is an option)
    frame: Frame,
    *,
    domain: DomainFilter = None,
    command_type: TypeFilter = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only this status, for example PENDING.")
    ] = None,
    running: Annotated[
        bool,
        typer.Option(
            "--running", help="Only what workers have now: which worker, and how far it has come."
        ),
    ] = False,
    error_code: Annotated[
        str | None, typer.Option("--error-code", "-e", help="Only with this last error.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="UUID", help="Only commands with this correlation id.")
    ] = None,
    batch: InBatch = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Only this id, in every domain.")
    ] = None,
    since: Since = None,
    until: Until = None,
    listing: Listing,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Only what is due later, the next first.")
    ] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only what waits for a key, a limit or a pause.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Look in the history: what retention moved there.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count by domain and status too; reads every row.")
    ] = False,
    export: Export,
) -> View:
    """List commands, newest first; those in troubleshooting by when they were parked."""
    if scheduled or waiting:
        others = (status, error_code, correlation_id, batch, command_id, since, until)
        if (
            domain is None
            or any(others)
            or summary
            or export.export
            or history
            or (scheduled and waiting)
        ):
            raise InvalidInputError(
                "--scheduled and --waiting list one domain: give one of them with --domain, and "
                "beside it --type, --limit and --cursor"
            )
        async with frame.open() as session:
            find = session.bus.search.scheduled if scheduled else session.bus.search.waiting
            listed = await find(domain, command_type=command_type, **listing.of_page)
        return page_view(listed, "commands", TIMETABLE.print, is_search=True)
    created_after, created_before = parse_range(since, until)
    if running and status:
        raise InvalidInputError("--running is a status of its own; leave out --status")
    if history and (running or summary):
        raise InvalidInputError(
            "--history has ended commands only; leave out --running and --summary"
        )
    if running:
        status = CommandStatus.IN_PROGRESS
    criteria: dict[str, Any] = {
        "command_type": command_type,
        "status": check_choice_or_none(CommandStatus, status and status.upper(), "status"),
        "error_code": error_code,
        "correlation_id": parse_uuid(correlation_id, "--correlation-id"),
        "batch_id": parse_uuid(batch, "--batch"),
        "command_id": parse_uuid(command_id, "--id"),
        "created_after": created_after,
        "created_before": created_before,
        "history": history,
    }
    async with frame.open() as session:
        if export.check(listing):
            if summary:
                raise InvalidInputError("--export writes commands; leave out --summary")
            found = session.bus.search.every_command(domain=domain, **criteria)
            return await export.write(CommandMetadata, found)
        page = await session.bus.search.commands(domain=domain, **criteria, **listing.of_page)
        counts = await session.bus.upkeep.figures.statuses(domain) if summary else {}
        told = await _progress(session, page.items) if running else {}
    if running:
        view = page_view(
            page,
            "commands",
            lambda items: running_table(told).print(items),
            to_json=lambda each: {**jsonable(each), "progress": told.get(each.command_id)},
            is_search=True,
        )
    else:
        shape = MOVED if history else COMMANDS
        view = page_view(page, "commands", shape.print, is_search=True)
    if not summary:
        return view
    rows: list[dict[str, Any]] = [
        {"domain": where, "status": state, "count": count}
        for (where, state), count in sorted(counts.items())
    ]

    def show() -> None:
        view.print()
        say()
        _SUMMARY.print(rows)

    return View({**view.document, "summary": rows}, show)


async def _progress(session: Session, commands: Sequence[CommandMetadata]) -> dict[UUID, Progress]:
    found: dict[UUID, Progress] = {}
    for domain in sorted({each.domain for each in commands}):
        ids = [each.command_id for each in commands if each.domain == domain]
        found |= await session.bus.search.progress(domain, ids)
    return found


def running_table(told: Mapping[UUID, Progress]) -> Table[CommandMetadata]:
    """Commands that workers have, and how far they have come."""
    return Table[CommandMetadata](
        Column("ID", lambda each: each.command_id),
        Column("DOMAIN", lambda each: each.domain),
        Column("TYPE", lambda each: each.command_type),
        Column("ATTEMPTS", lambda each: f"{each.attempts}/{each.max_attempts}", is_number=True),
        Column("SINCE", lambda each: each.updated_at),
        Column("WORKER", lambda each: text_of(each.leased_by), may_fold=True),
        Column("PROGRESS", lambda each: progress_text(told.get(each.command_id)), may_fold=True),
        empty="No commands are running.",
    )


COMMANDS = Table[CommandMetadata](
    Column("ID", lambda each: each.command_id),
    Column("DOMAIN", lambda each: each.domain),
    Column("TYPE", lambda each: each.command_type),
    Column("STATUS", lambda each: styled_status(each.status)),
    Column("ATTEMPTS", lambda each: f"{each.attempts}/{each.max_attempts}", is_number=True),
    Column("SENT", lambda each: each.created_at),
    Column("LAST ERROR", lambda each: text_of(each.last_error_code), may_fold=True),
    empty="No commands.",
)

MOVED = Table[CommandMetadata](
    Column("ID", lambda each: each.command_id),
    Column("DOMAIN", lambda each: each.domain),
    Column("TYPE", lambda each: each.command_type),
    Column("STATUS", lambda each: styled_status(each.status)),
    Column("SENT", lambda each: each.created_at),
    Column("MOVED", lambda each: each.history_since),
    Column("LAST ERROR", lambda each: text_of(each.last_error_code), may_fold=True),
    empty="No commands in the history.",
)

TIMETABLE = Table[CommandMetadata](
    Column("ID", lambda each: each.command_id),
    Column("TYPE", lambda each: each.command_type),
    Column("DUE", lambda each: each.due_at),
    Column("EXPIRES", lambda each: each.expires_at),
    Column("ATTEMPTS", lambda each: f"{each.attempts}/{each.max_attempts}", is_number=True),
    Column("WAITS", lambda each: text_of(each.waiting_for), may_fold=True),
    empty="No commands.",
)

_SUMMARY = Table[dict[str, Any]](
    Column("DOMAIN", lambda row: row["domain"]),
    Column("STATUS", lambda row: styled_status(row["status"])),
    Column("COMMANDS", lambda row: row["count"], is_number=True),
)
