"""Extras: each name in pyproject.toml is known, and a missing one is told with what to type."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from commandbus.errors import InvalidSettingError, MissingExtraError
from commandbus.extras import PACKAGES, extra

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
DECLARED: dict[str, list[str]] = PROJECT["optional-dependencies"]


def distribution_of(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_every_extra_is_known_and_all_is_all_of_them() -> None:
    (everything,) = DECLARED["all"]
    named = everything.removeprefix("commandbus[").removesuffix("]").split(",")

    assert set(DECLARED) - {"all"} == set(PACKAGES) == set(named)


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_what_an_extra_declares_is_what_its_imports_bring(name: str) -> None:
    by_import = packages_distributions()
    brought = {
        distribution_of(distribution)
        for each in PACKAGES[name]
        for distribution in by_import.get(each, ())
    }

    # An extra may stand on another one of ours.
    declared = {distribution_of(each) for each in DECLARED[name]} - {"commandbus"}
    assert declared <= brought
    assert bool(DECLARED[name]) == bool(PACKAGES[name])


def test_a_missing_extra_says_what_needs_it_and_what_to_type() -> None:
    with pytest.raises(MissingExtraError) as caught, extra("api", "the HTTP service"):
        raise ModuleNotFoundError("no", name="fastapi.routing")

    assert str(caught.value) == (
        'the HTTP service needs fastapi, which is not installed: pip install "commandbus[api]"'
    )
    assert caught.value.extra == "api"
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, InvalidSettingError)


@pytest.mark.parametrize("missing", ["my_own_module", None])
def test_another_missing_module_is_not_explained(missing: str | None) -> None:
    with pytest.raises(ModuleNotFoundError), extra("api", "the HTTP service"):
        raise ModuleNotFoundError("no", name=missing)


@pytest.mark.parametrize(
    ("package", "program", "named"),
    [
        ("fastapi", "import commandbus.http", "api"),
        ("jwt", "from commandbus.http.auth.json_web_tokens import _import_jwt as f; f()", "jwt"),
        ("opentelemetry", "import commandbus.middleware.opentelemetry", "otel"),
        ("sentry_sdk", "import commandbus.middleware.sentry", "sentry"),
    ],
)
def test_a_part_that_is_imported_without_its_extra_names_it(
    package: str, program: str, named: str
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\n{program}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f'pip install "commandbus[{named}]"' in done.stderr.splitlines()[-1]
