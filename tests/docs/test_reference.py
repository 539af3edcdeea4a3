"""The reference pages list everything there is, and nothing that is not."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from dataclasses import fields
from typing import Any

import pytest
import typer.main

from commandbus import Settings, errors, testing
from commandbus.cli.main import app
from commandbus.cli.output import ExitCode
from commandbus.database import sqlstate
from tests.docs.functions import all_functions, function_texts
from tests.docs.markdown import (
    DOCS,
    GUIDES,
    ROOT,
    Block,
    blocks,
    codes,
    documents,
    table_with,
    tables,
)

# -- settings


def test_every_setting_is_listed_with_its_variable_and_its_default() -> None:
    rows = table_with(GUIDES / "settings.md", "field", "variable", "default")
    documented = {
        codes(row["field"])[0]: (codes(row["variable"])[0], codes(row["default"])[0])
        for row in rows
    }

    assert documented == {
        spec.name: (f"COMMANDBUS_{spec.name.upper()}", repr(spec.default))
        for spec in fields(Settings)
    }


def test_every_variable_that_is_read_is_listed() -> None:
    text = (GUIDES / "settings.md").read_text(encoding="utf-8")
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/commandbus").rglob("*.py")
    )
    read = set(re.findall(r"[\"'](COMMANDBUS_[A-Z]+(?:_[A-Z]+)*)[\"']", source))

    assert read
    assert {name for name in read if f"`{name}`" not in text} == set()


# -- errors


def test_every_error_is_listed_with_its_parent() -> None:
    rows = table_with(GUIDES / "errors.md", "error", "kind of", "what to do")
    documented = {codes(row["error"])[0]: codes(row["kind of"])[0] for row in rows}
    real = {
        name: kind.__bases__[0].__name__
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }

    assert documented == real


def test_every_sqlstate_is_listed_with_its_error() -> None:
    rows = table_with(GUIDES / "errors.md", "code", "error")
    raised = set(re.findall(r"errcode = '(CB\d+)'", "".join(function_texts().values())))
    details = {
        "CB001": '["0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11"]',
        "CB002": "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11",
        "CB004": "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11",
        "CB010": "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11",
        "CB011": '["ORDERS"]',
        "CB017": '{"unique_key": "k", "command_id": "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11"}',
    }

    documented = {codes(row["code"])[0]: codes(row["error"])[0] for row in rows}

    assert documented == {
        state: type(sqlstate._from_state(state, details.get(state), "no", "payments")).__name__
        for state in raised
    }


def test_every_code_of_our_own_is_listed() -> None:
    rows = [r for r in table_with(GUIDES / "errors.md", "code", "meaning") if codes(r["code"])]
    documented = {codes(row["code"])[0] for row in rows}
    worker = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/commandbus/worker").glob("*.py")
    )
    given = set(re.findall(r'\bparked\(\s*lease,\s*"([A-Z_]+)"', worker))
    given |= set(re.findall(r'Failure\(\s*"[A-Z]+",\s*"([A-Z_]+)"', worker))
    given |= set(re.findall(r'TransientCommandError\(\s*"([A-Z_]+)"', worker))
    for value in re.findall(r"'error_code',\s*case (.*?) end", function_texts()["receiving"]):
        given |= set(re.findall(r"'([A-Z_]+)'", value))
    given |= set(re.findall(r"c_code\s+constant text := '([A-Z_]+)'", function_texts()["recovery"]))

    assert len(given) >= 7
    assert documented == given


# -- SQL


def test_every_function_is_listed_as_stable_for_workers_or_internal() -> None:
    page = (DOCS / "sql-api.md").read_text(encoding="utf-8")
    stable = {name for rows in _function_tables() for name in rows}
    rest = codes(page[page.index("## For workers") :])
    listed = [name for name in rest if "/" not in name]

    assert len(listed) == len(set(listed))
    assert not stable & set(listed)
    assert stable | set(listed) == set(all_functions(function_texts()))


def test_the_signatures_of_stable_functions_are_those_of_the_files() -> None:
    functions = all_functions(function_texts())

    for rows in _function_tables():
        for name, arguments in rows.items():
            assert arguments == functions[name].signature, name


def _function_tables() -> list[dict[str, str]]:
    return [
        {codes(row["function"])[0]: codes(row["arguments"])[0] for row in rows}
        for rows in _tables_with(DOCS / "sql-api.md", "function", "arguments")
    ]


def _tables_with(path: Any, *headings: str) -> list[list[dict[str, str]]]:
    return [rows for rows in tables(path) if rows and set(headings) <= set(rows[0])]


# -- command line

COMMON = {"--dsn", "--data-dir", "--map", "--json", "--help"}


def leaves(command: Any, name: str = "commandbus") -> dict[str, Any]:
    """Every command that does something, by its full name."""
    if not hasattr(command, "commands"):
        return {name: command}
    found: dict[str, Any] = {}
    for child, sub in command.commands.items():
        found |= leaves(sub, f"{name} {child}")
    return found


PROGRAM = typer.main.get_command(app)
COMMANDS = leaves(PROGRAM)


def sections() -> dict[str, str]:
    text = (GUIDES / "cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def long_options(command: Any) -> set[str]:
    return {
        name for parameter in command.params for name in parameter.opts if name.startswith("--")
    }


def test_every_command_has_a_section_and_an_example() -> None:
    documented = {title for title in sections() if title.startswith("commandbus ")}

    assert documented == set(COMMANDS)
    for name in documented:
        assert f"```sh\n{name}" in sections()[name], name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_is_listed(name: str) -> None:
    listed = set(re.findall(r"^\| `(--[a-z-]+)`", sections()[name], re.M))

    assert listed == long_options(COMMANDS[name]) - COMMON


def test_the_options_of_many_commands_are_listed() -> None:
    listed = set(re.findall(r"^\| `(--[a-z-]+)`", sections()["Options of many commands"], re.M))

    assert listed == COMMON
    for option in ("--version", "--debug"):
        assert option in long_options(PROGRAM)
        assert f"commandbus {option}" in sections()["Options of many commands"]


def test_every_exit_code_is_listed() -> None:
    rows = [
        row
        for row in _tables_with(GUIDES / "cli.md", "code", "meaning")[0]
        if row["code"].isdigit()
    ]

    assert {int(row["code"]): row["meaning"] for row in rows} == {
        int(code): code.meaning for code in ExitCode
    }


def command_lines() -> list[tuple[str, str]]:
    """Every line of a document that calls the program, with where it stands."""
    found = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        plain = "\n".join(block.text for block in blocks(path, "sh"))
        plain += "\n".join(re.findall(r"^ {4}(commandbus .*)$", text, re.M))
        lines = re.findall(r"^(commandbus .*)$", plain, re.M)
        found += [(path.name, line.partition(" > ")[0]) for line in lines]
    return found


@pytest.mark.parametrize(("where", "line"), command_lines())
def test_every_command_line_in_a_document_is_one_that_the_program_takes(
    where: str, line: str
) -> None:
    words = shlex.split(line, comments=True)
    name = max((n for n in COMMANDS if f"{line} ".startswith(f"{n} ")), key=len)

    # Parses the arguments and checks them; nothing is run.
    COMMANDS[name].make_context(name, words[len(name.split()) :])


# -- testing, and names in general


def test_every_public_name_of_testing_is_explained() -> None:
    text = (GUIDES / "testing.md").read_text(encoding="utf-8")

    assert {name for name in testing.__all__ if not re.search(rf"\b{name}\b", text)} <= {
        "PgmqMessage"  # what FakePgmqClient.read returns
    }


SNIPPETS = [block for path in documents() for block in blocks(path, "python")]


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_names_that_a_snippet_imports_are_public(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("commandbus"):
            module = importlib.import_module(str(node.module))
            # commandbus.errors has no list: all that it defines is public.
            public = vars(module) if module is errors else module.__all__
            assert {alias.name for alias in node.names} <= set(public)
