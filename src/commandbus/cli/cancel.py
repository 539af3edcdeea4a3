"""`cancel`: end a command that has not started, or ask for the end of one that runs."""

from __future__ import annotations

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import OneCommand, Operator, Reason, WithRunning


async def cancel(
    frame: Frame,
    one: OneCommand,
    reason: Reason,
    operator: Operator = None,
    running: WithRunning = False,
) -> View:
    """End a command that is still PENDING as CANCELED; its reply goes out."""
    async with frame.open() as session:
        domain, wanted = await session.find(one)
        answer = await session.bus.cancel(
            domain, wanted, reason, running="request" if running else "refuse", operator=operator
        )
    text = f"{wanted} is canceled"
    if answer == "requested":
        text = f"The worker that has {wanted} is asked to end it; it may still succeed"
    return View.line(text, domain=domain, command_id=wanted, answer=answer)
