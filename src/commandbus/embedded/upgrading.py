"""Upgrading: the cluster of a data folder to another major version, by dump and restore.

    <data folder>/
      upgrading/        a data folder of its own, in which the new cluster is made
      upgrading.json    from just before the clusters change places until after it
      pg<old major>/    the old cluster, in a data folder of its own

Until the clusters change places the old one is only read, and an upgrade that was cut off is begun
anew. Lock order: the old folder's decision lock, then the new one's if that is another folder. Both
are held throughout, so nobody can write to the old cluster after it was read.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from commandbus.embedded import cluster, server
from commandbus.embedded.account import choose_account
from commandbus.embedded.binaries import Binaries, find_binaries
from commandbus.embedded.dumps import read_backup, write_backup
from commandbus.embedded.folder import DataFolder
from commandbus.embedded.postgres import EmbeddedPostgres
from commandbus.embedded.processes import Deadline
from commandbus.embedded.standing import Standing
from commandbus.embedded.tools import tool_folders
from commandbus.errors import EmbeddedServerError, InvalidOperationError

TURN_SECONDS = 60.0
#: A large cluster that was not shut down takes its time.
START_SECONDS = 600.0
STAGING = "upgrading"

_DATABASES = (
    "select datname from pg_database"
    " where not datistemplate and datname <> all(%s) order by datname"
)
_ROLES = (
    "select rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin,"
    "       rolreplication, rolbypassrls, rolpassword from pg_authid"
    " where rolname !~ '^pg_' and rolname <> all(%s) order by rolname"
)
_MEMBERS = (
    "select r.rolname, m.rolname, a.admin_option from pg_auth_members a"
    " join pg_roles r on r.oid = a.roleid join pg_roles m on m.oid = a.member"
    " where m.rolname !~ '^pg_' order by 1, 2"
)
_WORDS = ("superuser", "inherit", "createrole", "createdb", "login", "replication", "bypassrls")


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What was done."""

    from_major: int
    to_major: int
    #: The data folder of the old cluster.
    kept: Path


async def upgrade_folder(
    path: Path,
    *,
    schema: str,
    finish: Callable[[str], Awaitable[object]],
    old_bin: Path | None = None,
    older: Sequence[Path] = (),
) -> Upgraded | None:
    """Bring the cluster of a folder to the version of our server; None if it is of that version.

    If the folder has no cluster, the first of the `older` folders that has one is read; that one
    stays where it is. `finish` is given the address of the new database before it takes its place.
    """
    binaries = find_binaries()
    target = DataFolder(path, choose_account(path))
    source = _source(target, older)
    if cluster.is_between(target):
        target.prepare()
        with target.deciding(Deadline.after(TURN_SECONDS)):
            return _change_places(target, target, binaries)
    major = Standing(source).major
    if major == binaries.major:
        return None
    if major > binaries.major:
        raise InvalidOperationError(
            f"{source.path} was made by PostgreSQL {major}, and the server is the older PostgreSQL "
            f"{binaries.version}; install a newer one"
        )
    _refuse_kept(source, target, major)
    old = EmbeddedPostgres(
        source.path, binaries=_old_server(major, old_bin), start_timeout_seconds=START_SECONDS
    )
    await asyncio.to_thread(old.start)
    try:
        with ExitStack() as locks:
            for folder in {source.path: source, target.path: target}.values():
                folder.prepare()
                locks.enter_context(folder.deciding(Deadline.after(TURN_SECONDS)))
            _refuse_users(Standing(source))
            await _copy(old, target, major, schema=schema, finish=finish)
            _stop(source)
            return _change_places(source, target, binaries)
    finally:
        await asyncio.to_thread(old.stop)


def _source(target: DataFolder, older: Sequence[Path]) -> DataFolder:
    if target.cluster.exists() or cluster.is_between(target):
        return target
    for path in older:
        if (found := Standing.of(path)) is not None:
            return found.folder
    raise EmbeddedServerError(f"there is no server in {target.path}; name its --data-dir")


def _old_server(major: int, named: Path | None) -> Path:
    if named is not None:
        found = find_binaries(named)
        if found.major != major:
            raise EmbeddedServerError(
                f"{named} is PostgreSQL {found.version}, and the data are of PostgreSQL {major}; "
                "name that one with --old-bin"
            )
        return found.bin_directory
    for folder in tool_folders():
        try:
            found = find_binaries(folder)
        except EmbeddedServerError:
            continue
        if found.major == major:
            return found.bin_directory
    raise EmbeddedServerError(
        f"the data are of PostgreSQL {major}, and its server was not found; install it, for "
        f"example postgresql-{major}, or name its bin folder with --old-bin"
    )


def _kept(source: DataFolder, target: DataFolder, major: int) -> Path:
    return target.path / f"pg{major}" if source.path == target.path else source.path


def _refuse_kept(source: DataFolder, target: DataFolder, major: int) -> None:
    kept = _kept(source, target, major)
    if kept != source.path and kept.joinpath("cluster").exists():
        raise InvalidOperationError(
            f"{kept} is there already, and the old data would be kept there; move it away"
        )


def _refuse_users(standing: Standing) -> None:
    users = [*map(str, standing.holders()), *(f"{name} (connected)" for name in standing.clients())]
    if users:
        raise InvalidOperationError(
            f"the server is in use by {', '.join(users[:5])}; end that first (`commandbus down`), "
            "or what it writes would be lost"
        )


async def _copy(
    old: EmbeddedPostgres,
    target: DataFolder,
    major: int,
    *,
    schema: str,
    finish: Callable[[str], Awaitable[object]],
) -> None:
    """Make the new cluster in the staging folder, with all that the old one has."""
    staging = DataFolder(target.path / STAGING, target.account)
    if staging.cluster.exists():
        _stop(staging)  # that of an upgrade that was killed
    shutil.rmtree(staging.path, ignore_errors=True)
    database = cluster.APPLICATION_DATABASE
    new = EmbeddedPostgres(staging.path, start_timeout_seconds=START_SECONDS)
    await asyncio.to_thread(new.start)
    try:
        with (
            psycopg.connect(old.superuser_dsn_for(database)) as reader,
            psycopg.connect(new.superuser_dsn_for(database)) as writer,
        ):
            _refuse_other_databases(reader)
            _copy_roles(reader, writer)
        file = staging.path / "move.backup"
        await write_backup(old.dsn, file, major)
        await read_backup(new.dsn, file, find_binaries().major, schema=schema)
        file.unlink()
        await finish(new.dsn)
    finally:
        await asyncio.to_thread(new.stop)


def _refuse_other_databases(reader: psycopg.Connection[Any]) -> None:
    ours = [cluster.APPLICATION_DATABASE, "postgres"]
    found = [str(name) for (name,) in reader.execute(_DATABASES, [ours])]
    if found:
        raise InvalidOperationError(
            f"the server has other databases, which would be left behind: {', '.join(found[:5])}; "
            "save them with pg_dump and drop them, then upgrade"
        )


def _copy_roles(reader: psycopg.Connection[Any], writer: psycopg.Connection[Any]) -> None:
    """Roles with their passwords, as the verifiers that they are, and who is a member of what."""
    ours = [cluster.SUPERUSER, cluster.APPLICATION_USER]
    admin = sql.Identifier(cluster.APPLICATION_USER)
    for name, *flags, verifier in reader.execute(_ROLES, [ours]).fetchall():
        role = sql.Identifier(name)
        words = " ".join(
            word if is_so else f"no{word}" for word, is_so in zip(_WORDS, flags, strict=True)
        )
        create = sql.SQL("create role {} {} password {}")
        writer.execute(create.format(role, sql.SQL(words), sql.Literal(verifier)))
        if not flags[0]:
            # Up to version 15 the right to create roles was the right to manage all of them.
            writer.execute(sql.SQL("grant {} to {} with admin option").format(role, admin))
    for role, member, is_admin in reader.execute(_MEMBERS).fetchall():
        grant = "grant {} to {} with admin option" if is_admin else "grant {} to {}"
        writer.execute(sql.SQL(grant).format(sql.Identifier(role), sql.Identifier(member)))


def _stop(folder: DataFolder) -> None:
    running = Standing(folder).running
    if running is not None:
        server.stop_server(running)


def _change_places(source: DataFolder, target: DataFolder, binaries: Binaries) -> Upgraded:
    """The old cluster out, the new one in; goes on where it was cut off."""
    note = target.path / cluster.UPGRADE_NOTE
    if not note.exists():
        target.write_private(note, json.dumps({"major": Standing(source).major}))
    major = int(json.loads(note.read_text())["major"])
    kept = _kept(source, target, major)
    if source.path == target.path and target.cluster.exists():
        old = DataFolder(kept, target.account)
        if not kept.exists():
            target.make_private_folder(kept)
        old.open_lock(kept / "commandbus.lock").close()  # by it a data folder is known
        target.cluster.rename(old.cluster)
        cluster.sync_folder(kept)
        cluster.sync_folder(target.path)
    (target.path / STAGING / "cluster").rename(target.cluster)
    cluster.sync_folder(target.path)
    note.unlink()
    shutil.rmtree(target.path / STAGING, ignore_errors=True)
    return Upgraded(major, binaries.major, kept)
