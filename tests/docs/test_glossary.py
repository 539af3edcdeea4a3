"""docs/glossary.md: one word for each idea, in every public name."""

from __future__ import annotations

from functools import cache

import pytest

from tests.docs.markdown import DOCS, ROOT, codes, table_with, tables
from tests.docs.names import PublicName, public_names, words

PAGE = DOCS / "glossary.md"

#: One process of a run finds the names for all of these tests.
pytestmark = pytest.mark.xdist_group("glossary")


@cache
def entries() -> list[dict[str, str]]:
    """The rows of all tables of words."""
    return [row for rows in tables(PAGE) if rows and "not" in rows[0] for row in rows]


@cache
def banned() -> dict[tuple[str, ...], str]:
    """The words that are not used, each with the word that is."""
    return {tuple(words(code)): row["word"] for row in entries() for code in codes(row["not"])}


@cache
def exceptions() -> set[str]:
    rows = table_with(PAGE, "name", "why it stays")
    assert all(row["why it stays"] for row in rows)
    return {name for row in rows for name in codes(row["name"])}


def contains(name: list[str], part: tuple[str, ...]) -> bool:
    return any(tuple(name[at : at + len(part)]) == part for at in range(len(name)))


@cache
def names() -> list[PublicName]:
    """All public names; they take seconds to find, so not when tests are only collected."""
    return public_names()


def broken(name: PublicName) -> str | None:
    if name.name in exceptions():
        return None
    for part, word in banned().items():
        if contains(words(name.name), part):
            return f"{name.name} ({name.where}): '{' '.join(part)}' is called '{word}'"
    return None


def test_no_public_name_contains_another_word_for_an_idea() -> None:
    assert [text for name in names() if (text := broken(name))] == []


def test_names_are_found_in_every_face() -> None:
    found = {name.name for name in names()}

    assert {"CommandBus", "send", "command_type", "IN_TROUBLESHOOTING_QUEUE"} <= found
    assert {"tsq", "--dry-run", "/api/v1/commands", "receive_commands"} <= found
    assert len(names()) > 1000


def test_every_exception_is_a_name_that_needs_it() -> None:
    found = {name.name for name in names()}

    assert exceptions() <= found
    for name in exceptions():
        assert any(contains(words(name), part) for part in banned()), name


def test_the_glossary_lists_each_word_once_with_a_folder_that_exists() -> None:
    listed = [row["word"] for row in entries()]

    assert len(listed) == len(set(listed))
    for row in entries():
        for folder in codes(row["folder"]):
            base = ROOT if folder.startswith("/") else ROOT / "src" / "commandbus"
            assert (base / folder.strip("/")).exists(), row["word"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("queue_held", ["queue", "held"]),
        ("HeldEnvelope", ["held", "envelope"]),
        ("HTTPTask", ["http", "task"]),
        ("--job-id", ["job", "id"]),
        ("/api/v1/tasks/{task_id}", ["api", "v1", "tasks", "task", "id"]),
        ("threshold", ["threshold"]),
    ],
)
def test_words_are_found_however_they_are_joined(name: str, expected: list[str]) -> None:
    assert words(name) == expected
