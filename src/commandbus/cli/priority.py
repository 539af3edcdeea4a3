"""`priority`: which commands go first, and how much a level is worth."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated
from uuid import UUID

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.options import Domain, OneCommand, Operator

priority = typer.Typer(no_args_is_help=True, help="Which commands go first.")


@command(priority, "set")
async def set_priority(
    frame: Frame,
    command_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The commands.")],
    *,
    level: Annotated[
        int, typer.Option("--to", min=-2, max=2, help="-2 to 2; 2 goes first, 0 is normal.")
    ],
    domain: Annotated[
        str | None,
        typer.Option("--domain", "-d", help="Needed only if several domains know an id."),
    ] = None,
    operator: Operator = None,
) -> View:
    """Give commands that are still PENDING another level; those of one domain all or none."""
    by_domain: defaultdict[str, list[UUID]] = defaultdict(list)
    async with frame.open() as session:
        for each in command_ids:
            where, wanted = await session.find(OneCommand(each, domain))
            by_domain[where].append(wanted)
        for where, ids in by_domain.items():
            await session.bus.set_priority(where, ids, level, operator=operator)
    count = sum(map(len, by_domain.values()))
    return View.line(
        f"{count:,} {'command has' if count == 1 else 'commands have'} priority {level}",
        commands=count,
        priority=level,
    )


@command(priority, "worth")
async def worth(
    frame: Frame,
    domain: Domain,
    seconds: Annotated[
        float, typer.Argument(help="Seconds of waiting; 0: levels are ignored.", min=0)
    ],
    operator: Operator = None,
) -> View:
    """Say how much waiting one level is worth in a domain; 60 seconds at first."""
    async with frame.open() as session:
        await session.bus.set_level_seconds(domain, seconds, operator=operator)
    text = f"one level of priority in {domain} is worth {seconds:g} s of waiting"
    return View.line(text, domain=domain, level_seconds=seconds)
