"""The rooms of the site, its settings, and the short text for language models."""

from __future__ import annotations

import re
from pathlib import Path

from docsite.links import ROOT

#: The pages of each room, in order. What stands in docs/ and not here is an error.
ROOMS: dict[str, list[str]] = {
    "Tutorial": ["tutorial.md"],
    "How-to": [],  # all guides that are not below, in the groups of guides/README.md
    "Reference": [
        "guides/python.md", "guides/settings.md", "guides/errors.md", "guides/cli.md",
        "reference/cli.md", "guides/http.md", "guides/http-governed.md", "reference/http.md",
        "sql-api.md",
    ],
    "Explanation": [
        "guarantees.md", "lifecycle.md", "architecture.md", "performance.md", "scaling.md",
        "glossary.md", "adr/index.md",
    ],
    "Operating": ["runbook.md"],
    "Project": ["guides/releasing.md"],  # and all of project/ and examples/
}  # fmt: skip

#: The groups of a room whose pages are too many for one list, but for How-to.
GROUPS = {
    "reference/python/": "Python, from the code",
    "adr/": "Decisions",
    "examples/": "Examples",
}

STYLE = """\
/* Tables and code of this site are wide. */
.md-grid { max-width: 72rem; }
/* The name that a row is about is not cut in two. */
.md-typeset td:first-child code { white-space: nowrap; }
/* On a phone tables scroll: texts keep a width to be read at. */
@media (max-width: 600px) {
  .md-typeset td code { word-break: normal; overflow-wrap: normal; }
  .md-typeset td:last-child { min-width: 10rem; }
}
"""

SETTINGS = """\
site_name: commandbus
site_description: A durable command bus on PostgreSQL and PGMQ, in Python
docs_dir: pages
site_dir: site
use_directory_urls: true
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.sections, navigation.top, navigation.footer,
             search.highlight, toc.follow, content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      toggle: {icon: material/weather-night, name: Dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      toggle: {icon: material/weather-sunny, name: Light}
extra_css: [site.css]
plugins:
  - search
  - mkdocstrings:
      default_handler: python
      handlers:
        python:
          paths: [SOURCES]
          options:
            show_source: false
            show_if_no_docstring: true
            merge_init_into_class: true
            show_root_heading: true
            show_root_full_path: false
            members_order: source
            separate_signature: true
            line_length: 88
            show_labels: false
            overloads_only: true
            show_signature_annotations: true
            filters: ["!^_"]
markdown_extensions:
  - admonition
  - attr_list
  - tables
  - toc: {permalink: true}
  - pymdownx.highlight
  - pymdownx.superfences
"""


def title(text: str, place: str) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.M)
    return found[1].replace("`", "") if found else Path(place).stem


def rooms(pages: dict[str, str]) -> dict[str, list[str]]:
    """Each page in its room."""
    placed = {page for room in ROOMS.values() for page in room}
    missing = sorted(page for page in placed if page not in pages)
    if missing:
        raise SystemExit(f"the navigation names pages that are not there: {missing}")
    found = {name: list(room) for name, room in ROOMS.items()}
    grouped = [page for group in guides(pages).values() for page in group]
    found["How-to"] = ["guides/index.md", *(page for page in grouped if page not in placed)]
    for page in sorted(pages, key=lambda page: page.replace("/index.md", "/")):
        if page in placed or page == "index.md" or page in found["How-to"]:
            continue
        if page.startswith("guides/"):
            raise SystemExit(f"docs/{page} is in no group of docs/guides/README.md")
        if page.startswith("reference/python/"):
            found["Reference"].append(page)
        elif page.startswith(("project/", "examples/")):
            found["Project"].append(page)
        elif page.startswith("adr/"):
            found["Explanation"].append(page)
        else:
            raise SystemExit(f"docs/{page} has no room: give it one in docsite/site.py")
    return found


def guides(pages: dict[str, str]) -> dict[str, list[str]]:
    """The groups of guides, as the list of guides has them."""
    found: dict[str, list[str]] = {}
    for part in pages["guides/index.md"].split("\n## ")[1:]:
        names = re.findall(r"^\| \[[^\]]*\]\(([\w-]+\.md)\)", part, re.M)
        found[part.partition("\n")[0]] = [f"guides/{name}" for name in dict.fromkeys(names)]
    return found


def settings(pages: dict[str, str]) -> str:
    """mkdocs.yml, which the generator of the site reads."""
    lines = [SETTINGS.replace("SOURCES", str(ROOT / "src")), "nav:", '  - "commandbus": index.md']
    of_guides = {page: name for name, group in guides(pages).items() for page in group}
    for room, names in rooms(pages).items():
        lines.append(f'  - "{room}":')
        last = None
        for name in names:
            group = of_guides.get(name) if room == "How-to" else _group(name)
            if group is not None and group != last:
                lines.append(f'      - "{group}":')
            last = group
            indent = " " * (6 if group is None else 10)
            lines.append(f'{indent}- "{title(pages[name], name)}": {name}')
    return "\n".join(lines) + "\n"


def _group(name: str) -> str | None:
    found = (group for start, group in GROUPS.items() if name.startswith(start))
    return next(found, None) if name != "adr/index.md" else None


def for_models(pages: dict[str, str]) -> str:
    """llms.txt: what the project is, and every page with its first sentence."""
    lines = [
        "# commandbus", "",
        "> A durable command bus for Python on PostgreSQL and PGMQ: commands that are sent in your"
        " own transaction, retried, answered, audited, scheduled, ordered and limited; batches; a"
        " troubleshooting queue.", "",
    ]  # fmt: skip
    for room, names in rooms(pages).items():
        lines += [f"## {room}", ""]
        for name in names:
            address = re.sub(r"(^|/)index\.md$", r"\1", name).removesuffix(".md")
            words = f"[{title(pages[name], name)}]({address.rstrip('/')}/)"
            lines.append(f"- {words}: {_first_sentence(pages[name])}")
        lines.append("")
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        if plain and plain[0] not in "#|`:<>-!*":
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0][:200]
    return ""
