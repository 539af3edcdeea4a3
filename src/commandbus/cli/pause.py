"""`pause` and `resume`: start no commands of a domain for a while."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import Domain, Operator, ReasonWhy
from commandbus.cli.timing import parse_duration, parse_time
from commandbus.errors import InvalidInputError

OfType = Annotated[
    str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only this command type.")
]


async def pause(
    frame: Frame,
    domain: Domain,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is shown and audited.")],
    command_type: OfType = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Over by itself then: 2026-05-01T10:00."),
    ] = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Over by itself after this: 30m, 2h."),
    ] = None,
    operator: Operator = None,
) -> View:
    """Start no more commands of a domain until `resume`; what runs goes on, sends are accepted.

    A second pause replaces the reason and the end of the first.
    """
    end, length = parse_time(until, "--until"), parse_duration(lasts, "--for")
    if end is not None and length is not None:
        raise InvalidInputError("--until and --for are two ends; use one of them")
    async with frame.open() as session:
        await session.bus.pause(
            domain, type=command_type, reason=reason, until=end or length, operator=operator
        )
        pauses = await session.bus.pauses(domain)
    found = next((each for each in pauses if each.type == command_type), None)
    what = domain if command_type is None else f"{command_type} of {domain}"
    return View.line(
        f"{what} is {found or 'paused'}", domain=domain, type=command_type, paused=found
    )


async def resume(
    frame: Frame,
    domain: Domain,
    *,
    command_type: OfType = None,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """End the pause of a domain, or of one of its command types."""
    async with frame.open() as session:
        was_paused = await session.bus.resume(
            domain, type=command_type, reason=reason, operator=operator
        )
    what = domain if command_type is None else f"{command_type} of {domain}"
    text = f"{what} is resumed" if was_paused else f"{what} was not paused"
    return View.line(text, domain=domain, type=command_type, was_paused=was_paused)
