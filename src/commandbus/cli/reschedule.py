"""`reschedule`: another time for what has not started."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any
from uuid import UUID

import typer

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import OneCommand, Operator
from commandbus.cli.output import moment
from commandbus.cli.timing import At, In, parse_duration, parse_time
from commandbus.errors import InvalidInputError


async def reschedule(
    frame: Frame,
    command_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The commands.")],
    *,
    domain: Annotated[
        str | None,
        typer.Option("--domain", "-d", help="Needed only if several domains know an id."),
    ] = None,
    after: In = None,
    at: At = None,
    now: Annotated[bool, typer.Option("--now", help="Start as soon as a worker is free.")] = False,
    operator: Operator = None,
) -> View:
    """Give commands that are still PENDING another time; those of one domain all or none.

    One that backs off after a failure keeps its attempts. One that a worker has is refused.
    """
    delay, deliver_at = parse_duration(after, "--in"), parse_time(at, "--at")
    if sum((delay is not None, deliver_at is not None, now)) != 1:
        raise InvalidInputError("say when: --in 10m, --at 2026-05-01T10:00 or --now, one of them")
    by_domain: defaultdict[str, list[UUID]] = defaultdict(list)
    async with frame.open() as session:
        for each in command_ids:
            where, wanted = await session.find(OneCommand(each, domain))
            by_domain[where].append(wanted)
        rows: list[dict[str, Any]] = []
        for where, ids in by_domain.items():
            await session.bus.reschedule(
                where, ids, deliver_at=deliver_at, delay=0 if now else delay, operator=operator
            )
            for wanted in ids:
                found = await session.bus.get_command(where, wanted)
                due = None if found is None else found.due_at
                rows.append({"domain": where, "command_id": wanted, "due_at": due})

    def show() -> None:
        for row in rows:
            due = row["due_at"]
            print(f"{row['command_id']} is due {f'at {moment(due)}' if due else 'now'}")

    return View({"commands": rows}, show)
