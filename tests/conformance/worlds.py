"""The two stores, each with what a test needs beside the verbs: time, batches, and a full look.

`dump` shows everything that a store remembers of a domain in one shape, without times and message
numbers: two stores that did the same show the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, LiteralString, Protocol, Unpack
from uuid import UUID, uuid4

import orjson
import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from commandbus.database.model import (
    Failure,
    Lease,
    NewBatch,
    Outcome,
    OutcomeKind,
    OutgoingCommands,
)
from commandbus.database.pgmq.client import PgmqClient
from commandbus.database.postgres import PostgresStore
from commandbus.database.rows import COMMAND_COLUMNS, command_of
from commandbus.database.store import Store
from commandbus.flow import SendOptions, check_flow
from commandbus.meta import check_meta
from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus, NewCommand, ParkReason
from commandbus.names import commands_queue, physical_queue, replies_queue
from commandbus.testing import InMemoryStore
from commandbus.testing.memory.reads import shown_command
from tests.conformance.showing import decoded, shown, shown_envelope, sorted_replies

DOMAIN = "payments"
#: What a test leaves behind, as far as the schema has it.
TABLES = [
    f"command_bus_{name}"
    for name in (
        "command", "batch", "troubleshooting", "failure_group", "reply_inbox", "worker", "expiry",
        "waiting", "flow", "key", "key_due", "flow_rule", "gate", "slot", "unique", "progress",
        "secret_key",
    )
]  # fmt: skip
#: What time does to a database whose clock cannot be moved: everything was earlier.
EARLIER: list[LiteralString] = [
    "update commandbus.command_bus_command"
    " set deliver_at = deliver_at - make_interval(secs => %(s)s),"
    " expires_at = expires_at - make_interval(secs => %(s)s)"
    " where num_nonnulls(deliver_at, expires_at) > 0",
    "update commandbus.command_bus_expiry set look_at = look_at - make_interval(secs => %(s)s)",
    "update commandbus.command_bus_flow"
    " set paused_until = paused_until - make_interval(secs => %(s)s)",
    "update commandbus.command_bus_flow_rule"
    " set paused_until = paused_until - make_interval(secs => %(s)s)"
    " where paused_until is not null",
]
#: What workers do from time to time.
CHORES: list[LiteralString] = [
    "select commandbus.end_expired()",
    "select commandbus.end_pauses()",
    "select commandbus.tend_gates(d) from commandbus.ruled_domains() d",
]
FAILURE = Failure(
    "TRANSIENT",
    "BANK_DOWN",
    "no answer",
    {"host": "b1", "port": None, "tried": [1, None, {"x": None}]},
)


# -- what is sent, and how leases end


def new(
    command_type: str = "Debit",
    data: Any = None,
    *,
    command_id: UUID | None = None,
    reply_to: str = replies_queue(DOMAIN),
    correlation_id: UUID | None = None,
    max_attempts: int = 3,
    **options: Unpack[SendOptions],
) -> NewCommand:
    return NewCommand(
        command_type=command_type,
        command_id=command_id or uuid4(),
        data=orjson.dumps({} if data is None else data),
        reply_to=reply_to,
        correlation_id=correlation_id or uuid4(),
        max_attempts=max_attempts,
        flow=check_flow(options),
        meta=check_meta(options.get("meta")),
    )


def new_batch(
    batch_id: UUID | None = None,
    *,
    domain: str = DOMAIN,
    created_by: str | None = None,
    on_complete: dict[str, Any] | None = None,
    notifies: bool = False,
    actor: str | None = None,
) -> NewBatch:
    return NewBatch(
        batch_id=batch_id or uuid4(),
        domain=domain,
        name="b",
        custom_data=b'{"n": 1}',
        created_by=created_by,
        on_complete=None if on_complete is None else orjson.dumps(on_complete),
        notifies=notifies,
        actor=actor,
    )


def done(lease: Lease, result: Any = None, *sends: OutgoingCommands) -> Outcome:
    return Outcome(lease, OutcomeKind.COMPLETE, result=orjson.dumps(result), sends=sends)


def retried(lease: Lease, delay: float = 600.0, *sends: OutgoingCommands) -> Outcome:
    return Outcome(lease, OutcomeKind.RETRY, delay_seconds=delay, failure=FAILURE, sends=sends)


def parked(lease: Lease, reason: ParkReason = ParkReason.PERMANENT) -> Outcome:
    return Outcome(lease, OutcomeKind.PARK, reason=reason, failure=FAILURE)


def failed(lease: Lease) -> Outcome:
    return Outcome(lease, OutcomeKind.FAIL, failure=FAILURE)


def released(lease: Lease) -> Outcome:
    return Outcome(lease, OutcomeKind.RELEASE)


def snoozed(lease: Lease, delay: float = 600.0, reason: str | None = None) -> Outcome:
    return Outcome(lease, OutcomeKind.SNOOZE, delay_seconds=delay, reason=reason)


def discarded(lease: Lease, reason: str = "not needed") -> Outcome:
    return Outcome(lease, OutcomeKind.DISCARD, reason=reason)


class Pgmq(Protocol):
    """What PgmqClient and FakePgmqClient have in common here."""

    async def create(self, queue: str) -> None: ...
    async def send(self, queue: str, message: Any, delay: int = 0) -> int: ...


class World(ABC):
    """A store, and power over its time and its queues."""

    store: Store
    pgmq: Pgmq

    # -- shorthand for the verbs

    async def send(self, *commands: NewCommand, batch_id: UUID | None = None) -> None:
        await self.store.send(DOMAIN, commands, batch_id=batch_id)

    async def receive(
        self,
        quantity: int = 100,
        *,
        worker: str = "w1",
        vt_seconds: int = 30,
        limits: Mapping[str, int] | None = None,
        mark_in_progress: bool = True,
        from_head: bool = False,
        except_types: Sequence[str] = (),
        count_every: Collection[str] = (),
    ) -> list[Lease]:
        return await self.store.receive(
            DOMAIN,
            vt_seconds=vt_seconds,
            quantity=quantity,
            worker=worker,
            limits=limits or {},
            mark_in_progress=mark_in_progress,
            from_head=from_head,
            except_types=except_types,
            count_every=count_every,
        )

    async def send_and_receive(self, *commands: NewCommand, **options: Any) -> list[Lease]:
        await self.send(*commands, batch_id=options.pop("batch_id", None))
        return await self.receive(**options)

    async def settle(self, *outcomes: Outcome) -> set[UUID]:
        return await self.store.settle(DOMAIN, outcomes)

    async def park(self, *commands: NewCommand, batch_id: UUID | None = None) -> None:
        """Send commands and see them into troubleshooting."""
        leases = await self.send_and_receive(*commands, batch_id=batch_id)
        await self.settle(*(parked(lease) for lease in leases))

    async def create_batch(self, *commands: NewCommand, **options: Any) -> UUID:
        batch = new_batch(**options)
        await self.store.create_batch(batch, commands)
        return batch.batch_id

    async def add_batch(self, domain: str = DOMAIN, batch_id: UUID | None = None) -> UUID:
        """Create an empty batch."""
        return await self.create_batch(domain=domain, batch_id=batch_id)

    async def lapse(self) -> None:
        """All leases run out, and all delays are over."""
        await self.advance(1_000_000)

    # -- looking

    async def command(self, command_id: UUID) -> CommandMetadata:
        found = await self.store.get_command(DOMAIN, command_id)
        assert found is not None
        return found

    async def status(self, command_id: UUID) -> CommandStatus:
        return (await self.command(command_id)).status

    async def events(self, command_id: UUID) -> list[str]:
        trail = await self.store.get_audit_trail(command_id, domain=None, limit=1_000)
        return [event.event_type for event in trail]

    async def details(self, command_id: UUID, event_type: str) -> list[Any]:
        trail = await self.store.get_audit_trail(command_id, domain=DOMAIN, limit=1_000)
        return [event.details for event in trail if event.event_type == event_type]

    async def replies(self, queue: str = replies_queue(DOMAIN)) -> list[dict[str, Any]]:
        """Take all replies that are visible."""
        found = await self.store.read_replies(queue, vt_seconds=30, quantity=1_000)
        return [orjson.loads(reply.body) for reply in found]

    async def batch(self, batch_id: UUID) -> BatchMetadata:
        found = await self.store.get_batch(DOMAIN, batch_id)
        assert found is not None
        return found

    async def counters(self, batch_id: UUID) -> tuple[str, int, int, int, int, int]:
        b = await self.batch(batch_id)
        return (
            b.status, b.total_count, b.completed_count, b.failed_count, b.canceled_count,
            b.in_troubleshooting_count,
        )  # fmt: skip

    async def members(
        self, batch_id: UUID, *, domain: str = DOMAIN, limit: int = 10_000, offset: int = 0,
        status: CommandStatus | None = None,
    ) -> list[UUID]:  # fmt: skip
        """The commands of a batch, in their order."""
        found = await self.store.list_batch_commands(
            domain, batch_id, status=status, limit=limit, offset=offset
        )
        return [command.command_id for command in found]

    async def dump(self, domain: str = DOMAIN) -> dict[str, Any]:
        """Everything that the store remembers of a domain."""
        commands = await self.all_commands(domain)
        known = {command.command_id for command in commands}
        batches = await self.store.list_batches(domain, status=None, limit=10_000, offset=0)
        batch_ids = [b.batch_id for b in batches]
        waiting = await self.store.list_troubleshooting(
            domain, command_type=None, limit=10_000, offset=0
        )
        return {
            "commands": {c.command_id: shown(asdict(c)) for c in commands},
            "newest_first": [c.command_id for c in commands],
            "parked": [shown(asdict(item)) for item in waiting],
            "audit": {i: await self._trail(domain, i) for i in sorted(known | {*batch_ids})},
            "batches": [shown(asdict(b)) for b in batches],
            "members": {i: await self.members(i, domain=domain) for i in batch_ids},
            "payloads": {
                i: decoded(await self.store.get_payload(domain, i)) for i in sorted(known)
            },
            **await self.hidden(domain),
        }

    async def counts(self, domain: str | None = None) -> Counter[tuple[str, CommandStatus]]:
        """How many commands stand where."""
        return Counter((c.domain, c.status) for c in await self.all_commands(domain))

    async def domains_of(self, command_id: UUID) -> list[str]:
        """The domains that know an id."""
        found = await self.all_commands()
        return sorted(c.domain for c in found if c.command_id == command_id)

    async def _trail(self, domain: str, command_id: UUID) -> list[tuple[Any, ...]]:
        trail = await self.store.get_audit_trail(command_id, domain=domain, limit=10_000)
        return [(e.event_type, shown(e.details), e.batch_id, e.actor) for e in trail]

    # -- what no verb of the store does

    @abstractmethod
    async def all_commands(self, domain: str | None = None) -> list[CommandMetadata]:
        """All commands, newest first and within one call by id."""

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Let time pass for every message, expiry and pause; then what is over ends."""

    @abstractmethod
    async def lose_archive(self, domain: str = DOMAIN) -> None:
        """Somebody has purged PGMQ's archive."""

    @abstractmethod
    async def make_ids_global(self) -> None:
        """From now on an id may stand in one domain only."""

    @abstractmethod
    async def drop_queue(self, queue: str) -> None:
        """Somebody has dropped a queue."""

    @abstractmethod
    async def hidden(self, domain: str) -> dict[str, Any]:
        """What the verbs do not show: queues, archives, replies, the suspicion against commands."""


class MemoryWorld(World):
    def __init__(self, store: InMemoryStore | None = None) -> None:
        self.memory = store or InMemoryStore()
        self.store = self.memory
        self.pgmq = self.memory.pgmq

    async def all_commands(self, domain: str | None = None) -> list[CommandMetadata]:
        rows = [r for r in self.memory._state.commands.values() if domain in {None, r.domain}]
        rows.sort(key=lambda row: row.command_id)
        rows.sort(key=lambda row: row.created_at, reverse=True)  # among equals, as before
        return [shown_command(self.memory._state, row) for row in rows]

    async def advance(self, seconds: float) -> None:
        self.memory.clock.advance(seconds)

    async def lose_archive(self, domain: str = DOMAIN) -> None:
        self.memory.pgmq.queues.get(commands_queue(domain)).archive.clear()

    async def make_ids_global(self) -> None:
        self.memory._state.id_scope = "global"

    async def drop_queue(self, queue: str) -> None:
        self.memory.pgmq.queues.drop(queue)

    async def hidden(self, domain: str) -> dict[str, Any]:
        state = self.memory._state
        now = self.memory.clock.now()
        commands = state.queues.get(commands_queue(domain))
        replies = state.queues.get(replies_queue(domain))
        return {
            "suspicion": {
                row.command_id: (row.lapses, row.started_alone)
                for row in state.commands.values()
                if row.domain == domain
            },
            "queue": [
                (shown_envelope(m.message), m.read_ct, m.vt <= now)
                for m in commands.messages.values()
            ],
            "archive": [shown_envelope(m.message) for _, m in sorted(commands.archive.items())],
            "replies": sorted_replies(m.message for m in replies.messages.values()),
            "inbox": sorted_replies(
                orjson.loads(body) for key, body in state.inbox.items() if key[0] == domain
            ),
        }


class PostgresWorld(World):
    def __init__(self, pool: AsyncConnectionPool[Any], conn: psycopg.AsyncConnection[Any]) -> None:
        self.store = PostgresStore(pool)
        self.pool = pool
        self.conn = conn
        self.pgmq = PgmqClient(conn)

    async def rows(self, query: str, *params: object) -> Sequence[dict[str, Any]]:
        cursor = self.conn.cursor(row_factory=dict_row)
        await cursor.execute(query.encode(), params or None)
        return await cursor.fetchall()

    async def clear(self) -> None:
        """Make the database as good as new; the audit stays, but it knows other ids."""
        async with self.conn.transaction():
            found = await self.rows(
                "select tablename from pg_tables where schemaname = 'commandbus'"
                " and tablename = any(%s) order by array_position(%s, tablename::text)",
                TABLES,
                TABLES,
            )
            for row in found:
                table = sql.Identifier("commandbus", row["tablename"])
                await self.conn.execute(sql.SQL("delete from {}").format(table))
            await self.conn.execute("select pgmq.drop_queue(queue_name) from pgmq.meta")
            await self.conn.execute(
                "select commandbus.change_setting('command_id_scope', 'domain')"
            )
        self.store = PostgresStore(self.pool)  # which does not remember the queues

    async def all_commands(self, domain: str | None = None) -> list[CommandMetadata]:
        return await self.store.gateway.rows(
            "select "
            + COMMAND_COLUMNS
            + " from {schema}.command_bus_command c where cast(%s as text) is null or c.domain = %s"
            " order by c.created_at desc, c.command_id",
            (domain, domain),
            into=command_of,
        )

    async def advance(self, seconds: float) -> None:
        # PGMQ's clock cannot be moved, so the messages are.
        for row in await self.rows("select queue_name from pgmq.meta"):
            table = sql.Identifier("pgmq", f"q_{row['queue_name']}")
            await self.conn.execute(
                sql.SQL("update {} set vt = vt - make_interval(secs => %s)").format(table),
                (seconds,),
            )
        for change in EARLIER:
            await self.conn.execute(change, {"s": seconds})
        for chore in CHORES:
            await self.conn.execute(chore)

    async def lose_archive(self, domain: str = DOMAIN) -> None:
        table = sql.Identifier("pgmq", f"a_{physical_queue(commands_queue(domain))}")
        await self.conn.execute(sql.SQL("delete from {}").format(table))

    async def make_ids_global(self) -> None:
        await self.conn.execute("select commandbus.change_setting('command_id_scope', 'global')")

    async def drop_queue(self, queue: str) -> None:
        await self.conn.execute("select pgmq.drop_queue(%s)", (physical_queue(queue),))

    async def hidden(self, domain: str) -> dict[str, Any]:
        commands = physical_queue(commands_queue(domain))
        replies = physical_queue(replies_queue(domain))
        return {
            "suspicion": {
                row["command_id"]: (row["lapses"], row["started_alone"])
                for row in await self.rows(
                    "select * from commandbus.command_bus_command where domain = %s", domain
                )
            },
            "queue": [
                (shown_envelope(row["message"]), row["read_ct"], row["is_visible"])
                for row in await self.rows(
                    # Not the vt itself: Python knows no infinity.
                    "select message, read_ct, vt <= clock_timestamp() as is_visible"
                    f" from pgmq.q_{commands} order by msg_id"
                )
            ],
            "archive": [
                shown_envelope(row["message"])
                for row in await self.rows(f"select message from pgmq.a_{commands} order by msg_id")
            ],
            "replies": sorted_replies(
                row["message"] for row in await self.rows(f"select message from pgmq.q_{replies}")
            ),
            "inbox": sorted_replies(
                row["reply"]
                for row in await self.rows(
                    "select reply from commandbus.command_bus_reply_inbox where domain = %s", domain
                )
            ),
        }
