"""Mutants of the Python core: one comparison, condition, number or call changed at a time.

Not changed: annotations, texts, log calls, the texts of exceptions, `__repr__`. Left out too is
what would be the same mutant twice: `not a == b` is `a != b`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from tests.mutants.forks import ROOT

SOURCE = ROOT / "src" / "commandbus"
#: Files with the highest bar: who holds a command, how it ends, batches, who may ask.
STRICT = (
    "worker/completer", "worker/lease", "worker/receiver", "worker/executor", "worker/execution",
    "worker/outcomes",
    "batches/batch", "batches/callbacks",
    "http/auth/authenticators", "http/auth/tokens", "http/auth/json_web_tokens",
    "http/auth/scopes", "http/auth/gate", "access/tokens",
)  # fmt: skip
FILES = (
    "retry", *STRICT[:6], "worker/threads", "privacy/redaction", *STRICT[6:],
    "privacy/sensitive", "privacy/texts", "privacy/values", "privacy/views",
    "names", "payload", "privacy/secrets", "handler",
    "flow", "outcomes", "ids", "schedules/ticks", "schedules/checks",
)  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
#: Whose flipped form is the negation, so that negating the condition adds nothing.
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
EXCHANGED = {"min": "max", "max": "min"}
LOGGERS = {"_log", "log", "logger", "logging"}


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a tree, and what changes it there."""

    kind: str
    function: str
    #: First and last line.
    lines: tuple[int, int]
    #: Executed by the import of the module, not by a call.
    is_import_time: bool
    was: str
    becomes: str
    apply: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PythonMutant:
    """One module with one thing changed."""

    file: str
    line: int
    function: str
    kind: str
    was: str
    becomes: str
    #: Which of several equal places in the function.
    number: int
    #: Which of all places of the file.
    index: int
    lines: tuple[int, int]
    is_import_time: bool
    #: The function or statement it is in, as it was.
    source: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def key(self) -> str:
        """Stays the same when lines move."""
        again = f" #{self.number}" if self.number > 1 else ""
        # Files have functions of the same name.
        return f"{self.file} {self.function} {self.kind}: {self.was} -> {self.becomes}{again}"

    @property
    def module(self) -> str:
        return "commandbus." + self.file.replace("/", ".")

    def compile(self) -> CodeType:
        path = SOURCE / f"{self.file}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        list(sites(tree))[self.index].apply()
        return compile(ast.fix_missing_locations(tree), str(path), "exec")


def all_mutants(chosen: Sequence[str] = FILES) -> list[PythonMutant]:
    """Every mutant of these files, in the order of the files."""
    found: list[PythonMutant] = []
    for file in chosen:
        text = (SOURCE / f"{file}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        seen: dict[tuple[str, str, str, str], int] = {}
        for index, site in enumerate(sites(tree)):
            name = (site.function, site.kind, site.was, site.becomes)
            seen[name] = seen.get(name, 0) + 1
            found.append(
                PythonMutant(
                    file, site.lines[0], *name, seen[name], index, site.lines,
                    site.is_import_time, _source_at(text, tree, site.lines[0]),
                )
            )  # fmt: skip
    return found


def _source_at(text: str, tree: ast.Module, line: int) -> str:
    """The innermost function that has this line, or the statement of the module."""
    statement: ast.stmt = next(s for s in tree.body if (s.end_lineno or 0) >= line)
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.lineno <= line <= (node.end_lineno or 0)
        ):  # fmt: skip
            statement = node  # those inside come later
    return ast.get_source_segment(text, statement) or ""


# -- walking


def sites(tree: ast.Module) -> Iterator[Site]:
    """All places of a module, in an order that depends on nothing but the source."""
    yield from _statements(tree.body, "module", True)


def _statements(body: Sequence[ast.stmt], function: str, is_import: bool) -> Iterator[Site]:
    for number, statement in enumerate(body):
        if isinstance(statement, ast.ClassDef):
            inner = statement.name if function == "module" else f"{function}.{statement.name}"
            yield from _statements(statement.body, inner, is_import)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name == "__repr__" or _is_protocol(statement):
                continue
            inner = statement.name if function == "module" else f"{function}.{statement.name}"
            for default in (*statement.args.defaults, *statement.args.kw_defaults):
                if default is not None:
                    yield from _Places(statement, inner, is_import).of(default, statement.args)
            yield from _statements(statement.body, inner, False)
        elif isinstance(statement, ast.If) and _name_of(statement.test) == "TYPE_CHECKING":
            continue
        else:
            yield from _simple(body, number, function, is_import)
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []), function, is_import)
            for block in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
                yield from _statements(block.body, function, is_import)


def _simple(
    body: Sequence[ast.stmt], number: int, function: str, is_import: bool
) -> Iterator[Site]:
    """The places of one statement, without those of the statements inside it."""
    statement = body[number]
    places = _Places(statement, function, is_import)
    if isinstance(statement, ast.Expr):
        if _is_text(statement.value) or _is_log_call(statement.value):
            return
        if isinstance(_awaited(statement.value), ast.Call):
            yield places.statement(body, number)
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield from places.returned(statement)
    if isinstance(statement, ast.If | ast.While):
        yield from places.condition(statement)
    if isinstance(statement, ast.AugAssign) and type(statement.op) in ARITHMETIC:
        yield places.operator(statement)
    for child, parent in _expressions(statement):
        yield from places.of(child, parent)


def _expressions(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.AST]]:
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield child, statement
            elif isinstance(child, ast.withitem):
                yield child.context_expr, child
            elif isinstance(child, ast.match_case) and child.guard is not None:
                yield child.guard, child


class _Places:
    """Makes the sites of one statement."""

    def __init__(self, statement: ast.stmt, function: str, is_import: bool) -> None:
        self._statement = statement
        self._function = function
        self._is_import = is_import

    def of(self, node: ast.AST, parent: ast.AST) -> Iterator[Site]:
        """The places in an expression."""
        if isinstance(self._statement, ast.Raise) and _is_text(node):
            return  # what an exception says
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BoolOp():
                becomes: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield self._set("and/or", node, node, "op", becomes)
            case ast.UnaryOp(op=ast.Not()):
                yield self._replace("not removed", node, parent, node.operand)
            case ast.UnaryOp(op=ast.USub()):
                yield self._replace("arithmetic", node, parent, node.operand)
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_of_text(node):
                yield self.operator(node)
            case ast.Constant() if type(node.value) in {int, float}:
                yield self._set("number", node, node, "value", node.value + 1)  # type: ignore[operator]
            case ast.IfExp():
                yield from self.condition(node)
            case ast.Call(func=ast.Name(id=name)) if name in EXCHANGED:
                yield self._set("min/max", node.func, node.func, "id", EXCHANGED[name])
            case ast.comprehension():
                for test in node.ifs:
                    if not _is_opposite(test):
                        yield self._replace("condition", test, node, _not(test))
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.comprehension | ast.keyword):
                yield from self.of(child, node)

    def _comparisons(self, node: ast.Compare) -> Iterator[Site]:
        for number, operator in enumerate(node.ops):
            ops = [*node.ops]
            ops[number] = COMPARISONS[type(operator)]()
            yield self._set("comparison", node, node, "ops", ops)

    def operator(self, node: ast.BinOp | ast.AugAssign) -> Site:
        return self._set("arithmetic", node, node, "op", ARITHMETIC[type(node.op)]())

    def condition(self, node: ast.If | ast.While | ast.IfExp) -> Iterator[Site]:
        if not _is_opposite(node.test):
            yield self._set("condition", node.test, node, "test", _not(node.test))

    def returned(self, node: ast.Return) -> Iterator[Site]:
        value = node.value
        is_no = isinstance(value, ast.Constant) and value.value is False
        if not (isinstance(value, ast.Constant) and value.value is None):
            # None is as good as False.
            yield self._set("return", node, node, "value", ast.Constant(True if is_no else None))

    def statement(self, body: Sequence[ast.stmt], number: int) -> Site:
        assert isinstance(body, list)
        node = body[number]

        def apply() -> None:
            body[number] = ast.copy_location(ast.Pass(), node)

        return self._site("call removed", node, apply, _shown(node), "pass")

    def _set(self, kind: str, shown: ast.AST, node: ast.AST, field: str, value: object) -> Site:
        old = getattr(node, field)
        was = _shown(shown)
        setattr(node, field, value)
        becomes = _shown(value if field == "test" and isinstance(value, ast.AST) else shown)
        setattr(node, field, old)
        return self._site(kind, shown, lambda: setattr(node, field, value), was, becomes)

    def _replace(self, kind: str, node: ast.AST, parent: ast.AST, by: ast.expr) -> Site:
        def apply() -> None:
            for name, value in ast.iter_fields(parent):
                if value is node:
                    setattr(parent, name, by)
                elif isinstance(value, list) and any(part is node for part in value):
                    setattr(parent, name, [by if part is node else part for part in value])

        return self._site(kind, node, apply, _shown(node), _shown(by))

    def _site(
        self, kind: str, node: ast.AST, apply: Callable[[], None], was: str, becomes: str
    ) -> Site:
        first: int = node.lineno  # type: ignore[attr-defined]
        last: int = node.end_lineno  # type: ignore[attr-defined]
        if first < self._statement.lineno:  # inside an f-string, whose lines are not known
            first = last = self._statement.lineno
        return Site(kind, self._function, (first, last), self._is_import, was, becomes, apply)


# -- asking


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else text[:79] + "…"


def _not(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _is_opposite(test: ast.expr) -> bool:
    """Whether the negation of a condition is another mutant anyway."""
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return is_not or (
        isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
    )


def _awaited(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Await) else node


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_log_call(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _name_of(node.func.value) in LOGGERS
    )


def _is_text(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.JoinedStr)


def _is_of_text(node: ast.BinOp) -> bool:
    return any(
        _is_text(side) or (isinstance(side, ast.BinOp) and _is_of_text(side))
        for side in (node.left, node.right)
    )


def _is_protocol(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has no body but its text."""
    return all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in function.body)
