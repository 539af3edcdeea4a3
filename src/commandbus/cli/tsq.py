"""`tsq`: the troubleshooting queue: what waits for an operator, and what an operator does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from commandbus.cli import tsq_edit
from commandbus.cli.bulk import OPERATIONS, bulk_json, decide
from commandbus.cli.export import Export
from commandbus.cli.frame import Frame, Session, View, command, page_view
from commandbus.cli.options import (
    Again,
    DomainFilter,
    GroupFilter,
    Limit,
    LongListing,
    OneCommand,
    OneGroup,
    Operator,
    Reason,
    ReasonWhy,
    TypeFilter,
    parse_json,
)
from commandbus.cli.output import (
    Column,
    Table,
    duration,
    error_text,
    escaped,
    jsonable,
    print_fields,
    say,
    text_of,
)
from commandbus.cli.show import Shown, print_command, read_command
from commandbus.cli.tsq_choice import Choice
from commandbus.errors import InvalidInputError
from commandbus.models import CommandMetadata, TroubleshootingItem
from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.model import BulkOperation, BulkVerb, FailureGroup
from commandbus.troubleshooting.sentences import group_sentence

#: Operations on a cause that its view shows.
GROUP_OPERATIONS = 10

tsq = typer.Typer(
    help="The troubleshooting queue: commands that failed for good and wait for a decision.",
    no_args_is_help=True,
)


# -- what waits


@command(tsq, "list")
async def list_parked(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    command_type: TypeFilter = None,
    group: GroupFilter = None,
    listing: LongListing,
    export: Export,
    payload: Annotated[
        bool, typer.Option("--payload", help="With --export: the payloads too, secrets masked.")
    ] = False,
) -> View:
    """List what waits, longest first; without a domain, in all of them."""
    is_export = export.check(listing)
    if payload and not is_export:
        raise InvalidInputError("--payload is of --export; `tsq show ID --payload` shows one")
    async with frame.open() as session:
        if group is not None:
            found = await session.bus.troubleshooting.require_group(group, domain)
            domain, group = found.domain, found.fingerprint
        if is_export:
            items = _every(session, domain, command_type, group)
            if payload:
                return await export.write(TroubleshootingItem, items)
            return await export.write(TroubleshootingItem, items, _parked_json, hide=("data",))
        page = await session.bus.troubleshooting.page(
            domain, command_type=command_type, group=group, **listing.of_page
        )
    return page_view(page, "commands", _PARKED.print, to_json=_parked_json)


async def _every(
    session: Session, domain: str | None, command_type: str | None, group: str | None
) -> AsyncIterator[TroubleshootingItem]:
    """Everything that waits, domain after domain."""
    known = [each.domain for each in await session.bus.upkeep.figures.domains()]
    for each in known if domain is None else [domain]:
        found = session.bus.troubleshooting.every_masked(
            each, command_type=command_type, group=group
        )
        async for item in found:
            yield item


@command(tsq, "counts")
async def counts(
    frame: Frame, domain: Annotated[str | None, typer.Argument(metavar="[DOMAIN]")] = None
) -> View:
    """Count what waits, by domain."""
    async with frame.open() as session:
        found = await session.bus.troubleshooting.counts(domain)
    return View({"counts": found}, lambda: _COUNTS.print(list(found.items())))


@command(tsq, "groups")
async def groups(
    frame: Frame,
    domain: Annotated[str | None, typer.Argument(metavar="[DOMAIN]")] = None,
    *,
    command_type: TypeFilter = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Only causes with this text, in any case."),
    ] = None,
    include_empty: Annotated[
        bool, typer.Option("--empty", help="Also causes without parked commands.")
    ] = False,
    limit: Limit = 50,
) -> View:
    """List what waits by cause, most first: one line for a thousand failures of one kind."""
    async with frame.open() as session:
        found = await session.bus.troubleshooting.find_groups(
            domain, search=search, command_type=command_type, include_empty=include_empty,
            limit=limit,
        )  # fmt: skip

    def show_groups() -> None:
        _GROUPS.print(found.groups)
        if found.is_cut:
            say(f"There are more than {len(found.groups):,} causes; narrow it with --search.")

    return View({"groups": found.groups, "is_cut": found.is_cut}, show_groups)


@command(tsq, "group")
async def group(frame: Frame, fingerprint: OneGroup, *, domain: DomainFilter = None) -> View:
    """Show one cause: how often it was seen, whether it came back, and what was done about it."""
    async with frame.open() as session:
        found = await session.bus.troubleshooting.require_group(fingerprint, domain)
        page = await session.bus.bulk.page(
            found.domain, group=found.fingerprint, limit=GROUP_OPERATIONS
        )
    return View(
        {"group": found, "operations": [bulk_json(each) for each in page.items]},
        lambda: _print_group(found, page.items),
    )


@command(tsq, "assign")
async def assign(
    frame: Frame,
    fingerprint: OneGroup,
    assignee: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Left out: nobody looks after it.")
    ] = None,
    *,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="A remark about the cause.")
    ] = None,
    domain: DomainFilter = None,
    operator: Operator = None,
) -> View:
    """Say who looks after a cause, and leave a remark on it."""
    async with frame.open() as session:
        queue = session.bus.troubleshooting
        found = await queue.require_group(fingerprint, domain)
        where, wanted = found.domain, found.fingerprint
        if note is not None:
            await queue.note_group(where, wanted, note, operator=operator)
        found = await queue.assign_group(where, wanted, assignee, operator=operator)
    who = "nobody" if assignee is None else assignee
    return View({"group": found}, lambda: say(f"{escaped(who)} looks after {wanted}"))


@command(tsq, "show")
async def show(frame: Frame, one: OneCommand, shown: Shown) -> View:
    """Show what happened to a command, and what you can do about it."""
    async with frame.open() as session:
        document = await read_command(session, one, shown)
        found = document["command"]
        payload = await session.store.get_payload(found.domain, found.command_id)
    document["next"] = _next_steps(found, has_payload=payload is not None)

    def show_both() -> None:
        print_command(document, shown)
        _print_steps(found, document["next"])

    return View(document, show_both)


# -- what an operator does


@command(tsq, "note")
async def note(
    frame: Frame,
    one: OneCommand,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The remark.")],
    operator: Operator = None,
) -> View:
    """Leave a remark on a command, in any state; `show` lists it with your name."""
    async with frame.open() as session:
        domain, wanted = await session.find(one)
        await session.bus.troubleshooting.note(domain, wanted, text, operator=operator)
    return View.line(f"{wanted} has a note", domain=domain, command_id=wanted)


command(tsq, "edit")(tsq_edit.edit)


@command(tsq, "retry")
async def retry(frame: Frame, choice: Choice, again: Again) -> View:
    """Send parked commands again, with the same payload: one by its id, or many by cause."""
    arguments = {"reset_attempts": not again.keep_attempts, "reason": again.reason}
    return await decide(frame, choice, BulkVerb.RETRY, again.operator, arguments)


@command(tsq, "cancel")
async def cancel(frame: Frame, choice: Choice, reason: Reason, operator: Operator = None) -> View:
    """End parked commands as CANCELED; their replies go out."""
    return await decide(frame, choice, BulkVerb.CANCEL, operator, {"reason": reason})


@command(tsq, "complete")
async def complete(
    frame: Frame,
    choice: Choice,
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="The result that the replies contain.")
    ] = None,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """End parked commands as COMPLETED: their work was done in another way."""
    arguments = {"result_data": parse_json(data, "--data"), "reason": reason}
    return await decide(frame, choice, BulkVerb.COMPLETE, operator, arguments)


# -- as text

_NOTHING = "Nothing waits for an operator."

#: How each action is typed, and when to choose it.
_STEPS = {
    Action.RETRY: ("tsq retry {id}", "the cause is fixed: run it again"),
    Action.EDIT: ("tsq edit {id} --data JSON", "run it again with a corrected payload"),
    Action.CANCEL: ('tsq cancel {id} --reason "…"', "it must not happen; a reply says so"),
    Action.COMPLETE: ("tsq complete {id} --data JSON", "it was done by hand; a reply says so"),
    Action.CANCEL_PENDING: ('cancel {id} --reason "…"', "it has not started: end it"),
    Action.NOTE: ('tsq note {id} "…"', "leave a remark for the next one who looks"),
}  # fmt: skip


def _parked_json(item: TroubleshootingItem) -> dict[str, Any]:
    """Without the payload, which only `show --payload` has, masked."""
    document: dict[str, Any] = jsonable(item)
    del document["data"]
    return document


def _cause(group: FailureGroup) -> str:
    text = error_text(group.error_code, group.message)
    return f"{text} at {escaped(group.last_frame)}" if group.last_frame else text


def _waits(item: TroubleshootingItem) -> str:
    return duration(max((datetime.now(UTC) - item.parked_at).total_seconds(), 0.0))


_PARKED = Table[TroubleshootingItem](
    Column("ID", lambda item: item.command_id),
    Column("DOMAIN", lambda item: item.domain),
    Column("TYPE", lambda item: item.command_type),
    Column("REASON", lambda item: item.reason),
    Column("ATTEMPTS", lambda item: f"{item.attempts}/{item.max_attempts}", is_number=True),
    Column("WAITS", _waits, is_number=True),
    Column(
        "ERROR", lambda item: error_text(item.last_error_code, item.last_error_msg), may_fold=True
    ),
    empty=_NOTHING,
)

_COUNTS = Table[tuple[str, int]](
    Column("DOMAIN", lambda found: found[0]),
    Column("PARKED", lambda found: found[1], is_number=True),
    empty=_NOTHING,
)

_GROUPS = Table[FailureGroup](
    Column("GROUP", lambda group: group.fingerprint),
    Column("DOMAIN", lambda group: group.domain),
    Column("TYPE", lambda group: group.command_type),
    Column("PARKED", lambda group: group.parked_count, is_number=True),
    Column("FIRST SEEN", lambda group: group.first_seen),
    Column("LAST SEEN", lambda group: group.last_seen),
    Column("ERROR", _cause, may_fold=True),
    empty=_NOTHING,
)


def _print_group(group: FailureGroup, operations: Sequence[BulkOperation]) -> None:
    now = datetime.now(UTC)
    say(f"[bold]{_cause(group)}[/]")
    print_fields(
        [
            ("group", group.fingerprint),
            ("domain", group.domain),
            ("type", group.command_type),
            ("stands", text_of(group_sentence(group, now))),
            ("first seen", group.first_seen),
            ("last seen", group.last_seen),
            ("assignee", text_of(group.assignee)),
            ("note", text_of(group.note)),
            ("by", text_of(group.note_by)),
            ("example", group.sample_command_id),
        ]
    )
    if operations:
        say()
        OPERATIONS.print(operations)


def _next_steps(command: CommandMetadata, has_payload: bool) -> list[dict[str, str]]:
    """What to type next; nothing if there is no decision to make."""
    actions = allowed_actions(
        command.status, is_leased=command.leased_by is not None, has_payload=has_payload
    )
    if not any(action.is_decision for action in actions):
        return []
    return [
        {"command": f"commandbus {words.format(id=command.command_id)}", "meaning": meaning}
        for words, meaning in map(_STEPS.__getitem__, actions)
    ]


def _print_steps(command: CommandMetadata, steps: list[dict[str, str]]) -> None:
    say()
    if not steps:
        say(f"It is {command.status}: there is nothing to decide.")
        return
    say("[bold]What you can do[/]")
    for step in steps:
        say(f"  {step['command']}  [dim]{step['meaning']}[/]")
