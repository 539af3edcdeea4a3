"""`make test-versions`: the integrations with the versions of frameworks that users have.

Each set is an environment of its own: the locked versions of everything, but for the packages that
the set names. With --full the numbers are those of the proofs: 200 kills, 10,000 commands.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from release.ranges import OLDEST, found_pythons
from release.tools import (
    ROOT,
    CheckError,
    clean_environment,
    run,
    site_packages,
    table,
    tool,
    write_constraints,
)

DJANGO = ("tests/django",)
SQLALCHEMY = (
    "tests/integration/test_providers.py", "tests/integration/test_send.py",
    "tests/integration/test_unusual_servers.py", "tests/blocking/test_direct.py",
)  # fmt: skip
TELEMETRY = (
    "tests/unit/test_tracing.py", "tests/unit/test_tracing_sampled.py",
    "tests/unit/test_sentry.py", "tests/unit/test_sentry_scopes.py",
    "tests/unit/test_sentry_traces.py",
    "tests/integration/test_driver_spans.py", "tests/security/test_marked_exits.py",
)  # fmt: skip
FASTAPI = (
    "tests/integration/test_fastapi_kit.py", "tests/integration/test_http_routes.py",
    "tests/integration/test_http_governed_waiting.py",
)  # fmt: skip
#: More than any of them takes, on a machine that does other things too.
MAX_SECONDS = 3_600


@dataclass(frozen=True)
class Versions:
    """Some packages in versions of their own, and what is tested with them."""

    name: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    #: Whether they need a newer Python than the oldest that we support.
    is_new: bool = False


SETS = (
    Versions("django-5.2", ("django~=5.2.0", "django-tasks", "playwright"), DJANGO),
    Versions("django-6.0", ("django~=6.0.0", "playwright"), DJANGO, is_new=True),
    Versions("django-6.1", ("django~=6.1.0", "playwright"), DJANGO, is_new=True),
    # The oldest that SQLModel works with.
    Versions("sqlalchemy-2.0", ("sqlalchemy[asyncio]==2.0.14", "sqlmodel==0.0.22"), SQLALCHEMY),
    Versions("sqlalchemy-2.0-last", ("sqlalchemy[asyncio]==2.0.*", "sqlmodel"), SQLALCHEMY),
    Versions("sqlalchemy-newest", ("sqlalchemy[asyncio]", "sqlmodel"), SQLALCHEMY, is_new=True),
    Versions(
        "telemetry-lowest",
        ("opentelemetry-api==1.27.0", "opentelemetry-sdk==1.27.0",
         "opentelemetry-instrumentation-psycopg==0.48b0", "opentelemetry-semantic-conventions",
         "opentelemetry-instrumentation", "opentelemetry-instrumentation-dbapi", "setuptools<81",
         "wrapt",  # below the locked one
         # Newer ones ask for a newer API.
         "fastapi==0.128.0", "starlette",
         "sentry-sdk==2.20.0"),
        TELEMETRY,
    ),
    Versions(
        "telemetry-newest",
        ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-instrumentation-psycopg",
         "opentelemetry-semantic-conventions", "opentelemetry-instrumentation",
         "opentelemetry-instrumentation-dbapi", "sentry-sdk>=2,<3"),
        TELEMETRY,
        is_new=True,
    ),
    # No extras of ours: the programs in their guides.
    Versions("flask-litestar", ("flask", "litestar"), ("tests/docs/test_framework_guides.py",)),
    Versions("fastapi-lowest", ("fastapi==0.128.0", "starlette", "uvicorn==0.35.0"), FASTAPI),
    Versions("fastapi-newest", ("fastapi", "starlette", "uvicorn"), FASTAPI, is_new=True),
)  # fmt: skip


def name_of(requirement: str) -> str:
    """The package that a requirement is about."""
    found = re.match(r"[\w.\-]+", requirement)
    assert found is not None
    return found[0].lower()


def install(chosen: Versions, folder: Path) -> Path:
    """An environment with these versions, the locked ones of all else, and this checkout."""
    pythons = found_pythons()
    python = max(pythons) if chosen.is_new else OLDEST
    if python not in pythons:
        raise CheckError(f"no Python {python[0]}.{python[1]} here")
    home = folder / chosen.name
    others = {name_of(each) for each in chosen.packages}
    constraints = write_constraints(folder / f"{chosen.name}.txt")
    kept = [each for each in constraints.read_text().splitlines() if name_of(each) not in others]
    constraints.write_text("\n".join(kept) + "\n")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    tools = [each for each in declared if name_of(each) not in others]
    tool("uv", "venv", "--quiet", "--clear", "--python", pythons[python], home)
    python_there = home / "bin" / "python"
    tool(
        "uv", "pip", "install", "--quiet", "--python", python_there, "--prerelease", "if-necessary",
        "-c", constraints, *chosen.packages, *tools, f"{ROOT}[all]",
    )  # fmt: skip
    tool(
        "uv", "pip", "install", "--quiet", "--python", python_there,
        "--no-deps", "--no-build-isolation", "-e", ROOT,
    )  # fmt: skip
    (home / ".installed").touch()  # last: an install that was cut short is done again
    return home


def versions_in(home: Path, names: set[str]) -> str:
    """What was installed of these."""
    said = tool("uv", "pip", "freeze", "--python", home / "bin" / "python")
    found = [line for line in said.splitlines() if name_of(line) in names]
    return ", ".join(each.replace("==", " ") for each in found)


def test(home: Path, chosen: Versions, *, is_full: bool, more: list[str]) -> str:
    """Run the tests there; returns what pytest says last."""
    environment = clean_environment(
        **{key: value for key, value in os.environ.items() if key.startswith("COMMANDBUS_TEST")}
    )
    if is_full:
        environment |= {"DJANGO_KILLS": "200", "DJANGO_COMMANDS": "10000"}
    tests = [each for each in chosen.tests if (ROOT / each).exists()]
    selected = [] if is_full else ["-m", "not long"]
    said = run(
        home / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-cov",
        "-n", "2", "--dist=loadgroup", "-rs", *selected, *more, *tests,
        env=environment, timeout=MAX_SECONDS,
    )  # fmt: skip
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    print("\n".join(skipped), file=sys.stderr)
    return said.strip().splitlines()[-1].strip("= ")


def main() -> int:
    """Try the sets; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.versions", description=__doc__)
    parser.add_argument("--only", default="", help=", ".join(each.name for each in SETS))
    parser.add_argument("--full", action="store_true", help="the long tests too, as often as asked")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("more", nargs="*", help="more arguments for pytest, after --")
    given = parser.parse_args()
    wanted = [each for each in given.only.split(",") if each]
    if unknown := set(wanted) - {each.name for each in SETS}:
        parser.error(f"no set {', '.join(sorted(unknown))}")
    folder = ROOT / "build" / "versions"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [("SET", "PYTHON", "VERSIONS", "TESTS")]
    is_good = True
    for each in SETS:
        if wanted and each.name not in wanted:
            continue
        print(f"{each.name}: installing, testing …", file=sys.stderr, flush=True)
        version = found = "-"
        try:
            home = folder / each.name
            if not (given.keep and (home / ".installed").exists()):
                home = install(each, folder)
            version = run(home / "bin" / "python", "--version").split()[1]
            found = versions_in(home, {name_of(one) for one in each.packages})
            said = test(home, each, is_full=given.full, more=given.more)
            if not given.keep:
                shutil.rmtree(site_packages(home).parents[2])
        except CheckError as failed:
            is_good, said = False, "FAILED"
            print(failed, file=sys.stderr)
        rows.append((each.name, version, found, said))
    print(table(rows))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
