"""The mutants of the Python core: all kinds are found, and nothing that need not be."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.mutants.forks import ROOT
from tests.mutants.python_sites import FILES, SOURCE, STRICT, PythonMutant, all_mutants, sites
from tests.mutants.results import equivalents


def found(source: str) -> set[tuple[str, str, str]]:
    return {(site.kind, site.was, site.becomes) for site in sites(ast.parse(source))}


def all_of_them(test: Callable[..., None]) -> Callable[..., None]:
    """A test that needs every mutant: they take a minute to make, so one process makes them."""
    return pytest.mark.long(pytest.mark.xdist_group("python-mutants")(test))


@pytest.fixture(scope="module")
def mutants() -> list[PythonMutant]:
    return all_mutants()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ("comparison", "a < b", "a <= b")),
        ("1 < a >= b", ("comparison", "1 < a >= b", "1 < a > b")),
        ("a is None", ("comparison", "a is None", "a is not None")),
        ("a not in b", ("comparison", "a not in b", "a in b")),
        ("a and b", ("and/or", "a and b", "a or b")),
        ("x = not a", ("not removed", "not a", "a")),
        ("if a: pass", ("condition", "a", "not a")),
        ("while a < b: pass", ("condition", "a < b", "not a < b")),
        ("x = 1 if a else 2", ("condition", "a", "not a")),
        ("x = [a for a in b if a]", ("condition", "a", "not a")),
        ("a + b", ("arithmetic", "a + b", "a - b")),
        ("a += b", ("arithmetic", "a += b", "a -= b")),
        ("x = -a", ("arithmetic", "-a", "a")),
        ("x = 0.5", ("number", "0.5", "1.5")),
        ("def f(a=3): return a", ("number", "3", "4")),
        ("def f(): return 'x'", ("return", "return 'x'", "return None")),
        ("def f(): return False", ("return", "return False", "return True")),
        ("async def f(): await g(1)", ("call removed", "await g(1)", "pass")),
        ("x = min(a, b)", ("min/max", "min", "max")),
        ("with a(1): pass", ("number", "1", "2")),
        ("try: pass\nexcept E: f()", ("call removed", "f()", "pass")),
        ("match a:\n case 1 if b < c: f()", ("comparison", "b < c", "b <= c")),
        ("class A:\n def f(self):\n  x = f'{a + b}'", ("arithmetic", "a + b", "a - b")),
    ],
)
def test_each_kind_is_found(source: str, expected: tuple[str, str, str]) -> None:
    assert expected in found(source)


@pytest.mark.parametrize(
    "source",
    [
        "x: Literal[1]",
        "def f(a: Literal[1]) -> Literal[2]: pass",
        '"""A text."""',
        "_log.warning('%d', a + 1)",
        "raise E(f'{a + 1} is too much')",
        "def __repr__(self): return 'x' + str(1)",
        "if TYPE_CHECKING: f()",
        "x = 'a' + b",
        "def f(): return None",
        "x = True",
    ],
)
def test_what_says_nothing_is_left_alone(source: str) -> None:
    assert found(source) == set()


def test_a_condition_that_is_flipped_anyway_is_not_negated_too() -> None:
    assert {kind for kind, _, _ in found("if a == b: pass")} == {"comparison"}
    assert {kind for kind, _, _ in found("if not a: pass")} == {"not removed"}


@all_of_them
def test_every_mutant_compiles_and_differs_from_the_source(mutants: list[PythonMutant]) -> None:
    for mutant in mutants[::20]:
        path = SOURCE / f"{mutant.file}.py"
        source = path.read_text(encoding="utf-8")
        assert mutant.compile() != compile(source, str(path), "exec"), mutant.place
        assert mutant.source in source


@all_of_them
def test_every_mutant_has_a_name_of_its_own(mutants: list[PythonMutant]) -> None:
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    assert set(STRICT) <= set(FILES) == {mutant.file for mutant in mutants}


@all_of_them
def test_the_expiry_of_a_lease_is_among_them(mutants: list[PythonMutant]) -> None:
    changes = {(m.file, m.function, m.was, m.becomes) for m in mutants}
    is_over = "now >= entry.give_up_at"
    assert (
        "worker/lease", "LeaseKeeper._extend_due", is_over, "now > entry.give_up_at"
    ) in changes  # fmt: skip


@all_of_them
def test_every_reason_belongs_to_a_mutant_that_is_there(mutants: list[PythonMutant]) -> None:
    assert set(equivalents("python")) <= {mutant.key for mutant in mutants}


def test_the_laboratory_begins_without_the_package() -> None:
    for name in ("forks", "python_lines", "python_run", "python_sites", "results"):
        tree = ast.parse((ROOT / "tests" / "mutants" / f"{name}.py").read_text(encoding="utf-8"))
        imported = {
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        } | {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
        assert not any(module.startswith("commandbus") for module in imported), name
