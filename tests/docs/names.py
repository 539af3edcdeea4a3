"""Every public name of the project, found by looking: Python, command line, HTTP and SQL."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any

import typer.main

import commandbus
from commandbus import CommandBusError
from commandbus.cli.main import app
from commandbus.demo import vms
from commandbus.http import create_app
from commandbus.testing import fake_bus
from tests.docs.markdown import ROOT

FUNCTIONS = ROOT / "src" / "commandbus" / "database" / "sql" / "functions"


@dataclass(frozen=True, order=True)
class PublicName:
    """A name that users type or read, and where it is."""

    name: str
    where: str


def words(name: str) -> list[str]:
    """The words of a name, however they are joined: `resume_load`, `BatchStatus`, `--dry-run`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", parted) if word]


def public_names() -> list[PublicName]:
    """All of them, once each."""
    found = {*python_names(), *cli_names(), *http_names(), *sql_names()}
    return sorted(found)


# -- Python


def python_names() -> Iterator[PublicName]:
    """What `__all__` of the package and its folders lists, with members, arguments and facets."""
    walked: set[int] = set()
    for module in _modules():
        for name in getattr(module, "__all__", ()):
            yield PublicName(name, module.__name__)
            yield from _of_value(getattr(module, name), f"{module.__name__}.{name}", walked)
    bus = fake_bus()
    for name in _public(dir(bus)):
        yield PublicName(name, "commandbus.CommandBus")
        yield from _of_type(facet(bus, name), f"bus.{name}", walked)


def _modules() -> Iterator[ModuleType]:
    yield commandbus
    for found in pkgutil.walk_packages(commandbus.__path__, "commandbus."):
        if found.name.startswith("commandbus.django."):
            continue  # needs the settings of a project
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def facet(bus: object, name: str) -> type | None:
    """The type of an attribute of the bus, if it is one of ours."""
    try:
        kind = type(getattr(bus, name))
    except CommandBusError:  # the bus in memory has no such facet, but says what it would be
        declared = inspect.getattr_static(type(bus), name)
        returned = inspect.get_annotations(declared.fget, eval_str=True)["return"]
        assert isinstance(returned, type), name
        kind = returned
    return kind if kind.__module__.startswith("commandbus") else None


def _of_value(value: object, where: str, walked: set[int]) -> Iterator[PublicName]:
    if isinstance(value, type):
        yield from _of_type(value, where, walked)
    elif inspect.isroutine(value):
        yield from _of_signature(value, where)


def _of_type(kind: type | None, where: str, walked: set[int]) -> Iterator[PublicName]:
    if kind is None or id(kind) in walked or not kind.__module__.startswith("commandbus"):
        return
    walked.add(id(kind))
    if issubclass(kind, enum.Enum):
        for member in kind:
            yield PublicName(member.name, where)
            yield PublicName(str(member.value), where)
    if is_dataclass(kind):
        for spec in fields(kind):
            if not spec.name.startswith("_"):
                yield PublicName(spec.name, where)
    for name in _public(_own_attributes(kind)):
        yield PublicName(name, where)
        value = inspect.getattr_static(kind, name)
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            yield from _of_signature(function, f"{where}.{name}")


def _own_attributes(kind: type) -> set[str]:
    """What our classes define; not what `str`, `Exception` or a framework brings."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("commandbus")]
    return {name for base in ours for name in vars(base)}


def _of_signature(function: Any, where: str) -> Iterator[PublicName]:
    for name in _public(inspect.signature(function).parameters):
        yield PublicName(name, where)


def _public(names: Any) -> list[str]:
    return [name for name in names if not name.startswith("_")]


# -- command line, HTTP, SQL


def cli_names() -> Iterator[PublicName]:
    """Commands and their options."""

    def walk(command: Any, path: str) -> Iterator[PublicName]:
        for parameter in command.params:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                yield PublicName(option, path)
        for name, child in getattr(command, "commands", {}).items():
            yield PublicName(name, path)
            yield from walk(child, f"{path} {name}")

    yield from walk(typer.main.get_command(app), "commandbus")


def http_names() -> Iterator[PublicName]:
    """Paths, their parameters, and the fields of bodies; with the batch types of the demo."""
    bus = fake_bus()
    for batch_type in vms.batch_types():
        bus.governance.declare(batch_type)
    document = create_app(bus).openapi()
    for path, operations in document["paths"].items():
        yield PublicName(path, "HTTP path")
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                yield PublicName(parameter["name"], f"{method.upper()} {path}")
    for name, schema in document["components"]["schemas"].items():
        for field in schema.get("properties", {}):
            yield PublicName(field, f"HTTP schema {name}")


def sql_names() -> Iterator[PublicName]:
    """The functions that the package installs."""
    files = sorted(FUNCTIONS.glob("*.sql"))
    assert files, "the SQL functions have moved: tell this test where they are"
    pattern = r"create\s+(?:or\s+replace\s+)?function\s+(?:\w+\.)?(\w+)\s*\("
    for path in files:
        for name in re.findall(pattern, path.read_text(encoding="utf-8"), re.I):
            yield PublicName(name, path.name)
