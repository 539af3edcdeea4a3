"""`cancel`: end a command that has not started."""

from __future__ import annotations

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.options import CommandId, DomainOfId, Operator, Reason, actor_or_login


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "cancel", panel="Operate")(cancel)


async def cancel(
    frame: Frame,
    command_id: CommandId,
    *,
    reason: Reason,
    domain: DomainOfId = None,
    operator: Operator = None,
) -> View:
    """End a command that is still PENDING as CANCELED; its reply goes out."""
    async with frame.open() as session:
        where, wanted = await session.find(command_id, domain)
        await session.bus.cancel(where, wanted, reason, operator=actor_or_login(operator))
    return View.line(f"{wanted} is canceled", domain=where, command_id=wanted)
