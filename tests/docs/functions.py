"""Reading the SQL functions as text: which change a command's state, from where, to where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from commandbus.database.migrations import FUNCTION_FILES

COMMANDS = "commandbus.command_bus_command"
AUDIT = "commandbus.command_bus_audit"
#: What ends a lease as CANCELED; its callers say by which event.
LEASE_CANCELER = "cancel_leases"


@dataclass(frozen=True)
class Function:
    """One `create or replace function`."""

    file: str
    name: str
    signature: str
    body: str


@dataclass(frozen=True)
class Change:
    """One UPDATE of the table of commands: the states it names, before and after."""

    function: str
    before: frozenset[str]
    #: True: only if a worker holds it. False: only if none does. None: it is not asked.
    is_leased: bool | None
    after: frozenset[str]


def function_texts() -> dict[str, str]:
    """The function files, by name."""
    folder = files("commandbus").joinpath("database", "sql", "functions")
    return {
        name: folder.joinpath(f"{name}.sql").read_text(encoding="utf-8") for name in FUNCTION_FILES
    }


def all_functions(texts: dict[str, str]) -> dict[str, Function]:
    """Every function, by name; a name stands once."""
    found: dict[str, Function] = {}
    for file, text in texts.items():
        plain = re.sub(r"--[^\n]*", "", text)
        for match in re.finditer(r"create or replace function commandbus\.(\w+)\s*\(", plain):
            inner, end = _parenthesis(plain, match.end() - 1)
            body = re.compile(r"\$\$(.*?)\$\$", re.S).search(plain, end)
            assert body is not None, f"{match[1]} has no body"
            assert match[1] not in found, f"{match[1]} stands twice"
            found[match[1]] = Function(file, match[1], " ".join(inner.split()), body[1])
    return found


def calls(function: Function, others: dict[str, Function]) -> set[str]:
    """The functions of ours that it calls."""
    return set(re.findall(r"commandbus\.(\w+)\s*\(", function.body)) & set(others) - {function.name}


def reached(name: str, functions: dict[str, Function], borders: set[str]) -> set[str]:
    """The function and what it calls, directly or not, but nothing beyond a border."""
    found, todo = set(), [name]
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            todo += calls(functions[current], functions) - borders
    return found


# -- changes of state


def changes(functions: dict[str, Function]) -> Iterator[Change]:
    """Every UPDATE of the table of commands; without an `after` it changes no state."""
    for function in functions.values():
        for statement in statements(function.body, f"update {COMMANDS}"):
            clauses = _clauses(statement)
            where = clauses.get("where", "")
            before = _guard(where)
            is_leased = _lease_guard(where)
            assigned = _assigned_status(clauses["set"])
            allowed = _guard_argument(where)
            if assigned is None:
                yield Change(function.name, before, is_leased, frozenset())
                continue
            if not assigned.startswith("p_") and allowed is None:
                yield Change(function.name, before, is_leased, _literals(assigned))
                continue
            # The old or the new state is an argument: one change for each caller.
            names = _argument_names(function)
            for caller, arguments in call_arguments(function.name, functions):
                given = dict(zip(names, arguments, strict=False))
                moved = before | (_literals(given[allowed]) if allowed else frozenset())
                after = _literals(given.get(assigned, assigned))
                for who in _users_of(caller, functions):
                    yield Change(who, moved, is_leased, after)


def _users_of(name: str, functions: dict[str, Function]) -> set[str]:
    """The function itself; of one that its callers share, to end a lease in one way, those."""
    if name != LEASE_CANCELER:
        return {name}
    return {caller for caller, _ in call_arguments(name, functions)}


def created_states(functions: dict[str, Function]) -> set[tuple[str, str]]:
    """(function, state) of every INSERT into the table of commands."""
    return {
        (function.name, state)
        for function in functions.values()
        for statement in statements(function.body, f"insert into {COMMANDS}")
        for state in _literals(statement)
    }


def deleting(functions: dict[str, Function]) -> set[str]:
    """The functions that delete commands."""
    return {f.name for f in functions.values() if f"delete from {COMMANDS}" in f.body}


# -- what goes along with a change


def event_writers(functions: dict[str, Function]) -> dict[str, set[str]]:
    """Audit event -> the functions that write it themselves, or hand its name to a helper."""
    writers: dict[str, set[str]] = {}
    for function in functions.values():
        for statement in statements(function.body, f"insert into {AUDIT}"):
            events = {(event, function.name) for event in _literals(_without_calls(statement))}
            for parameter in set(re.findall(r"\bp_event\b", statement)):
                place = _argument_names(function).index(parameter)
                for caller, arguments in call_arguments(function.name, functions):
                    events |= {(event, caller) for event in _literals(arguments[place])}
            for event, writer in events:
                writers.setdefault(event, set()).add(writer)
    return writers


def reply_outcomes(name: str, functions: dict[str, Function]) -> frozenset[str]:
    """The outcomes of the replies that a function publishes."""
    bodies = {
        outcome
        for caller, arguments in call_arguments("reply_body", functions)
        if caller == name
        for outcome in _literals(arguments[4])
    }
    if LEASE_CANCELER in calls(functions[name], functions):
        bodies |= reply_outcomes(LEASE_CANCELER, functions)
    for outcome in _arguments_of(name, "end_unleased", "p_outcome", functions):
        bodies |= _literals(outcome)
    return frozenset(bodies)


def batch_moves(name: str, functions: dict[str, Function]) -> set[str]:
    """How a function moves the counters of batches: `open -> completed`, or `total`."""
    moves = set()
    for caller, arguments in call_arguments("move_batch_counters", functions):
        if caller == name:
            moves.add(f"{arguments[1].strip(chr(39))} -> {arguments[2].strip(chr(39))}")
    if LEASE_CANCELER in calls(functions[name], functions):
        moves |= batch_moves(LEASE_CANCELER, functions)
    for given in _arguments_of(name, "requeue_commands", "p_from", functions):
        allowed = _literals(given)
        # It counts apart what came from each state; a caller's are those that it allows.
        for caller, arguments in call_arguments("move_batch_counters", functions):
            came_from = _literals(arguments[0])
            if caller == "requeue_commands" and came_from <= allowed:
                assert came_from, "a counter that moves whatever the state was"
                moves.add(f"{arguments[1].strip(chr(39))} -> {arguments[2].strip(chr(39))}")
    left = _arguments_of(name, "end_unleased", "p_from", functions)
    ends = _arguments_of(name, "end_unleased", "p_to", functions)
    for before, after in zip(left, ends, strict=True):
        counted = "open" if _literals(before) == {"PENDING"} else "tsq"
        moves.add(f"{counted} -> {after.strip(chr(39)).lower()}")
    if "join_batch" in calls(functions[name], functions):
        moves.add("total")
    return moves


def call_arguments(name: str, functions: dict[str, Function]) -> Iterator[tuple[str, list[str]]]:
    """(caller, arguments) of every call of a function."""
    for function in functions.values():
        for match in re.finditer(rf"commandbus\.{name}\s*\(", function.body):
            inner, _ = _parenthesis(function.body, match.end() - 1)
            yield function.name, [part.strip() for part in _split(inner, ",")]


def _arguments_of(
    name: str, helper: str, parameter: str, functions: dict[str, Function]
) -> Iterator[str]:
    """What a function gives for this parameter when it calls this helper."""
    place = _argument_names(functions[helper]).index(parameter)
    for caller, arguments in call_arguments(helper, functions):
        if caller == name:
            yield arguments[place]


# -- a little grammar: parentheses, quotes, clauses


def statements(text: str, head: str) -> Iterator[str]:
    """The statements that begin so, up to their end: a semicolon or a closing parenthesis."""
    for match in re.finditer(re.escape(head) + r"\b", text):
        for position, character, depth in _outside_quotes(text, match.start()):
            if depth < 0 or (depth == 0 and character == ";"):
                yield text[match.start() : position]
                break
        else:
            raise AssertionError(
                f"a statement has no end: {text[match.start() : match.end() + 60]}"
            )


def _clauses(statement: str) -> dict[str, str]:
    borders: list[tuple[int, str]] = []
    for position, _, depth in _outside_quotes(statement, 0):
        word = re.compile(r"\b(set|from|where|returning)\b").match(statement, position)
        is_distinct_from = statement[:position].rstrip().endswith("distinct")
        if depth == 0 and word and not is_distinct_from:
            borders.append((position, word[1]))
    ends = [position for position, _ in borders[1:]] + [len(statement)]
    return {
        word: statement[start + len(word) : end]
        for (start, word), end in zip(borders, ends, strict=True)
    }


def _assigned_status(assignments: str) -> str | None:
    for part in _split(assignments, ","):
        left, _, right = part.partition("=")
        if left.strip() == "status":
            return right.strip()
    return None


def _guard(condition: str) -> frozenset[str]:
    """The states that a condition asks for; every part of it must hold, so `or` is refused."""
    found: set[str] = set()
    for part in re.split(r"\band\b", condition):
        match = re.match(r"\s*c\.status\s+(?:=|in)\s+(.*)$", part.strip(), re.S)
        if match:
            assert not re.search(r"\bor\b", match[1]), f"a guard with a way round it: {part}"
            found |= _literals(match[1])
    return frozenset(found)


def _guard_argument(condition: str) -> str | None:
    """The argument that has the states, if a condition says `c.status = any(p_…)` or `= p_…`."""
    found = [
        match[1]
        for part in re.split(r"\band\b", condition)
        if (match := re.fullmatch(r"c\.status\s*=\s*(?:any\()?([a-z]\w*)\)?", part.strip()))
    ]
    assert all(name.startswith("p_") for name in found), f"states from nowhere: {condition}"
    return found[0] if found else None


def _lease_guard(condition: str) -> bool | None:
    match = re.search(r"\band\s+c\.leased_by is (not )?null", condition)
    return None if match is None else match[1] is not None


def _literals(text: str) -> frozenset[str]:
    """Words in capitals between quotes: states, events and outcomes are written so."""
    return frozenset(re.findall(r"'([A-Z][A-Z_]+)'", text))


def _without_calls(text: str) -> str:
    """The text without what stands between the parentheses of a call."""
    while match := re.search(r"\b\w+\(", text):
        _, end = _parenthesis(text, match.end() - 1)
        text = text[: match.start()] + text[end:]
    return text


def _argument_names(function: Function) -> list[str]:
    return [part.split()[0] for part in _split(function.signature, ",")]


def _split(text: str, separator: str) -> list[str]:
    parts, start = [], 0
    for position, character, depth in _outside_quotes(text, 0):
        if depth == 0 and character == separator:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _parenthesis(text: str, start: int) -> tuple[str, int]:
    for position, character, depth in _outside_quotes(text, start):
        if depth == 0 and character == ")":
            return text[start + 1 : position], position + 1
    raise AssertionError(f"a parenthesis is never closed: {text[start : start + 60]}")


def _outside_quotes(text: str, start: int) -> Iterator[tuple[int, str, int]]:
    """(position, character, depth) of what is not inside quotes; a bracket counts as within."""
    depth, is_quoted = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if character == "'":
            is_quoted = not is_quoted
        elif not is_quoted:
            if character in "([":
                depth += 1
                continue
            if character in ")]":
                depth -= 1
            yield position, character, depth
