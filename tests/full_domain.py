"""A domain that has something in every table that a move carries, and what must become of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from commandbus.access.model import Caller, Scope
from commandbus.errors import PermanentCommandError
from commandbus.governance.model import TicketStatus
from commandbus.governance.types import BatchType
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.loads import LoadStart
from commandbus.models import BatchCommand, Command, CommandStatus
from commandbus.names import new_id
from commandbus.retry import RetryPolicy
from commandbus.shards import SpanningBus
from commandbus.troubleshooting.model import BulkFilter, BulkOperation, BulkVerb
from commandbus.troubleshooting.patch import MergePatch
from tests.waiting import until

DOMAIN = "full"
GUARDED = BatchType(
    name="FULL_GUARDED", domain=DOMAIN, command_type="Order", max_size=50, requires_approval=True
)
ORDERS = BatchType(name="FULL_ORDERS", domain=DOMAIN, command_type="Order", max_size=50)
ADA = Caller("ada", frozenset({Scope.READ, Scope.SUBMIT}), None)
PETRA = Caller("petra", frozenset({Scope.READ, Scope.APPROVE, Scope.OPERATE}), None)

LEASE = (
    "select command_id from commandbus.receive_commands(%s, %s, %s, 'zombie',"
    " p_mark_in_progress => true)"
)
PARTS = "select part, relation::text, scope from commandbus.move_parts(%s) order by place, part"
EVENTS = (
    "select command_id, event_type, ts, details_json, actor from commandbus.command_bus_audit"
    " where domain = %s order by audit_id"
)
DONE = (
    "select command_id from commandbus.command_bus_audit"
    " where domain = %s and event_type = 'COMPLETED' and command_id in ("
    "       select c.command_id from commandbus.command_bus_command c where c.domain = %s)"
)
#: What is there for moments only, or is made by parts of the bus that are not here.
MOMENTS = (
    "insert into commandbus.command_bus_key_due (domain, ordering_key) values ('full', 'k')",
    "insert into commandbus.command_bus_group_sample (domain, fingerprint, hour, seen, total)"
    " select domain, fingerprint, date_trunc('hour', now()), 1, 1"
    " from commandbus.command_bus_failure_group",
    "insert into commandbus.command_bus_setting (name, value)"
    " values ('audit_pruned_before.full', '2020-01-01T00:00:00.000000Z')",
    "insert into commandbus.command_bus_sender (domain, command_id, sent_by, digest)"
    " select domain, command_id, 'ada', '\\x00ff' from commandbus.command_bus_command"
    " where command_type = 'Post' limit 3",
    "insert into commandbus.command_bus_reply_inbox (domain, command_id, reply)"
    ' select domain, command_id, \'{"a": "\\\\n\\u00e9"}\' from commandbus.command_bus_command'
    " where command_type = 'Post' limit 1",
    "insert into commandbus.command_bus_secret_key values ('full', 'Post', 'pin')",
    "select pgmq.archive('full__replies', min(msg_id)) from pgmq.q_full__replies",
    "insert into commandbus.command_bus_look (batch_id, user_id, digest, first_at, last_at)"
    " select batch_id, 'petra', 'ab', now(), now() from commandbus.command_bus_batch"
    " where requires_approval and decision is null",
)


#: So that two databases say the same in the same way.
ALIKE = {
    "timezone": "UTC", "datestyle": "ISO", "bytea_output": "hex", "intervalstyle": "postgres",
    "extra_float_digits": "1",
}  # fmt: skip


async def rows(dsn: str, text: str, *params: Any) -> list[Any]:
    """What a statement finds."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        for name, value in ALIKE.items():
            await conn.execute("select set_config(%s, %s, false)", (name, value))
        return await (await conn.execute(text.encode(), params)).fetchall()


async def run(dsn: str, text: str) -> None:
    """Run a statement."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(text.encode())


async def contents(dsn: str, domain: str = DOMAIN) -> dict[str, tuple[int, str]]:
    """Of each table how many rows of the domain it has, and their digest."""
    found = {}
    for part, relation, scope in await rows(dsn, PARTS, domain):
        text = (
            "select count(*), md5(coalesce(string_agg(t::text, '' order by t::text), ''))"
            f" from {relation} t where {scope.replace('$1', '%s')}"
        )
        found[part] = (await rows(dsn, text, *[domain] * scope.count("$1")))[0]
    events = await rows(dsn, EVENTS, domain)
    found["audit"] = (len(events), str(events))
    return found


def lines(count: int) -> Iterator[dict[str, Any]]:
    """The rows of a load."""
    yield from ({"command_type": "Post", "data": {"row": n}} for n in range(count))


def broken_off(count: int) -> Iterator[dict[str, Any]]:
    """The same, from a source that fails behind them."""
    yield from lines(count)
    raise OSError("the disk is gone")


@dataclass
class Full:
    """The domain, and what was put into it."""

    bus: SpanningBus
    #: Every command whose handler was run to its end, as often as it was.
    done: list[UUID] = field(default_factory=list)
    #: Whether the handler of `Break` still fails.
    is_broken: bool = True
    ids: dict[str, list[UUID]] = field(default_factory=dict)
    tickets: dict[str, UUID] = field(default_factory=dict)
    bulks: dict[str, BulkOperation] = field(default_factory=dict)
    batch: UUID = field(default_factory=new_id)
    load: UUID = field(default_factory=new_id)
    request: UUID = field(default_factory=new_id)

    def handlers(self) -> Handlers:
        """What does its work."""
        found = Handlers(DOMAIN)

        async def post(command: Command, context: HandlerContext) -> dict[str, Any]:
            self.done.append(command.command_id)
            return {"n": command.data.get("n")}

        async def broken(command: Command, context: HandlerContext) -> None:
            if self.is_broken:
                raise PermanentCommandError("NO", "it cannot be")
            self.done.append(command.command_id)

        for kind in ("Post", "Tick", "Limited", "ByKey", "Rated", "Called", "Order"):
            found.handle(kind)(post)
        found.handle("Break", retry_policy=RetryPolicy(max_attempts=1))(broken)
        return found

    async def send(self, name: str, count: int, kind: str = "Post", **options: Any) -> None:
        """Send some, and remember them under a name."""
        commands = [BatchCommand(kind, new_id(), {"n": n}, **options) for n in range(count)]
        self.ids.setdefault(name, []).extend(await self.bus.send_many(DOMAIN, commands))

    async def work(self) -> None:
        """Do what is due."""
        await self.bus.run_worker(DOMAIN, until_empty=True, concurrency=20)

    async def fill(self, dsn: str) -> None:
        """Put something of everything into it; `dsn`: where it is."""
        bus = self.bus
        bus.governance.declare(GUARDED)
        bus.governance.declare(ORDERS)
        await self.send("ended", 5)
        await self.send("held", 1, unique_key="once", unique_while=timedelta(days=1))
        await self.send("parked", 12, "Break")
        await self.send("blocked", 3, "Break", ordering_key="b")
        self.batch = await bus.create_batch(
            DOMAIN,
            [BatchCommand("Post", new_id(), {}), BatchCommand("Break", new_id(), {})],
            name="half", on_complete_command=BatchCommand("Called", new_id(), {}),
        )  # fmt: skip
        orders = [{"n": n} for n in range(2)]
        submit = bus.governance.submit
        for name, kind, request in (
            ("over", "FULL_ORDERS", self.request), ("pending", "FULL_GUARDED", None),
            ("approved", "FULL_GUARDED", None), ("rejected", "FULL_GUARDED", None),
        ):  # fmt: skip
            made = await submit(ADA, kind, orders, request_id=request)
            self.tickets[name] = made.ticket.ticket_id
        decide = bus.governance.decide
        await decide(PETRA, self.tickets["rejected"], approve=False, reason="no")
        await self.work()
        await decide(PETRA, self.tickets["approved"], approve=True, reason=None)

        await bus.pause(DOMAIN, type="Tick", reason="for the night")
        limits = bus.limits
        await limits.set(DOMAIN, max_running=100)
        await limits.set(DOMAIN, "Limited", max_running=2)
        await limits.set(DOMAIN, "ByKey", per_key=True, max_running=1)
        await limits.set(DOMAIN, "Rated", rate=1, per=3600, burst=2)
        await self.send("limited", 6, "Limited")
        await self.send("by key", 4, "ByKey", limit_key="x")
        await self.send("rated", 4, "Rated")
        await self.send("asked to end", 1)
        # Leased by somebody who is gone: places are held, tokens are spent, the others wait.
        await rows(dsn, LEASE, DOMAIN, 2, 30)
        for each in self.ids["asked to end"]:
            await bus.cancel(DOMAIN, each, "void", running="request")
        await self.send("delayed", 3, delay=timedelta(hours=1))
        await self.send("expiring", 2, "Tick", expires_in=timedelta(seconds=4))
        await self.send("keyed", 4, ordering_key="k")
        await self.send("urgent", 2, priority=2)
        await self.send("open key", 1, unique_key="open", unique_while="open")
        await self.send("waiting", 5)
        await self._put_schedules()
        for text in MOMENTS:
            await run(dsn, text)
        await self._begin_bulks()
        found = await bus.loads.load(
            DOMAIN, broken_off(50), checkpoint_size=20, batch_id=self.load,
            start=LoadStart.AS_IT_LOADS,
        )  # fmt: skip
        assert (found.status, found.tasks_committed) == ("partial_success", 40), found
        await bus.upkeep.set_retention("commands", timedelta(days=400), domain=DOMAIN)

    async def _put_schedules(self) -> None:
        put = self.bus.schedules.put
        await put(DOMAIN, "each-second", "Post", {"n": 0}, every=1, missed="all", missed_cap=9_000)
        await put(DOMAIN, "nightly", "Post", {}, cron="0 3 * * *", timezone="Europe/Berlin")
        await put(DOMAIN, "later", "Post", {}, at=datetime.now(UTC) + timedelta(days=2))
        await put(DOMAIN, "paused", "Tick", {}, every=60)
        await self.bus.schedules.pause(DOMAIN, "paused", reason="not now")

    async def _begin_bulks(self) -> None:
        bulk = self.bus.bulk
        chosen = BulkFilter(DOMAIN, command_type="Break")
        operation = await bulk.start(
            BulkVerb.RETRY, chosen, rate=4, operator="ann", everything=True
        )
        shard = await self.bus.sharded.on(DOMAIN)
        assert (await shard.bulk._executor.run_chunk(operation.operation_id)).acted == 1
        self.bulks["half"] = operation
        self.bulks["edit"] = await bulk.start(
            BulkVerb.RETRY, BulkFilter(DOMAIN, error_code="NO"), edit=MergePatch({"edited": True}),
            operator="ann", start_after=3600, everything=True,
        )  # fmt: skip


async def ticks_of(dsn: str, name: str = "each-second") -> list[tuple[datetime, int]]:
    """The ticks of a schedule that were sent, and how often each was: from the audit."""
    found = await rows(
        dsn,
        "select c.command_id, c.created_at from commandbus.command_bus_command c"
        " join commandbus.command_bus_schedule s on s.schedule_id = c.correlation_id"
        " where s.domain = %s and s.name = %s order by c.created_at",
        DOMAIN, name,
    )  # fmt: skip
    return list(Counter(each[1] for each in found).items())


@asynccontextmanager
async def at_work(full: Full) -> AsyncIterator[None]:
    """A worker, and what fires schedules and ends what expires."""
    task = asyncio.create_task(full.bus.run_worker(DOMAIN, concurrency=20))
    try:
        async with full.bus.schedules.firing():
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def go_on(full: Full, dsn: str) -> None:
    """Let every part of the domain go on to its end where it is now, and look that it did.

    A worker is there.
    """
    bus = full.bus
    for name in ("waiting", "urgent", "open key", "keyed", "limited", "by key"):
        await _all_done(full, name)
    keyed = [each for each in full.done if each in full.ids["keyed"]]
    assert keyed == full.ids["keyed"]
    assert await _states(full, "delayed") == {"PENDING"}
    assert await _states(full, "asked to end") == {"CANCELED"}
    # Both tokens were spent where it was, and the next comes after an hour.
    assert Counter(map(str, await _each_state(full, "rated"))) == {"PENDING": 4}
    # The keys are still held.
    held = await bus.send(DOMAIN, "Post", new_id(), {}, unique_key="once", on_duplicate="skip")
    assert held == full.ids["held"][0]
    # Tickets
    require = bus.governance.require
    assert (await require(ADA, full.tickets["over"])).status is TicketStatus.COMPLETED
    assert (await require(ADA, full.tickets["rejected"])).status is TicketStatus.CANCELED
    await _ticket_ends(full, full.tickets["approved"])
    assert (await require(ADA, full.tickets["pending"])).status is TicketStatus.PENDING_APPROVAL
    await bus.governance.decide(PETRA, full.tickets["pending"], approve=True, reason=None)
    again = await bus.governance.submit(
        ADA, "FULL_ORDERS", [{"n": n} for n in range(2)], request_id=full.request
    )
    assert again.ticket.ticket_id == full.tickets["over"]
    made = await bus.governance.submit(ADA, "FULL_ORDERS", [{"n": 9}])
    # The load goes on after its last checkpoint.
    result = await bus.loads.resume(DOMAIN, full.load, lines(70))
    assert (result.status, result.tasks_committed) == ("success", 70)
    # Bulk operations
    full.is_broken = False
    ended = await bus.bulk.run(full.bulks["half"].operation_id)
    assert (ended.status, ended.failed) == ("finished", 0)
    assert ended.done + ended.skipped == ended.total
    if (await bus.troubleshooting.counts(DOMAIN)).values():  # what was retried before, and failed
        rest = await bus.bulk.start(BulkVerb.RETRY, BulkFilter(DOMAIN), everything=True)
        await bus.bulk.run(rest.operation_id)
    await _ticket_ends(full, made.ticket.ticket_id)
    await _ticket_ends(full, full.tickets["pending"])
    await bus.bulk.stop(full.bulks["edit"].operation_id, operator="ann")
    await until(lambda: _batch_is(full, full.batch, 2), "the end of the batch")
    await until(lambda: _called(full, dsn), "the command of its end")
    await until(lambda: _batch_is(full, full.load, 70), "the end of the load")
    await until(lambda: _gone(full, "expiring"), "what expires")
    assert [each.keep for each in await bus.upkeep.get_retention() if each.domain == DOMAIN]
    # Each is done once.
    done = Counter(each for (each,) in await rows(dsn, DONE, DOMAIN, DOMAIN))
    assert {each for each, times in done.items() if times > 1} == set()


async def _each_state(full: Full, name: str) -> list[CommandStatus]:
    found = [await full.bus.get_command(DOMAIN, each) for each in full.ids[name]]
    return [each.status for each in found if each is not None]


async def _states(full: Full, name: str) -> set[str]:
    return {str(each) for each in await _each_state(full, name)}


async def _gone(full: Full, name: str) -> bool:
    return await _states(full, name) == {"CANCELED"}


async def _all_done(full: Full, name: str) -> None:
    async def are_done() -> bool:
        return await _states(full, name) == {"COMPLETED"}

    await until(are_done, f"{name} being done")


async def _ticket_ends(full: Full, ticket: UUID) -> None:
    ended = await full.bus.governance.wait(ADA, ticket, seen=None, timeout=30)
    assert ended.status is TicketStatus.COMPLETED


async def _batch_is(full: Full, batch_id: UUID, total: int) -> bool:
    found = await full.bus.get_batch(DOMAIN, batch_id)
    assert found is not None
    return (found.total_count, found.completed_count, found.status) == (total, total, "COMPLETED")


async def _called(full: Full, dsn: str) -> bool:
    found = await rows(
        dsn,
        "select status from commandbus.command_bus_command where domain = %s"
        " and command_type = 'Called'",
        DOMAIN,
    )
    assert len(found) <= 1
    return found == [("COMPLETED",)]
