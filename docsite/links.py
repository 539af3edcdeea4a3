"""Where each document of the repository stands on the site, and its links."""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

#: Documents outside docs/, and where the site has them.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/MEASUREMENTS.md": "project/measurements.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/RESULTS.md": "project/results.md",
    "deploy/README.md": "project/deploy.md",
    "faults/RESULTS.md": "project/faults.md",
    "tests/mutants/RESULTS.md": "project/mutants.md",
}
#: Those whose links are meant for a copy of them.
LEFT_OUT = {"docs/adr/0000-template.md"}

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.M | re.S)
_MERMAID = re.compile(r"^```mermaid\n.*?^```\n", re.M | re.S)


def places() -> dict[str, str]:
    """The place on the site of each document, by its path in the repository."""
    found = {name: place for name, place in PLACES.items() if (ROOT / name).is_file()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        if name not in LEFT_OUT:
            place = PurePosixPath(name).relative_to("docs").as_posix()
            found[name] = re.sub(r"(^|/)README\.md$", r"\1index.md", place)
    for path in sorted((ROOT / "examples").rglob("README.md")):
        name = path.relative_to(ROOT).as_posix()
        found[name] = re.sub(r"(^|/)README\.md$", r"\1index.md", name)
    return found


def on_the_site(name: str, text: str, known: dict[str, str]) -> str:
    """A document with its links as the site needs them.

    A link to a file that the site does not have, such as a source, becomes its text. Diagrams that
    only a program of another host could draw are left out: their page says the same in words.
    """
    here = PurePosixPath(known[name]).parent.as_posix()
    folder = PurePosixPath(name).parent.as_posix()

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        source = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118  (no file is meant)
        if mark and source.startswith("docs/") and (ROOT / source).is_file():
            place = os.path.relpath(source.removeprefix("docs/"), here)
            return f"![{words}]({place})"
        for candidate in (source, f"{source}/README.md"):
            if candidate in known:
                place = os.path.relpath(known[candidate], here)
                return f"{mark}[{words}]({place}{'#' + anchor if anchor else ''})"
        return words

    # What stands at odd places is code.
    parts = _CODE.split(_MERMAID.sub("", text))
    return "".join(part if n % 2 else _LINK.sub(link, part) for n, part in enumerate(parts))
