"""pg_dump and pg_restore: found in the version that fits a server, and run without a trace.

pg_dump reads servers of its own major version and older ones, never newer ones. So the exact
version is looked for first, then the next newer one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus.embedded.binaries import BINARIES_VARIABLE, guesses, output_of
from commandbus.errors import DatabaseError, EmbeddedServerError
from commandbus.privacy.redaction import redact_text

#: Where packages of Linux distributions and of Homebrew put each major version.
USUAL_PLACES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")
ROOT = Path("/")
#: For a program that is told to end, in seconds.
END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Tools:
    """pg_dump and pg_restore of one installation."""

    folder: Path
    major: int

    async def run(self, program: str, address: str | None, arguments: Sequence[str]) -> str:
        """Run one of them to its end; gives what it printed. The password is in no argument."""
        environ = {**os.environ, "LC_ALL": "C"}
        words = [str(self.folder / program), *arguments]
        if address is not None:
            parts = conninfo_to_dict(address)
            if (password := parts.pop("password", None)) is not None:
                environ["PGPASSWORD"] = str(password)
            words += ["--no-password", "--dbname", make_conninfo("", **parts)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environ
        )
        try:
            output, errors = await process.communicate()
        except BaseException:
            await _end(process)
            raise
        if process.returncode:
            raise ToolError(f"{program} failed: {_reason(errors.decode(errors='replace'))}")
        return output.decode(errors="replace")


class ToolError(DatabaseError):
    """pg_dump or pg_restore did not do what it was asked for."""


def find_tools(server_major: int) -> Tools:
    """The tools that fit a server; raises and names what is needed if there are none."""
    found = list(_installed())
    fitting = [tools for tools in found if tools.major >= server_major]
    if not fitting:
        seen = ", ".join(sorted({str(tools.major) for tools in found})) or "none"
        raise EmbeddedServerError(
            f"the server is PostgreSQL {server_major}, and pg_dump and pg_restore of that version, "
            f"or newer, were not found (found: {seen}); install them, for example postgresql-client"
            f"-{server_major}, or set {BINARIES_VARIABLE} to their folder"
        )
    return min(fitting, key=lambda tools: tools.major)  # of the same version: the first


def _installed() -> Iterator[Tools]:
    for folder in tool_folders():
        said = output_of(folder / "pg_dump", "--version")
        version = re.search(r"PostgreSQL\) (\d+)", said)
        if version is not None and folder.joinpath("pg_restore").is_file():
            yield Tools(folder, int(version[1]))


def tool_folders() -> list[Path]:
    """The bin folders of this machine, each once, in the order of the search."""
    return list(dict.fromkeys(_folders()))


def _folders() -> Iterator[Path]:
    if named := os.environ.get(BINARIES_VARIABLE):
        yield Path(named).expanduser().absolute()
    yield from (folder for folder, _ in guesses())
    for pattern in USUAL_PLACES:
        yield from sorted(ROOT.glob(pattern))
    if on_path := shutil.which("pg_dump"):
        yield Path(on_path).parent


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()


def _reason(said: str) -> str:
    """The first complaint, without secrets: later ones mostly follow from it."""
    lines = [line for line in said.splitlines() if "error:" in line] or said.splitlines()
    return redact_text(" ".join((lines or ["it said nothing"])[0].split()), 400)
