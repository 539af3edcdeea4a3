"""`keys`: ordering keys, which of them are blocked, and how to go on."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View, command, page_view
from commandbus.cli.options import Domain, LongListing, Operator, parse_uuid
from commandbus.cli.output import Column, Table, jsonable, styled_status, text_of
from commandbus.commands.ordering import KeyPlace, OnPark, OrderingKey

keys = typer.Typer(no_args_is_help=True, help="Commands that run one after the other.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="For example account:42.")]
Reason = Annotated[
    str | None, typer.Option("--reason", "-r", help="Why; it is shown in the audit.")
]


@command(keys, "list")
async def list_keys(
    frame: Frame,
    domain: Domain,
    *,
    blocked: Annotated[
        bool, typer.Option("--blocked", help="Only those that a parked command blocks.")
    ] = False,
    listing: LongListing,
) -> View:
    """List the open keys of a domain, those that are blocked first."""
    async with frame.open() as session:
        page = await session.bus.keys.list(domain, blocked=blocked or None, **listing.of_page)
    return page_view(page, "keys", _KEYS.print)


@command(keys, "show")
async def show(
    frame: Frame,
    domain: Domain,
    key: Key,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000)] = 20,
) -> View:
    """Show the commands of a key in their order; place 0 is the one whose turn it is."""
    async with frame.open() as session:
        places = await session.bus.keys.show(domain, key, limit=limit)
    document = {"ordering_key": key, "places": [jsonable(each) for each in places]}
    return View(document, lambda: _PLACES.print(list(places)))


@command(keys, "skip")
async def skip(
    frame: Frame,
    domain: Domain,
    key: Key,
    *,
    expected: Annotated[
        str | None,
        typer.Option("--expected", metavar="ID", help="Only if this command blocks it."),
    ] = None,
    reason: Reason = None,
    operator: Operator = None,
) -> View:
    """Step over the parked command that blocks a key: it stays parked, and the next one goes."""
    wanted = None if expected is None else parse_uuid(expected, "--expected")
    async with frame.open() as session:
        passed = await session.bus.keys.skip(
            domain, key, expected=wanted, reason=reason, operator=operator
        )
    text = f"{passed} is stepped over and stays parked; key {key} of {domain} goes on"
    return View.line(text, domain=domain, ordering_key=key, stepped_over=passed)


@command(keys, "policy")
async def policy(
    frame: Frame,
    domain: Domain,
    on_park: Annotated[
        OnPark | None,
        typer.Argument(help="block: a parked command holds its key; skip: it is stepped over."),
    ] = None,
    *,
    reason: Reason = None,
    operator: Operator = None,
) -> View:
    """Show whether a parked command blocks its key in a domain, or change it."""
    async with frame.open() as session:
        if on_park is not None:
            await session.bus.keys.set_policy(domain, on_park, reason=reason, operator=operator)
        found = await session.bus.keys.get_policy(domain)
    what = "blocks its key" if found is OnPark.BLOCK else "is stepped over"
    return View.line(f"a parked command of {domain} {what}", domain=domain, on_park=found)


_KEYS = Table[OrderingKey](
    Column("KEY", lambda each: text_of(each.ordering_key), may_fold=True),
    Column("BLOCKED", lambda each: "yes" if each.is_blocked else ""),
    Column("WAITING", lambda each: f"{each.waiting:,}"),
    Column("SINCE", lambda each: each.since),
    Column("HEAD", lambda each: text_of(each.head)),
    Column("TYPE", lambda each: text_of(each.head_type)),
    Column(
        "STATUS", lambda each: "" if each.head_status is None else styled_status(each.head_status)
    ),
    empty="No key of this domain has open commands.",
)
_PLACES = Table[KeyPlace](
    Column("PLACE", lambda each: str(each.place)),
    Column("ID", lambda each: text_of(each.command_id)),
    Column("TYPE", lambda each: text_of(each.command_type)),
    Column("STATUS", lambda each: styled_status(each.status)),
    Column("SINCE", lambda each: each.since),
    Column("BLOCKS", lambda each: "yes" if each.is_blocking else ""),
    empty="Nothing of this key is open.",
)
