"""Reading our own documents: code blocks, tables, diagrams, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GUIDES = DOCS / "guides"

#: The comment that stands right above a code block which the tests execute.
RUN_MARK = "<!-- run -->"


@dataclass(frozen=True)
class Block:
    """One fenced code block."""

    path: Path
    line: int
    language: str
    text: str
    is_run: bool

    @property
    def name(self) -> str:
        """Where it stands, for the name of a test."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """Every document of the project."""
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found += [*(ROOT / "benchmarks").glob("*.md"), *(ROOT / "faults").glob("*.md")]
    found += (ROOT / "tests" / "mutants").glob("*.md")
    return sorted(found)


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """The code blocks of a document, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    opened: tuple[int, str, bool] | None = None
    body: list[str] = []
    last_text = ""
    for number, line in enumerate(lines, 1):
        fence = re.match(r"^\s*```(\w*)\s*$", line)
        if fence and opened is None:
            opened, body = (number + 1, fence[1], last_text == RUN_MARK), []
        elif fence and opened is not None:
            found.append(Block(path, opened[0], opened[1], "\n".join(body) + "\n", opened[2]))
            opened, last_text = None, ""
        elif opened is not None:
            body.append(line)
        elif line.strip():
            last_text = line.strip()
    assert opened is None, f"{path}: a code block is never closed"
    return [block for block in found if language in {None, block.language}]


def tables(path: Path) -> list[list[dict[str, str]]]:
    """The tables of a document: for each the rows, by the heading of the column."""
    found: list[list[dict[str, str]]] = []
    heading: list[str] | None = None
    is_code = False
    for line in path.read_text(encoding="utf-8").splitlines():
        is_code ^= line.lstrip().startswith("```")
        if is_code or not line.startswith("|"):
            heading = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if heading is None:
            heading = cells
            found.append([])
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            assert len(cells) == len(heading), f"{path}: a row has {len(cells)} cells: {line}"
            found[-1].append(dict(zip(heading, cells, strict=True)))
    return found


def table_with(path: Path, *headings: str) -> list[dict[str, str]]:
    """The one table of a document that has these columns."""
    fitting = [rows for rows in tables(path) if rows and set(headings) <= set(rows[0])]
    assert len(fitting) == 1, f"{path.name}: {len(fitting)} tables with the columns {headings}"
    return fitting[0]


def codes(cell: str) -> list[str]:
    """What stands in `backticks`."""
    return re.findall(r"`([^`]+)`", cell)


def diagram_arrows(block: Block) -> set[tuple[str, str]]:
    """The arrows of a mermaid state diagram; `[*]` is the start and the end."""
    return set(re.findall(r"^\s*(\S+) --> ([^\s:]+)", block.text, re.M))


def state_diagram(path: Path) -> Block:
    """The one state diagram of a document."""
    (found,) = [b for b in blocks(path, "mermaid") if b.text.startswith("stateDiagram")]
    return found


def anchors(path: Path) -> set[str]:
    """The anchors that a heading gets on the usual sites."""
    found: set[str] = set()
    is_code = False
    for line in path.read_text(encoding="utf-8").splitlines():
        is_code ^= line.lstrip().startswith("```")
        heading = re.match(r"^#+ (.*)$", line)
        if heading and not is_code:
            text = re.sub(r"[^\w\- ]", "", heading[1].lower())
            found.add(text.strip().replace(" ", "-"))
    return found


def links(path: Path) -> list[str]:
    """The targets of all links, code blocks left out."""
    text = re.sub(r"^\s*```.*?^\s*```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`", "", text)
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
