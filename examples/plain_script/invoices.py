"""Bills from a file: `invoices.py send FILE` hands them in, `invoices.py work` pays them."""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg

from commandbus import BatchCommand, BlockingBus, HandlerContext, Handlers, derive_id
from commandbus.embedded import EmbeddedPostgres

TABLES = """
create table if not exists invoice (number text primary key, amount numeric not null);
create table if not exists payment (command_id uuid primary key, amount numeric not null);
"""

handlers = Handlers("billing")


@dataclass
class PayInvoice:
    number: str
    amount: Decimal


@handlers.handle("PayInvoice", transactional=True)
def pay(invoice: PayInvoice, ctx: HandlerContext) -> None:
    """In a thread. What is written on ctx.conn and the completion are one commit."""
    ctx.conn.execute(
        "insert into payment values (%s, %s)", (ctx.command.command_id, invoice.amount)
    )


def command_id_of(number: str) -> UUID:
    """The same for the same invoice, so that a file which is sent again pays nothing twice."""
    return derive_id("billing", number)


def send(dsn: str, path: Path) -> int:
    """Store the invoices and send their commands in one transaction; returns how many are new."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    commands = [BatchCommand("PayInvoice", command_id_of(row["number"]), dict(row)) for row in rows]
    with BlockingBus.connect(dsn) as bus, psycopg.connect(dsn) as conn:
        conn.execute(TABLES)
        for row in rows:
            conn.execute(
                "insert into invoice values (%(number)s, %(amount)s) on conflict do nothing", row
            )
        report = bus.send_many("billing", commands, on_duplicate="skip", conn=conn)
    return len(report.sent)


def work(dsn: str) -> None:
    """Pay what is there, and end."""
    with BlockingBus.connect(dsn, handlers=handlers) as bus:
        bus.run_worker("billing", until_empty=True)


def main(words: list[str]) -> int:
    dsn = os.environ.get("COMMANDBUS_DSN") or EmbeddedPostgres().start()
    match words:
        case ["send", path]:
            print(f"{send(dsn, Path(path))} new invoices")
        case ["work"]:
            work(dsn)
            with psycopg.connect(dsn) as conn:
                (count,) = conn.execute("select count(*) from payment").fetchone() or (0,)
            print(f"{count} payments")
        case _:
            print("use: invoices.py send FILE | invoices.py work", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
