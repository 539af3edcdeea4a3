"""Inspection: how the schema of a database differs from what this package installs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from commandbus.database.connections import fetch
from commandbus.database.migrations import function_bodies, schema_status
from commandbus.database.pgmq.install import lacking_functions
from commandbus.settings import Settings

_FUNCTIONS: LiteralString = (
    "select p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
    " where n.nspname = %s"
)


@dataclass(frozen=True, slots=True)
class SchemaDifferences:
    """What is not as this package installs it, by name."""

    #: Migrations that were not run.
    pending: tuple[str, ...]
    #: Functions that PGMQ lacks.
    lacking: tuple[str, ...]
    #: Functions of ours with another body, or none; empty if a newer release installed them.
    changed: tuple[str, ...]


async def inspect_schema(
    conn: psycopg.AsyncConnection[Any], settings: Settings
) -> SchemaDifferences:
    """Compare; changes nothing."""
    status = await schema_status(conn, settings)
    changed: list[str] = []
    if (status.installed_version or 0) <= status.package_version:
        rows = await fetch(conn, _FUNCTIONS, settings.schema)
        installed = {name: _folded(body) for name, body in rows}
        ours = function_bodies(settings.schema)
        changed = sorted(name for name in ours if installed.get(name) != _folded(ours[name]))
    return SchemaDifferences(status.pending, await lacking_functions(conn), tuple(changed))


def _folded(body: str) -> str:
    return re.sub(r"\s+", " ", body)
