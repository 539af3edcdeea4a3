"""An application of governed batches: virtual machines that are created, deleted and switched.

Run its workers with `commandbus worker commandbus.demo.vms:setup`. Deleting needs an approval.
The machines are rows of one table, in the demo's own schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString

from commandbus.access.model import Caller
from commandbus.bus import CommandBus
from commandbus.errors import PermanentCommandError
from commandbus.governance import ItemError
from commandbus.governance.model import Item
from commandbus.governance.types import BatchType
from commandbus.handler import HandlerContext
from commandbus.models import Command

DOMAIN = "vms"
BATCH_PATH = "/api/v1/vms/batch"
POWER_PATH = "/api/v1/vms/batch/power"
OPERATIONS = ("start", "stop", "restart")

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")

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


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine to create. It is off at first."""

    name: str
    cpu: int = 2
    memory_mb: int = 2_048


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is there."""

    name: str


async def setup(bus: CommandBus) -> None:
    """Create the tables, declare the batch types and register the handlers."""
    async with bus._store.transaction() as transaction:
        await transaction.conn.execute(_TABLES)
    for batch_type in batch_types():
        bus.governance.declare(batch_type)
    register = partial(bus.register_handler, DOMAIN, transactional=True)
    register("CreateVM", create_vm, payload_type=NewMachine)
    register("DeleteVM", delete_vm, payload_type=Machine)
    for operation in OPERATIONS:
        handler = partial(power_vm, operation)
        register(f"{operation.capitalize()}VM", handler, payload_type=Machine)
    bus.governance.register_handlers()


async def list_machines(bus: CommandBus) -> list[dict[str, Any]]:
    """All machines, by name."""
    columns = ("name", "cpu", "memory_mb", "is_running", "restarts")
    rows = await bus._store.gateway.rows(_LIST)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def batch_types() -> list[BatchType]:
    """What may be submitted (the sizes are those of the specification)."""
    return [
        BatchType(
            name="BATCH_CREATE",
            domain=DOMAIN,
            command_type="CreateVM",
            max_size=10,
            payload_type=NewMachine,
            description="Create virtual machines.",
            path=BATCH_PATH,
            operation="create",
            example={"name": "web-1", "cpu": 2, "memory_mb": 2048},
            check=names_are_free,
        ),
        BatchType(
            name="BATCH_DELETE",
            domain=DOMAIN,
            command_type="DeleteVM",
            max_size=10,
            payload_type=Machine,
            requires_approval=True,
            description="Delete virtual machines, after somebody else has approved it.",
            path=BATCH_PATH,
            operation="delete",
            example={"name": "web-1"},
            check=machines_exist,
        ),
        *(
            BatchType(
                name=f"BATCH_POWER_{operation.upper()}",
                domain=DOMAIN,
                command_type=f"{operation.capitalize()}VM",
                max_size=50,
                payload_type=Machine,
                description=f"{operation.capitalize()} virtual machines.",
                path=POWER_PATH,
                operation=operation,
                example={"name": "web-1"},
                check=machines_exist,
            )
            for operation in OPERATIONS
        ),
    ]


# -- checks, before anything is created


async def names_are_free(conn: Any, caller: Caller, items: Sequence[Item]) -> list[ItemError]:
    """Names must be well formed, given once, and not taken; sizes must be possible."""
    del caller
    taken = await _existing(conn, items)
    errors = _twice(items)
    for index, item in enumerate(items):
        say = partial(ItemError, index)
        if not _NAME.match(item["name"]):
            errors.append(say("name", "use a-z, 0-9 and -, a letter first, at most 63 characters"))
        elif item["name"] in taken:
            errors.append(say("name", "there is a machine of this name"))
        if not 1 <= item.get("cpu", 2) <= 64:
            errors.append(say("cpu", "must be from 1 to 64"))
        if not 256 <= item.get("memory_mb", 2_048) <= 1_048_576:
            errors.append(say("memory_mb", "must be from 256 to 1,048,576"))
    return sorted(errors, key=lambda error: error.index)


async def machines_exist(conn: Any, caller: Caller, items: Sequence[Item]) -> list[ItemError]:
    """Each machine must be there, and be named once."""
    del caller
    known = await _existing(conn, items)
    missing = [
        ItemError(index, "name", "there is no machine of this name")
        for index, item in enumerate(items)
        if item["name"] not in known
    ]
    return sorted([*_twice(items), *missing], key=lambda error: error.index)


async def _existing(conn: Any, items: Sequence[Item]) -> set[str]:
    names = [item["name"] for item in items]
    return {row[0] for row in await _rows(conn, _EXISTING, names)}


def _twice(items: Sequence[Item]) -> list[ItemError]:
    names = [item["name"] for item in items]
    return [
        ItemError(index, "name", "stands twice in the request")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


# -- handlers: what they write and the completion of the command are one commit


async def create_vm(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """Create a machine. Somebody may have taken the name since the request was checked."""
    wanted = NewMachine(**command.data)
    values = (wanted.name, wanted.cpu, wanted.memory_mb, command.command_id, command.command_id)
    if not await _rows(ctx.conn, _CREATE, *values):
        raise PermanentCommandError("NAME_TAKEN", f"there is a machine {wanted.name} already")
    return {"name": wanted.name}


async def delete_vm(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """Delete a machine."""
    name = command.data["name"]
    if not await _rows(ctx.conn, _DELETE, name):
        raise PermanentCommandError("NO_SUCH_VM", f"there is no machine {name} any more")
    return {"name": name}


async def power_vm(operation: str, command: Command, ctx: HandlerContext) -> dict[str, Any]:
    """Start, stop or restart a machine. Doing it twice does no harm."""
    name = command.data["name"]
    changed = await _rows(ctx.conn, _POWER[operation], command.command_id, name)
    if not changed:
        raise PermanentCommandError("NO_SUCH_VM", f"there is no machine {name} any more")
    is_running = changed[0][0]
    if operation == "restart" and not is_running:
        raise PermanentCommandError("NOT_RUNNING", f"{name} is off; start it instead")
    return {"name": name, "is_running": is_running}


async def _rows(conn: Any, statement: LiteralString, *params: Any) -> list[Any]:
    cursor = await conn.execute(statement, params)
    found: list[Any] = await cursor.fetchall()
    return found
