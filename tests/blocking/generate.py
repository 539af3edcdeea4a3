"""Writes the verbs of BlockingBus from those of CommandBus and its facets.

`make blocking` (`python -m tests.blocking.generate`) writes them anew in src/commandbus/blocking:
verbs.py, and a file for each facet. A test compares, so that no verb, parameter or type is missing.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from commandbus.bus import CommandBus
from commandbus.facets import Facets

FOLDER = Path(inspect.getfile(CommandBus)).with_name("blocking")
WIDTH = 100
#: By hand in bus.py, or of no use on a thread that waits.
LEFT_OUT = {"connect", "close", "worker", "consumer", "handover", "firing"}
#: Run in the thread of the caller, if its connection is not asynchronous.
DIRECT = {"send", "send_many", "cancel"}
#: Parts that a facet has, or returns, with verbs of their own.
PARTS: dict[str, dict[str, str | None]] = {
    "Upkeep": {"figures": "Figures"},
    "Governance": {"types": None},
}
RETURNED = {"AuditTail": ("search", "commandbus.commands.tail")}
#: Parts without verbs that wait: the classes.
SHARED = {"types": "BatchTypes"}

HEADER = '''"""{title} Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

'''


@dataclass
class Module:
    """What one generated module needs."""

    names: dict[str, set[str]] = field(default_factory=dict)  # by module; for types only
    defaults: dict[str, set[str]] = field(default_factory=dict)  # by module; needed when it runs
    lines: list[str] = field(default_factory=list)

    def need_name(self, origin: str, name: str) -> None:
        """Import a name."""
        self.names.setdefault(origin, set()).add(name)

    def need_default(self, expression: ast.expr, source: ModuleType) -> str:
        """The text of a default, with its names imported."""
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.defaults.setdefault(origin_of(node.id, source), set()).add(node.id)
        return ast.unparse(expression).replace("'", '"')

    def need(self, expression: ast.expr | None, source: ModuleType) -> str:
        """The text of an annotation, with its names imported for types."""
        if expression is None:
            return ""
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.need_name(origin_of(node.id, source), node.id)
        return ast.unparse(expression).replace("'", '"')


@cache
def tree_of(source: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(source))


@cache
def origin_of(name: str, source: ModuleType) -> str:
    """The module that a name comes from."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return str(node.module)
    return source.__name__


def definitions_of(
    kind: type, name: str
) -> tuple[list[ast.AsyncFunctionDef | ast.FunctionDef], Any]:
    """The overloads of a method with, at the end, its definition; and the module of it."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    source = importlib.import_module(owner.__module__)
    for node in tree_of(source).body:
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            found = [
                child for child in node.body
                if isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef) and child.name == name
            ]  # fmt: skip
            return found, source
    raise LookupError(f"{kind.__name__}.{name}")


def verbs_of(kind: type) -> Iterator[str]:
    """The public methods and properties of a class, in the order of the source."""
    seen: set[str] = set()
    for base in reversed(kind.__mro__[:-1]):
        for name, value in vars(base).items():
            is_verb = inspect.isfunction(value) or isinstance(value, property | staticmethod)
            if is_verb and not name.startswith("_") and name not in seen | LEFT_OUT:
                seen.add(name)
                yield name


def parameters_of(
    node: ast.AsyncFunctionDef | ast.FunctionDef, module: Module, source: ModuleType
) -> tuple[list[str], list[str]]:
    """The parameters as they are declared, and as they are handed on."""
    declared, passed = [], []
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)

    def declare(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        text = stars + argument.arg
        if argument.annotation is not None:
            text += f": {module.need(argument.annotation, source)}"
        if default is not None:
            text += f" = {module.need_default(default, source)}"
        return text

    for argument, default in zip(plain, defaults, strict=True):
        if argument.arg != "self":
            declared.append(declare(argument, default))
            passed.append(argument.arg)
        if arguments.posonlyargs and argument is arguments.posonlyargs[-1]:
            declared.append("/")
    if arguments.vararg is not None:
        declared.append(declare(arguments.vararg, None, "*"))
        passed.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        declared.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        declared.append(declare(argument, default))
        passed.append(f"{argument.arg}={argument.arg}")
    if arguments.kwarg is not None:
        declared.append(declare(arguments.kwarg, None, "**"))
        passed.append(f"**{arguments.kwarg.arg}")
    return declared, passed


def fill(head: str, parts: list[str], tail: str, indent: int) -> list[str]:
    """One line if it fits, else as few as possible."""
    margin = " " * indent
    whole = f"{margin}{head}({', '.join(parts)}){tail}"
    if len(whole) < WIDTH:
        return [whole]
    lines, line = [f"{margin}{head}("], ""
    for part in parts:
        if line and len(margin) + 4 + len(line) + len(part) + 2 >= WIDTH:
            lines.append(f"{margin}    {line}")
            line = ""
        line += f"{' ' if line else ''}{part},"
    return [*lines, f"{margin}    {line}", f"{margin}){tail}"]


def verb(kind: type, name: str, module: Module, target: str) -> list[str]:
    """One method that waits."""
    (*overloads, node), source = definitions_of(kind, name)
    forms = [line for form in overloads for line in overloaded(form, module, source)]
    declared, passed = parameters_of(node, module, source)
    summary = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
    returns = module.need(node.returns, source)
    is_property = "property" in marks_of(node)
    call, close = f"return {target}.{name}", ")"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"return self._bridge.run({target}.{name}"
        if kind is CommandBus and name in DIRECT:
            call = f"return self._bridge.run_on(conn, lambda bus: bus.{name}"
        close = "))"
    elif returns.startswith(("AsyncGenerator", "AsyncIterator")):
        module.need_name("collections.abc", "Iterator")
        returns = f"Iterator[{returns.split('[', 1)[1]}"
        call = f"return self._bridge.iterate({target}.{name}"
        close = "))"
    elif returns in RETURNED:
        call = f"tail = {target}.{name}"
    body = [f"        {call}"] if is_property else fill(call, passed, close[1:], 8)
    if returns in RETURNED:
        body.append(f"        return Blocking{returns}(self._bridge, lambda: tail)")
        returns = f"Blocking{returns}"
    decorator = ["    @property"] if is_property else []
    head = fill(f"def {name}", ["self", *declared], f" -> {returns}:", 4)
    text = textwrap.wrap(f'"""{summary}"""', WIDTH - 9)
    return [*forms, *decorator, *head, *(f"        {line}" for line in text), *body, ""]


def overloaded(
    node: ast.AsyncFunctionDef | ast.FunctionDef, module: Module, source: ModuleType
) -> list[str]:
    """One of the forms of a method, for type checkers."""
    declared, _ = parameters_of(node, module, source)
    returns = module.need(node.returns, source)
    return [
        "    @overload",
        *fill(f"def {node.name}", ["self", *declared], f" -> {returns}: ...", 4),
    ]


def marks_of(node: ast.AsyncFunctionDef | ast.FunctionDef) -> set[str]:
    """The decorators of a definition."""
    return {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}


@cache
def facets() -> dict[str, tuple[type, str]]:
    """The facets of a bus, by name: the class, and what it is for."""
    source = importlib.import_module(Facets.__module__)
    return {
        node.name: (imported(ast.unparse(node.returns), source), ast.get_docstring(node) or "")
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if "cached_property" in marks_of(node) and not node.name.startswith("_")
    }


def imported(name: str, source: ModuleType) -> Any:
    """What a name of a module stands for."""
    return getattr(importlib.import_module(origin_of(name, source)), name)


def write_verbs() -> str:
    """The verbs of the bus itself, and where its facets are."""
    module = Module()
    for name in verbs_of(CommandBus):
        module.lines += verb(CommandBus, name, module, "self._bus")
    for name, (kind, summary) in facets().items():
        blocking = f"Blocking{kind.__name__}"
        module.need_name(f"commandbus.blocking.{name}", blocking)
        module.lines += [
            "    @cached_property",
            f"    def {name}(self) -> {blocking}:",
            f'        """{summary}"""',
            f"        from commandbus.blocking.{name} import {blocking}",
            "",
            f'        return {blocking}(self._bridge, lambda: self._bridge.find("{name}"))',
            "",
        ]
    module.need_name("commandbus.blocking.bridge", "Bridge")
    module.need_name("commandbus.bus", "CommandBus")
    start = [
        "class BlockingVerbs:",
        '    """The verbs of CommandBus, each of which waits."""',
        "",
        "    def __init__(self, bridge: Bridge) -> None:",
        "        self._bridge = bridge",
        "",
        "    @property",
        "    def _bus(self) -> CommandBus:",
        "        return self._bridge.open()",
        "",
    ]
    return page("The verbs of BlockingBus.", module, start)


def write_facet(name: str) -> str:
    """One facet, with its parts."""
    module = Module()
    kind, _ = facets()[name]
    source = importlib.import_module(kind.__module__)
    returned = [kind_of for part, where in RETURNED.items() if where[0] == name
                for kind_of in [imported(part, importlib.import_module(where[1]))]]  # fmt: skip
    parts = [imported(part, source) for part in PARTS.get(kind.__name__, {}).values() if part]
    for each in [*parts, *returned, kind]:
        module.need_name(each.__module__, each.__name__)
        summary = (inspect.getdoc(each) or "").split("\n\n")[0].replace("\n", " ")
        summary = textwrap.fill(f'"""{summary}"""', WIDTH - 5, subsequent_indent="    ")
        title = f'class Blocking{each.__name__}(BlockingFacet["{each.__name__}"]):'
        module.lines += [title, f"    {summary}", ""]
        for part, part_kind in PARTS.get(each.__name__, {}).items():
            module.lines += part_of(name, part, part_kind)
        for own in verbs_of(each):
            module.lines += verb(each, own, module, "self._facet")
        module.lines.append("")
    for part, part_kind in SHARED.items():
        if f"-> {part_kind}:" in "\n".join(module.lines) and part in PARTS.get(kind.__name__, {}):
            module.need_name(origin_of(part_kind, source), part_kind)
    return page(f"`bus.{name}` of BlockingBus.", module, [])


def part_of(facet: str, part: str, name: str | None) -> list[str]:
    """A part of a facet: with verbs that wait, or as it is."""
    if name is not None:
        return [
            "    @cached_property",
            f"    def {part}(self) -> Blocking{name}:",
            f'        """As `CommandBus.{facet}.{part}`."""',
            f'        find = lambda: self._bridge.find("{facet}.{part}")  # noqa: E731',
            f"        return Blocking{name}(self._bridge, find)",
            "",
        ]
    return [
        "    @property",
        f"    def {part}(self) -> {SHARED[part]}:",
        f'        """As `CommandBus.{facet}.{part}`; nothing in it waits."""',
        f"        return self._facet.{part}",
        "",
    ]


def page(title: str, module: Module, start: list[str]) -> str:
    """A whole module."""
    body = [*start, *module.lines]
    lines = ["from typing import TYPE_CHECKING", ""]
    if "    @overload" in body:
        lines[0] += ", overload"
    if "    @cached_property" in body:
        lines.insert(0, "from functools import cached_property")
    if any("BlockingFacet" in line for line in body):
        lines += ["from commandbus.blocking.bridge import BlockingFacet"]
    for origin, wanted in sorted(module.defaults.items()):
        lines.append(f"from {origin} import {', '.join(sorted(wanted))}")
        module.names.get(origin, set()).difference_update(wanted)
    lines.append("")
    lines.append("if TYPE_CHECKING:")
    for origin in sorted(module.names, key=lambda name: (name.startswith("commandbus"), name)):
        names = sorted(
            name for name in module.names[origin]
            if any(re.search(rf"\b{name}\b", line) for line in body)
        )  # fmt: skip
        if not names:
            continue
        whole = f"    from {origin} import {', '.join(names)}"
        lines += [whole] if len(whole) < WIDTH else fill(f"from {origin} import ", names, "", 4)
    text = "\n".join([*lines, "", "", *body]).rstrip() + "\n"
    return HEADER.format(title=title) + text


def write() -> dict[str, str]:
    """The generated modules, by file name."""
    return {"verbs.py": write_verbs()} | {f"{name}.py": write_facet(name) for name in facets()}


if __name__ == "__main__":
    for file_name, text in write().items():
        (FOLDER / file_name).write_text(text)
        print(f"wrote {file_name}: {len(text.splitlines())} lines")
