"""Our SQL functions, called as psql, a trigger or another language would call them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.waiting import until

DOMAIN = "payments"
#: Every table of ours whose rows a refused call must leave alone.
TABLES = (
    "command", "batch", "troubleshooting", "failure_group", "audit", "payload_archive",
    "reply_inbox",
)  # fmt: skip


@dataclass
class Held:
    """A lease, as receive_commands returned it."""

    command_id: UUID
    msg_id: int
    lease_epoch: int
    row: dict[str, Any] = field(default_factory=dict)

    def item(self, **more: Any) -> dict[str, Any]:
        """What the outcome functions take."""
        return {
            "command_id": str(self.command_id),
            "msg_id": self.msg_id,
            "lease_epoch": self.lease_epoch,
        } | more


class Session:
    """One connection, and the verbs that the tests speak."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], domain: str = DOMAIN) -> None:
        self.conn = conn
        self.domain = domain

    async def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        cursor = self.conn.cursor(row_factory=dict_row)
        await cursor.execute(query.encode(), params or None)
        return await cursor.fetchall() if cursor.description else []

    async def value(self, query: str, *params: Any) -> Any:
        rows = await self.rows(query, *params)
        return next(iter(rows[0].values())) if rows else None

    # -- sending and receiving

    async def send(self, *ids: UUID, batch_id: UUID | None = None, **more: Any) -> list[UUID]:
        commands = [
            {"command_id": str(i), "type": "Debit", "data": {"n": n}} | more
            for n, i in enumerate(ids or (uuid4(),))
        ]
        await self.value(
            "select commandbus.send_commands(%s, %s, %s)", self.domain, Jsonb(commands), batch_id
        )
        return [UUID(command["command_id"]) for command in commands]

    async def offer(self, *ids: UUID) -> list[UUID]:
        commands = [{"command_id": str(i), "type": "Debit"} for i in ids]
        return await self.value(
            "select commandbus.offer_commands(%s, %s)", self.domain, Jsonb(commands)
        )

    async def receive(
        self,
        quantity: int = 10,
        *,
        vt: int = 60,
        worker: str = "w1",
        limits: dict[str, int] | None = None,
        mark: bool = True,
        from_head: bool = False,
    ) -> list[Held]:
        rows = await self.rows(
            "select * from commandbus.receive_commands(%s, %s, %s, %s, %s, %s, %s) order by msg_id",
            self.domain, vt, quantity, worker, Jsonb(limits or {}), mark, from_head,
        )  # fmt: skip
        return [Held(r["command_id"], r["msg_id"], r["lease_epoch"], r) for r in rows]

    async def settle(self, verb: str, *items: dict[str, Any]) -> list[UUID]:
        """Call complete_commands, retry_commands, … ; returns what was stale."""
        rows = await self.rows(
            f"select * from commandbus.{verb}_commands(%s, %s) as stale",
            self.domain, Jsonb(list(items)),
        )  # fmt: skip
        return [row["stale"] for row in rows]

    async def lapse(self, *held: Held) -> None:
        """Let leases run out now: PGMQ's clock cannot be turned, so the message is."""
        await self.rows(
            f"select pgmq.set_vt('{self.domain}__commands', %s::bigint[], 0)",
            [h.msg_id for h in held],
        )

    async def batch(self, **columns: Any) -> UUID:
        batch_id: UUID = columns.get("batch_id") or uuid4()
        await self.rows(
            "insert into commandbus.command_bus_batch (batch_id, domain, total_sealed)"
            " values (%s, %s, %s)",
            batch_id, self.domain, columns.get("total_sealed", True),
        )  # fmt: skip
        return batch_id

    async def put(self, status: str, batch_id: UUID | None = None) -> Held:
        """A command in this state, and the lease that brought it there."""
        (command_id,) = await self.send(batch_id=batch_id)
        if status in {"PENDING", "CANCELED"}:
            if status == "CANCELED":
                await self.rows(
                    "select commandbus.cancel_commands(%s, %s, 'why')", self.domain, [command_id]
                )
            row = await self.command(command_id)
            return Held(command_id, row["msg_id"], 0)
        (held,) = [h for h in await self.receive() if h.command_id == command_id]
        if status == "COMPLETED":
            await self.settle("complete", held.item(data=None))
        elif status == "FAILED":
            await self.settle("fail", held.item(**FAILURE))
        elif status == "IN_TROUBLESHOOTING_QUEUE":
            await self.settle("park", held.item(reason="PERMANENT", **FAILURE))
        return held

    # -- looking

    async def command(self, command_id: UUID) -> dict[str, Any]:
        (row,) = await self.rows(
            "select * from commandbus.command_bus_command where domain = %s and command_id = %s",
            self.domain, command_id,
        )  # fmt: skip
        return row

    async def status(self, command_id: UUID) -> str:
        return (await self.command(command_id))["status"]

    async def batch_row(self, batch_id: UUID) -> dict[str, Any]:
        (row,) = await self.rows(
            "select * from commandbus.command_bus_batch where batch_id = %s", batch_id
        )
        return row

    async def events(self, command_id: UUID) -> list[str]:
        rows = await self.rows(
            "select event_type from commandbus.command_bus_audit where command_id = %s"
            " order by audit_id",
            command_id,
        )
        return [row["event_type"] for row in rows]

    async def details(self, command_id: UUID, event: str) -> dict[str, Any]:
        return await self.value(
            "select details_json from commandbus.command_bus_audit"
            " where command_id = %s and event_type = %s order by audit_id desc limit 1",
            command_id, event,
        )  # fmt: skip

    async def queued(self, suffix: str = "commands") -> list[dict[str, Any]]:
        return await self.rows(
            f"select msg_id, vt, vt <= clock_timestamp() as is_visible, message"
            f" from pgmq.q_{self.domain}__{suffix} order by msg_id"
        )

    async def archived(self) -> list[int]:
        rows = await self.rows(f"select msg_id from pgmq.a_{self.domain}__commands order by msg_id")
        return [row["msg_id"] for row in rows]

    async def replies(self, command_id: UUID) -> list[dict[str, Any]]:
        return [
            m["message"]
            for m in await self.queued("replies")
            if m["message"]["command_id"] == str(command_id)
        ]

    async def everything(self, *, but: Sequence[str] = ()) -> str:
        """All rows of all our tables and queues, to compare before and after."""
        found: dict[str, Any] = {}
        for table in (t for t in TABLES if t not in but):
            found[table] = await self.rows(
                f"select * from commandbus.command_bus_{table} t order by t::text"
            )
        for queue in await self.rows("select queue_name from pgmq.meta order by 1"):
            for kind in "qa":
                name = f"{kind}_{queue['queue_name']}"
                found[name] = await self.rows(f"select msg_id, vt, message from pgmq.{name}")
        return json.dumps(found, default=str, sort_keys=True, indent=1)

    async def until_blocked(self, other: Session) -> None:
        """Wait until the other session waits for a lock."""

        async def waits() -> bool:
            return bool(
                await self.value(
                    "select cardinality(pg_blocking_pids(%s)) > 0", other.conn.info.backend_pid
                )
            )

        await until(waits, "the other session waiting for a lock")


FAILURE = {
    "error_type": "TRANSIENT", "error_code": "BUSY", "error_msg": "later",
    "error_details": {"hint": "x"},
}  # fmt: skip
