"""`commandbus top` against a real database: once, as JSON, and live until a signal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from uuid import uuid4

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from commandbus import CommandBus
from commandbus.cli import top as module
from commandbus.cli.main import app
from commandbus.cli.top import Seen
from tests.waiting import until


def run(dsn: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", "--interval", "0.05", *arguments, "--dsn", dsn])


async def test_one_document_has_domains_workers_and_limits(bus: CommandBus, dsn: str) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    await bus.send("bank", "Work", uuid4(), {})
    await bus.limits.set("shop", "Work", max_running=3)
    await bus.pause("shop", operator="bob", reason="a test")
    found = await asyncio.to_thread(run, dsn, "--json", "--domain", "shop")
    assert found.exit_code == 0, found.output

    document = json.loads(found.stdout)
    (domain,) = document["domains"]
    assert (domain["domain"], domain["ready"], domain["is_paused"]) == ("shop", 1, True)
    assert domain["in_per_second"] is not None
    assert [each["max_running"] for each in document["limits"]] == [3]
    assert document["workers"] == []
    assert document["at"].endswith("+00:00")


async def test_off_a_terminal_it_prints_once_with_whole_names(bus: CommandBus, dsn: str) -> None:
    bus.register_handler("a_domain_with_quite_a_long_name", "Work", _work)
    async with bus.worker("a_domain_with_quite_a_long_name"):
        watch = bus.upkeep.figures.watch()
        while not (await watch.look()).workers:
            await asyncio.sleep(0.01)
        found = await asyncio.to_thread(run, dsn, "--once")
    assert found.exit_code == 0, found.output
    assert found.stdout.count("a_domain_with_quite_a_long_name") == 2
    assert "0/10" in found.stdout


async def _work(*_: object) -> None:
    """Does nothing."""


def test_wrong_words_are_refused(dsn: str) -> None:
    for wrong in (["--interval", "0"], ["--domain", "No Domain"]):
        refused = CliRunner().invoke(app, ["top", "--once", *wrong, "--dsn", dsn])
        assert refused.exit_code == 2, refused.output


async def test_a_database_that_is_away_ends_a_single_look(dsn: str) -> None:
    away = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2"
    assert (await asyncio.to_thread(run, away, "--once")).exit_code == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_draws_again_and_again_until_a_signal(
    bus: CommandBus, number: signal.Signals
) -> None:
    target = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    seen = Seen(bus.upkeep.figures.watch(), None, 0.02)
    living = asyncio.create_task(module._live(seen, target))

    def shows(text: str) -> bool:
        return text in target.file.getvalue()  # type: ignore[attr-defined]

    await until(lambda: shows("No domain here yet"), "the first picture")
    await bus.send("shop", "Work", uuid4(), {})
    await until(lambda: shows("shop"), "the next picture")
    os.kill(os.getpid(), number)
    await asyncio.wait_for(living, 10)
    assert shows("\x1b[?1049l")  # the terminal is as it was
