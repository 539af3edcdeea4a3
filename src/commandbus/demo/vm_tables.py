"""The virtual machines of the demo: one table, in the demo's own schema.

What changes a machine runs on the connection of its command, in the transaction that completes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

_TABLES: LiteralString = """
select pg_advisory_xact_lock(hashtext('commandbus_demo'));
create schema if not exists commandbus_demo;
create table if not exists commandbus_demo.vm (
    name       text primary key,
    cpu        int not null check (cpu between 1 and 64),
    memory_mb  int not null check (memory_mb between 256 and 1048576),
    is_running boolean not null default false,
    restarts   int not null default 0,
    created_by uuid not null,       -- its command
    changed_by uuid not null,       -- the last command that changed it
    changed_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
"""

#: Of what `machines` returns.
COLUMNS = ("name", "cpu", "memory_mb", "is_running", "restarts")

_CREATE: LiteralString = (
    "insert into commandbus_demo.vm (name, cpu, memory_mb, created_by, changed_by)"
    " values (%s, %s, %s, %s, %s) on conflict (name) do nothing returning name"
)
_DELETE: LiteralString = "delete from commandbus_demo.vm where name = %s returning name"
_SET: LiteralString = "update commandbus_demo.vm set "
_CHANGED: LiteralString = (
    ", changed_by = %s, changed_at = clock_timestamp() where name = %s returning is_running"
)
_POWER: dict[str, LiteralString] = {
    "start": _SET + "is_running = true" + _CHANGED,
    "stop": _SET + "is_running = false" + _CHANGED,
    # One that is off is not restarted, and says so.
    "restart": _SET + "restarts = restarts + is_running::int" + _CHANGED,
}
_EXISTING: LiteralString = "select name from commandbus_demo.vm where name = any(%s)"
_LIST: LiteralString = (
    "select name, cpu, memory_mb, is_running, restarts from commandbus_demo.vm order by name"
)


async def create_tables(conn: Any) -> None:
    """Create what is missing; any number of processes may do so at once."""
    await conn.execute(_TABLES)


async def create(conn: Any, name: str, cpu: int, memory_mb: int, command_id: UUID) -> bool:
    """Create a machine that is off; False if the name is taken."""
    return bool(await _rows(conn, _CREATE, (name, cpu, memory_mb, command_id, command_id)))


async def delete(conn: Any, name: str) -> bool:
    """Delete a machine; False if there is none."""
    return bool(await _rows(conn, _DELETE, (name,)))


async def power(conn: Any, operation: str, name: str, command_id: UUID) -> bool | None:
    """Start, stop or restart a machine: whether it runs now, or None if there is none."""
    rows = await _rows(conn, _POWER[operation], (command_id, name))
    return bool(rows[0][0]) if rows else None


async def existing(conn: Any, names: Sequence[str]) -> set[str]:
    """Those of these names that are taken."""
    return {row[0] for row in await _rows(conn, _EXISTING, (list(names),))}


async def machines(conn: Any) -> list[tuple[Any, ...]]:
    """All machines, in the order of COLUMNS."""
    return await _rows(conn, _LIST, ())


async def _rows(conn: Any, statement: LiteralString, params: Sequence[Any]) -> list[Any]:
    cursor = await conn.execute(statement, params)
    found: list[Any] = await cursor.fetchall()
    return found
