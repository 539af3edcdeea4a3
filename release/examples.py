"""`make typecheck-examples`: the applications in examples/, as their authors would check them.

mypy --strict and pyright, on the newest Python that is here: no error, and nothing is ignored.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from release.ranges import found_pythons
from release.tools import ROOT, CheckError, clean_environment, run, tool

CHECKERS = ("mypy", "pyright", "django-stubs", "asyncpg-stubs")
APPLICATIONS = ("django_app", "fastapi_app", "plain_script")
#: What Django's users give mypy: its models are made when it starts.
DJANGO = """[mypy]
strict = true
plugins = mypy_django_plugin.main
[mypy.plugins.django-stubs]
django_settings_module = project.settings
"""
IGNORES = re.compile(r"type:\s*ignore|pyright:\s*(?:ignore|basic)|mypy:")


def install() -> Path:
    """An environment with what the applications need, and the checkers."""
    pythons = found_pythons()
    home = ROOT / "build" / "typing"
    tool("uv", "venv", "--quiet", "--clear", "--python", pythons[max(pythons)], home)
    python = home / "bin" / "python"
    lock = ROOT / "requirements" / "integrations.lock"
    tool("uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "-r", lock)
    tool("uv", "pip", "install", "--quiet", "--python", python, *CHECKERS)
    tool(
        "uv", "pip", "install", "--quiet", "--python", python,
        "--no-deps", "--no-build-isolation", "-e", ROOT,
    )  # fmt: skip
    return home


def check(home: Path, name: str) -> str:
    """Both checkers on one application; what they say if it is wrong is the error."""
    folder, python = ROOT / "examples" / name, home / "bin" / "python"
    ignoring = [file for file in folder.rglob("*.py") if IGNORES.search(file.read_text())]
    if ignoring:
        raise CheckError(f"{ignoring[0]} ignores an error of a type checker")
    settings = home / f"{name}.ini"
    settings.write_text(DJANGO if name == "django_app" else "[mypy]\nstrict = true\n")
    environment = clean_environment(
        DATABASE_DSN="dbname=nowhere", PYTHONPATH=str(folder), PYRIGHT_PYTHON_IGNORE_WARNINGS="1"
    )
    mypy = run(
        python, "-m", "mypy", "--config-file", settings, "--cache-dir", home / f"cache-{name}", ".",
        cwd=folder, env=environment,
    )  # fmt: skip
    pyright = run(python, "-m", "pyright", "--pythonpath", python, ".", cwd=folder, env=environment)
    return f"mypy: {mypy.strip().splitlines()[-1]}; pyright: {pyright.strip().splitlines()[-1]}"


def main() -> int:
    """Check all; returns the exit code."""
    home = install()
    is_good = True
    for name in APPLICATIONS:
        try:
            print(f"{name}: {check(home, name)}", flush=True)
        except CheckError as failed:
            is_good = False
            print(f"{name}: FAILED\n{failed}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
