"""An application: one domain, one command, one transactional handler.

Run it with `commandbus worker commandbus.demo.app:setup`.
"""

from __future__ import annotations

import os
from typing import Any, LiteralString

from commandbus.bus import CommandBus
from commandbus.errors import PermanentCommandError, TransientCommandError
from commandbus.handler import HandlerContext
from commandbus.models import Command
from commandbus.retry import RetryPolicy

DOMAIN = "demo"
DEBIT_ACCOUNT = "DebitAccount"
#: Short waits, so that a demo of ten seconds shows retries.
POLICY = RetryPolicy(max_attempts=3, backoff_schedule=(0.4, 0.8))

#: Takes from an account and records it; no row if the account is closed or unknown.
_DEBIT: LiteralString = """
with debited as (
    update commandbus_demo.account set balance_cents = balance_cents - %s
     where account_id = %s and is_open
    returning account_id, balance_cents
), effect as (
    insert into commandbus_demo.effect (command_id, run_id, account_id, amount_cents, worker_pid)
    select %s, %s, account_id, %s, %s from debited
)
select balance_cents from debited
"""


def setup(bus: CommandBus) -> None:
    """Register the handlers."""
    bus.register_handler(
        DOMAIN, DEBIT_ACCOUNT, debit_account, retry_policy=POLICY, transactional=True
    )


async def debit_account(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """Take an amount from an account. What is written here and the completion are one commit."""
    account_id, amount_cents = command.data.get("account_id"), command.data.get("amount_cents")
    if not isinstance(account_id, int) or not isinstance(amount_cents, int) or amount_cents <= 0:
        raise PermanentCommandError(
            "INVALID_PAYMENT", "account_id and a positive amount_cents are needed, whole numbers"
        )
    if command.data.get("bank_is_busy") and ctx.attempt == 1:
        raise TransientCommandError("BANK_BUSY", "the bank asks to come back later")
    ids = (command.command_id, ctx.correlation_id)
    params = (amount_cents, account_id, *ids, amount_cents, os.getpid())
    row = await (await ctx.conn.execute(_DEBIT, params)).fetchone()
    if row is None:
        raise PermanentCommandError("ACCOUNT_CLOSED", f"account {account_id} is closed or unknown")
    return {"balance_cents": row[0]}
