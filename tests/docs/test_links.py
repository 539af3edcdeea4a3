"""Links between documents lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, anchors, documents, links


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_resolves(path: Path) -> None:
    # The template links to records that its copy will have.
    targets = [] if path.name == "0000-template.md" else links(path)
    for target in targets:
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(found), target


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        for target in links(path):
            name = target.partition("#")[0]
            if name and "://" not in target and (path.parent / name).exists():
                todo.append((path.parent / name).resolve())

    assert set(documents()) - reached == set()


def test_every_decision_is_in_the_index_and_has_its_four_parts() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    records = [p for p in sorted((DOCS / "adr").glob("0*.md")) if p.name != "0000-template.md"]

    # Each number once. It is given when a decision is made, so a later one may be here earlier.
    numbers = [path.name[:4] for path in records]
    assert len(set(numbers)) == len(numbers)
    for path in records:
        text = path.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix(f"# {path.name[:4]}. ")
        assert f"[{path.name[:4]}]({path.name}) | {title} |" in index, path.name
        for part in ("Context", "Decision", "Consequences", "Alternatives"):
            assert f"\n## {part}\n" in text, f"{path.name} has no {part}"
