"""What the tests of seals share: events, and what the owner of a database can do to them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg

from commandbus import CommandBus
from commandbus.upkeep import AuditVerification
from commandbus.upkeep.seal_reading import reading
from commandbus.upkeep.seals import Seal

Conn = psycopg.AsyncConnection[Any]
SOMEBODY = UUID("018f0000-0000-7000-8000-000000000001")


async def write(conn: Conn, count: int = 10, *, age: str = "0 s", domain: str = "shop") -> None:
    """Events, each a little different."""
    await conn.execute(
        "insert into commandbus.command_bus_audit"
        " (domain, command_id, event_type, ts, details_json, batch_id, actor)"
        " select %s, %s, 'SENT', clock_timestamp() - cast(%s as interval),"
        " jsonb_build_object('n', i, 'type', 'Buy'), gen_random_uuid(), 'ada'"
        " from generate_series(1, %s) i",
        (domain, SOMEBODY, age, count),
    )


async def as_owner(conn: Conn, *statements: str) -> None:
    """Change what a trigger protects: switch it off, act, switch it on again."""
    async with conn.transaction():
        parts = await conn.execute("select name from commandbus.audit_parts()")
        names = [name.removeprefix("command_bus_") for (name,) in await parts.fetchall()]
        tables = ("audit", *names, "audit_seal", "audit_removal")
        for table in tables:
            await conn.execute(
                f"alter table commandbus.command_bus_{table} disable trigger user".encode()
            )
        for statement in statements:
            await conn.execute(statement.encode())
        for table in tables:
            await conn.execute(
                f"alter table commandbus.command_bus_{table} enable trigger user".encode()
            )


async def codes(bus: CommandBus, **options: Any) -> dict[str, int]:
    """What the verification finds, by code; without what is only good to know."""
    found = await bus.upkeep.verify_audit(**options)
    return {each.code: each.found for each in found.findings if each.severity != "notice"}


def spots(found: AuditVerification) -> set[tuple[str, int | None, int | None, int | None]]:
    """Code, seal, first and last event of each place."""
    return {(p.code, p.seal_number, p.first_id, p.last_id) for p in found.places}


async def forge_seal(bus: CommandBus, conn: Conn, number: int, **changes: Any) -> None:
    """Make a seal anew over the rows that are there now, with everything but the key."""
    async with reading(bus._store.gateway) as reader:
        (found,) = [s for s in await reader.seals(number - 1) if s.seal.seal_number == number]
        entries = await reader.entries_now(found.seal)
    made: Seal = replace(
        found.seal,
        entries_digest=hashlib.sha256(entries).digest(),
        row_count=len(entries) // 20,
        **changes,
    )
    signature = made.signature(b"a guess of thirty-two bytes or so")
    await as_owner(conn)  # its transaction shows that triggers stand in nobody's way
    await conn.execute("alter table commandbus.command_bus_audit_seal disable trigger user")
    await conn.execute(
        "update commandbus.command_bus_audit_seal set entries = %s, entries_digest = %s,"
        " row_count = %s, previous = %s, key_id = %s, digest = %s, signature = %s"
        " where seal_number = %s",
        (entries, made.entries_digest, made.row_count, made.previous, made.key_id, made.digest,
         signature, number),
    )  # fmt: skip
    await conn.execute("alter table commandbus.command_bus_audit_seal enable trigger user")
