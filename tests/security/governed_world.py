"""A service with governed types, callers with every right but one, and what was executed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from fastapi import FastAPI

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy, Settings
from commandbus.access.model import EVERYTHING
from commandbus.errors import PermanentCommandError
from commandbus.governance.types import BatchType
from commandbus.http import HttpSettings
from tests.http_world import app_of, caller, client_of
from tests.waiting import working

DOMAIN = "vms"
BATCHES = "/api/v1/batches"
USERS = ("mallory", "trudy", "eve")
#: More than anybody needs: what is looked for here is no matter of limits.
SETTINGS: dict[str, Any] = {
    "user_cooldown_seconds": 0, "poll_max_seconds": 0.02, "max_user_pending_batches": 1_000_000,
    "max_user_pending_children": 10_000_000, "max_global_pending_batches": 1_000_000,
    "max_global_api_requests": 10_000_000,
}  # fmt: skip


@dataclass
class Machine:
    """What an item names; one that `fails` is refused by the handler, and parked."""

    name: str
    fails: bool = False


#: Deletions wait for an approval, stops do not; both are governed.
TYPES = tuple(
    BatchType(
        name=name, domain=DOMAIN, command_type=command_type, max_size=5, payload_type=Machine,
        requires_approval=requires_approval, max_attempts=1_000,
    )
    for name, command_type, requires_approval in (
        ("BATCH_DELETE", "DeleteVM", True), ("BATCH_STOP", "StopVM", False),
    )
)  # fmt: skip

_PROOF = """
select b.requires_approval, b.created_by::text,
       commandbus.child_digest(k.salt, c.domain, c.command_type, c.sequence_no, %(data)s::jsonb)
           = k.child_digests[c.sequence_no] as is_as_submitted,
       exists (select from commandbus.command_bus_audit a
                where a.batch_id = b.batch_id and a.command_id = b.batch_id
                  and a.event_type = 'BATCH_APPROVED' and a.actor <> b.created_by
                  and a.details_json ->> 'digest' = encode(commandbus.content_digest(
                          k.salt, b.batch_type::text, b.domain::text, k.child_digests), 'hex'))
           as is_approved,
       c.command_type, c.sequence_no
  from commandbus.command_bus_command c
  join commandbus.command_bus_batch b on b.batch_id = c.batch_id
  join commandbus.command_bus_content k on k.batch_id = b.batch_id
 where c.domain = 'vms' and c.command_id = %(id)s and b.batch_type is not null
"""
_EDITS = "select encode(digest, 'hex'), salt, editor from commandbus.command_bus_edit"
_APPROVED_EDITS = """
select a.details_json ->> 'digest', a.actor from commandbus.command_bus_audit a
 where a.command_id = %s and a.event_type = 'EDIT_APPROVED'
"""
_DIGEST = "select encode(commandbus.child_digest(%s, 'vms', %s, %s, %s::jsonb), 'hex')"


@dataclass
class World:
    """The service, its database, and every execution of a governed handler."""

    bus: CommandBus
    app: FastAPI
    conn: psycopg.AsyncConnection[Any]
    executed: list[tuple[UUID, dict[str, Any]]] = field(default_factory=list)
    #: Edits that were ever proposed: salt and editor, by digest. A decision removes the rows.
    edits: dict[str, tuple[UUID, str]] = field(default_factory=dict)
    calls: int = 0
    proved: int = 0
    proved_edits: int = 0

    async def ask(self, who: str, method: str, path: str, body: Any = None) -> Any:
        """One call; what it was answered, as JSON. No answer is the fault of the service."""
        self.calls += 1
        async with client_of(self.app, who) as client:
            answer = await client.request(method, path, json=body)
        assert answer.status_code < 500, f"{method} {path} {body}: {answer.text}"
        assert answer.status_code != 429, "the calls must reach the code"
        await self.look()
        return answer.json() if answer.content else None

    async def look(self) -> None:
        """Remember the edits that wait, and prove what was executed since."""
        for digest, salt, editor in await self._rows(_EDITS):
            self.edits[digest] = (salt, editor)
        while self.executed:
            await self._prove(*self.executed.pop())

    async def settle(self) -> None:
        """Wait until no command is in its queue any more."""
        open_commands = (
            "select count(*) from commandbus.command_bus_command where msg_id is not null"
            " and status in ('PENDING', 'IN_PROGRESS')"
        )
        async with asyncio.timeout(30):
            while (await self._rows(open_commands))[0][0]:
                await asyncio.sleep(0.005)
        await self.look()

    async def _prove(self, command_id: UUID, data: dict[str, Any]) -> None:
        text = json.dumps(data)
        found = await self._rows(_PROOF, {"id": command_id, "data": text})
        assert found, f"{command_id} was executed, and belongs to no governed batch"
        needs_approval, owner, is_as_submitted, is_approved, kind, number = found[0]
        self.proved += 1
        if is_as_submitted and (is_approved or not needs_approval):
            return
        for digest, actor in await self._rows(_APPROVED_EDITS, (command_id,)):
            salt, editor = self.edits[digest]
            ((computed,),) = await self._rows(_DIGEST, (salt, kind, number, text))
            if computed == digest and actor not in {editor, owner}:
                self.proved_edits += 1
                return
        raise AssertionError(f"nobody approved that {command_id} is executed with {data}")

    async def _rows(self, query: str, params: Any = None) -> list[Any]:
        cursor = await self.conn.execute(query.encode(), params)
        return await cursor.fetchall()


@asynccontextmanager
async def world_on(dsn: str) -> AsyncIterator[World]:
    """The world, with workers that execute."""
    async with (
        CommandBus.connect(dsn, settings=Settings(**SETTINGS)) as bus,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):
        callers: dict[str, Any] = {name: caller(*EVERYTHING, user=name) for name in USERS}
        executed: list[tuple[UUID, dict[str, Any]]] = []

        async def governed(command: Command, ctx: HandlerContext) -> None:
            executed.append((command.command_id, command.data))
            if command.data.get("fails"):
                raise PermanentCommandError("BUSY", "the machine is busy")

        async def ping(command: Command, ctx: HandlerContext) -> None:
            raise PermanentCommandError("DEAF", "nobody hears")

        policy = RetryPolicy(max_attempts=1)
        for each in TYPES:
            bus.governance.declare(each)
            bus.register_handler(DOMAIN, each.command_type, governed, retry_policy=policy)
        bus.register_handler(DOMAIN, "Ping", ping, retry_policy=policy)
        bus.governance.register_handlers()
        budget = HttpSettings(max_user_requests=100_000_000, max_address_requests=100_000_000)
        app = app_of(bus, budget, **callers)
        async with working(bus, DOMAIN), working(bus, "approvals"):
            yield World(bus, app, conn, executed)
