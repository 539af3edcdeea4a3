"""Reference pages that are written from the code: Python, command line, HTTP."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, cast

import typer.core
import typer.main

#: The folders whose `__all__` is public, beside the top.
FOLDERS = (
    "batches", "loads", "troubleshooting", "governance", "access", "schedules", "gates", "upkeep",
    "handlers", "middleware", "monitoring", "transactions", "testing",
)  # fmt: skip


def python_page() -> str:
    """Every public class and function, with signature and docstring."""
    hint = "Generated from the code. [The guide](../guides/python.md) has the names on one page."
    lines = ["# Python", "", hint, ""]
    seen: set[str] = set()
    for name in ("commandbus", *(f"commandbus.{folder}" for folder in FOLDERS)):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        public = [each for each in sorted(getattr(module, "__all__", ())) if each[0] != "_"]
        found = [path for each in public if (path := _path(getattr(module, each), each))]
        new = [path for path in found if path not in seen]
        seen.update(new)
        if new:
            lines += [f"## {name}", ""]
            lines += [f"::: {path}\n    options:\n      heading_level: 3\n" for path in new]
    return "\n".join(lines) + "\n"


def _path(value: Any, name: str) -> str | None:
    """Where a class or function is written; None for other values."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return None
    if not value.__module__.startswith("commandbus."):
        return None
    return f"{value.__module__}.{getattr(value, '__qualname__', name)}"


def cli_page() -> str:
    """Every command with its arguments and options."""
    from commandbus.cli.main import app  # noqa: PLC0415  (it loads all of the command line)

    hint = "Generated from the program. [The guide](../guides/cli.md) says how to use it."
    lines = ["# Command line", "", hint, ""]
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
        "# HTTP", "",
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
