"""Reference pages that are written from the code: Python, command line, HTTP."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, cast, is_typeddict

import typer.core
import typer.main

#: The folders whose `__all__` is public, beside the top.
FOLDERS = (
    "batches", "loads", "troubleshooting", "governance", "access", "schedules", "gates", "upkeep",
    "handlers", "middleware", "monitoring", "transactions", "testing",
)  # fmt: skip
#: What is looked for most stands first on the page of the top; all else by name.
FIRST = (
    "CommandBus", "BlockingBus", "Handlers", "HandlerContext", "Command", "RetryPolicy", "Settings",
    "SendOptions", "HandlerOptions", "BatchCommand", "Reply",
)  # fmt: skip


def python_pages() -> dict[str, str]:
    """A page for the top and one for each folder: every public class and function."""
    found = {}
    seen: set[str] = set()
    for name in ("commandbus", *(f"commandbus.{folder}" for folder in FOLDERS)):
        module = importlib.import_module(name)
        public = {each: getattr(module, each) for each in module.__all__ if each[0] != "_"}
        new = {each: path for each in public if (path := _written(public[each], seen))}
        if not new:
            continue
        lines = [f"# {name}", ""]
        if name == "commandbus":
            hint = "[The guide](../../guides/python.md) has the names of all pages on one."
            lines += [f"Generated from the code. {hint}", ""]
        for each in sorted(new, key=_order):
            lines += _entry(new[each], getattr(module, each))
        place = name.removeprefix("commandbus").removeprefix(".") or "index"
        found[f"reference/python/{place}.md"] = "\n".join(lines) + "\n"
    return found


def _order(name: str) -> tuple[int, str]:
    return ((*FIRST, name).index(name), name)


def _written(value: Any, seen: set[str]) -> str | None:
    """Where a class or function is written; None for other values and for what has a place."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return None
    if not value.__module__.startswith("commandbus."):
        return None
    path = f"{value.__module__}.{value.__qualname__}"
    if path in seen:
        return None
    seen.add(path)
    return path


def _entry(path: str, value: Any) -> list[str]:
    """A class or function: signature and docstring, then verbs, or what values it has."""
    lines = [f"::: {path}", "    options:", "      heading_level: 2"]
    if inspect.isclass(value):
        verbs = _verbs(value)
        lines += [f"      members: {verbs}", f"      inherited_members: {verbs}"]
    return [*lines, "", *_values(value), ""]


def _verbs(kind: type) -> list[str]:
    """Methods and properties of a class and of what it is made of, in the order of the code."""
    found: list[str] = []
    for each in kind.__mro__:
        if each.__module__.startswith("commandbus."):
            found += [
                name
                for name, value in vars(each).items()
                if name[0] != "_"
                and name not in found
                and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
                and not isinstance(value, type)
            ]
    return found


def _values(kind: Any) -> list[str]:
    """The members of an enum, and the keys of a TypedDict, which no signature shows."""
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return [f"Values: {', '.join(f'`{each.name}`' for each in kind)}.", ""]
    if is_typeddict(kind):
        keys = [f"| `{key}` | {_cell(f'`{hint}`')} |" for key, hint in _hints(kind).items()]
        return ["| key | type |", "| --- | --- |", *keys, ""]
    return []


def _hints(kind: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in [*reversed(getattr(kind, "__orig_bases__", ())), kind]:
        for key, hint in getattr(each, "__annotations__", {}).items():
            found[key] = getattr(hint, "__forward_arg__", None) or str(hint)
    return found


def cli_page() -> str:
    """Every command with its arguments and options."""
    from commandbus.cli.main import app  # noqa: PLC0415  (it loads all of the command line)

    hint = "Generated from the program. [The guide](../guides/cli.md) says how to use it."
    lines = ["# All commands and options", "", hint, ""]
    for path, command in sorted(_commands(typer.main.get_command(app), ("commandbus",))):
        lines += [f"## {' '.join(path)}", ""]
        if command.help:
            lines += [_plain(command.help), ""]
        if isinstance(command, typer.core.TyperGroup):
            names = ", ".join(f"`{name}`" for name in sorted(command.commands))
            lines += [f"Has the commands {names}.", ""]
        lines += _parameters(command)
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if getattr(command, "hidden", False):
        return
    yield path, command
    if isinstance(command, typer.core.TyperGroup):
        for name, each in command.commands.items():
            yield from _commands(each, (*path, name))


def _parameters(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        names = (
            [parameter.metavar or str(parameter.name).upper()]
            if isinstance(parameter, typer.core.TyperArgument)
            else [*parameter.opts, *parameter.secondary_opts]
        )
        codes = ", ".join(f"`{each}`" for each in names)
        variable = f"`{parameter.envvar}`" if isinstance(parameter.envvar, str) else ""
        text = _cell(str(parameter.help or ""))
        rows.append(f"| {codes} | {text} | {variable} |")
    heading = ["| argument or option | meaning | variable |", "| --- | --- | --- |"]
    return [*heading, *rows, ""] if rows else []


def http_page(document: dict[str, Any]) -> str:
    """Every endpoint of the OpenAPI document."""
    lines = [
        "# All endpoints", "",
        "Generated from the OpenAPI document of the service, which it serves at `/openapi.json`."
        " [The guide](../guides/http.md) has an example of each.", "",
    ]  # fmt: skip
    for path, verbs in sorted(document["paths"].items()):
        for verb, operation in verbs.items():
            lines += [f"## {verb.upper()} {path}".replace("{", "\\{"), ""]
            lines += [_plain(str(operation.get("description") or operation.get("summary", ""))), ""]
            lines += _fields(operation, document)
            answers = ", ".join(
                f"`{status}` {_cell(str(answer.get('description', '')))}".strip()
                for status, answer in operation.get("responses", {}).items()
            )
            lines += [f"Answers: {answers}", ""]
    return "\n".join(lines) + "\n"


def _fields(operation: dict[str, Any], document: dict[str, Any]) -> list[str]:
    rows = []
    for each in operation.get("parameters", []):
        must = "yes" if each.get("required") else ""
        kind = _kind(each.get("schema", {}))
        rows.append((each["name"], each["in"], kind, must, str(each.get("description", ""))))
    content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = {}
    for body in content.values():
        schema = _resolved(body.get("schema", {}), document)
    for name, each in schema.get("properties", {}).items():
        must = "yes" if name in schema.get("required", []) else ""
        rows.append((name, "body", _kind(each), must, str(each.get("description", ""))))
    if not rows:
        return []
    heading = ["| field | in | type | required | meaning |", "| --- | --- | --- | --- | --- |"]
    table = [
        f"| `{name}` | {place} | {kind} | {must} | {_cell(text)} |"
        for name, place, kind, must, text in rows
    ]
    return [*heading, *table, ""]


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rsplit("/", 1)[-1]
    return cast("dict[str, Any]", document["components"]["schemas"][name])


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_kind(each) for each in schema[several])
    kind = str(schema.get("type", "any"))
    return f"{kind} of {_kind(schema['items'])}" if kind == "array" and "items" in schema else kind


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text of a program: brackets and angles in it are no markup."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("\b", "")
