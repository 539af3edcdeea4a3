"""No reference that a reader of the repository cannot open, in documents and in the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.markdown import DOCS, ROOT, documents, table_with

#: Notes, requirements and decisions outside the repository: give the reason, or an ADR.
CLOSED = {
    "a document by its number": r"\b[Dd]ocuments? 00\d\b|\b00[0-4]'s\b|\bof 00[0-4]\b",
    "a section of a document": r"(?<!RFC \d\d\d\d )§",
    "a decision or a requirement by its number": r"\b[CR]\d{1,3}\b(?!/)",
    "a lesson by its number": r"\blessons? \d+",
    "an issue by its number": r"\bissues? #?\d+|(?<![\w&#;])#\d+\b",
    "a note outside the repository": r"\bshared/(?:design|spec)\b|\bdesign note\b",
}
#: Fault runs, invariants and promises are numbered in docs/guarantees.md.
NUMBERED = re.compile(r"\b[FIP]\d{1,2}b?\b")
GUARANTEES = DOCS / "guarantees.md"
#: Words that make a sentence hard to read for people whose first language is another one.
UNPLAIN = re.compile(r"\b(?:who(?:m)?ever|so many|mend(?:s|ed|ing)?)\b", re.I)

SOURCES = sorted(
    path
    for folder in ("src", "faults", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".sql", ".toml"} and ".venv" not in str(path)
)
FILES = sorted({*documents(), *SOURCES})


def defined() -> set[str]:
    """The numbers that docs/guarantees.md explains."""
    found = {
        name
        for row in table_with(GUARANTEES, "run", "what is done")
        for name in NUMBERED.findall(row["run"])
    }
    text = GUARANTEES.read_text(encoding="utf-8")
    return found | set(re.findall(r"^\| ([IP]\d+) \|", text, re.M))


def lines() -> Iterator[tuple[str, str]]:
    """Every line of every file, with its place."""
    for path in FILES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line.strip()


def test_every_reference_can_be_followed() -> None:
    found = [
        f"{place}: '{match[0]}' is {what}: {line}"
        for place, line in lines()
        for what, pattern in CLOSED.items()
        for match in re.finditer(pattern, line)
    ]
    assert found == [], "\n".join(found)


def test_every_fault_run_and_invariant_is_one_of_the_guarantees() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        named = set(NUMBERED.findall(text)) - {"P50", "P95", "P99"}
        assert named <= defined(), path
        if named and path != GUARANTEES and path.suffix == ".md":
            assert "guarantees.md" in text, f"{path}: link the page that explains {sorted(named)}"


def test_the_text_is_plain() -> None:
    # The glossary names the words that are not used.
    found = [f"{place}: {line}" for place, line in lines() if UNPLAIN.search(line)]
    found = [text for text in found if not text.startswith("docs/glossary.md")]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "as document 002 says",
        "see 004 §8",
        "003's statuses",
        "(C40)",
        "R113:",
        "lesson 11",
        "issue 15",
    ],
)
def test_references_that_cannot_be_opened_are_seen(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in CLOSED.values())
