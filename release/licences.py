"""The licence of each package of an installation; one that nobody has allowed stops the release."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from release.installing import SEEDED
from release.tools import CheckError, Result, site_packages, table


def report(home: Path, target: Path) -> list[Result]:
    """Write the report; raise if a licence is not allowed."""
    rules = tomllib.loads(Path(__file__).with_name("licences.toml").read_text())
    found = {
        each.name: (each.version, licence_of(each, rules))
        for each in distributions(path=[str(site_packages(home))])
        if each.name not in SEEDED
    }
    rows = [(name, *found[name]) for name in sorted(found, key=str.lower)]
    file = target / "licences.txt"
    file.write_text(table([("PACKAGE", "VERSION", "LICENCE"), *rows]) + "\n")
    refused = [f"{name} {what!r}" for name, (_, what) in found.items() if not allowed(what, rules)]
    if refused:
        raise CheckError(f"not in release/licences.toml: {', '.join(sorted(refused))}")
    kinds = {what for _, what in found.values()}
    return [Result("licences", f"{len(found)} packages, {len(kinds)} kinds, all allowed")]


def licence_of(package: Distribution, rules: dict[str, dict[str, str]]) -> str:
    """As SPDX writes it, if the metadata or the rules know how; otherwise as the package does."""
    if package.name in rules["packages"]:
        return rules["packages"][package.name]
    meta = package.metadata
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in meta.get_all("Classifier") or ()
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    texts = [
        *(meta.get_all("License-Expression") or ()),
        *classifiers,
        *(meta.get_all("License") or ()),
    ]
    said = next((text.strip() for text in texts if text.strip()), "nothing")
    return rules["words"].get(said, said.splitlines()[0])


def allowed(expression: str, rules: dict[str, dict[str, str]]) -> bool:
    """Whether an expression can be satisfied: one side of an OR, all sides of an AND."""
    inner = expression.replace("(", " ").replace(")", " ")
    return any(
        all(part.strip() in rules["allowed"] for part in re.split(r"\s+AND\s+", side))
        for side in re.split(r"\s+OR\s+", inner)
    )
