"""Inspection: how the schema of a database differs from what this package installs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import tuple_row

from commandbus.database.migrations import function_bodies, schema_status
from commandbus.database.pgmq.install import REQUIRED_FUNCTIONS
from commandbus.settings import Settings

_LACKING: LiteralString = "select s from unnest(%s::text[]) s where to_regprocedure(s) is null"
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
    cursor = conn.cursor(row_factory=tuple_row)
    lacking = await (await cursor.execute(_LACKING, (list(REQUIRED_FUNCTIONS),))).fetchall()
    changed: list[str] = []
    if (status.installed_version or 0) <= status.package_version:
        await cursor.execute(_FUNCTIONS, (settings.schema,))
        installed = {name: _folded(body) for name, body in await cursor.fetchall()}
        ours = function_bodies(settings.schema)
        changed = sorted(name for name in ours if installed.get(name) != _folded(ours[name]))
    return SchemaDifferences(status.pending, tuple(row[0] for row in lacking), tuple(changed))


def _folded(body: str) -> str:
    return re.sub(r"\s+", " ", body)
