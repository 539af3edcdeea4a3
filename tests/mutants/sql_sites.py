"""Mutants of the SQL functions: each is a function file's text with one guard taken out.

Guards are conditions in WHERE, in the ON of a join and in IF that speak of state, lease, domain or
message; row locks; SKIP LOCKED; ON CONFLICT; and the order in which locks are taken. SQL that is
put together in strings (`execute format(...)`) is read like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from commandbus.database.migrations import FUNCTION_FILES

#: What a condition must speak of to be a guard.
GUARD = re.compile(
    r"\b(\w*status|leased_by|lease_epoch|\w*domain|msg_id|\w*attempts?|attempt_count|lapses"
    r"|started_alone|last_attempt_at|completed_at|pruning_since|total_sealed|batch_type|outcome"
    r"|is_done|vt|decision|requires_approval|digest|parked_at|p_from|p_moved|v_known|v_inserted"
    r"|created_by|updated_at|heartbeat_at|ended_at|reply_queue|queue_exists|is_sent_anywhere)\b"
)
#: Key to key: without it the statement means nothing, and any test would tell.
PLAIN_KEY = re.compile(
    r"^\w+\.(command_id|batch_id|operation_id|item_no|fingerprint|audit_id)\s*=\s*"
    r"(\w+\.\w+|\w+|any\s*\(\w+\))$"
)
SQL_TEXT = re.compile(r"\b(select|where|from|update|delete|insert|for update|join|and)\b", re.I)
TOKEN = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<word>[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*|\.%\w*I?)*)|(?P<space>\s+)|(?P<quote>\$\w*\$|')"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<semicolon>;)|(?P<other>[^\sA-Za-z_])",
    re.A,
)
#: What ends a condition, at its own depth.
ENDS = {
    "and", "or", "order", "group", "returning", "limit", "for", "union", "then", "loop", "on",
    "window", "offset", "join", "cross", "set", "having", "where", "else", "using", "into",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One function with one guard taken out."""

    file: str
    line: int
    function: str
    kind: str
    #: What was there, on one line; with function and kind it names the mutant.
    was: str
    becomes: str
    #: The whole statement, to be run in place of the original.
    statement: str
    #: Which of several equal places in the function.
    number: int = 1

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def key(self) -> str:
        """Stays the same when lines move."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.function} {self.kind}: {self.was}{again}"


def function_source(file: str) -> str:
    folder = files("commandbus").joinpath("database", "sql", "functions")
    return folder.joinpath(f"{file}.sql").read_text(encoding="utf-8")


def statements(text: str) -> Iterator[tuple[str, int, str]]:
    """The functions of a file: name, offset, and the whole `create or replace`."""
    # A function that makes functions itself is quoted with a word.
    pattern = r"^create or replace function commandbus\.(\w+)\s*\((?:(?!\$\w*\$).)*(\$\w*\$).*?\2;"
    for match in re.finditer(pattern, text, re.S | re.M):
        yield match[1], match.start(), match[0]


def all_mutants(chosen: Sequence[str] = FUNCTION_FILES) -> list[Mutant]:
    """Every mutant of these files, in the order of the files."""
    found: list[Mutant] = []
    for file in chosen:
        text = function_source(file)
        for name, offset, statement in statements(text):
            seen: dict[tuple[str, str], int] = {}
            for kind, start, end, becomes in sites(statement):
                was = " ".join(statement[start:end].split())
                seen[kind, was] = seen.get((kind, was), 0) + 1
                mutated = statement[:start] + becomes + statement[end:]
                line = text.count("\n", 0, offset + start) + 1
                found.append(Mutant(file, line, name, kind, was, becomes, mutated, seen[kind, was]))
    return found


def sites(statement: str) -> list[tuple[str, int, int, str]]:
    """(kind, start, end, replacement) of everything to take out of one function."""
    tokens = tokenize(statement)
    found = [*_conditions(statement, tokens), *_locks(statement, tokens), *_conflicts(tokens)]
    return sorted(found, key=lambda site: (site[1], site[2]))


# -- reading


def tokenize(text: str) -> list[Token]:
    """Words, parentheses and quotes. A string that is no SQL is one token."""
    tokens: list[Token] = []
    depth = at = 0
    in_sql = False  # inside a string that is SQL
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match is not None, text[at : at + 40]
        kind, word, end = str(match.lastgroup), match[0], match.end()
        if word == "'":
            goes_on = bool(tokens) and tokens[-1].kind == "quote"
            kind, end, in_sql = _quote(text, at, in_sql, goes_on)
        elif kind == "word":
            word = word.lower()
            depth -= word == "end" and _closes_case(tokens)
        depth -= kind == "close"
        if kind not in {"space", "comment"}:
            tokens.append(Token(kind, word, at, end, depth))
        depth += kind == "open" or (kind == "word" and word == "case")
        at = end
    return tokens


def _quote(text: str, at: int, in_sql: bool, goes_on: bool) -> tuple[str, int, bool]:
    """What a quote begins or ends: a literal is swallowed whole.

    A string right after a piece of SQL goes on with it.
    """
    if in_sql:
        if text[at : at + 2] != "''":
            return "quote", at + 1, False
        return "literal", text.index("''", at + 2) + 2, True
    end = at + 1
    while text[end] != "'" or text[end + 1 : end + 2] == "'":
        end += 2 if text[end] == "'" else 1
    inner = text[at + 1 : end]
    is_sql = goes_on or (bool(SQL_TEXT.search(inner)) and " " in inner and "%," not in inner)
    return ("quote", at + 1, True) if is_sql else ("literal", end + 1, False)


def _closes_case(tokens: Sequence[Token]) -> bool:
    """Whether this END belongs to a CASE, and not to a block."""
    ends = 0
    for token in reversed(tokens):
        if token.kind == "semicolon":
            return False
        if token.text == "end":
            ends += 1
        elif token.text == "case":
            if ends == 0:
                return True
            ends -= 1
    return False


# -- conditions


def _conditions(text: str, tokens: Sequence[Token]) -> Iterator[tuple[str, int, int, str]]:
    for n, token in enumerate(tokens):
        if token.kind != "word":
            continue
        before = tokens[n - 1].text if n else ""
        is_join = token.text == "on" and tokens[n + 1].text != "conflict"
        is_if = token.text in {"if", "elsif"} and before not in {"end", "function"}
        if token.text == "where" or is_join or is_if:
            kind = "if" if is_if else "where"
            for start, end, is_or in _operands(tokens, n + 1, token.depth):
                span = " ".join(text[start:end].split())
                if GUARD.search(span) and not PLAIN_KEY.match(span):
                    yield kind, start, end, "false" if is_or or is_if else "true"


def _operands(tokens: Sequence[Token], first: int, depth: int) -> Iterator[tuple[int, int, bool]]:
    """The conditions of one clause, and whether they stand beside an OR."""
    operand: list[Token] = []
    found: list[tuple[int, int, str, str]] = []
    before, between = "", False
    for n in range(first, len(tokens)):
        token = tokens[n]
        is_end = (
            token.depth < depth
            or token.kind == "semicolon"
            or (token.kind == "close" and token.depth == depth - 1)
            or _is_string_end(tokens, n)
        )
        at_depth = token.depth == depth and token.kind == "word"
        if at_depth and token.text == "between":
            between = True
        elif at_depth and token.text == "and" and between:
            between = False
        elif is_end or (at_depth and (token.text in ENDS or _is_left_join(tokens, n))):
            plain = [t for t in operand if t.kind != "quote"]
            after = "" if is_end else token.text
            if plain:
                found.append((plain[0].start, plain[-1].end, before, after))
            if is_end or token.text not in {"and", "or"}:
                break
            before, operand = token.text, []
            continue
        operand.append(token)
    for start, end, left, right in found:
        yield start, end, "or" in {left, right}


def _is_left_join(tokens: Sequence[Token], n: int) -> bool:
    return tokens[n].text == "left" and tokens[n + 1].text == "join"


def _is_string_end(tokens: Sequence[Token], n: int) -> bool:
    """A quote that does not lead over to another piece of the same SQL text."""
    if tokens[n].kind != "quote":
        return False
    neighbours = {t.kind for t in (*tokens[n - 1 : n], *tokens[n + 1 : n + 2])}
    return "quote" not in neighbours


# -- locks and conflicts


def _locks(text: str, tokens: Sequence[Token]) -> Iterator[tuple[str, int, int, str]]:
    words = [t.text for t in tokens]
    for n in range(len(tokens) - 1):
        if words[n : n + 2] == ["skip", "locked"]:
            yield "skip locked", tokens[n].start, tokens[n + 1].end, ""
        if words[n : n + 2] == ["for", "update"]:
            last = n + 1
            if words[n + 2 : n + 3] == ["of"]:
                last = n + 3
            if words[last + 1 : last + 3] == ["skip", "locked"]:
                last += 2
            yield "for update", tokens[n].start, tokens[last].end, ""
            yield from _lock_order(text, tokens, n)
        if words[n : n + 2] == ["on", "conflict"]:
            yield from _lock_order(text, tokens, n)


def _lock_order(
    text: str, tokens: Sequence[Token], lock: int
) -> Iterator[tuple[str, int, int, str]]:
    """The ORDER BY that stands right before a lock: reversed, two sessions may wait in a circle."""
    depth = tokens[lock].depth
    for n in range(lock - 1, 0, -1):
        token = tokens[n]
        if token.depth < depth or token.kind == "semicolon":
            return
        if token.depth == depth and token.text in {"where", "select", "limit", "values"}:
            return
        if token.depth == depth and token.text == "order" and tokens[n + 1].text == "by":
            if any(t.text == "," and t.depth == depth for t in tokens[n:lock]):
                return  # an order of service, not of locks
            last = tokens[lock - 1]
            yield "lock order", token.start, last.end, text[token.start : last.end] + " desc"
            return


def _conflicts(tokens: Sequence[Token]) -> Iterator[tuple[str, int, int, str]]:
    for n in range(len(tokens) - 1):
        if [tokens[n].text, tokens[n + 1].text] != ["on", "conflict"]:
            continue
        depth = tokens[n].depth
        end = tokens[n + 1].end
        for k in range(n + 2, len(tokens)):
            token = tokens[k]
            if (
                token.depth < depth
                or token.kind == "semicolon"
                or _is_string_end(tokens, k)
                or (token.depth == depth and token.text == "returning")
            ):
                break
            if token.kind != "quote":
                end = token.end
        yield "on conflict", tokens[n].start, end, ""
