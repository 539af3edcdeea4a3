"""The schema as the catalogs have it, in a stable text that a reviewer can read.

`make schema` (`python -m tests.migrations.snapshot`) installs everything on a server of its own and
writes schema.sql beside this file. It is a description, not a script: bodies of functions stand as
their md5, because the functions are files already.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from commandbus import Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database

SNAPSHOT = Path(__file__).with_name("schema.sql")
HEADER = "-- Made by `make schema`. Do not edit: a test compares it with a fresh install.\n"
DEFAULT_SCHEMA = "commandbus"

_TABLES = """
select c.oid, c.relname as name, c.reloptions as options
  from pg_class c where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p')
 order by c.relname
"""
_COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as is_required,
       pg_get_expr(d.adbin, d.adrelid) as default_value
  from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = %(oid)s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
# Not-null constraints have rows of their own since PostgreSQL 18: the columns show them already.
_CONSTRAINTS = """
select conname as name, pg_get_constraintdef(oid) as definition from pg_constraint
 where conrelid = %(oid)s and contype <> 'n' order by conname
"""
_INDEXES = """
select pg_get_indexdef(indexrelid) as definition from pg_index where indrelid = %(oid)s order by 1
"""
_TRIGGERS = """
select pg_get_triggerdef(oid) as definition from pg_trigger
 where tgrelid = %(oid)s and not tgisinternal order by 1
"""
_OTHERS = """
select c.relkind::text as kind, c.relname as name from pg_class c
 where c.relnamespace = %(schema)s::regnamespace and c.relkind not in ('r', 'p', 'i', 'I', 't')
 order by 1, 2
"""
_TYPES = """
select t.typname as name from pg_type t
 where t.typnamespace = %(schema)s::regnamespace and t.typtype in ('d', 'e', 'r') order by 1
"""
_FUNCTIONS = """
select p.proname as name, pg_get_function_arguments(p.oid) as arguments,
       pg_get_function_result(p.oid) as result, l.lanname as language,
       p.provolatile::text as volatile, p.prosecdef as is_definer, p.proconfig as config,
       p.prosrc as body
  from pg_proc p join pg_language l on l.oid = p.prolang
 where p.pronamespace = %(schema)s::regnamespace order by p.proname, 2
"""
_RECORDS = """
select 'migration' as kind, version::text as name, name as value from {}.command_bus_migration
union all
select 'setting', name, value from {}.command_bus_setting
 where name not in ('functions_checksum', 'pgmq_version')
 order by 1, 2
"""
_VOLATILITY = {"i": "immutable", "s": "stable", "v": "volatile"}


#: What planner.sql sets for some functions on servers before PostgreSQL 17 only.
BEFORE_17 = frozenset(
    f"{name}=0"
    for name in ("random_page_cost", "seq_page_cost", "cpu_operator_cost", "cpu_index_tuple_cost")
)


async def describe(conn: psycopg.AsyncConnection[Any], schema: str = DEFAULT_SCHEMA) -> str:
    """Describe everything in a schema, under the default name whatever it is called."""

    async def rows(query: str, **params: Any) -> list[dict[str, Any]]:
        cursor = conn.cursor(row_factory=dict_row)
        await cursor.execute(query.encode(), params)
        return await cursor.fetchall()

    lines: list[str] = []
    # Definitions leave out the schema if it is on the search path.
    async with conn.transaction():
        await conn.execute("set local search_path to pg_catalog")
        for table in await rows(_TABLES, schema=schema):
            lines.append(f"\ntable {schema}.{table['name']}")
            for column in await rows(_COLUMNS, oid=table["oid"]):
                required = " not null" if column["is_required"] else ""
                default = f" default {column['default_value']}" if column["default_value"] else ""
                lines.append(f"    {column['name']} {column['type']}{required}{default}")
            lines += [f"    with {option}" for option in sorted(table["options"] or ())]
            lines += [
                f"    constraint {c['name']} {c['definition']}"
                for c in await rows(_CONSTRAINTS, oid=table["oid"])
            ]
            for query in (_INDEXES, _TRIGGERS):
                lines += [f"    {d['definition']}" for d in await rows(query, oid=table["oid"])]
        lines.append("")
        lines += [f"relation {o['kind']} {o['name']}" for o in await rows(_OTHERS, schema=schema)]
        lines += [f"type {t['name']}" for t in await rows(_TYPES, schema=schema)]
        lines.append("")
        for function in await rows(_FUNCTIONS, schema=schema):
            body = hashlib.md5(_neutral(function["body"], schema).encode()).hexdigest()
            lines.append(
                f"function {schema}.{function['name']}({function['arguments']})"
                f" returns {function['result']}"
            )
            options = [function["language"], _VOLATILITY[function["volatile"]]]
            options += ["security definer"] if function["is_definer"] else []
            options += [
                f"set {setting}" for setting in function["config"] or ()
                if setting not in BEFORE_17
            ]  # fmt: skip
            lines.append(f"    {', '.join(options)}, body {body}")
        lines.append("")
        for record in await rows(_RECORDS.format(schema, schema)):
            lines.append(f"{record['kind']} {record['name']} = {record['value']}")
    return HEADER + _neutral("\n".join(lines), schema) + "\n"


def _neutral(text: str, schema: str) -> str:
    # The mark of its queues is the one thing in which another schema differs.
    text = re.sub(r"^select '0\w{4}_'::text$", "select ''::text", text)
    return re.sub(rf"\b{schema}(?=\\?\.|\[\.\])", DEFAULT_SCHEMA, text)


async def _fresh(dsn: str) -> str:
    await migrate_database(dsn, Settings())
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        return await describe(conn)


def main() -> None:
    """Install on a server of its own, and write the snapshot."""
    # Not mkdtemp: as root the server runs as another account, which must get there.
    folder = Path(tempfile.gettempdir()) / f"commandbus-snapshot-{secrets.token_hex(6)}"
    server = EmbeddedPostgres(folder, settings={"fsync": "off"})
    try:
        SNAPSHOT.write_text(asyncio.run(_fresh(server.start())), encoding="utf-8")
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"wrote {SNAPSHOT}")


if __name__ == "__main__":
    main()
