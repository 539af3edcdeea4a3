"""What the documentation site is made of: links, navigation, pages from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docsite import site
from docsite.__main__ import pages, write
from docsite.links import on_the_site, places


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return pages()


def test_links_lead_to_the_places_that_pages_have_on_the_site() -> None:
    known = {
        "README.md": "index.md",
        "docs/guides/a.md": "guides/a.md",
        "docs/adr/README.md": "adr/index.md",
    }
    text = (
        "[r](../../README.md#x), [two\nlines](../adr/README.md) [d](../adr)"
        " [code](../../src/x.py) [w](https://x.y)"
    )

    changed = on_the_site("docs/guides/a.md", text, known)

    assert changed == (
        "[r](../index.md#x), [two\nlines](../adr/index.md) [d](../adr/index.md) code [w](https://x.y)"
    )


def test_code_keeps_what_looks_like_a_link_and_diagrams_are_left_out() -> None:
    text = "```python\nx[a](b.md)\n```\n```mermaid\nstateDiagram\n```\nend\n"

    changed = on_the_site("README.md", text, {"README.md": "index.md"})

    assert changed == "```python\nx[a](b.md)\n```\nend\n"


def test_every_document_has_a_place_and_a_room(found: dict[str, str]) -> None:
    rooms = site.rooms(found)
    placed = [page for room in rooms.values() for page in room]

    assert set(placed) | {"index.md"} == set(found)
    assert len(placed) == len(set(placed))
    assert len(places()) == len(set(places().values()))


def test_guides_stand_in_the_groups_of_their_list_each_once(found: dict[str, str]) -> None:
    groups = site.guides(found)
    listed = [page for group in groups.values() for page in group]
    assert len(listed) == len(set(listed)), listed
    assert len(groups) > 4
    with pytest.raises(SystemExit, match=r"guides/new.md is in no group"):
        site.rooms({**found, "guides/new.md": "# New"})
    text = site.settings(found)
    assert f'      - "{next(iter(groups))}":\n          - "' in text


def test_a_document_without_a_room_is_an_error(found: dict[str, str]) -> None:
    with pytest.raises(SystemExit, match=r"new.md has no room"):
        site.rooms({**found, "new.md": "# New"})
    with pytest.raises(SystemExit, match=r"sql-api.md"):
        site.rooms({page: text for page, text in found.items() if page != "sql-api.md"})


def test_the_reference_has_every_command_endpoint_and_public_class(found: dict[str, str]) -> None:
    assert "## commandbus tsq retry" in found["reference/cli.md"]
    assert "`--until-empty`" in found["reference/cli.md"]
    assert "## POST /api/v1/commands" in found["reference/http.md"].replace("\\", "")
    top = found["reference/python/index.md"]
    (verbs,) = re.findall(r"::: commandbus.bus.CommandBus\n.*\n.*\n +members: (.*)\n", top)
    # Those that it inherits too, which are most.
    for verb in ("send", "send_many", "call", "run_worker", "include", "replies", "connect"):
        assert f"'{verb}'" in verbs
    assert top.index("::: commandbus.bus.CommandBus\n") < top.index("AuditEvent\n")
    assert "Values: `PENDING`, " in top
    assert "| `retry_policy` | " in top
    assert "::: commandbus.testing.draining.drain\n" in found["reference/python/testing.md"]
    assert len(re.findall(r"^## ", found["reference/http.md"], re.M)) > 60


def test_the_text_for_models_names_every_page_with_a_sentence(found: dict[str, str]) -> None:
    text = site.for_models(found)

    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(lines) == len(found) - 1
    assert "that survive a killed worker](tutorial/): In about fifteen minutes" in text
    assert not re.search(r"\]\([^)]*\.md", text)


def test_what_the_generator_needs_is_written(tmp_path: Path) -> None:
    count = write(tmp_path)

    assert len(list((tmp_path / "pages").rglob("*.md"))) == count
    assert (tmp_path / "pages" / "llms.txt").is_file()
    settings = (tmp_path / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings  # no request leaves the site
    assert '"Tutorial":' in settings
