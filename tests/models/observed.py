"""The real state of a domain, in the words of the model; and the state as the audit tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

STATES = {
    "SENT": "PENDING", "FAILED": "PENDING", "RELEASED": "PENDING", "OPERATOR_RETRY": "PENDING",
    "MOVED_TO_TROUBLESHOOTING_QUEUE": "IN_TROUBLESHOOTING_QUEUE", "GIVEN_UP": "FAILED",
    "SNOOZED": "PENDING", "DISCARDED": "CANCELED",
    "COMPLETED": "COMPLETED", "OPERATOR_COMPLETE": "COMPLETED", "CANCELED": "CANCELED",
    "OPERATOR_CANCEL": "CANCELED",
}  # fmt: skip
#: Codes of failures that a receive writes, which took the lease for an instant.
TURNED_AWAY = {"LEASE_EXPIRED", "ATTEMPTS_EXHAUSTED"}


@dataclass(frozen=True)
class Observed:
    """A domain, as it is."""

    commands: dict[int, tuple[Any, ...]]
    batches: dict[int, tuple[Any, ...]]
    #: (name of the command, whether it may be read), as often as there is a message.
    queue: Counter[tuple[int, bool]]
    replies: Counter[tuple[int, str]]
    events: dict[str, list[str]]
    #: Name -> (status, epoch, is_leased) that follow from the audit alone.
    folded: dict[int, tuple[str, int, bool]]
    parked: set[int]
    groups: int


class Observer:
    """Reads a domain; `names` and `batches` say which id has which name in the model."""

    def __init__(
        self, conn: psycopg.AsyncConnection[Any], domain: str, names: Mapping[UUID, int],
        batches: Mapping[UUID, int],
    ) -> None:  # fmt: skip
        self._conn = conn
        self._domain = domain
        self._names = names
        self._batches = batches

    async def _rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        cursor = self._conn.cursor(row_factory=dict_row)
        await cursor.execute(query.encode(), params)
        return await cursor.fetchall()

    async def look(self) -> Observed:
        d, q = self._domain, f"pgmq.q_{self._domain}__commands"
        commands = await self._rows(
            "select * from commandbus.command_bus_command where domain = %s", d
        )
        batches = await self._rows(
            "select * from commandbus.command_bus_batch where domain = %s", d
        )
        queue = await self._rows(
            f"select message ->> 'command_id' as id, vt <= clock_timestamp() as is_due from {q}"
        )
        replies = await self._rows(
            "select message ->> 'command_id' as id, message ->> 'outcome' as outcome"
            f" from pgmq.q_{d}__replies"
        )
        audit = await self._rows(
            "select command_id, event_type, details_json ->> 'code' as code"
            " from commandbus.command_bus_audit where domain = %s order by audit_id",
            d,
        )
        parked = await self._rows(
            "select command_id from commandbus.command_bus_troubleshooting where domain = %s", d
        )
        groups = await self._rows(
            "select coalesce(sum(parked_count), 0) as n"
            " from commandbus.command_bus_failure_group where domain = %s",
            d,
        )
        return Observed(
            commands={self._names[row["command_id"]]: self._command(row) for row in commands},
            batches={self._batches[row["batch_id"]]: _batch(row) for row in batches},
            queue=Counter((self._names[UUID(row["id"])], row["is_due"]) for row in queue),
            replies=Counter((self._names[UUID(row["id"])], row["outcome"]) for row in replies),
            events=self._events(audit),
            folded=self._folded(audit),
            parked={self._names[row["command_id"]] for row in parked},
            groups=int(groups[0]["n"]),
        )

    def _command(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        batch_id = row["batch_id"]
        return (
            row["status"], row["lease_epoch"], row["attempts"], row["max_attempts"],
            row["lapses"], row["started_alone"], row["leased_by"] is not None,
            row["dispatch_status"], row["msg_id"] is not None,
            None if batch_id is None else self._batches[batch_id], row["snoozes"] or 0,
            row["cancel_requested_at"] is not None,
        )  # fmt: skip

    def _events(self, audit: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in audit:
            key = row["command_id"]
            if key in self._names:
                found.setdefault(str(self._names[key]), []).append(row["event_type"])
            elif key in self._batches:
                found.setdefault(f"batch {self._batches[key]}", []).append(row["event_type"])
        return found

    def _folded(self, audit: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, int, bool]]:
        """What the events say, one after the other, of each command."""
        found: dict[int, tuple[str, int, bool]] = {}
        before: dict[int, str] = {}
        for row in audit:
            name = self._names.get(row["command_id"])
            if name is None:
                continue
            status, epoch, is_leased = found.get(name, ("", 0, False))
            event = row["event_type"]
            if event == "SENT":  # also again, after retention took the one before
                epoch = 0
            if event == "RECEIVED":
                epoch, is_leased = epoch + 1, True
            elif event in STATES:
                epoch += event == "FAILED" and row["code"] in TURNED_AWAY
                # By a receive, which took the lease of a dead worker for an instant.
                epoch += event == "CANCELED" and before.get(name) == "LEASE_EXPIRED"
                status, is_leased = STATES[event], False
            found[name] = (status, epoch, is_leased)
            before[name] = event
        return found


def _batch(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        row["total_count"], row["completed_count"], row["failed_count"], row["canceled_count"],
        row["in_troubleshooting_count"], row["status"], row["completed_at"] is not None,
        row["close_count"], row["pruning_since"] is not None,
    )  # fmt: skip
