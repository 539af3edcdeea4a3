"""What the documents name exists: methods of the bus, workloads, fault runs, make targets."""

from __future__ import annotations

import re

from benchmarks.catalogue import WORKLOADS
from commandbus.testing import fake_bus
from faults import catalogue
from tests.docs.markdown import DOCS, ROOT, codes, documents, table_with
from tests.docs.names import facet


def text_of_all() -> str:
    """All documents in one, without line ends."""
    return " ".join(" ".join(p.read_text(encoding="utf-8").split()) for p in documents())


def test_every_workload_that_a_document_names_is_one() -> None:
    names = {workload.key for workload in WORKLOADS}
    named = re.findall(r"-m benchmarks(?: --\w+ \S+)* --only ([\w,-]+)", text_of_all())

    assert named
    for name in ",".join(named).split(","):
        assert name in names or any(known.startswith(f"{name}-") for known in names), name


def test_every_fault_run_that_a_document_names_is_one() -> None:
    named = re.findall(r"-m faults(?: --\w+ \S+)* --only ([\w,]+)", text_of_all())

    assert named
    assert set(",".join(named).split(",")) <= {run.id for run in catalogue("long")}


def test_every_make_target_is_listed_for_contributors() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.M))
    rows = table_with(ROOT / "CONTRIBUTING.md", "command", "what it does")
    listed = {codes(row["command"])[0].removeprefix("make").strip() for row in rows}

    assert listed == targets - {"help"} | {""}


def test_the_changelog_has_a_title_unreleased_changes_and_known_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.M)
    headings = set(re.findall(r"^### (.+)$", text, re.M))

    assert text.startswith("# Changelog\n")
    assert versions[0] == "Unreleased"
    assert all(re.match(r"\d+\.\d+\.\d+", version) for version in versions[1:])
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_method_of_the_bus_that_a_document_names_is_one() -> None:
    bus = fake_bus()
    for path in documents():
        if path.parent == DOCS / "adr" or path.name == "CHANGELOG.md":  # names of their day
            continue
        text = path.read_text(encoding="utf-8")
        for name, method in re.findall(r"\bbus\.([a-z]\w*)(?:\.([a-z]\w*))?", text):
            if name == "py":
                continue
            assert name in dir(type(bus)) or name in dir(bus), f"{path.name}: bus.{name}"
            kind = facet(bus, name)
            if method and kind is not None:
                assert hasattr(kind, method), f"{path.name}: bus.{name}.{method}"
