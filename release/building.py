"""Wheel and sdist: the same bytes each time, with what belongs into them and nothing else."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from pathlib import Path

from release.tools import ROOT, CheckError, Result, clean_environment, run, tool

#: In the wheel, each with the reason why a user would miss it.
WANTED = (
    "commandbus/py.typed",  # types
    "commandbus/database/sql/functions/",  # the functions that change state
    "commandbus/database/sql/migrations/",  # the tables
    "commandbus/demo/",  # `commandbus demo`
    "commandbus/testing/",  # tests of applications
    ".dist-info/licenses/LICENSE",
    ".dist-info/entry_points.txt",
)
#: Not in the wheel, wherever they are.
UNWANTED = ("tests/", "faults/", "benchmarks/", "release/", "examples/", "docs/", "__pycache__")
#: What the sdist must have, so that the wheel can be built and its tests run from it.
IN_SDIST = ("src/commandbus/__init__.py", "tests/conftest.py", "pyproject.toml", "LICENSE")


def build(target: Path) -> tuple[Path, Path]:
    """Build both twice; they must be the same. Returns the wheel and the sdist."""
    # The time of the last commit, so that the same commit gives the same files anywhere.
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    env = clean_environment(SOURCE_DATE_EPOCH=epoch)
    copy = _copied(target / "copy")
    seen: list[dict[str, str]] = []
    # Once as it is, once elsewhere and under another umask: neither may show.
    for name, source, umask in (("dist", ROOT, 0o022), ("again", copy, 0o077)):
        folder = target / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tool("build", "--no-isolation", "--outdir", folder, source, env=env, umask=umask)
        seen.append({file.name: _digest(file) for file in sorted(folder.glob("commandbus*"))})
    shutil.rmtree(copy)
    if seen[0] != seen[1]:
        raise CheckError(f"two builds differ: {seen[0]} and {seen[1]}")
    (wheel,) = (target / "dist").glob("*.whl")
    (sdist,) = (target / "dist").glob("*.tar.gz")
    return wheel, sdist


def _copied(folder: Path) -> Path:
    """The files that git knows, in another place."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in run("git", "ls-files").splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_metadata(wheel: Path, sdist: Path) -> list[Result]:
    """The metadata are complete, and the README can be shown."""
    said = tool("twine", "check", "--strict", wheel, sdist)
    if said.count("PASSED") != 2:
        raise CheckError(said)
    return [Result("metadata and README", "complete, can be shown")]


def check_wheel(wheel: Path) -> int:
    """Returns how many files it has."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    check_names(names)
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise CheckError(f"{wheel.name} is not for every platform")
    return len(names)


def check_names(names: list[str]) -> None:
    """Raise unless a wheel with these files is complete, and has nothing else."""
    for wanted in WANTED:
        if not any(wanted in name for name in names):
            raise CheckError(f"the wheel has no {wanted}")
    for name in names:
        top = name.partition("/")[0]
        if top != "commandbus" and not top.endswith(".dist-info"):
            raise CheckError(f"the wheel has {name}, beside the package")
        if any(f"/{part}" in f"/{name}" for part in UNWANTED):
            raise CheckError(f"the wheel has {name}")


def check_sdist(sdist: Path) -> int:
    """Returns how many files it has."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for wanted in IN_SDIST:
        if wanted not in names:
            raise CheckError(f"the sdist has no {wanted}")
    return len(names)


def results(wheel: Path, sdist: Path) -> list[Result]:
    """The rows of the table."""
    return [
        Result("two builds", f"the same, sha256 {_digest(wheel)[:16]}… and {_digest(sdist)[:16]}…"),
        Result("wheel", f"{check_wheel(wheel)} files, {wheel.stat().st_size / 1e6:.2f} MB"),
        Result("sdist", f"{check_sdist(sdist)} files, {sdist.stat().st_size / 1e6:.2f} MB"),
    ]
