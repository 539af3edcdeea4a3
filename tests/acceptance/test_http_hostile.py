"""A small version of `make hostile`: hostile sockets of all kinds, and another user beside them."""

from __future__ import annotations

import asyncio
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.e2e]


async def test_another_user_goes_on_while_hostile_sockets_do_their_worst(dsn: str) -> None:
    # The bars are wide: other tests run beside it. `make hostile` has those that count.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hostile", "--dsn", dsn, "--sockets", "200",
        "--seconds", "8", "--calm", "4", "--p99", "5", "--floor", "5",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    print(told.decode())
    assert process.returncode == 0, told.decode()
