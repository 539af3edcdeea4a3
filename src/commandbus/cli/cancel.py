"""`cancel`: end a command that has not started."""

from __future__ import annotations

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import OneCommand, Operator, Reason


async def cancel(frame: Frame, one: OneCommand, reason: Reason, operator: Operator = None) -> View:
    """End a command that is still PENDING as CANCELED; its reply goes out."""
    async with frame.open() as session:
        domain, wanted = await session.find(one)
        await session.bus.cancel(domain, wanted, reason, operator=operator)
    return View.line(f"{wanted} is canceled", domain=domain, command_id=wanted)
