"""`schedule`: commands that are sent by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from commandbus.cli.frame import Frame, View, command, page_view
from commandbus.cli.options import (
    Domain,
    DomainFilter,
    LongListing,
    Meta,
    Operator,
    Payload,
    ReasonWhy,
    parse_meta,
    parse_uuid,
)
from commandbus.cli.output import (
    Column,
    Table,
    in_local,
    jsonable,
    moment,
    print_fields,
    print_json,
    say,
    styled_status,
    text_of,
)
from commandbus.errors import CommandBusError, InvalidInputError, InvalidSettingError
from commandbus.schedules.model import Missed, Overlap, Schedule
from commandbus.upkeep.retention import parse_age

schedule = typer.Typer(no_args_is_help=True, help="Commands that are sent by the clock.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="For example nightly-report.")]


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule is due: one of these."""

    cron: Annotated[
        str | None,
        typer.Option("--cron", metavar="TEXT", help="Five fields, like '0 6 * * 1-5'."),
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", metavar="ZONE", help="Of --cron: Europe/Berlin. Default: UTC."),
    ] = None
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="An interval: 30s, 10m, 6h, 1d.")
    ] = None
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Once: 2026-05-01T10:00, local or with its zone."
        ),
    ] = None

    def read(self) -> dict[str, Any]:
        """As `bus.schedules` takes them."""
        return {
            "cron": self.cron,
            "timezone": self.timezone,
            "every": _span(self.every, "--every"),
            "at": None if self.at is None else _moment(self.at),
        }


@command(schedule, "put")
async def put(  # noqa: PLR0913  (each is an option)
    frame: Frame,
    domain: Domain,
    name: Name,
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="For example BuildReport.")],
    *,
    payload: Payload,
    times: Times,
    missed: Annotated[
        Missed, typer.Option("--missed", help="Ticks that nobody fired within a minute.")
    ] = Missed.ONCE,
    missed_cap: Annotated[
        int, typer.Option("--missed-cap", metavar="N", help="At most this many are made up.")
    ] = 100,
    overlap: Annotated[
        Overlap | None,
        typer.Option("--overlap", help="Whether a tick waits for the last command to end."),
    ] = None,
    jitter: Annotated[
        str | None, typer.Option("--jitter", metavar="TIME", help="Delay each by up to: 30s, 5m.")
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option("--expires-in", metavar="TIME", help="Cancel it if it has not begun by then."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="From -2 to 2; 2 goes first.")
    ] = None,
    ordering_key: Annotated[
        str | None, typer.Option("--ordering-key", metavar="KEY", help="One after the other.")
    ] = None,
    meta: Meta = None,
    reply_to: Annotated[
        str | None, typer.Option("--reply-to", metavar="QUEUE", help="Default: no reply.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Tries of each command.")
    ] = None,
    operator: Operator = None,
) -> View:
    """Create a schedule, or replace the one of this name."""
    data = payload.read()
    delay, expiry = _span(jitter, "--jitter"), _span(expires_in, "--expires-in")
    async with frame.open(creates=True) as session:
        made = await session.bus.schedules.put(
            domain, name, command_type, {} if data is None else data, **times.read(),
            missed=missed, missed_cap=missed_cap, overlap=overlap, jitter=delay or 0,
            expires_in=expiry, priority=priority, ordering_key=ordering_key,
            meta=parse_meta(meta), reply_to=reply_to, max_attempts=max_attempts,
            operator=operator,
        )  # fmt: skip
    return _one(made)


@command(schedule, "list")
async def list_schedules(
    frame: Frame, *, domain: DomainFilter = None, listing: LongListing
) -> View:
    """List schedules by domain and name."""
    async with frame.open() as session:
        page = await session.bus.schedules.list(domain, **listing.of_page)
    return page_view(page, "schedules", _SCHEDULES.print, to_json=_document)


@command(schedule, "show")
async def show(
    frame: Frame,
    domain: Domain,
    name: Name,
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the payload too, secrets masked.")
    ] = False,
) -> View:
    """Show a schedule and its next ticks."""
    async with frame.open() as session:
        found = await session.bus.schedules.require(domain, name, show_data=payload)
        ticks = await session.bus.schedules.preview(domain, name, count=3)
    return _one(found, ticks, payload=payload)


@command(schedule, "pause")
async def pause(
    frame: Frame,
    domain: Domain,
    name: Name,
    *,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why; it is stored.")] = None,
    operator: Operator = None,
) -> View:
    """Stop the ticks of a schedule until it is resumed."""
    async with frame.open() as session:
        found = await session.bus.schedules.pause(domain, name, reason=reason, operator=operator)
    text = f"Schedule {text_of(name)} of {text_of(domain)} is paused."
    return View(_document(found), partial(say, text))


@command(schedule, "resume")
async def resume(
    frame: Frame,
    domain: Domain,
    name: Name,
    *,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Treat the ticks of the pause as missed ones.")
    ] = False,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """Let a schedule fire again."""
    async with frame.open() as session:
        found = await session.bus.schedules.resume(
            domain, name, catch_up=catch_up, reason=reason, operator=operator
        )
    text = f"Schedule {text_of(name)} of {text_of(domain)} is {found.status}; {_next(found)}."
    return View(_document(found), partial(say, text))


@command(schedule, "trigger")
async def trigger(
    frame: Frame,
    domain: Domain,
    name: Name,
    *,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="The id; a repeat sends nothing.")
    ] = None,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """Send the command of a schedule now, and print its id. No tick is moved."""
    wanted = parse_uuid(command_id, "--id")
    async with frame.open() as session:
        sent = await session.bus.schedules.trigger(
            domain, name, command_id=wanted, reason=reason, operator=operator
        )
    return View({"command_id": sent}, partial(print, sent))


@command(schedule, "delete")
async def delete(
    frame: Frame,
    domain: Domain,
    name: Name,
    *,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """Remove a schedule; the commands that it has sent stay."""
    async with frame.open() as session:
        if not await session.bus.schedules.delete(domain, name, reason=reason, operator=operator):
            raise CommandBusError(
                f"no schedule {name!r} in domain {domain!r}; `commandbus schedule list` lists "
                "what there is"
            )
    text = f"Schedule {text_of(name)} of {text_of(domain)} is deleted."
    return View.line(text, domain=domain, name=name)


@command(schedule, "preview")
async def preview(
    frame: Frame,
    domain: Annotated[str | None, typer.Argument(metavar="DOMAIN", help="Of a schedule.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Its name.")] = None,
    *,
    times: Times,
    count: Annotated[int, typer.Option("--count", "-n", help="How many ticks.")] = 10,
) -> View:
    """Show the next ticks of a schedule, or of times to try."""
    async with frame.open() as session:
        ticks = await session.bus.schedules.preview(domain, name, **times.read(), count=count)
    return View({"ticks": list(ticks)}, partial(_print_ticks, ticks))


def _print_ticks(ticks: Sequence[datetime]) -> None:
    for tick in ticks:
        say(f"{in_local(tick):%a %Y-%m-%d %H:%M:%S %Z}")
    if not ticks:
        say("No tick is left.")


def _document(found: Schedule) -> dict[str, Any]:
    document = jsonable(found)
    del document["data"]
    return {**document, "status": found.status.value}


def _one(found: Schedule, ticks: Sequence[datetime] = (), *, payload: bool = False) -> View:
    document = _document(found) | {"next_ticks": list(ticks)}
    if payload:
        document["data"] = found.data
    return View(document, partial(_print_one, found, ticks, payload))


def _print_one(found: Schedule, ticks: Sequence[datetime], has_payload: bool) -> None:
    say(f"[bold]{text_of(found.name)}[/] of {text_of(found.domain)}")
    fields: list[tuple[str, object]] = [
        ("status", styled_status(found.status)),
        ("sends", text_of(found.command_type)),
        ("when", text_of(found.time)),
        ("next", found.next_tick_at),
        ("last", found.last_tick_at),
        ("last command", found.last_command_id),
        ("missed", f"{found.missed}, at most {found.missed_cap:,}"),
        ("overlap", str(found.overlap)),
        ("changed", f"{moment(found.updated_at)} by {text_of(found.updated_by)}"),
    ]
    if found.paused_at is not None:
        who = f"{moment(found.paused_at)} by {text_of(found.paused_by)}"
        fields.append(("paused", f"{who}: {text_of(found.pause_reason)}"))
    if found.last_error is not None:
        fields.append(("last error", text_of(found.last_error)))
    if len(ticks) > 1:
        fields.append(("after that", ", ".join(moment(tick) for tick in ticks[1:])))
    print_fields(fields)
    if has_payload:
        say("\n[bold]Payload[/]")
        print_json(found.data)


def _next(found: Schedule) -> str:
    return "no tick is left" if found.next_tick_at is None else f"next {moment(found.next_tick_at)}"


def _span(text: str | None, option: str) -> timedelta | None:
    if text is None:
        return None
    try:
        return parse_age(text)
    except InvalidSettingError:
        raise InvalidInputError(f"{option} is {text!r}; write 30s, 10m, 6h or 1d") from None


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError(f"--at is {text!r}; write 2026-05-01T10:00") from None


_SCHEDULES = Table[Schedule](
    Column("DOMAIN", lambda each: text_of(each.domain)),
    Column("NAME", lambda each: text_of(each.name)),
    Column("TYPE", lambda each: text_of(each.command_type)),
    Column("WHEN", lambda each: text_of(each.time), may_fold=True),
    Column("NEXT", lambda each: each.next_tick_at),
    Column("LAST", lambda each: each.last_tick_at),
    Column("STATUS", lambda each: styled_status(each.status)),
    empty="No schedules; `commandbus schedule put` makes one.",
)
