"""docs/guides/python.md lists what is public: no name more, no name less."""

from __future__ import annotations

import commandbus
from commandbus import CommandBus
from tests.docs.markdown import GUIDES, codes, table_with
from tests.unit.test_public_surface import FACETS, PUBLIC, kind_of

PAGE = GUIDES / "python.md"


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def listed(column: str, *columns: str) -> set[str]:
    """All names of one column of the table that has these columns."""
    return {name for row in table_with(PAGE, *columns, column) for name in codes(row[column])}


def test_the_names_at_the_top_are_listed() -> None:
    assert listed("names", "for") == set(commandbus.__all__)


def test_the_methods_of_the_bus_are_listed() -> None:
    assert listed("methods of `CommandBus`", "for") == public(CommandBus) - set(FACETS)


def test_the_facets_and_their_verbs_are_listed() -> None:
    rows = table_with(PAGE, "facet", "class", "its verbs")
    assert {codes(row["facet"])[0] for row in rows} == {f"bus.{name}" for name in FACETS}
    for row in rows:
        kind = kind_of(codes(row["facet"])[0].removeprefix("bus."))
        assert codes(row["class"]) == [kind.__name__]
        assert set(codes(row["its verbs"])) == public(kind), kind


def test_the_names_of_the_folders_are_listed() -> None:
    rows = table_with(PAGE, "module", "names")
    found = {codes(row["module"])[0]: set(codes(row["names"])) for row in rows}
    # commandbus.errors has a page of its own.
    assert found == {module.__name__: set(module.__all__) for module in PUBLIC[2:]}
