"""`tsq`: the troubleshooting queue: what waits for an operator, and what an operator does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from commandbus.cli import tsq_edit
from commandbus.cli.bulk import decide
from commandbus.cli.export import Export
from commandbus.cli.frame import Frame, Session, View, command, page_view
from commandbus.cli.options import (
    Again,
    DomainFilter,
    GroupFilter,
    Limit,
    LongListing,
    OneCommand,
    Operator,
    Reason,
    TypeFilter,
    parse_json,
)
from commandbus.cli.output import Column, Table, duration, error_text, escaped, jsonable, say
from commandbus.cli.show import Shown, print_command, read_command
from commandbus.cli.tsq_choice import Choice
from commandbus.errors import InvalidInputError
from commandbus.models import CommandMetadata, TroubleshootingItem
from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.model import BulkVerb, FailureGroup

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
    include_empty: Annotated[
        bool, typer.Option("--empty", help="Also causes without parked commands.")
    ] = False,
    limit: Limit = 50,
) -> View:
    """List what waits by cause, most first: one line for a thousand failures of one kind."""
    async with frame.open() as session:
        found = await session.bus.troubleshooting.groups(
            domain, command_type=command_type, include_empty=include_empty, limit=limit
        )
    return View({"groups": found}, lambda: _GROUPS.print(found))


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
    arguments = {"reset_attempts": not again.keep_attempts}
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
    operator: Operator = None,
) -> View:
    """End parked commands as COMPLETED: their work was done in another way."""
    arguments = {"result_data": parse_json(data, "--data")}
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
