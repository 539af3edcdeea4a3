"""A domain moves to another shard with all that belongs to it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from commandbus.access.model import Caller, Scope
from commandbus.bus import CommandBus
from commandbus.database.gateway import Gateway
from commandbus.errors import (
    DomainMovedError,
    DomainMovingError,
    DuplicateCommandError,
    InvalidOperationError,
    PermanentCommandError,
)
from commandbus.governance.types import BatchType
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.loads import LoadStart
from commandbus.models import BatchCommand, Command, CommandStatus, ReplyOutcome
from commandbus.names import new_id
from commandbus.schedules.firing import Firing
from commandbus.shards import ShardMap, SpanningBus, apply_map, cancel_move, move_domain, moves
from commandbus.shards.copying import CHUNK_BYTES
from commandbus.shards.status import shard_states
from tests.killed_moves import Killed, kill_at
from tests.waiting import until

pytestmark = pytest.mark.postgres


def a_map(one: str, two: str, version: int = 1, mail: str = "two") -> ShardMap:
    return ShardMap({"one": one, "two": two}, {"mail": mail}, "one", version)


async def told(one: str, two: str) -> ShardMap:
    """The first map, which both know."""
    known = a_map(one, two)
    await apply_map(known)
    return known


async def status_of(bus: CommandBus, command_id: UUID, domain: str = "mail") -> CommandStatus:
    found = await bus.get_command(domain, command_id)
    assert found is not None
    return found.status


def posting(done: list[UUID] | None = None) -> Handlers:
    handlers = Handlers("mail")

    @handlers.handle("Post")
    async def post(command: Command, context: HandlerContext) -> None:
        if done is not None:
            done.append(command.command_id)

    @handlers.handle("Break")
    async def broken(command: Command, context: HandlerContext) -> None:
        raise PermanentCommandError("NO", "it cannot be")

    return handlers


async def rows(dsn: str, text: str, *params: Any) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        return await (await conn.execute(text, params)).fetchall()


async def amounts(dsn: str) -> dict[str, int]:
    """What a database has of the domain, none left out."""
    found = await rows(dsn, "select part, amount from commandbus.count_parts('mail')")
    events = "select count(*) from commandbus.command_bus_audit where domain = 'mail'"
    return {**dict(found), "audit": (await rows(dsn, events))[0][0]}


EVENTS = (
    "select command_id, event_type, ts, details_json, actor from commandbus.command_bus_audit"
    " where domain = 'mail' order by audit_id"
)
LEFT_BEHIND = "select count(*) from pg_trigger where tgname ~ '^commandbus_(frozen|closed|moving)'"
COMMANDS = (
    "select to_jsonb(c) from commandbus.command_bus_command c where domain = 'mail'"
    " order by command_id"
)


async def test_domain_moves_with_everything_it_has(dsn: str, empty_dsn: str) -> None:
    known = await told(dsn, empty_dsn)
    done: list[UUID] = []
    async with SpanningBus.over(known, handlers=posting(done)) as bus:
        ended = [await bus.send("mail", "Post", new_id(), {"n": n}) for n in range(5)]
        parked = await bus.send("mail", "Break", new_id(), {"text": 'a\nb\t\\"é'})
        batch = await bus.create_batch(
            "mail",
            [BatchCommand("Post", new_id(), {}), BatchCommand("Break", new_id(), {})],
            name="the batch",
        )
        await bus.run_worker("mail", until_empty=True)
        delayed = await bus.send("mail", "Post", new_id(), {}, delay=timedelta(hours=1), priority=2)
        keyed = [
            await bus.send("mail", "Post", new_id(), {"n": n}, ordering_key="k") for n in range(3)
        ]
        await bus.send(
            "mail", "Post", new_id(), {}, unique_key="only", unique_while=timedelta(days=1)
        )
        waiting = await bus.send("mail", "Post", new_id(), {"n": 7})
        await bus.send("payments", "Charge", stays := new_id(), {})

        before = await amounts(empty_dsn)
        events, commands = await rows(empty_dsn, EVENTS), await rows(empty_dsn, COMMANDS)
        report = await move_domain(known, "mail", "one")

        assert (report.from_shard, report.to_shard, report.map_version) == ("two", "one", 2)
        assert set((await amounts(empty_dsn)).values()) == {0}
        assert await amounts(dsn) == before
        assert await rows(dsn, EVENTS) == events
        assert await rows(dsn, COMMANDS) == commands
        assert report.counts["command_bus_command"] == len(commands)
        assert (
            await rows(dsn, "select count(*) from pg_trigger where tgname ~ 'commandbus_(f|c|m)'")
        ) == [(0,)]

        # An id that was known is known.
        await bus.sharded.look_at_maps()
        with pytest.raises(DuplicateCommandError):
            await bus.send("mail", "Post", waiting, {"n": 7})
        with pytest.raises(DuplicateCommandError):
            await bus.send("mail", "Post", ended[0], {"n": 0})
        # What waited is done, in the order of its key; what is parked and delayed stays so.
        done.clear()
        await bus.run_worker("mail", until_empty=True)
        assert [each for each in done if each in keyed] == keyed
        assert waiting in done
        assert delayed not in done
        assert await status_of(bus, parked) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        await bus.troubleshooting.retry("mail", parked)
        await bus.run_worker("mail", until_empty=True)
        stored = await bus.get_batch("mail", batch)
        assert stored is not None
        assert (stored.completed_count, stored.in_troubleshooting_count) == (1, 1)
        assert await status_of(bus, stays, "payments") is CommandStatus.PENDING
        # New numbers come after those that moved.
        after = await bus.send("mail", "Post", new_id(), {})
        message = "select msg_id from commandbus.command_bus_command where command_id = %s"
        ((number,),) = await rows(dsn, message, after)
        assert number > max(each["msg_id"] or 0 for (each,) in commands)
        # And back again: nothing was left there.
        again = await move_domain(known, "mail", "two")
        assert again.map_version == 3
        assert set((await amounts(dsn)).values()) == {0}


#: What is called, and after which call of it the process is killed; in the order of a move.
DEATHS = [
    (".begin_leaving(", 1), (".begin_arriving(", 1), (".mark_frozen(", 1), (".freeze_table(", 10),
    (".put_moved_events(", 1), (".put_moved_rows(", 2), (".note_move(", 1), (".note_move(", 2),
    (".close_leases(", 1), (".mark_frozen(", 3), (".freeze_table(", 80), (".put_moved_rows(", 1),
    (".put_moved_rows(", 1), (".go_past_numbers(", 1), (".note_move(", 3), (".note_verified(", 1),
    (".adopt_moved_map(", 1), (".adopt_map(", 1), (".note_move(", 1),
    (".note_move(", 2), (".thaw_table(", 3), (".forget_moved_rows(", 3),
    (".forget_moved_events(", 1), (".note_move(", 3), (".open_leases(", 1),
]  # fmt: skip


async def test_move_that_is_killed_again_and_again_goes_on(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await told(dsn, empty_dsn)
    accepted: set[UUID] = set()
    async with SpanningBus.over(known, handlers=posting()) as bus:

        async def send(times: int) -> None:
            await bus.sharded.look_at_maps()
            for _ in range(times):
                command_id = new_id()
                with suppress(DomainMovingError):  # nothing was written
                    accepted.add(await bus.send("mail", "Post", command_id, {}))

        await send(20)
        await bus.run_worker("mail", until_empty=True)
        await send(20)
        deaths = 0
        for name, times in DEATHS:
            revive = kill_at(monkeypatch, name, times)
            try:
                await move_domain(known, "mail", "one")
            except Killed:
                deaths += 1
            revive()
            await send(3)
        assert deaths == len(DEATHS)
        await move_domain(known, "mail", "one")
        await send(5)
        await bus.run_worker("mail", until_empty=True)
    assert set((await amounts(empty_dsn)).values()) == {0}
    ended = await rows(
        dsn, "select command_id from commandbus.command_bus_audit where event_type = 'COMPLETED'"
    )
    assert Counter(each for (each,) in ended) == Counter(accepted)
    assert len(accepted) > 45
    assert await rows(dsn, LEFT_BEHIND) == await rows(empty_dsn, LEFT_BEHIND) == [(0,)]


async def test_worker_of_the_old_shard_is_refused_after_the_move(dsn: str, empty_dsn: str) -> None:
    known = await told(dsn, empty_dsn)
    done: list[UUID] = []
    async with SpanningBus.over(known, handlers=posting(done)) as bus:
        sent = await bus.send("mail", "Post", new_id(), {})
        lease = (
            "select msg_id, lease_epoch from commandbus.receive_commands('mail', 1, 1, 'zombie')"
        )
        ((msg_id, epoch),) = await rows(empty_dsn, lease)
        await move_domain(known, "mail", "one")  # waits until the lease has lapsed
        complete = (
            "select * from commandbus.complete_commands('mail', jsonb_build_array("
            "jsonb_build_object("
            "'command_id', %s::text, 'msg_id', %s::bigint, 'lease_epoch', %s::bigint)))"
        )
        assert await rows(empty_dsn, complete, str(sent), msg_id, epoch) == [(sent,)]  # refused
        await bus.sharded.look_at_maps()
        await bus.run_worker("mail", until_empty=True)
        assert done == [sent]
        trail = [event.event_type for event in await bus.get_audit_trail(sent)]
        assert trail.count("COMPLETED") == 1
        assert "LEASE_EXPIRED" in trail


async def test_domain_is_open_again_if_its_commands_do_not_end_in_time(
    dsn: str, empty_dsn: str
) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known) as bus:
        await bus.send("mail", "Post", new_id(), {})
        await rows(empty_dsn, "select 1 from commandbus.receive_commands('mail', 600, 1, 'slow')")
        with pytest.raises(InvalidOperationError, match="1 commands of domain 'mail' still run"):
            await move_domain(known, "mail", "one", wait_seconds=0)
        sent = await bus.send("mail", "Post", new_id(), {})
        states = {each.shard: each for each in await shard_states(known)}
        assert "on its way to one: copying" in states["two"].moves["mail"]
        assert "on its way from two: copying" in states["one"].moves["mail"]
        with pytest.raises(InvalidOperationError, match="is on its way"):
            await move_domain(known, "mail", "two")
        assert await cancel_move(known, "mail")
        assert not await cancel_move(known, "mail")
        assert await status_of(bus, sent) is CommandStatus.PENDING
    assert set((await amounts(dsn)).values()) == {0}
    assert await rows(dsn, LEFT_BEHIND) == await rows(empty_dsn, LEFT_BEHIND) == [(0,)]
    assert len(await rows(empty_dsn, COMMANDS)) == 2


async def test_nothing_of_a_frozen_domain_can_be_changed(dsn: str, empty_dsn: str) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        parked = await bus.send("mail", "Break", new_id(), {})
        await bus.run_worker("mail", until_empty=True)
        waiting = await bus.send("mail", "Post", new_id(), {})
        there = await bus.sharded.on("mail")
        gateway = there._store.gateway
        await moves.begin_leaving(gateway, "mail", "one")
        (move,) = await moves.open_moves(gateway)
        await moves.note(gateway, move.move_id, "closing")
        await moves.mark_frozen(gateway, move.move_id)
        for table, parent in await moves.frozen_tables(gateway, "mail"):
            await moves.freeze(gateway, "mail", table, parent)
        for verb in (
            lambda: there.send("mail", "Post", new_id(), {}),
            lambda: there.cancel("mail", waiting, reason="x"),
            lambda: there.troubleshooting.cancel("mail", parked, reason="x"),
            lambda: there.troubleshooting.retry("mail", parked),
            lambda: there.pause("mail", reason="x"),
        ):
            with pytest.raises(DomainMovingError):
                await verb()
        await bus.send("payments", "Charge", new_id(), {})


async def test_call_gets_its_reply_where_the_domain_is_then(dsn: str, empty_dsn: str) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        calling = asyncio.create_task(bus.call("mail", "Post", {}, timeout=60))
        await until(lambda: _is_there(empty_dsn), "the command of the call")
        await move_domain(known, "mail", "one")
        await bus.sharded.look_at_maps()
        await bus.run_worker("mail", until_empty=True)
        assert (await calling).outcome is ReplyOutcome.SUCCESS


def _is_there(dsn: str) -> bool:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select from commandbus.command_bus_command").fetchone() is not None


async def test_history_of_an_earlier_stay_is_not_mixed_with_another(
    dsn: str, empty_dsn: str
) -> None:
    first = await told(dsn, empty_dsn)
    async with SpanningBus.over(first, handlers=posting()) as bus:
        await bus.send("mail", "Post", new_id(), {}, reply_to="")
        await bus.run_worker("mail", until_empty=True)
    second = a_map(dsn, empty_dsn, 2, mail="one")
    await apply_map(second)  # leaves its history behind
    async with SpanningBus.over(second) as bus:
        await bus.send("mail", "Post", new_id(), {})
        with pytest.raises(
            InvalidOperationError, match=r"from an earlier stay: .*1 command_bus_comm"
        ):
            await move_domain(second, "mail", "two")
        assert await cancel_move(second, "mail")
        await bus.send("mail", "Post", new_id(), {})


async def test_events_keep_their_order_and_their_former_numbers_are_known(
    dsn: str, empty_dsn: str
) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        for n in range(3):
            await bus.send("mail", "Post", new_id(), {"n": n})
        before = await rows(empty_dsn, NUMBERED)
        await bus.send("payments", "Charge", new_id(), {})
        await move_domain(known, "mail", "one")
    after = await rows(dsn, NUMBERED)
    assert [each[1] for each in after] == [each[1] for each in before]
    former = "select from_shard, audit_id from commandbus.former_audit_ids(%s)"
    assert [await rows(dsn, former, number) for number, _ in after] == [
        [("two", number)] for number, _ in before
    ]
    removed = (
        "select sum(row_count) from commandbus.command_bus_audit_removal where actor like 'move %%'"
    )
    assert await rows(empty_dsn, removed) == [(len(before),)]


NUMBERED = (
    "select audit_id, command_id from commandbus.command_bus_audit where domain = 'mail'"
    " order by audit_id"
)


async def test_every_table_with_rows_of_domains_moves_or_is_known_to_stay(dsn: str) -> None:
    tables = (
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'commandbus'::regnamespace and c.relkind in ('r', 'p')"
        " and not c.relispartition and a.attname in ('domain', 'batch_id') and not a.attisdropped"
        " group by c.relname"
    )
    known = (
        "select part from commandbus.move_parts('mail') union all"
        " select part from commandbus.parts_that_stay() union all select 'command_bus_audit'"
    )
    missing = {name for (name,) in await rows(dsn, tables)} - {n for (n,) in await rows(dsn, known)}
    assert missing == set(), "say in moving_parts.sql what becomes of them when a domain moves"


@dataclass
class Slow:
    """Rows of a load that comes to its middle, and goes on when it may."""

    reached: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for n in range(300):
            if n == 150:
                self.reached.set()
                assert self.may_go_on.wait(60)
            yield {"command_type": "Post", "data": {"n": n}}


@pytest.mark.parametrize("is_read_twice", [True, False])
async def test_a_load_that_runs_while_its_domain_moves_goes_on_there(
    dsn: str, empty_dsn: str, is_read_twice: bool
) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known) as bus:
        await bus.send("mail", "Post", new_id(), {})
        rest = Slow()
        source: Any = rest if is_read_twice else iter(rest)
        loading = asyncio.create_task(
            bus.loads.load("mail", source, checkpoint_size=20, start=LoadStart.AS_IT_LOADS)
        )
        await asyncio.to_thread(rest.reached.wait, 60)
        await move_domain(known, "mail", "one")
        rest.may_go_on.set()
        if is_read_twice:
            result = await loading
        else:
            with pytest.raises(DomainMovedError, match="cannot be read twice") as caught:
                await loading
            batch = UUID(str(caught.value).rpartition("'mail', '")[2][:36])
            result = await bus.loads.resume("mail", batch, rest)
        assert (result.status, result.tasks_committed) == ("success", 300)
        stored = await bus.get_batch("mail", result.batch_id)
        assert stored is not None
        assert stored.total_count == 300
        ids = "select count(*) from commandbus.command_bus_command where batch_id is not null"
        assert await rows(dsn, ids) == [(300,)]


async def test_rows_with_the_largest_payloads_move_in_small_chunks(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = Gateway._run

    async def measured(self: Gateway, text: LiteralString, params: Any, *args: Any) -> Any:
        if ".put_moved_rows(" in text:
            sizes.append(sum(len(line) for line in params[-1]))
        return await run(self, text, params, *args)

    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known) as bus:
        big = "é" * 125_000
        sent = [BatchCommand("Post", new_id(), {"n": n, "big": big}) for n in range(100)]
        for start in range(0, 100, 20):
            await bus.send_many("mail", sent[start : start + 20])
        monkeypatch.setattr(Gateway, "_run", measured)
        await move_domain(known, "mail", "one")
    assert max(sizes) <= CHUNK_BYTES
    kept = "select count(*), sum(length(message::text)) from pgmq.q_mail__commands"
    ((count, size),) = await rows(dsn, kept)
    assert count == 100
    assert size > 100 * len(big)


async def test_a_ticket_is_decided_where_its_domain_is_and_not_on_a_copy(
    dsn: str, empty_dsn: str
) -> None:
    guarded = BatchType(
        name="MAILS", domain="mail", command_type="Post", max_size=9, requires_approval=True
    )
    ada = Caller("ada", frozenset({Scope.READ, Scope.SUBMIT}), None)
    petra = Caller("petra", frozenset({Scope.READ, Scope.APPROVE}), None)
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        bus.governance.declare(guarded)
        ticket = (await bus.governance.submit(ada, "MAILS", [{"n": 1}])).ticket.ticket_id
        await bus.send("mail", "Post", new_id(), {})
        await rows(empty_dsn, "select 1 from commandbus.receive_commands('mail', 600, 9, 'slow')")
        with pytest.raises(InvalidOperationError, match="still run"):
            await move_domain(known, "mail", "one", wait_seconds=0)
        here = await bus.sharded.shard("one")
        copied = "select count(*) from commandbus.command_bus_batch where domain = 'mail'"
        assert await rows(dsn, copied) == [(1,)]
        # Whoever comes to the copy changes nothing there.
        with pytest.raises((DomainMovingError, InvalidOperationError)):
            await here.governance.decide(petra, ticket, approve=True, reason=None)
        for _ in range(5):
            await bus.governance.decide(petra, ticket, approve=True, reason=None)
        held = "select msg_id from commandbus.command_bus_command where leased_by = 'slow'"
        for (msg_id,) in await rows(empty_dsn, held):
            await rows(empty_dsn, "select * from pgmq.set_vt('mail__commands', %s, 0)", msg_id)
        await rows(
            empty_dsn,
            "update commandbus.command_bus_command set lease_expires_at = now()"
            " where leased_by = 'slow' returning 1",
        )
        await move_domain(known, "mail", "one")
        await bus.sharded.look_at_maps()
        assert (await bus.governance.require(ada, ticket)).decided_by == "petra"
        # A service that was started before knows the type on the new shard.
        await bus.governance.submit(ada, "MAILS", [{"n": 2}])


async def test_schedules_of_others_are_fired_while_a_domain_is_closed(
    bus: CommandBus, dsn: str
) -> None:
    for domain in ("mail", "bills"):
        await bus.schedules.put(domain, "often", "Post", {}, every=60)
    gateway = bus._store.gateway
    await moves.close_leases(gateway, "mail")
    await rows(
        dsn,
        "update commandbus.command_bus_schedule set next_tick_at = now() - interval '1 second',"
        " look_at = now() - interval '1 second', counted_from = now() - interval '1 minute'"
        " returning 1",
    )
    before = dict(await rows(dsn, TICKS))
    await Firing(bus._store).step()
    after = dict(await rows(dsn, TICKS))
    assert after["mail"] == before["mail"]  # as it was: it is fired as soon as it can be
    assert after["bills"] > before["bills"]
    await moves.open_leases(gateway, "mail")
    await Firing(bus._store).step()
    assert dict(await rows(dsn, TICKS))["mail"] > before["mail"]


TICKS = "select domain, next_tick_at from commandbus.command_bus_schedule where last_error is null"
