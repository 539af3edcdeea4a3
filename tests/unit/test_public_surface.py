"""The public surface is one page: what `__all__` lists, in the package and in its folders."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest

import commandbus
from commandbus import CommandBus, errors
from commandbus.database.store import Store
from commandbus.facets import Facets
from commandbus.typed.commands import TypedCommand

#: Every module whose `__all__` is public.
PUBLIC = [
    commandbus,
    errors,
    *(
        importlib.import_module(f"commandbus.{name}")
        for name in (
            "access", "batches", "brokers", "commands", "database.pgmq", "embedded", "gates",
            "governance", "handlers", "handover", "fastapi", "http",
            "loads", "logging", "middleware", "middleware.opentelemetry", "middleware.sentry",
            "monitoring", "schedules", "testing", "transactions",
            "troubleshooting",
            "upkeep", "worker",
        )
    ),
]  # fmt: skip
FACETS = [
    name
    for name, value in vars(Facets).items()
    if isinstance(value, cached_property) and not name.startswith("_")
]


def kind_of(facet: str) -> type:
    """The class of a facet, from the annotation of its property."""
    name = inspect.getattr_static(Facets, facet).func.__annotations__["return"]
    return next(kind for module in PUBLIC if (kind := getattr(module, name, None)) is not None)


def public_types() -> set[type]:
    """The types that a user can import by a public address."""
    return {
        value
        for module in PUBLIC
        for name in getattr(module, "__all__", vars(module))
        if isinstance(value := getattr(module, name), type)
    }


def public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods that a user may call."""
    for name, value in inspect.getmembers(kind):
        if not name.startswith("_") and inspect.isfunction(value):
            yield f"{kind.__name__}.{name}", value


def types_in(hint: Any) -> Iterator[type]:
    """The classes of ours that an annotation names, however deep."""
    if isinstance(hint, type) and hint.__module__.startswith("commandbus"):
        yield hint
    for part in typing.get_args(hint):
        yield from types_in(part)


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function; names that are imported for types only are found too."""
    known = {
        name: value
        for found in pkgutil.walk_packages(commandbus.__path__, "commandbus.")
        if "__main__" not in found.name
        and not found.name.startswith("commandbus.django")  # needs the settings of a project
        for name, value in vars(importlib.import_module(found.name)).items()
        if isinstance(value, type)
    }
    names = {**known, **vars(inspect.getmodule(function))}
    return typing.get_type_hints(function, names)


def test_all_lists_exactly_what_the_package_can_load() -> None:
    assert {*commandbus._PLACES, "__version__"} == set(commandbus.__all__)


def test_type_checkers_see_each_name_in_the_module_that_it_is_loaded_from() -> None:
    tree = ast.parse(inspect.getsource(commandbus))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "types"
        for alias in node.names
    }
    assert seen == commandbus._PLACES


def test_a_folder_can_be_reached_after_the_package_was_imported() -> None:
    program = (
        "import commandbus; print(commandbus.errors.CommandBusError.__name__, dir(commandbus))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("CommandBusError")
    assert "'CommandBus'" in out


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Comandbus'"):
        commandbus.Comandbus  # noqa: B018


def test_the_names_at_the_top_are_few() -> None:
    assert len(commandbus.__all__) <= 60


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_a_name_is_listed_once_and_can_be_imported(module: ModuleType) -> None:
    listed = getattr(module, "__all__", [])
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not hasattr(module, name)] == []


def test_a_name_has_one_address_besides_the_errors() -> None:
    addresses: dict[str, list[str]] = {}
    for module in PUBLIC:
        for name in getattr(module, "__all__", ()):
            addresses.setdefault(name, []).append(module.__name__)
    assert {name: found for name, found in addresses.items() if len(found) > 1} == {}


@pytest.mark.parametrize("facet", FACETS)
def test_the_class_of_a_facet_is_public(facet: str) -> None:
    assert kind_of(facet) in public_types()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        each
        for kind in (CommandBus, *(kind_of(facet) for facet in FACETS))
        for each in public_methods(kind)
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_type_that_a_public_method_takes_or_returns_is_public(name: str, method: Any) -> None:
    # What a bus is built with, by `connect` and by tests; and what a type checker knows the
    # instances of an application's own command classes by.
    internal = {Store, *typing.get_args(TypedCommand)}
    used = {kind for hint in hints_of(method).values() for kind in types_in(hint)}
    assert used - public_types() - internal == set(), name


def test_a_star_import_brings_the_bus() -> None:
    program = "from commandbus import *; print(CommandBus.__name__, __version__)"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["CommandBus", commandbus.__version__]


def test_importing_the_package_loads_no_driver_and_no_framework() -> None:
    program = (
        "import sys\nfrom commandbus import *\n"
        "print(sorted({'psycopg', 'psycopg_pool', 'sqlalchemy', 'asyncpg', 'fastapi', 'pydantic',"
        " 'starlette', 'typer', 'rich', 'pytest', 'hypothesis'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_using_the_facets_in_memory_loads_no_driver() -> None:
    program = (
        "import sys\n"
        "from commandbus.facets import Facets\n"
        "import commandbus.access, commandbus.batches, commandbus.loads, commandbus.governance\n"
        "import commandbus.troubleshooting, commandbus.upkeep, commandbus.worker.consumer\n"
        "print('psycopg' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "False"
