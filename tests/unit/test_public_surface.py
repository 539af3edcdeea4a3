"""The public surface is one page: `__all__` is what the package really exposes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import commandbus
from commandbus import errors


def test_all_lists_exactly_what_the_package_exposes() -> None:
    exposed = {
        name
        for name, value in vars(commandbus).items()
        if not isinstance(value, ModuleType)
        and not (name.startswith("__") and name != "__version__")
    }
    assert exposed == set(commandbus.__all__)


def test_all_names_nothing_twice() -> None:
    assert len(commandbus.__all__) == len(set(commandbus.__all__))


@pytest.mark.parametrize("name", commandbus.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert hasattr(importlib.import_module("commandbus"), name)


def test_every_error_is_public() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert kinds <= set(commandbus.__all__)


def test_a_star_import_brings_the_bus() -> None:
    program = "from commandbus import *; print(CommandBus.__name__, __version__)"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["CommandBus", commandbus.__version__]


def test_importing_the_package_needs_nothing_optional() -> None:
    program = (
        "import sys, commandbus\n"
        "print(sorted({'sqlalchemy', 'asyncpg', 'fastapi', 'typer', 'pytest', 'hypothesis'}"
        " & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
