"""What a type checker sees of typed commands in an application: right uses pass, wrong ones do not.

The application is one file, checked by `mypy --strict` in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

APPLICATION = """
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic

from commandbus import (
    BatchCommand, BlockingBus, CommandBus, HandlerContext, Handlers, Returns, command, new_id,
)


@dataclass
class Debited:
    left: Decimal


@command("payments", "Debit")
@dataclass(frozen=True)
class Debit(Returns[Debited]):
    amount: Decimal


@command("payments", "Credit")
class Credit(pydantic.BaseModel, Returns[int]):
    amount: int


@command("payments", "Move")
class Move(msgspec.Struct):
    amount: int


handlers = Handlers("payments")


@handlers.handle(Debit)
async def debit(command: Debit, ctx: HandlerContext) -> Debited:
    sent: UUID = ctx.send(Credit(amount=1), priority=1)
    ctx.send("payments", "Move", sent, {"amount": 1})
    return Debited(command.amount)


async def right(bus: CommandBus, blocking: BlockingBus, conn: Any) -> None:
    first: UUID = await bus.send(Debit(Decimal(1)), conn=conn, delay=5, command_id=new_id())
    await bus.send(Move(amount=1))
    await bus.send("payments", "Debit", first, {"amount": "1"}, max_attempts=3)
    await bus.send_many("payments", [Debit(Decimal(1)), BatchCommand("Move", new_id(), {})])
    listed: list[BatchCommand] = []
    await bus.create_batch("payments", listed, on_complete_command=Move(amount=2))
    debited: Debited = await bus.call(Debit(Decimal(1)), timeout=5)
    number: int = await bus.call(Credit(amount=1))
    outcome = (await bus.call("payments", "Debit", {"amount": "1"})).outcome
    again: Debited = blocking.call(Debit(Decimal(1)))
    blocking.send(Credit(amount=1))
    blocking.send("payments", "Debit", first, {})
    print(debited, number, outcome, again)
"""

WRONG = """

async def wrong(bus: CommandBus, blocking: BlockingBus, ctx: HandlerContext) -> None:
    Debit("much")
    text: str = await bus.call(Debit(Decimal(1)))
    number: int = blocking.call(Debit(Decimal(1)))
    await bus.send("payments")
    await bus.send("payments", "Debit")
    await bus.send({"amount": 1})
    await bus.send(Debit)
    await bus.send(Debit(Decimal(1)), "Debit")
    await bus.send(Debit(Decimal(1)), dealy=5)
    await bus.send_many("payments", ["Debit"])
    ctx.send(5)
    blocking.send(5)
    handlers.handle(5)
"""


def mypy(tmp_path: Path, text: str) -> tuple[int, str]:
    (tmp_path / "application.py").write_text(text)
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
        "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), "application.py",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.long
def test_right_uses_pass_a_strict_type_checker_and_each_wrong_one_is_an_error(
    tmp_path: Path,
) -> None:
    assert mypy(tmp_path, APPLICATION) == (0, "")

    status, told = mypy(tmp_path, APPLICATION + WRONG)
    start = len(APPLICATION.splitlines())
    wrong = {
        number
        for number, line in enumerate((APPLICATION + WRONG).splitlines(), 1)
        if number > start and line.startswith("    ")
    }
    assert status == 1
    assert {int(n) for n in re.findall(r"^application\.py:(\d+): error", told, re.M)} == wrong, told
