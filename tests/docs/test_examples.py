"""Every example runs, and prints what its README says."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks, table_with

EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))
#: Programs of one file; applications have tests of their own: `make test-integrations`.
PROGRAMS = [folder for folder in FOLDERS if not (folder / "tests").is_dir()]


def program_of(folder: Path) -> Path:
    (program,) = folder.glob("*.py")
    return program


@pytest.mark.parametrize("folder", PROGRAMS, ids=lambda folder: folder.name)
async def test_the_example_prints_what_its_readme_says(folder: Path, dsn: str) -> None:
    (expected,) = blocks(folder / "README.md", "text")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program_of(folder)),
        env={**os.environ, "COMMANDBUS_DSN": dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        printed, complaints = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    # stderr may have log lines: some examples fail on purpose.
    assert process.returncode == 0, complaints.decode()
    assert "Traceback" not in complaints.decode()
    assert printed.decode() == expected.text


def test_every_example_is_listed_and_says_how_to_run_it() -> None:
    listed = table_with(EXAMPLES / "README.md", "folder", "idea")

    assert len(FOLDERS) == len(listed)
    for folder, row in zip(FOLDERS, sorted(listed, key=lambda row: row["folder"]), strict=True):
        assert row["folder"] == f"[{folder.name}]({folder.name}/README.md)"
        command = f"cd {folder.relative_to(ROOT)}\n"
        if folder in PROGRAMS:
            command = f"python {program_of(folder).relative_to(ROOT)}\n"
        assert command in (folder / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    program = program_of(EXAMPLES / "quickstart").read_text(encoding="utf-8")

    assert program in [block.text for block in blocks(ROOT / "README.md", "python")]
