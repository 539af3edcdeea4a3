"""Lists of fifty rows are small, whatever the rows say."""

from __future__ import annotations

from typing import Any

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


async def test_fifty_causes_and_fifty_batches_are_less_too(bus: CommandBus, conn: Any) -> None:
    await bus.send("payments", "DebitAccount", new_id(), {})
    await conn.execute(
        "insert into commandbus.command_bus_failure_group (domain, fingerprint, command_type,"
        " error_code, message, sample_message, sample_command_id, parked_count, total_seen,"
        " first_seen, last_seen) select 'payments', lpad(to_hex(n), 16, '0'),"
        " 'DebitAccountOfCustomer',"
        " 'NO_ACCOUNT_OF_THIS_KIND', %s, %s, gen_random_uuid(), 1000, 100000,"
        " now() - interval '1 day', now() from generate_series(1, 60) n",
        ("there is no account " + "so " * 99,) * 2,
    )
    await conn.execute(
        "insert into commandbus.command_bus_group_sample (domain, fingerprint, hour, seen, total)"
        " select 'payments', lpad(to_hex(n), 16, '0'), date_trunc('hour', now()) -"
        " h * interval '1 hour', 1 + (n * h * 7919) % 997, 1 from generate_series(1, 60) n,"
        " generate_series(0, 23) h"
    )
    await conn.execute(
        "insert into commandbus.command_bus_batch (batch_id, domain, name, status, total_count,"
        " completed_count, failed_count, canceled_count, in_troubleshooting_count, created_at)"
        " select gen_random_uuid(), 'payments', 'Salaries of the month of November ' || n,"
        " 'IN_PROGRESS', 1000000, 1000, 1000, 1000, 1000, clock_timestamp()"
        " from generate_series(1, 60) n"
    )
    async with console(bus, *EVERYTHING) as browser:
        for path in ("/troubleshooting", "/batches", "/batches?domain=payments"):
            page = await browser.text(path)
            assert page.count("data-row=") == 50, path
            assert len(page.encode()) <= MOST, (path, len(page.encode()))
