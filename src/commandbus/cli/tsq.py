"""`tsq`: the troubleshooting queue: what waits for an operator, and what an operator does."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.cli.bulk import decide
from commandbus.cli.frame import Frame, Session, View, command, page_view
from commandbus.cli.options import (
    Again,
    DomainFilter,
    GroupFilter,
    Limit,
    LongListing,
    OneCommand,
    Operator,
    Payload,
    Reason,
    TypeFilter,
    parse_json,
)
from commandbus.cli.show import Shown, read_command
from commandbus.cli.show_view import print_command
from commandbus.cli.tsq_choice import Choice
from commandbus.cli.tsq_view import GROUPS, PARKED, next_steps, parked_json, print_steps
from commandbus.errors import InvalidInputError
from commandbus.models import TroubleshootingItem
from commandbus.paging import MAX_LIMIT, Page
from commandbus.troubleshooting.model import BulkVerb

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
) -> View:
    """List what waits, longest first."""
    async with frame.open() as session:
        if group is not None:
            found = await session.bus.troubleshooting.require_group(group, domain)
            domain, group = found.domain, found.fingerprint
        if domain is None:
            page = await _of_all_domains(session, command_type, listing)
        else:
            page = await session.bus.troubleshooting.page(
                domain, command_type=command_type, group=group, **listing.of_page
            )
    return page_view(page, "commands", PARKED.print, to_json=parked_json)


async def _of_all_domains(
    session: Session, command_type: str | None, listing: LongListing
) -> Page[TroubleshootingItem]:
    """The longest waiting of all domains; a page that can be continued has one domain."""
    if listing.cursor is not None:
        raise InvalidInputError("--cursor needs the --domain of the listing that it continues")
    groups = await session.bus.troubleshooting.groups(limit=MAX_LIMIT)
    items: list[TroubleshootingItem] = []
    for domain in sorted({group.domain for group in groups}):
        page = await session.bus.troubleshooting.page(
            domain, command_type=command_type, limit=listing.limit
        )
        items += page.items
    return Page(sorted(items, key=lambda item: item.parked_at)[: listing.limit], None)


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
    return View({"groups": found}, lambda: GROUPS.print(found))


@command(tsq, "show")
async def show(frame: Frame, one: OneCommand, shown: Shown) -> View:
    """Show what happened to a command, and what you can do about it."""
    async with frame.open() as session:
        document = await read_command(session, one, shown)
        found = document["command"]
        payload = await session.store.get_payload(found.domain, found.command_id)
    document["next"] = next_steps(found, has_payload=payload is not None)

    def show_both() -> None:
        print_command(document)
        print_steps(found, document["next"])

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


@command(tsq, "edit")
async def edit(frame: Frame, one: OneCommand, payload: Payload, again: Again) -> View:
    """Send a parked command again with an edited payload.

    Begin with what `tsq show ID --payload --json` prints: fields that are left masked keep their
    real values.
    """
    edited = payload.read()
    if edited is None:
        raise InvalidInputError("give the new payload with --data or --data-file")
    async with frame.open() as session:
        domain, wanted = await session.find(one)
        await session.bus.troubleshooting.retry(
            domain,
            wanted,
            operator=again.operator,
            reset_attempts=not again.keep_attempts,
            payload=edited,
        )
    return View.line(f"{wanted} is queued again, edited", domain=domain, command_id=wanted)


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
