"""docs/architecture.md shows how a public verb reaches SQL: what it says is what the code does.

Each walk is taken for real. When the statement that it leads to is sent, the stack shows the
functions of ours that were called on the way; those are the hops.
"""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

import commandbus
from commandbus import Command, CommandBus, CommandStatus, HandlerContext
from commandbus.cli.main import app
from tests.docs.markdown import DOCS, codes, table_with
from tests.integration.governed import ADA, governed_bus, orders
from tests.parking import park
from tests.waiting import until_status, working

PACKAGE = Path(commandbus.__file__).parent


class Walks:
    """The functions of ours on the stack, by the SQL function that was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hops: dict[str, list[str]] = {}
        real = psycopg.AsyncCursor.execute

        async def execute(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            text = query.decode() if isinstance(query, bytes) else str(query)
            self._hops.setdefault(text.partition('"commandbus".')[2].partition("(")[0], _stack())
            return await real(cursor, query, *args, **kwargs)

        monkeypatch.setattr(psycopg.AsyncCursor, "execute", execute)

    def to(self, function: str) -> list[str]:
        """The hops that led to the first call of a SQL function."""
        return self._hops[function]


def _stack() -> list[str]:
    frame, found = inspect.currentframe(), []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            found.append(f"{path.relative_to(PACKAGE)} {frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


def documented(walk: str) -> list[str]:
    """The hops of a walk, as the page has them."""
    (row,) = [r for r in table_with(DOCS / "architecture.md", "walk", "hops") if r["walk"] == walk]
    return codes(row["hops"])


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Walks:
    return Walks(monkeypatch)


def files(hops: list[str]) -> set[str]:
    return {hop.split()[0] for hop in hops}


async def test_a_send_reaches_sql_in_four_hops(bus: CommandBus, walks: Walks) -> None:
    await bus.send("shop", "Sell", uuid4(), {})

    hops = walks.to("offer_one")
    assert hops == documented("send")
    assert len(hops) <= 4


async def test_a_finish_is_committed_in_few_hops(bus: CommandBus, walks: Walks) -> None:
    @bus.handler("shop", "Sell")
    async def sell(command: Command, ctx: HandlerContext) -> None: ...

    async with working(bus, "shop"):
        command_id = await bus.send("shop", "Sell", uuid4(), {})
        await until_status(bus, "shop", command_id, CommandStatus.COMPLETED)

    assert walks.to("complete_commands") == documented("finish")


def test_a_bulk_retry_reaches_sql_in_eight_hops_and_ten_files(dsn: str, walks: Walks) -> None:
    async def prepare() -> str:
        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
            CommandBus.connect(dsn) as bus,
        ):
            await park(conn, 3)
            (group,) = await bus.troubleshooting.groups()
            return group.fingerprint

    group = asyncio.run(prepare())
    done = CliRunner().invoke(app, ["tsq", "retry", "--group", group, "--yes", "--dsn", dsn])
    assert done.exit_code == 0, done.output

    hops = walks.to("start_bulk")
    assert hops == documented("bulk retry")
    assert len(hops) <= 8
    assert len(files(hops)) <= 10


async def test_a_governed_batch_is_created_in_few_hops(dsn: str, walks: Walks) -> None:
    async with governed_bus(dsn) as bus:
        await bus.governance.submit(ADA, "ORDERS", orders(2))

    assert walks.to("create_ticket") == documented("governed batch")
