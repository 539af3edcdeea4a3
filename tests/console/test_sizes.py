"""Lists of fifty rows are small, whatever the rows say."""

from __future__ import annotations

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    new_id,
)
from tests.console.world import EVERYTHING, console

#: Bytes of the markup of a list with fifty rows.
MOST = 60_000


async def test_fifty_commands_are_less_than_sixty_kilobytes(bus: CommandBus) -> None:
    commands = [BatchCommand("DebitAccountOfCustomer", new_id(), {"n": n}) for n in range(60)]
    await bus.send_many("payments", commands)
    async with console(bus, *EVERYTHING) as browser:
        for path in ("/commands", "/commands?domain=payments", "/audit?machine=1"):
            pending = await browser.text(path)
            assert pending.count("data-row=") == 50, path
            assert len(pending.encode()) <= MOST, (path, len(pending.encode()))


async def test_fifty_parked_commands_with_long_errors_are_less_too(
    bus: CommandBus,
) -> None:
    async def fail(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO_ACCOUNT_OF_THIS_KIND", "there is no account " + "so " * 99)

    bus.register_handler("payments", "DebitAccount", fail)
    await bus.send_many("payments", [BatchCommand("DebitAccount", new_id(), {}) for _ in range(60)])
    await bus.run_worker("payments", until_empty=True)
    async with console(bus, *EVERYTHING) as browser:
        parked = await browser.text("/commands", status="IN_TROUBLESHOOTING_QUEUE")
    assert parked.count("data-row=") == 50
    assert len(parked.encode()) <= MOST, len(parked.encode())
