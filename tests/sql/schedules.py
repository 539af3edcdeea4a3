"""Schedules, called for in plain SQL."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.sql.helpers import Session

SPEC: dict[str, Any] = {
    "command_type": "Work", "data": {"n": 1}, "reply_to": "", "max_attempts": 3,
    "expires_in_seconds": None, "priority": None, "ordering_key": None, "jitter_seconds": 0,
    "cron": None, "timezone": None, "every_seconds": 60, "at": None, "missed": "once",
    "missed_cap": 100, "overlap": "skip",
}  # fmt: skip
USER = {"user": "ada", "may_bypass": False, "declared": []}
BREAKER = USER | {"may_bypass": True}


async def row(db: Session, name: str = "x") -> dict[str, Any]:
    """The row of a schedule; empty if there is none."""
    rows = await db.rows(
        "select * from commandbus.command_bus_schedule where domain = %s and name = %s",
        db.domain, name,
    )  # fmt: skip
    return rows[0] if rows else {}


async def put(
    db: Session,
    name: str = "x",
    *,
    due: float = 1,
    whom: dict[str, Any] | None = None,
    version: int | None = None,
    **spec: Any,
) -> str:
    """Put a schedule that was due this many seconds ago."""
    found: str = await db.value(
        "select commandbus.put_schedule(%s, %s, %s, %s, clock_timestamp() - %s, now(), %s, 'ann',"
        " %s)",
        db.domain, name, uuid4(), Jsonb(SPEC | spec), timedelta(seconds=due), version,
        None if whom is None else Jsonb(whom),
    )  # fmt: skip
    return found


def fire_of(schedule: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a process that looked at this row would ask for."""
    tick: datetime = schedule["next_tick_at"]
    ticks = more.pop("ticks", [tick])
    asked = {
        "schedule_id": str(schedule["schedule_id"]),
        "version": schedule["version"],
        "expected": tick.isoformat(),
        "ticks": [each.isoformat() for each in ticks],
        "ids": [str(uuid4()) for _ in ticks],
        "last": ticks[-1].isoformat() if ticks else tick.isoformat(),
        "next": (tick + timedelta(hours=1)).isoformat(),
    }
    return asked | more


async def fire(db: Session, *fires: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Fire; returns what became of each."""
    rows = await db.rows("select * from commandbus.fire_schedules(%s)", Jsonb(list(fires)))
    return [(each["verdict"], each["sent"], each["skipped"]) for each in rows]


async def sent(db: Session, schedule_id: UUID) -> int:
    """How many commands a schedule has sent."""
    return int(
        await db.value(
            "select count(*) from commandbus.command_bus_command where correlation_id = %s",
            schedule_id,
        )
    )


async def events(db: Session, schedule_id: UUID) -> list[str]:
    """The events of a schedule, oldest first."""
    rows = await db.rows(
        "select event_type from commandbus.command_bus_audit where command_id = %s"
        " order by audit_id",
        schedule_id,
    )
    return [each["event_type"] for each in rows]


async def every_schedule_event(db: Session) -> None:
    """Let every event of a schedule be written."""
    await put(db, due=500)
    found = await row(db)
    failed = (found["schedule_id"], 1, found["next_tick_at"], "no", 1.0)
    await db.rows("select commandbus.fail_schedule(%s, %s, %s, %s, %s)", *failed)
    ticks = [found["next_tick_at"], found["next_tick_at"] + timedelta(seconds=60)]
    await fire(db, fire_of(found, ticks=ticks, missed={"count": 9}))
    await db.rows("select commandbus.pause_schedule(%s, 'x')", db.domain)
    await db.rows("select commandbus.resume_schedule(%s, 'x', 2, now(), false)", db.domain)
    await db.rows("select commandbus.trigger_schedule(%s, 'x', %s)", db.domain, uuid4())
    await db.rows("select commandbus.delete_schedule(%s, 'x')", db.domain)
