"""How an application is named, and what it may be."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from commandbus import CommandBus
from commandbus.cli.apps import AppError, load_app, open_app
from commandbus.cli.frame import Place
from commandbus.database.store import Store

MODULE = """
import asyncio
from contextlib import asynccontextmanager
from commandbus import CommandBus, Handlers

events = []
number = 7
builtin = type

async def handle(command, ctx): ...

def setup(bus):
    bus.register_handler("shop", "Sell", handle)

async def setup_later(bus):
    setup(bus)

@asynccontextmanager
async def setup_with_resources(bus):
    setup(bus)
    events.append("opened")
    yield
    events.append("closed")

def broken(bus):
    raise LookupError("no configuration")

def greedy(one, two): ...

def make():
    return CommandBus(store=object())

async def make_later():
    return make()

@asynccontextmanager
async def open_bus():
    yield make()

def wrong():
    return 42

bus = make()

handlers = Handlers("shop")
handlers.handle("Sell")(handle)

class Holder:
    setup = staticmethod(setup)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with an application in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "cli_shop.py").write_text(MODULE)
    (tmp_path / "cli_broken.py").write_text("import os\n\n1 / 0\n")
    (tmp_path / "cli_needy.py").write_text("import no_such_library\n")
    (tmp_path / "cli_typo.py").write_text("def setup(bus:\n")
    (tmp_path / "cli_exits.py").write_text("raise SystemExit('bye')\n")
    (tmp_path / "cli_ours.py").write_text(
        "from commandbus import RetryPolicy\nRetryPolicy(max_attempts=0)\n"
    )
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("cli_")]:
        del sys.modules[name]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses that CommandBus.connect was asked for; no database is there."""
    asked: list[Any] = []

    @asynccontextmanager
    async def connect(dsn: str | None = None, **options: Any) -> AsyncIterator[CommandBus]:
        asked.append((dsn, options["data_dir"]))
        yield CommandBus(store=cast("Store", object()), handlers=options.get("handlers"))

    monkeypatch.setattr(CommandBus, "connect", connect)
    return asked


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cli_shop", "write module:attribute"),
        (":setup", "write module:attribute"),
        ("cli_nowhere:setup", "no module 'cli_nowhere'; it is looked for in "),
        ("cli_shop.inner:setup", "no module 'cli_shop.inner'"),
        ("cli_shop:setpu", "has no attribute 'setpu'; did you mean 'setup'?"),
        ("cli_shop:xyzzy_9", "has no attribute 'xyzzy_9'"),
        ("cli_broken:setup", "failed: ZeroDivisionError: division by zero (cli_broken.py:3)"),
        ("cli_needy:setup", "failed: No module named 'no_such_library' (cli_needy.py:1)"),
        ("cli_typo:setup", "failed: SyntaxError: '(' was never closed (cli_typo.py, line 1)"),
        ("cli_exits:setup", "failed: SystemExit: bye"),
    ],
)
def test_an_app_that_cannot_be_loaded_says_why(folder: Path, name: str, said: str) -> None:
    with pytest.raises(AppError) as caught:
        load_app(name)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_of_ours_inside_the_app_is_shown_as_it_is(folder: Path) -> None:
    with pytest.raises(ValueError, match="max_attempts is 0"):
        load_app("cli_ours:setup")


@pytest.mark.parametrize("name", ["setup", "setup_later", "Holder.setup"])
async def test_a_setup_function_is_given_a_bus(
    folder: Path, connected: list[Any], name: str
) -> None:
    async with open_app(f"cli_shop:{name}", Place("host=x")) as bus:
        assert bus.domains == ["shop"]

    assert connected == [("host=x", None)]


async def test_handlers_are_included_by_a_bus(folder: Path, connected: list[Any]) -> None:
    async with open_app("cli_shop:handlers", Place("host=x")) as bus:
        assert bus.domains == ["shop"]

    assert connected == [("host=x", None)]


async def test_a_setup_may_hold_resources_as_long_as_the_bus_lives(
    folder: Path, connected: list[Any]
) -> None:
    async with open_app("cli_shop:setup_with_resources", Place()):
        events: list[str] = load_app("cli_shop:events")
        assert events == ["opened"]

    assert events == ["opened", "closed"]


@pytest.mark.parametrize("name", ["bus", "make", "make_later", "open_bus"])
async def test_an_app_may_bring_its_own_bus(folder: Path, name: str) -> None:
    async with open_app(f"cli_shop:{name}", Place()) as bus:
        assert isinstance(bus, CommandBus)


@pytest.mark.parametrize("name", ["bus", "open_bus"])
async def test_an_app_with_its_own_bus_refuses_an_address(folder: Path, name: str) -> None:
    with pytest.raises(AppError, match="leave out --dsn"):
        async with open_app(f"cli_shop:{name}", Place("host=x")):
            pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "is of type int; use Handlers"),
        ("builtin", "use Handlers"),
        ("greedy", "asks for 2 arguments; use Handlers"),
        ("wrong", "gives a int, not a CommandBus"),
        ("broken", "failed: LookupError: no configuration (cli_shop.py:"),
    ],
)
async def test_what_is_no_app_says_what_would_be(
    folder: Path, connected: list[Any], name: str, said: str
) -> None:
    with pytest.raises(AppError) as caught:
        async with open_app(f"cli_shop:{name}", Place()):
            pass

    assert said in str(caught.value)
